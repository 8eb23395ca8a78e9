//! DRY: makes a token the less likely, the longer the repetition that it would continue (by p-e-w,
//! 2024). The lengths, the texts that end a repetition and the numbers are llama.cpp's.

use std::collections::BTreeMap;

use super::SamplerConfig;
use super::candidates::Candidates;

/// Most bytes of a string that ends a repetition; the rest is not looked at.
const MAX_BREAKER_BYTES: usize = 40;

/// Most tokens that are compared behind the first token of such a string.
const MAX_TAIL: usize = 20;

/// Logarithm of the largest `f32`, so that penalties stay finite.
const LN_MAX: f64 = 88.722_839_1;

/// Token sequences that end a repetition: the first token, and what follows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DryBreakers(BTreeMap<u32, Vec<Vec<u32>>>);

impl DryBreakers {
    /// Finds the token sequences of some strings in a vocabulary of `n_vocab` tokens: each token
    /// that holds a string, and each that ends with the beginning of one, followed by the tokens of
    /// its rest, if that has any.
    pub fn find<'a>(
        strings: &[String],
        n_vocab: u32,
        piece: impl Fn(u32) -> &'a [u8],
        encode: impl Fn(&[u8]) -> Option<Vec<u32>>,
    ) -> DryBreakers {
        let strings = strings.iter().map(|text| text.as_bytes());
        let strings: Vec<&[u8]> = strings
            .map(|text| &text[..text.len().min(MAX_BREAKER_BYTES)])
            .filter(|text| !text.is_empty())
            .collect();
        let mut all = DryBreakers::default();
        // most tokens have the first byte of no string, and are passed over
        let mut begins = [false; 256];
        strings
            .iter()
            .for_each(|text| begins[usize::from(text[0])] = true);
        // rests of strings, by the string and the number of bytes that the token has of it
        let mut rests: BTreeMap<(usize, usize), Option<Vec<u32>>> = BTreeMap::new();
        for id in 0..n_vocab {
            let piece = piece(id);
            if !piece.iter().any(|byte| begins[usize::from(*byte)]) {
                continue;
            }
            for (number, text) in strings.iter().enumerate() {
                if holds(piece, text) {
                    all.add(id, Vec::new());
                    continue;
                }
                for n in (1..text.len()).filter(|n| piece.ends_with(&text[..*n])) {
                    let rest = rests.entry((number, n)).or_insert_with(|| {
                        let mut rest = encode(&text[n..])?;
                        rest.truncate(MAX_TAIL);
                        Some(rest)
                    });
                    if let Some(rest) = rest {
                        all.add(id, rest.clone());
                    }
                }
            }
        }
        all
    }

    /// Adds a sequence.
    pub fn add(&mut self, first: u32, rest: Vec<u32>) {
        let rests = self.0.entry(first).or_default();
        if !rests.contains(&rest) {
            rests.push(rest);
        }
    }

    /// Returns whether a token alone ends a repetition.
    fn is_single(&self, id: u32) -> bool {
        let rests = self.0.get(&id);
        rests.is_some_and(|rests| rests.iter().any(Vec::is_empty))
    }

    /// Returns how many of the newest tokens can be part of one repetition; `tokens` has the newest
    /// first.
    fn limit(&self, tokens: &[u32]) -> usize {
        let found = tokens.iter().enumerate().find_map(|(at, id)| {
            let follows = |rest: &&Vec<u32>| {
                rest.len() <= at && rest.iter().eq(tokens[..at].iter().rev().take(rest.len()))
            };
            let rests = self.0.get(id)?.iter().filter(follows);
            rests.map(Vec::len).max().map(|longest| at - longest)
        });
        found.unwrap_or(tokens.len())
    }
}

fn holds(piece: &[u8], text: &[u8]) -> bool {
    match text {
        [byte] => piece.contains(byte),
        _ => piece.windows(text.len()).any(|part| part == text),
    }
}

/// Makes tokens less likely that would continue a repetition; `tokens` has the newest first.
pub(super) fn penalise(
    candidates: &mut Candidates,
    tokens: &[u32],
    config: &SamplerConfig,
    breakers: &DryBreakers,
) {
    let allowed = config.dry_allowed_length;
    let limit = breakers.limit(tokens);
    if tokens.len() <= allowed || limit < allowed {
        return;
    }
    let mut longest: BTreeMap<u32, usize> = BTreeMap::new();
    // what begins at a place repeats the newest tokens, and the token before it followed then
    for (next, length) in tokens.iter().zip(&common_prefixes(tokens)[1..]) {
        let length = (*length).min(limit);
        if length >= allowed && !breakers.is_single(*next) {
            let most = longest.entry(*next).or_default();
            *most = length.max(*most);
        }
    }
    let base = f64::from(config.dry_base);
    let most = match base > 1.000_001 {
        true => (LN_MAX / base.ln()) as usize,
        false => usize::MAX,
    };
    let penalty = |length: &usize| {
        let exponent = (length - allowed).min(most) as f64;
        f64::from(config.dry_multiplier) * base.powf(exponent)
    };
    // as in llama.cpp, whose f32 overflows
    let bans = |length: &usize| penalty(length) > f64::from(f32::MAX);
    candidates.adjust(&longest, |logit, length| match bans(length) {
        true => f64::NEG_INFINITY,
        false => logit - penalty(length),
    });
    if longest.values().any(bans) {
        candidates.mask(f64::MIN, |c| c.logit > f64::NEG_INFINITY);
    }
}

/// Returns, for each place, how many tokens from there on equal those from the start (Gusfield's Z
/// algorithm, in linear time).
fn common_prefixes(tokens: &[u32]) -> Vec<usize> {
    let n = tokens.len();
    let mut lengths = vec![n; n.min(1)];
    // the match that reaches furthest
    let (mut start, mut end) = (0, 0);
    for at in 1..n {
        let known = match at < end {
            true => lengths[at - start].min(end - at),
            false => 0,
        };
        let rest = tokens[known..].iter().zip(&tokens[at + known..]);
        let length = known + rest.take_while(|(a, b)| a == b).count();
        lengths.push(length);
        if at + length > end {
            (start, end) = (at, at + length);
        }
    }
    lengths
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn common_prefixes_are_what_comparing_gives() {
        let mut state = 7u32;
        for n in 0..40 {
            let tokens: Vec<u32> = (0..n)
                .map(|_| {
                    state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    state >> 30
                })
                .collect();
            let compared: Vec<usize> = (0..tokens.len())
                .map(|at| {
                    let pairs = tokens.iter().zip(&tokens[at..]);
                    pairs.take_while(|(a, b)| a == b).count()
                })
                .collect();
            assert_eq!(common_prefixes(&tokens), compared, "{tokens:?}");
        }
    }
}
