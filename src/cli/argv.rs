//! llama.cpp's options of one dash and several letters, which clap cannot express: rewritten before
//! it sees them.

use std::ffi::{OsStr, OsString};

/// llama.cpp's spelling, and the option it stands for.
const SPELLINGS: [(&str, &str); 5] = [
    ("-ctk", "--cache-type-k"),
    ("-ctv", "--cache-type-v"),
    ("-ngl", "--gpu-layers"),
    ("-np", "--parallel"),
    ("-sys", "--system"),
];

/// Options whose value is free text: what follows them is never an option.
const FREE_TEXT: [&str; 6] = ["-p", "--prompt", "--system", "--stop", "-sys", "-f"];

/// Replaces the spellings that stand where an option can stand.
pub(super) fn expand(args: impl Iterator<Item = OsString>) -> impl Iterator<Item = OsString> {
    let mut text_follows = false;
    let mut only_values = false;
    args.map(move |arg| {
        if std::mem::take(&mut text_follows) || only_values {
            return arg;
        }
        text_follows = FREE_TEXT.iter().any(|o| arg == OsStr::new(o));
        only_values = arg == OsStr::new("--");
        match SPELLINGS.iter().find(|(short, _)| arg == OsStr::new(short)) {
            Some((_, long)) => OsString::from(long),
            None => arg,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expanded(line: &str) -> String {
        let words: Vec<OsString> = expand(line.split(' ').map(OsString::from)).collect();
        words
            .iter()
            .map(|w| w.to_string_lossy())
            .collect::<Vec<_>>()
            .join(" ")
    }

    #[test]
    fn spellings_are_replaced_only_where_options_stand() {
        assert_eq!(
            expanded("octavo run -ctk f16 -ctv f16"),
            "octavo run --cache-type-k f16 --cache-type-v f16"
        );
        assert_eq!(
            expanded("octavo run -p -ctk -ctk f32"),
            "octavo run -p -ctk --cache-type-k f32"
        );
        assert_eq!(expanded("octavo run -- -ctk"), "octavo run -- -ctk");
        assert_eq!(expanded("octavo run -sys -ctk"), "octavo run --system -ctk");
        assert_eq!(expanded("octavo run -ngl 20"), "octavo run --gpu-layers 20");
    }
}
