//! The parts of a new architecture that follow from its name and from its nearest relative.

use super::nearest::Differences;

/// Returns the name of an architecture's module.
pub(super) fn module(name: &str) -> Result<String, String> {
    let module = name.replace(['-', '.'], "_").to_lowercase();
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    match module.chars().all(is_word) && module.starts_with(|c: char| c.is_ascii_alphabetic()) {
        true => Ok(module),
        false => Err(format!(
            "{name:?}: expected a name of letters, digits, - and _"
        )),
    }
}

/// Returns the source of the module: its relative under another name, and what differs in comments.
pub(super) fn source(name: &str, other: &str, differences: &Differences) -> String {
    let relative = other.replace('-', "_");
    let mut text = format!("//! {name}: as {other}, but for what is listed here.\n//!\n");
    let mut lines = differences.lines();
    if lines.is_empty() {
        lines.push(format!(
            "a file of it loads as {other} without a difference"
        ));
    }
    for line in lines {
        wrapped(&format!("- {line}"), "//! ", &mut text);
    }
    text.push_str(&format!(
        "\nuse super::{{Spec, {relative}}};\n\npub(super) const SPEC: Spec = Spec {{\n    \
         name: \"{name}\",\n    ..{relative}::SPEC\n}};\n"
    ));
    text
}

/// Appends a text in lines of at most 100 columns.
fn wrapped(text: &str, prefix: &str, to: &mut String) {
    let mut line = prefix.to_owned();
    for word in text.split(' ') {
        if line.len() + 1 + word.len() > 100 {
            to.push_str(line.trim_end());
            line = format!("\n{prefix}  ");
        }
        line.push_str(word);
        line.push(' ');
    }
    to.push_str(line.trim_end());
    to.push('\n');
}

/// Adds the module and its entry to the list of all architectures.
pub(super) fn listed(text: &str, module: &str) -> Result<String, String> {
    let text = inserted(text, "mod ", &format!("mod {module};"))?;
    let text = inserted(&text, "    Arch(&", &format!("    Arch(&{module}::SPEC),"))?;
    let (before, rest) = text
        .split_once("static ALL: [Arch; ")
        .ok_or("expected the list of all architectures")?;
    let (count, after) = rest
        .split_once(']')
        .ok_or("expected the number of architectures")?;
    let count: usize = count
        .parse()
        .map_err(|_| "expected the number of architectures")?;
    Ok(format!("{before}static ALL: [Arch; {}]{after}", count + 1))
}

/// Adds a row to the table of architectures.
pub(super) fn row_added(text: &str, row: &str) -> Result<String, String> {
    let (before, table) = text
        .split_once("|---|")
        .ok_or("expected a table of architectures")?;
    let (head, rows) = table
        .split_once('\n')
        .ok_or("expected rows of architectures")?;
    Ok(format!(
        "{before}|---|{head}\n{}",
        inserted(rows, "| ", row)?
    ))
}

/// Adds an architecture to those whose logits are compared with llama.cpp's.
pub(super) fn tested(text: &str, name: &str) -> Result<String, String> {
    let start = text
        .find("const SECOND_MODELS")
        .ok_or("expected SECOND_MODELS")?;
    let end = text[start..]
        .find("];")
        .ok_or("expected the end of SECOND_MODELS")?;
    let (before, after) = text.split_at(start + end);
    Ok(format!("{before}    (\"{name}\", F32_ROUNDING),\n{after}"))
}

/// Inserts a line in order among the first lines that follow each other and begin alike.
fn inserted(text: &str, prefix: &str, line: &str) -> Result<String, String> {
    let lines: Vec<&str> = text.split_inclusive('\n').collect();
    let is_like = |line: &&str| line.starts_with(prefix);
    let first = lines
        .iter()
        .position(&is_like)
        .ok_or_else(|| format!("expected lines that begin with {prefix:?}"))?;
    let n = lines[first..]
        .iter()
        .take_while(|line| is_like(line))
        .count();
    let at = lines[first..first + n]
        .iter()
        .position(|other| other.trim_end() > line);
    let at = first + at.unwrap_or(n);
    let line = format!("{line}\n");
    Ok([&lines[..at], &[line.as_str()], &lines[at..]]
        .concat()
        .concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_stay_in_order() {
        let text = "//! All.\n\nmod a;\nmod c;\n\nuse b;\n\nstatic ALL: [Arch; 2] = [\n    \
                    Arch(&a::SPEC),\n    Arch(&c::SPEC),\n];\n";
        let expected = "//! All.\n\nmod a;\nmod b;\nmod c;\n\nuse b;\n\nstatic ALL: [Arch; 3] = \
                        [\n    Arch(&a::SPEC),\n    Arch(&b::SPEC),\n    Arch(&c::SPEC),\n];\n";
        assert_eq!(listed(text, "b").expect("a list"), expected);
        assert!(listed("mod a;\n", "b").is_err());
        let table = "# Page\n\n| a | b |\n|---|---|\n| a | 1 |\n| c | 3 |\n\nMore.\n";
        let expected = "# Page\n\n| a | b |\n|---|---|\n| a | 1 |\n| b | 2 |\n| c | 3 |\n\nMore.\n";
        assert_eq!(row_added(table, "| b | 2 |").expect("a table"), expected);
        let models = "const SECOND_MODELS: &[()] = &[\n    (\"a\", X),\n];\nfn f() {}\n";
        let expected = "const SECOND_MODELS: &[()] = &[\n    (\"a\", X),\n    (\"b\", \
                        F32_ROUNDING),\n];\nfn f() {}\n";
        assert_eq!(tested(models, "b").expect("a list"), expected);
    }

    #[test]
    fn a_module_says_what_differs() {
        let mut differences = Differences::default();
        let names = (0..9).map(|n| format!("blk.N.a_long_name_of_a_tensor_{n}.weight"));
        differences.unread.extend(names);
        let text = source("new-2", "phi3", &differences);
        assert!(text.lines().all(|line| line.len() <= 100), "{text}");
        assert!(
            text.contains("tensors that it does not read: blk.N.a_long"),
            "{text}"
        );
        let end = "pub(super) const SPEC: Spec = Spec {\n    name: \"new-2\",\n    \
                   ..phi3::SPEC\n};\n";
        assert!(text.ends_with(end), "{text}");
        assert_eq!(module("New-2.5").as_deref(), Ok("new_2_5"));
        assert!(module("../x").is_err() && module("2x").is_err());
    }
}
