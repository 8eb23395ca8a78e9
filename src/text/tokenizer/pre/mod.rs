//! Pre-tokenizers: split text into the words in which BPE merges.
//!
//! The families and their patterns are data (`families.json`). The patterns of a family apply one
//! after the other, each within the pieces that the previous one left; matches and the gaps between
//! them both become pieces.

mod parse;
mod program;
#[cfg(test)]
mod tests;

use std::sync::OnceLock;

use serde::Deserialize;

use super::unicode::{NUMBER, categories, is_whitespace};
use program::{Program, Scratch};

/// Name of the only rule that is not a pattern: digits in groups of three, counted from the right.
const DIGIT_TRIPLES: &str = "<digit triples>";

/// One entry of `families.json`: names that share patterns and flags.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Family {
    names: Vec<String>,
    regexes: Vec<String>,
    /// Whether a whole word that is a token bypasses the merges.
    #[serde(default)]
    pub(super) ignore_merges: bool,
    /// Whether a BOS token is added unless the file says otherwise.
    #[serde(default)]
    pub(super) add_bos: bool,
    /// Whether a BOS token is added even if the file says otherwise.
    #[serde(default)]
    pub(super) always_bos: bool,
    /// Whether spaces become U+2581 before the split, and spaces again in the output.
    #[serde(default)]
    pub(super) escape_whitespaces: bool,
    /// Whether the vocabulary has plain UTF-8, not GPT-2's byte alphabet.
    #[serde(default)]
    pub(super) raw_utf8: bool,
    /// Whether a word of line feeds only that is a token bypasses the merges.
    #[serde(default)]
    pub(super) whole_newlines: bool,
    /// Whether detokenizing preserves spaces before punctuation.
    #[serde(default)]
    pub(super) keep_spaces: bool,
}

fn families() -> &'static [Family] {
    static FAMILIES: OnceLock<Vec<Family>> = OnceLock::new();
    FAMILIES.get_or_init(|| {
        serde_json::from_str(include_str!("families.json"))
            .expect("the embedded list of families is valid")
    })
}

/// Returns the family of a `tokenizer.ggml.pre`.
pub(super) fn family(name: &str) -> Option<&'static Family> {
    families()
        .iter()
        .find(|family| family.names.iter().any(|n| n == name))
}

/// Families that are recognised from a Hugging Face tokenizer with the same patterns. Among
/// equivalent ones, this is the name that llama.cpp's converter gives models of our architectures.
const RECOGNISED: [&str; 10] = [
    "qwen2",
    "llama-bpe",
    "dbrx",
    "gpt-2",
    "smollm",
    "tekken",
    "qwen35",
    "deepseek-llm",
    "deepseek-coder",
    "deepseek-v3",
];

/// Normalises a pattern to one spelling, as llama.cpp and Hugging Face differ.
fn spelled(regex: &str) -> String {
    const UPPER: &str = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]";
    const LOWER: &str = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]";
    let regex = regex
        // case-insensitive contractions, which llama.cpp spells out
        .replace(
            "(?i:'s|'t|'re|'ve|'m|'ll|'d)",
            "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])",
        )
        // and classes that llama.cpp splits up
        .replace(UPPER, r"((?=[\p{L}])([^a-z]))")
        .replace(LOWER, r"((?=[\p{L}])([^A-Z]))")
        .replace(r"\p{N}{1}|", r"\p{N}|");
    // white space becomes a piece whether it matches or not
    match regex.strip_suffix(r"|\s+") {
        Some(regex) => regex.to_owned(),
        None => regex,
    }
}

/// Returns the family with these patterns in Hugging Face's spelling, each applied within the
/// pieces of the one before. Among several, the `expected` ones come first.
pub(super) fn recognise(
    regexes: &[String],
    ignore_merges: bool,
    expected: &[&'static str],
) -> Option<&'static str> {
    let spellings: Vec<String> = regexes.iter().map(|r| spelled(r)).collect();
    let cuts_so = |name: &&str| {
        family(name).is_some_and(|f| {
            f.ignore_merges == ignore_merges
                && f.regexes
                    .iter()
                    .map(|r| spelled(r))
                    .eq(spellings.iter().cloned())
        })
    };
    expected.iter().copied().chain(RECOGNISED).find(cuts_so)
}

/// Returns the patterns of a family that has only patterns and merges, and whether whole words
/// bypass the merges.
pub(super) fn patterns(name: &str) -> Option<(&'static [String], bool)> {
    let plain = |f: &&Family| {
        !(f.escape_whitespaces || f.raw_utf8 || f.regexes.iter().any(|r| r == DIGIT_TRIPLES))
    };
    family(name)
        .filter(plain)
        .map(|f| (f.regexes.as_slice(), f.ignore_merges))
}

/// Returns every known `tokenizer.ggml.pre`.
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    families()
        .iter()
        .flat_map(|family| family.names.iter().map(String::as_str))
}

#[derive(Debug)]
enum Rule {
    Pattern(Box<Program>),
    DigitTriples,
}

/// Splits text into words.
#[derive(Debug)]
pub(super) struct Splitter {
    rules: Vec<Rule>,
}

impl Splitter {
    /// Creates the splitter of a family.
    pub(super) fn new(family: &Family) -> Splitter {
        let rules = family.regexes.iter().map(|regex| match regex.as_str() {
            DIGIT_TRIPLES => Rule::DigitTriples,
            // A test compiles every embedded pattern.
            _ => Rule::Pattern(Box::new(
                program(regex).expect("the embedded patterns compile"),
            )),
        });
        Splitter {
            rules: rules.collect(),
        }
    }

    /// Returns the end of each non-empty word, in order.
    pub(super) fn split(&self, text: &[u32]) -> Vec<usize> {
        // The patterns handle ASCII white space only; a vertical tab replaces all other white
        // space.
        let text: Vec<u32> = text
            .iter()
            .map(|cp| {
                if *cp > 0x7F && is_whitespace(*cp) {
                    0x0B
                } else {
                    *cp
                }
            })
            .collect();
        let mut ends = if text.is_empty() {
            Vec::new()
        } else {
            vec![text.len()]
        };
        let mut scratch = Scratch::default();
        for rule in &self.rules {
            let mut cuts = Vec::with_capacity(ends.len());
            let mut from = 0;
            for to in ends {
                match rule {
                    Rule::Pattern(program) => {
                        program.split(&text, from, to, &mut scratch, &mut cuts)
                    }
                    Rule::DigitTriples => digit_triples(&text, from, to, &mut cuts),
                }
                from = to;
            }
            ends = cuts;
        }
        ends
    }
}

fn program(regex: &str) -> Result<Program, String> {
    let ast = parse::parse(regex).map_err(|e| e.to_string())?;
    Program::new(&ast).map_err(|e| format!("pattern '{regex}': {e}"))
}

/// Splits runs of digits after one or two, then after every three. Text before a run stays with its
/// first group: later patterns of these families separate them again.
fn digit_triples(text: &[u32], from: usize, to: usize, cuts: &mut Vec<usize>) {
    let categories = categories();
    let is_number = |at: usize| text.get(at).is_some_and(|cp| categories.of(*cp) == NUMBER);
    let mut at = from;
    while at < to {
        let start = at;
        while at < to && is_number(at) {
            at += 1;
        }
        let digits = at - start;
        if digits > 0 {
            let first = if digits.is_multiple_of(3) {
                3
            } else {
                digits % 3
            };
            cuts.extend((start + first..=at).step_by(3));
        } else {
            at += 1;
        }
    }
    if cuts.last().copied().unwrap_or(0).max(from) < to {
        cuts.push(to);
    }
}
