//! Decodes token ids to whole texts, like llama.cpp's `llama_detokenize`.

use super::{SpacePrefix, Tokenizer};

/// Detokenization options.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DetokenizeOptions {
    /// Omit an automatically added leading BOS and trailing EOS.
    pub remove_special: bool,
    /// Write control and unknown tokens as their text.
    pub unparse_special: bool,
}

impl Tokenizer {
    /// Returns the text of `ids` as a whole: the space added by encoding is removed, as are spaces
    /// before punctuation in families that ask for it.
    pub fn detokenize(&self, ids: &[u32], options: DetokenizeOptions) -> Vec<u8> {
        let mut ids = ids;
        let mut drop_space = self.space_prefix != SpacePrefix::Never;
        if options.remove_special
            && self.add_bos
            && let Some(rest) = ids
                .split_first()
                .filter(|(first, _)| Some(**first) == self.bos())
        {
            drop_space = false;
            ids = rest.1;
        }
        if options.remove_special
            && self.add_eos
            && let Some(rest) = ids
                .split_last()
                .filter(|(last, _)| Some(**last) == self.eos())
        {
            ids = rest.1;
        }
        let mut text = Vec::new();
        for id in ids {
            let piece = self.decode(std::slice::from_ref(id), options.unparse_special);
            let piece = piece
                .strip_prefix(b" ")
                .filter(|_| drop_space)
                .unwrap_or(&piece);
            text.extend_from_slice(piece);
            drop_space = false;
        }
        if self.clean_spaces {
            clean(&text)
        } else {
            text
        }
    }
}

/// Cleans up in three passes, each over the output of the previous one.
fn clean(text: &[u8]) -> Vec<u8> {
    contractions(&lone_apostrophes(&punctuation(text)))
}

/// Removes the space in `" ?"`, `" !"`, `" ."` and `" ,"`.
fn punctuation(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    for (i, byte) in text.iter().enumerate() {
        if i > 0 && text[i - 1] == b' ' && matches!(byte, b'?' | b'!' | b'.' | b',') {
            out.pop();
        }
        out.push(*byte);
    }
    out
}

/// Removes both spaces in `" ' "`.
fn lone_apostrophes(text: &[u8]) -> Vec<u8> {
    let mut out: Vec<u8> = Vec::with_capacity(text.len());
    let mut i = 0;
    // A removed space no longer counts as a neighbour.
    let mut previous = None;
    while let Some(byte) = text.get(i) {
        if *byte == b'\'' && previous == Some(b' ') && text.get(i + 1) == Some(&b' ') {
            out.pop();
            i += 1;
            previous = None;
        } else {
            previous = Some(*byte);
        }
        out.push(*byte);
        i += 1;
    }
    out
}

/// Removes the space in `" 's"`, `" 'm"`, `" 're"` and `" 've"`.
fn contractions(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    for (i, byte) in text.iter().enumerate() {
        let after = text.get(i + 1..).unwrap_or_default();
        let short = matches!(after, [b's' | b'm', ..] | [b'r' | b'v', b'e', ..]);
        if i > 0 && text[i - 1] == b' ' && *byte == b'\'' && short {
            out.pop();
        }
        out.push(*byte);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spaces_before_punctuation_go() {
        let cleaned =
            |text: &str| String::from_utf8(clean(text.as_bytes())).expect("ASCII stays ASCII");
        assert_eq!(cleaned("a . b , c ! d ?"), "a. b, c! d?");
        assert_eq!(
            cleaned("it 's I 'm they 're we 've"),
            "it's I'm they're we've"
        );
        assert_eq!(cleaned("don 't he 'd we 'll"), "don 't he 'd we 'll");
        assert_eq!(cleaned("rock ' n ' roll"), "rock'n'roll");
        assert_eq!(cleaned("a  . b"), "a . b");
        assert_eq!(cleaned(""), "");
        assert_eq!(cleaned("."), ".");
    }
}
