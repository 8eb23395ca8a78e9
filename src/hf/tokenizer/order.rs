//! Merges and scores: two ways to say which neighbours are joined first.
//!
//! SentencePiece joins the pair whose concatenation has the highest score, Hugging Face's BPE the
//! pair whose merge has the lowest rank. A token is always made of the same two parts
//! ([`last_join`]), so either order only has to place that one join. The two give the same tokens
//! for every text if they make each token of the same parts, and order those joins alike.

use std::cmp::Reverse;
use std::collections::HashMap;

use octavo_text::tokenizer::last_join;

/// Maximum length of a token in bytes: checking all its parts takes quadratic time.
pub(super) const LONGEST: usize = 512;

/// A token, as far as its joins are concerned.
#[derive(Clone, Copy, Debug)]
pub(super) struct Token<'a> {
    pub(super) text: &'a str,
    /// It is split off before anything is joined, so it is never made by joins.
    pub(super) cut: bool,
}

/// Ranks of merges.
pub(super) type Ranks<'a> = HashMap<(&'a str, &'a str), u32>;

/// Reason that no scores are equivalent to the merges.
#[derive(Debug, PartialEq)]
pub(super) struct Contradiction {
    /// Token that is made in two ways,
    pub(super) token: String,
    /// its two parts by merges,
    pub(super) merged: Option<(String, String)>,
    /// and by scores.
    pub(super) scored: Option<(String, String)>,
}

impl std::fmt::Display for Contradiction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let parts = |of: &Option<(String, String)>| {
            of.as_ref()
                .map_or("never".into(), |(a, b)| format!("{a:?} {b:?}"))
        };
        write!(
            f,
            "token {:?}: {} by merges, {} by scores",
            self.token,
            parts(&self.merged),
            parts(&self.scored)
        )
    }
}

fn two(text: &str, left: usize) -> (&str, &str) {
    text.split_at_checked(left).unwrap_or((text, ""))
}

/// Returns the two parts of which merges make each token.
fn made<'a>(tokens: &[Token<'a>], ranks: &Ranks<'_>) -> Vec<Option<(&'a str, &'a str)>> {
    let key = |part: &[u8], left| {
        ranks
            .get(&two(std::str::from_utf8(part).ok()?, left))
            .copied()
    };
    let parts = |text: &'a str| last_join(text.as_bytes(), key).map(|left| two(text, left));
    tokens
        .iter()
        .map(|t| if t.cut { None } else { parts(t.text) })
        .collect()
}

/// Returns the ranks of tokens by their merges, if scores in that order are equivalent: tokens that
/// are never made come last.
pub(super) fn places(tokens: &[Token<'_>], ranks: &Ranks<'_>) -> Result<Vec<u32>, Contradiction> {
    let made = made(tokens, ranks);
    let mut order: Vec<(u32, usize)> = made
        .iter()
        .enumerate()
        .filter_map(|(i, parts)| Some((*ranks.get(&(*parts)?)?, i)))
        .collect();
    order.sort_unstable();
    let mut places = vec![u32::try_from(order.len()).unwrap_or(u32::MAX); tokens.len()];
    for (place, (_, i)) in (0..).zip(&order) {
        places[*i] = place;
    }
    check(tokens, &places, &made)?;
    Ok(places)
}

/// Checks that joining by rank (the lowest first) makes tokens of the same parts as merges do.
fn check(
    tokens: &[Token<'_>],
    places: &[u32],
    made: &[Option<(&str, &str)>],
) -> Result<(), Contradiction> {
    let by_text: HashMap<&[u8], u32> = tokens
        .iter()
        .map(|t| t.text.as_bytes())
        .zip(places.iter().copied())
        .collect();
    for (token, merged) in tokens.iter().zip(made).filter(|t| !t.0.cut) {
        let scored = last_join(token.text.as_bytes(), |part, _| by_text.get(part).copied());
        let scored = scored.map(|left| two(token.text, left));
        if scored != *merged {
            let owned =
                |parts: Option<(&str, &str)>| parts.map(|(a, b)| (a.to_owned(), b.to_owned()));
            let token = token.text.to_owned();
            return Err(Contradiction {
                token,
                merged: owned(*merged),
                scored: owned(scored),
            });
        }
    }
    Ok(())
}

/// Returns merges that are equivalent to the scores: every way to make a token of two, the higher
/// score first. Those of one score are ordered by their left part, the longest first: scores join
/// equal pairs from left to right, so that runs grow there.
pub(super) fn merges<'a>(
    tokens: &[Token<'a>],
    scores: &[f32],
) -> Result<Vec<(&'a str, &'a str)>, Contradiction> {
    let known: std::collections::HashSet<&str> = tokens.iter().map(|t| t.text).collect();
    let mut all: Vec<(usize, &str, &str)> = Vec::new();
    for (id, token) in tokens.iter().enumerate().filter(|t| !t.1.cut) {
        let splits = token
            .text
            .char_indices()
            .skip(1)
            .map(|(at, _)| token.text.split_at(at));
        all.extend(
            splits
                .filter(|(a, b)| known.contains(a) && known.contains(b))
                .map(|(a, b)| (id, a, b)),
        );
    }
    let chars = |text: &str| Reverse(text.chars().count());
    all.sort_by(|x, y| {
        let by_length = |m: &(usize, &str, &str)| (chars(m.1), chars(m.2), m.0);
        scores[y.0]
            .total_cmp(&scores[x.0])
            .then_with(|| by_length(x).cmp(&by_length(y)))
    });
    let merges: Vec<(&str, &str)> = all.into_iter().map(|(_, a, b)| (a, b)).collect();
    let ranks: Ranks<'_> = merges.iter().copied().zip(0..).collect();
    let made = made(tokens, &ranks);
    // scores as ranks; equal ones stay equal
    let mut falling: Vec<f32> = scores.to_vec();
    falling.sort_by(|a, b| b.total_cmp(a));
    let place = |score: &f32| {
        u32::try_from(falling.partition_point(|other| other > score)).unwrap_or(u32::MAX)
    };
    check(tokens, &scores.iter().map(place).collect::<Vec<_>>(), &made)?;
    Ok(merges)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens<'a>(texts: &[&'a str]) -> Vec<Token<'a>> {
        texts
            .iter()
            .map(|text| Token { text, cut: false })
            .collect()
    }

    fn ranks<'a>(merges: &[(&'a str, &'a str)]) -> Ranks<'a> {
        merges.iter().copied().zip(0..).collect()
    }

    #[test]
    fn places_follow_the_join_that_makes_a_token() {
        let tokens = tokens(&["a", "b", "c", "ab", "bc", "abc"]);
        // "abc" is always "ab" and "c": the rank of its other merge does not matter
        let merges = [("a", "b"), ("a", "bc"), ("b", "c"), ("ab", "c")];
        assert_eq!(places(&tokens, &ranks(&merges)), Ok(vec![3, 3, 3, 0, 1, 2]));
    }

    #[test]
    fn merges_that_scores_cannot_express_are_found() {
        let tokens = tokens(&["a", "b", "c", "ab", "bc", "abc"]);
        let error = places(&tokens, &ranks(&[("a", "b"), ("b", "c")])).unwrap_err();
        assert_eq!(
            error.to_string(),
            "token \"abc\": never by merges, \"ab\" \"c\" by scores"
        );
        let error = places(&tokens, &ranks(&[("b", "c"), ("ab", "c"), ("a", "b")])).unwrap_err();
        assert_eq!(error.token, "abc");
    }

    #[test]
    fn merges_of_equal_scores_let_runs_grow_from_the_left() {
        let texts: Vec<String> = (1..=5).map(|n| "▁".repeat(n)).collect();
        let tokens: Vec<Token<'_>> = texts
            .iter()
            .map(|text| Token { text, cut: false })
            .collect();
        let merges = merges(&tokens, &[-9.0, -1.0, -1.0, -1.0, -1.0]).expect("an order");
        assert_eq!(merges[..2], [("▁▁▁▁", "▁"), ("▁▁▁", "▁▁")]);
        let places = places(&tokens, &merges.iter().copied().zip(0..).collect()).expect("an order");
        assert_eq!(places, [4, 3, 2, 1, 0]);
        // two tokens of one score compete for the same symbol
        let tokens = self::tokens(&["a", "b", "ab", "ba", "aba", "bab"]);
        super::merges(&tokens, &[-9.0, -9.0, -1.0, -1.0, -2.0, -2.0]).expect_err("left or right");
    }
}
