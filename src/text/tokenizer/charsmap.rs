//! SentencePiece's precompiled character map: replacements of the longest matching beginnings of a
//! text, such as those of Unicode's NFKC.
//!
//! An XOR-compressed double array (Kanda 2018) finds the match, of 32-bit little-endian words: bits
//! 10 to 30 are the base, shifted by 8 where bit 9 is set, bits 0 to 7 the byte that leads to the
//! node, and bit 8 says that a match ends there. The words of values have bit 31 set. Replacements
//! follow the array, each ended by a zero byte.

use super::error::Error;

/// A character map.
pub(super) struct Charsmap {
    array: Vec<u32>,
    replacements: Vec<u8>,
    /// Name of the file, for messages.
    file: String,
}

impl Charsmap {
    /// Reads a map: the number of bytes of the array, the array, and the replacements.
    pub(super) fn read(file: &str, bytes: &[u8]) -> Result<Charsmap, Error> {
        let damaged = || Error::Charsmap {
            file: file.to_owned(),
        };
        let (size, rest) = bytes.split_first_chunk().ok_or_else(damaged)?;
        let size = usize::try_from(u32::from_le_bytes(*size)).map_err(|_| damaged())?;
        let (array, replacements) = rest
            .split_at_checked(size)
            .filter(|(_, replacements)| !replacements.is_empty())
            .ok_or_else(damaged)?;
        let words = array.as_chunks().0.iter();
        Ok(Charsmap {
            array: words.map(|word| u32::from_le_bytes(*word)).collect(),
            replacements: replacements.to_vec(),
            file: file.to_owned(),
        })
    }

    /// Returns the length of the longest beginning of `text` that is replaced, and its replacement.
    ///
    /// # Errors
    /// If the map points outside of itself.
    pub(super) fn longest(&self, text: &[u8]) -> Result<Option<(usize, &[u8])>, Error> {
        if self.array.is_empty() {
            return Ok(None);
        }
        let mut found = None;
        let mut at = base(self.word(0)?);
        for (i, byte) in text.iter().enumerate().take_while(|(_, byte)| **byte != 0) {
            at ^= u32::from(*byte);
            let word = self.word(at)?;
            if word & 0x8000_00FF != u32::from(*byte) {
                break;
            }
            at ^= base(word);
            if word & 0x100 != 0 {
                found = Some((i + 1, self.word(at)? & 0x7FFF_FFFF));
            }
        }
        let replaced = found.map(|(len, from)| Ok((len, self.replacement(from)?)));
        replaced.transpose()
    }

    fn word(&self, at: u32) -> Result<u32, Error> {
        let word = self.array.get(at as usize).copied();
        word.ok_or_else(|| self.damaged())
    }

    fn replacement(&self, from: u32) -> Result<&[u8], Error> {
        let rest = self.replacements.get(from as usize..);
        let rest = rest.ok_or_else(|| self.damaged())?;
        let end = rest.iter().position(|byte| *byte == 0);
        let end = end.ok_or_else(|| self.damaged())?;
        Ok(rest.get(..end).unwrap_or_default())
    }

    fn damaged(&self) -> Error {
        Error::Charsmap {
            file: self.file.clone(),
        }
    }
}

fn base(word: u32) -> u32 {
    (word >> 10) << ((word & 0x200) >> 6)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a map that replaces `a` by `xyz`: the node after `a` is at base ^ 97.
    fn map() -> Vec<u8> {
        let mut array = vec![0_u32; 256];
        array[0] = 0; // base 0
        array[97] = 97 | 0x100 | 1 << 10; // a match ends; its value is at 97 ^ 1
        array[96] = 0x8000_0000; // the first replacement
        let mut bytes = (array.len() as u32 * 4).to_le_bytes().to_vec();
        bytes.extend(array.iter().flat_map(|word| word.to_le_bytes()));
        bytes.extend(b"xyz\0");
        bytes
    }

    #[test]
    fn the_longest_match_is_replaced() {
        let map = Charsmap::read("m", &map()).expect("a map");
        let longest = |text: &[u8]| map.longest(text).expect("sound");
        assert_eq!(longest(b"ab"), Some((1, &b"xyz"[..])));
        assert_eq!(longest(b"b"), None);
        assert_eq!(longest(b"\0a"), None);
        assert_eq!(longest(b""), None);
    }

    #[test]
    fn damage_is_an_error() {
        let whole = map();
        for end in 0..whole.len() {
            let Ok(map) = Charsmap::read("m", &whole[..end]) else {
                assert!(end <= 1028, "{end}");
                continue;
            };
            let error = map.longest(b"a").expect_err("an unterminated text");
            assert!(
                error.to_string().contains("precompiled_charsmap"),
                "{error}"
            );
        }
        for (word, value) in [(97, 97 | 0x100 | 9000 << 10), (96, 0x8000_0009)] {
            let mut bytes = whole.clone();
            bytes[4 + 4 * word..][..4].copy_from_slice(&u32::to_le_bytes(value));
            let map = Charsmap::read("m", &bytes).expect("a header");
            assert!(map.longest(b"a").is_err());
        }
    }
}
