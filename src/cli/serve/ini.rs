//! Presets of llama.cpp: `.ini` files, in the form that its parser takes.

/// A section: a model, or `*` for all of them.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Section {
    pub(super) name: String,
    /// Keys and values, with their lines, from 1.
    pub(super) entries: Vec<(usize, String, String)>,
}

/// Parses a file.
///
/// # Errors
/// The line, and what is wrong with it.
pub(super) fn parse(text: &str) -> Result<Vec<Section>, String> {
    let mut sections: Vec<Section> = Vec::new();
    for (n, line) in (1..).zip(text.lines()) {
        // as there, a comment may follow a value without a space
        let line = line.split([';', '#']).next().unwrap_or_default().trim();
        if line.is_empty() {
            continue;
        }
        if let Some(rest) = line.strip_prefix('[') {
            let name = rest.strip_suffix(']').map(str::trim);
            let name = name.filter(|name| !name.is_empty() && !name.contains(']'));
            let name = name.ok_or_else(|| format!("line {n}: expected [NAME], found {line}"))?;
            let name = canonical(name);
            if sections.iter().any(|section| section.name == name) {
                return Err(format!("line {n}: expected [{name}] once, found it twice"));
            }
            let entries = Vec::new();
            sections.push(Section { name, entries });
            continue;
        }
        let Some((key, value)) = line.split_once('=') else {
            return Err(format!("line {n}: expected KEY = VALUE, found {line}"));
        };
        let (key, value) = (key.trim(), value.trim());
        match sections.last_mut() {
            // reserved for later
            _ if key == "version" => {}
            Some(section) => {
                // the last one counts
                section.entries.retain(|(_, own, _)| own != key);
                section.entries.push((n, key.to_owned(), value.to_owned()));
            }
            None => return Err(format!("line {n}: expected [NAME] before {key}")),
        }
    }
    Ok(sections)
}

/// Returns a name with its quantization in capitals, if it has one: `USER/REPO:Q4_K_M`.
fn canonical(name: &str) -> String {
    match name.rsplit_once(':') {
        Some((model, quantization)) => format!("{model}:{}", quantization.to_uppercase()),
        None => name.to_owned(),
    }
}

/// Returns the name on the command line of a key, which may be the name of llama.cpp's variable.
pub(super) fn option_of(key: &str) -> String {
    match key.strip_prefix("LLAMA_ARG_") {
        Some(name) => name.to_lowercase().replace('_', "-"),
        None => key.to_owned(),
    }
}

/// Returns whether a value switches something off, as llama.cpp has it.
pub(super) fn is_off(value: &str) -> bool {
    matches!(value, "off" | "disabled" | "0" | "false")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn llama_cpps_own_form_is_read() {
        let text = "version = 1\n; a comment\n\n[*]\nc = 8192 ; for all\r\n  n-gpu-layers=8#x\n\
                    [ ggml-org/X-GGUF:q8_0 ]\nkwargs = {\"a\": \"b=c\"}\nempty =\nc = 1\nc = 2\n";
        let entry = |n: usize, key: &str, value: &str| (n, key.to_owned(), value.to_owned());
        let expected = [
            Section {
                name: "*".to_owned(),
                entries: vec![entry(5, "c", "8192"), entry(6, "n-gpu-layers", "8")],
            },
            Section {
                name: "ggml-org/X-GGUF:Q8_0".to_owned(),
                entries: vec![
                    entry(8, "kwargs", "{\"a\": \"b=c\"}"),
                    entry(9, "empty", ""),
                    entry(11, "c", "2"),
                ],
            },
        ];
        assert_eq!(parse(text).expect("a preset"), expected);
        assert_eq!(option_of("LLAMA_ARG_N_GPU_LAYERS"), "n-gpu-layers");
        for (text, says) in [
            ("c = 1", "line 1: expected [NAME] before c"),
            ("[a", "line 1: expected [NAME], found [a"),
            ("[]", "line 1: expected [NAME], found []"),
            ("[a]\nb", "line 2: expected KEY = VALUE, found b"),
            ("[a]\n[b]\n[a]", "line 3: expected [a] once, found it twice"),
        ] {
            assert_eq!(parse(text), Err(says.to_owned()));
        }
    }
}
