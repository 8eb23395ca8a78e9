//! Unicode for the tokenizers: tolerant UTF-8, general categories of Unicode 15.1 (the version of
//! llama.cpp's tables: a newer one would split text differently), and GPT-2's byte alphabet.

use std::sync::OnceLock;

/// Code point for an undecodable byte.
const REPLACEMENT: u32 = 0xFFFD;

/// A set of major general categories, one bit each.
pub(super) type CategorySet = u8;

/// Category `\p{L}`.
pub(super) const LETTER: CategorySet = 1;
/// Category `\p{M}`.
pub(super) const MARK: CategorySet = 1 << 1;
/// Category `\p{N}`.
pub(super) const NUMBER: CategorySet = 1 << 2;
/// Category `\p{P}`.
pub(super) const PUNCTUATION: CategorySet = 1 << 3;
/// Category `\p{S}`.
pub(super) const SYMBOL: CategorySet = 1 << 4;

/// Decodes UTF-8; every byte that does not start a valid sequence becomes U+FFFD. Overlong forms
/// and surrogates are accepted, as in llama.cpp; values above U+10FFFF (where llama.cpp fails) are
/// invalid here.
pub(super) fn decode(text: &[u8], out: &mut Vec<u32>) {
    out.clear();
    out.reserve(text.len());
    let mut rest = text;
    while let [first, tail @ ..] = rest {
        let (cp, used) = if *first < 0x80 {
            (u32::from(*first), 1)
        } else {
            decode_multibyte(*first, tail)
        };
        out.push(cp);
        rest = rest.get(used..).unwrap_or_default();
    }
}

fn decode_multibyte(first: u8, tail: &[u8]) -> (u32, usize) {
    let (extra, lead_bits) = match first {
        0xC0..=0xDF => (1, first & 0x1F),
        0xE0..=0xEF => (2, first & 0x0F),
        0xF0..=0xF7 => (3, first & 0x07),
        _ => return (REPLACEMENT, 1),
    };
    let mut cp = u32::from(lead_bits);
    for i in 0..extra {
        match tail.get(i) {
            Some(b) if b & 0xC0 == 0x80 => cp = (cp << 6) | u32::from(b & 0x3F),
            _ => return (REPLACEMENT, 1),
        }
    }
    if cp > 0x10_FFFF {
        (REPLACEMENT, 1)
    } else {
        (cp, extra + 1)
    }
}

/// Appends the shortest UTF-8 form of `cp`, surrogates included.
#[expect(
    clippy::cast_possible_truncation,
    reason = "each cast keeps the bits its branch allows"
)]
pub(super) fn push_utf8(cp: u32, out: &mut Vec<u8>) {
    let tail = |shift: u32| 0x80 | ((cp >> shift) & 0x3F) as u8;
    match cp {
        0..0x80 => out.push(cp as u8),
        0x80..0x800 => out.extend([0xC0 | (cp >> 6) as u8, tail(0)]),
        0x800..0x1_0000 => out.extend([0xE0 | (cp >> 12) as u8, tail(6), tail(0)]),
        _ => out.extend([0xF0 | ((cp >> 18) & 7) as u8, tail(12), tail(6), tail(0)]),
    }
}

/// Returns the length that a UTF-8 sequence's first byte announces; continuation bytes count as
/// one.
pub(super) fn announced_len(first: u8) -> usize {
    match first >> 4 {
        0..=11 => 1,
        12 | 13 => 2,
        14 => 3,
        _ => 4,
    }
}

/// Bit of controls, formats, surrogates and private use, which no [`CategorySet`] includes.
const CONTROL: CategorySet = 1 << 5;

/// Returns whether a code point is a control or format character, a surrogate or for private use.
pub(super) fn is_control(cp: u32) -> bool {
    categories().run_of(cp) & CONTROL != 0
}

/// Returns whether a code point is white space: `\s`.
pub(super) fn is_whitespace(cp: u32) -> bool {
    matches!(
        cp,
        9..=13 | 0x20 | 0x85 | 0xA0 | 0x1680 | 0x2000..=0x200A
            | 0x2028 | 0x2029 | 0x202F | 0x205F | 0x3000
    )
}

/// Runs of one category, with an index by the upper bits so that a look-up examines only a few
/// runs.
pub(super) struct Categories {
    starts: Vec<u32>,
    sets: Vec<CategorySet>,
    /// For each block of 256 code points, the run of its first code point.
    blocks: Vec<u16>,
}

impl Categories {
    /// Returns the category of `cp` as a set of at most one bit; separators, controls and
    /// unassigned code points have none.
    pub(super) fn of(&self, cp: u32) -> CategorySet {
        self.run_of(cp) & !CONTROL
    }

    fn run_of(&self, cp: u32) -> CategorySet {
        let block = (cp >> 8) as usize;
        let (Some(&from), Some(&to)) = (self.blocks.get(block), self.blocks.get(block + 1)) else {
            return 0;
        };
        let (from, to) = (usize::from(from), usize::from(to) + 1);
        let candidates = self.starts.get(from..to).unwrap_or_default();
        let run = from + candidates.partition_point(|start| *start <= cp);
        run.checked_sub(1)
            .and_then(|run| self.sets.get(run))
            .copied()
            .unwrap_or(0)
    }

    fn parse(table: &str) -> Categories {
        let runs = table
            .lines()
            .filter(|line| !line.starts_with('#'))
            .flat_map(str::split_ascii_whitespace);
        let (mut starts, mut sets) = (Vec::new(), Vec::new());
        for run in runs {
            let (category, start) = run.split_at(1);
            starts.push(
                u32::from_str_radix(start, 16).expect("the embedded table has hexadecimal starts"),
            );
            sets.push(match category {
                "L" => LETTER,
                "M" => MARK,
                "N" => NUMBER,
                "P" => PUNCTUATION,
                "S" => SYMBOL,
                "C" => CONTROL,
                _ => 0,
            });
        }
        let run_of = |cp: u32| {
            starts
                .partition_point(|start| *start <= cp)
                .saturating_sub(1)
        };
        let blocks = (0..=0x1100)
            .map(|block| u16::try_from(run_of(block << 8)).expect("fewer than 65536 runs"))
            .collect();
        Categories {
            starts,
            sets,
            blocks,
        }
    }
}

/// Returns the embedded table of Unicode 15.1, parsed once.
pub(super) fn categories() -> &'static Categories {
    static TABLE: OnceLock<Categories> = OnceLock::new();
    TABLE.get_or_init(|| Categories::parse(include_str!("unicode_15_1.txt")))
}

/// GPT-2's byte alphabet: the printable bytes of Latin-1 map to themselves, the other 68 to U+0100
/// onwards, in order.
pub(super) struct ByteAlphabet {
    to_char: [u32; 256],
    /// Byte for each code point below 0x144.
    to_byte: [Option<u8>; 0x144],
}

impl ByteAlphabet {
    fn new() -> ByteAlphabet {
        let mut table = ByteAlphabet {
            to_char: [0; 256],
            to_byte: [None; 0x144],
        };
        let mut next = 0x100;
        for byte in 0..=u8::MAX {
            let cp = if matches!(byte, 0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF) {
                u32::from(byte)
            } else {
                next += 1;
                next - 1
            };
            table.to_char[usize::from(byte)] = cp;
            table.to_byte[cp as usize] = Some(byte);
        }
        table
    }

    /// Appends the character for `byte`.
    pub(super) fn push(&self, byte: u8, out: &mut Vec<u8>) {
        push_utf8(self.to_char[usize::from(byte)], out);
    }

    /// Returns the byte for the character `cp`.
    pub(super) fn byte(&self, cp: u32) -> Option<u8> {
        self.to_byte.get(cp as usize).copied().flatten()
    }
}

/// Returns the shared byte alphabet.
pub(super) fn byte_alphabet() -> &'static ByteAlphabet {
    static TABLE: OnceLock<ByteAlphabet> = OnceLock::new();
    TABLE.get_or_init(ByteAlphabet::new)
}

#[cfg(test)]
mod tests {
    use super::*;
    use regex::Regex;

    #[test]
    fn categories_are_unicode_15_1() {
        // An independent check: the regex crate's tables, restricted to characters that existed in
        // 15.1.
        let classes = [
            (LETTER, 'L'),
            (MARK, 'M'),
            (NUMBER, 'N'),
            (PUNCTUATION, 'P'),
            (SYMBOL, 'S'),
        ];
        let classes = classes.map(|(set, name)| {
            (
                set,
                Regex::new(&format!(r"^[\p{{{name}}}&&\p{{age=15.1}}]$")).expect("a valid class"),
            )
        });
        let table = categories();
        let mut buf = [0; 4];
        for c in '\0'..=char::MAX {
            let text: &str = c.encode_utf8(&mut buf);
            let expected = classes
                .iter()
                .filter(|(_, class)| class.is_match(text))
                .fold(0, |all, (set, _)| all | set);
            assert_eq!(table.of(u32::from(c)), expected, "U+{:04X}", u32::from(c));
        }
        assert_eq!(table.of(0xD800), 0);
        assert_eq!(table.of(0x11_0000), 0);
        assert_eq!(table.of(u32::MAX), 0);
    }

    #[test]
    fn controls_are_what_no_text_has() {
        let control = Regex::new(r"^[\p{Cc}\p{Cf}\p{Co}&&\p{age=15.1}]$").expect("a class");
        let mut buf = [0; 4];
        for c in '\0'..=char::MAX {
            let expected = control.is_match(c.encode_utf8(&mut buf));
            assert_eq!(is_control(u32::from(c)), expected, "U+{:04X}", u32::from(c));
        }
        assert!(is_control(0xD800) && !is_control(0x11_0000));
    }

    #[test]
    fn whitespace_is_unicode_white_space() {
        for c in '\0'..=char::MAX {
            assert_eq!(
                is_whitespace(u32::from(c)),
                c.is_whitespace(),
                "U+{:04X}",
                u32::from(c)
            );
        }
    }

    fn decoded(text: &[u8]) -> Vec<u32> {
        let mut out = Vec::new();
        decode(text, &mut out);
        out
    }

    #[test]
    fn every_scalar_value_survives() {
        let text: String = ('\0'..=char::MAX).collect();
        let cps = decoded(text.as_bytes());
        assert!(cps.iter().copied().eq(('\0'..=char::MAX).map(u32::from)));
        let mut back = Vec::new();
        for cp in cps {
            push_utf8(cp, &mut back);
        }
        assert_eq!(back, text.as_bytes());
    }

    #[test]
    fn broken_sequences() {
        assert_eq!(decoded(b"a\xFFb"), [0x61, 0xFFFD, 0x62]);
        assert_eq!(decoded(b"\x80"), [0xFFFD]);
        assert_eq!(decoded(b"\xC3"), [0xFFFD]);
        assert_eq!(decoded(b"\xE2\x82"), [0xFFFD, 0xFFFD]);
        assert_eq!(decoded(b"\xE2\x28\xA1"), [0xFFFD, 0x28, 0xFFFD]);
        assert_eq!(decoded(b"\xF0\x9F\x98"), [0xFFFD; 3]);
        assert_eq!(decoded(b"\xC1\x81"), [0x41], "an overlong form is read");
        assert_eq!(decoded(b"\xED\xA0\x80"), [0xD800], "a surrogate is read");
        assert_eq!(decoded(b"\xF4\x90\x80\x80"), [0xFFFD; 4], "beyond U+10FFFF");
    }

    #[test]
    fn byte_alphabet_is_a_bijection() {
        let table = byte_alphabet();
        let mut seen = std::collections::HashSet::new();
        for byte in 0..=u8::MAX {
            let mut text = Vec::new();
            table.push(byte, &mut text);
            let cps = decoded(&text);
            assert_eq!(cps.len(), 1);
            assert!(seen.insert(cps[0]));
            assert_eq!(table.byte(cps[0]), Some(byte));
        }
        assert_eq!(table.byte(u32::from(' ')), None);
        assert_eq!(table.byte(0x120), Some(b' '));
        assert_eq!(table.byte(0x10A), Some(b'\n'));
    }
}
