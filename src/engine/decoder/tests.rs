//! Text of a scripted model: limits, stop strings, whole characters, constraints.

mod constraint;
mod shown;

use std::collections::BTreeMap;

use approx::assert_abs_diff_eq;
use proptest::prelude::*;

use super::*;
use crate::sample::{ConstraintError, SamplerConfig, TokenSet};

/// Token 0 ends the text, token 1 is a control token; the others are the given pieces.
struct Pieces(BTreeMap<u32, Vec<u8>>);

impl Pieces {
    fn new(pieces: &[&[u8]]) -> Pieces {
        let named = [(0, b"<eos>".to_vec()), (1, b"<ctl>".to_vec())];
        Pieces(
            named
                .into_iter()
                .chain((2..).zip(pieces.iter().map(|p| p.to_vec())))
                .collect(),
        )
    }

    fn len(&self) -> usize {
        self.0.len()
    }
}

impl Vocabulary for Pieces {
    fn piece(&self, id: u32) -> &[u8] {
        self.0.get(&id).map_or(&[], Vec::as_slice)
    }

    fn is_special(&self, id: u32) -> bool {
        id < 2
    }

    fn eog_ids(&self) -> &[u32] {
        &[0]
    }
}

fn limited(n: usize) -> GenerationParams {
    GenerationParams {
        max_tokens: Some(n),
        ..GenerationParams::default()
    }
}

/// Decodes a text that continues one token: after `n` generated tokens comes `script[n]`, then
/// always the last one. Returns it with the pieces handed out.
fn run(script: &[u32], vocabulary: &Pieces, params: &GenerationParams) -> (Text, Vec<String>) {
    let bounds = Bounds {
        n_ctx: 1000,
        n_vocab: vocabulary.len(),
    };
    let mut decoder = TextDecoder::new(&[2], params, bounds, vocabulary).expect("it fits");
    let mut pieces = Vec::new();
    while decoder.finish().is_none() {
        let id = script[decoder.generated().len().min(script.len() - 1)];
        let mut logits = vec![0.0; vocabulary.len()];
        logits[id as usize] = 5.0;
        let output = match decoder.need() {
            OutputNeed::Argmax => OutputValue::Argmax(id),
            _ => OutputValue::Logits(&logits),
        };
        let piece = decoder.feed(output, vocabulary).expect("a token");
        pieces.extend(Some(piece).filter(|piece| !piece.is_empty()));
    }
    let text = decoder.into_text();
    assert_eq!(pieces.concat(), text.text, "the pieces make the text");
    (text, pieces)
}

#[test]
fn ends_at_the_end_of_generation_token_and_counts_it() {
    let v = Pieces::new(&[b"a", b"b"]);
    let (out, pieces) = run(&[2, 3, 0, 2], &v, &GenerationParams::default());
    assert_eq!((out.text.as_str(), out.finish), ("ab", FinishReason::Stop));
    assert_eq!(out.tokens, [2, 3, 0]);
    assert_eq!(pieces, ["a", "b"], "text is shown as it comes");
}

#[test]
fn ends_at_the_most_tokens_asked_for() {
    let v = Pieces::new(&[b"a"]);
    for n in [0, 1, 5] {
        let (out, _) = run(&[2], &v, &limited(n));
        assert_eq!((out.tokens.len(), out.finish), (n, FinishReason::Length));
        assert_eq!(out.text, "a".repeat(n));
    }
}

/// A vocabulary whose tokens are letters; 0 ends the text.
struct Letters;

impl Vocabulary for Letters {
    fn piece(&self, id: u32) -> &[u8] {
        &b"-abcdefgh"[id as usize..=id as usize]
    }

    fn is_special(&self, id: u32) -> bool {
        id == 0
    }

    fn eog_ids(&self) -> &[u32] {
        &[0]
    }
}

fn decoder(prompt: &[u32], params: &GenerationParams) -> TextDecoder {
    let bounds = Bounds {
        n_ctx: 8,
        n_vocab: 9,
    };
    TextDecoder::new(prompt, params, bounds, &Letters).expect("it fits")
}

#[test]
fn a_full_context_ends_it() {
    let mut s = decoder(&[1; 6], &GenerationParams::default());
    for _ in 0..3 {
        assert_eq!(s.finish(), None);
        s.feed(OutputValue::Argmax(1), &Letters).expect("a token");
    }
    // the last token chosen needs no position of its own
    assert_eq!(s.finish(), Some(FinishReason::ContextFull));
    assert_eq!(s.generated().len(), 3);
}

#[test]
fn text_held_back_for_a_stop_string_comes_when_it_is_cancelled() {
    let options = GenerationParams {
        stop: vec!["abc".to_owned()],
        ..GenerationParams::default()
    };
    let mut s = decoder(&[1], &options);
    for id in [1, 2] {
        assert_eq!(
            s.feed(OutputValue::Argmax(id), &Letters).expect("a token"),
            ""
        );
    }
    assert_eq!(s.cancel(), "ab");
    assert_eq!(s.cancel(), "");
    assert_eq!(s.into_text().finish, FinishReason::Cancelled);
}

#[test]
fn logits_are_needed_only_where_the_largest_are_not_enough() {
    let need = |params: &GenerationParams| decoder(&[1], params).need();
    let greedy = SamplerConfig {
        temperature: 0.0,
        ..SamplerConfig::default()
    };
    let options = GenerationParams {
        sampler: greedy,
        ..GenerationParams::default()
    };
    assert_eq!(need(&options), OutputNeed::Argmax);
    let with_logprobs = GenerationParams {
        logprobs: Some(0),
        ..options.clone()
    };
    assert_eq!(need(&with_logprobs), OutputNeed::Logits);
    let sampled = |top_k: usize| GenerationParams {
        sampler: SamplerConfig {
            temperature: 1.0,
            top_k,
            ..SamplerConfig::default()
        },
        ..options.clone()
    };
    assert_eq!(need(&sampled(3)), OutputNeed::Candidates(3));
    assert_eq!(need(&sampled(0)), OutputNeed::Logits);
    let later = GenerationParams {
        min_tokens: 1,
        ..sampled(3)
    };
    assert_eq!(need(&later), OutputNeed::Logits, "the end is banned");
}

/// Requires this many `a`, and then the end.
#[derive(Clone, Debug)]
struct Wants(usize);

impl Constraint for Wants {
    fn allowed(&mut self) -> Result<Option<TokenSet>, ConstraintError> {
        Ok(Some(TokenSet::of([u32::from(self.0 > 0)])))
    }

    fn accept(&mut self, _: u32) -> Result<(), ConstraintError> {
        self.0 = self.0.saturating_sub(1);
        Ok(())
    }

    fn fork(&self) -> Box<dyn Constraint> {
        Box::new(self.clone())
    }
}

#[test]
fn a_text_that_its_constraint_ends_ends_whatever_is_banned() {
    let usual = GenerationParams::default();
    let no_end = GenerationParams {
        ignore_eos: true,
        ..usual.clone()
    };
    let long = GenerationParams {
        min_tokens: 7,
        ..usual.clone()
    };
    // an end that may be chosen is chosen
    for (options, tokens) in [
        (usual, vec![1, 1, 0]),
        (no_end, vec![1, 1]),
        (long, vec![1, 1]),
    ] {
        let mut s = decoder(&[1], &options);
        s.constrain(Box::new(Wants(2)));
        while s.finish().is_none() {
            s.feed(OutputValue::Logits(&[1.0; 9]), &Letters)
                .expect("it ends");
        }
        assert_eq!(s.generated(), tokens);
        let text = s.into_text();
        assert_eq!(
            (text.text.as_str(), text.finish),
            ("aa", FinishReason::Stop)
        );
    }
}

/// Returns the text of tokens that are each the most likely in turn, and the stop string that ended
/// it.
fn said(options: &GenerationParams, ids: &[usize]) -> (String, Option<usize>) {
    let mut s = decoder(&[1], options);
    for &id in ids {
        if s.finish().is_some() {
            break;
        }
        let mut logits = [0.0; 9];
        logits[id] = 9.0;
        s.feed(OutputValue::Logits(&logits), &Letters)
            .expect("a token");
    }
    let text = s.into_text();
    (text.text, text.stopped_by)
}

#[test]
fn nothing_ends_a_text_before_its_fewest_tokens() {
    let options = |min_tokens: usize, stop: &[&str], stop_ids: &[u32]| GenerationParams {
        sampler: SamplerConfig {
            temperature: 0.0,
            ..SamplerConfig::default()
        },
        stop: stop.iter().map(|text| (*text).to_owned()).collect(),
        stop_ids: stop_ids.to_vec(),
        min_tokens,
        max_tokens: Some(6),
        ..GenerationParams::default()
    };
    let ids = [1, 2, 3, 1, 2, 3];
    let ended = |text: &str, by: Option<usize>| (text.to_owned(), by);
    let stops = ["x", "bc"];
    assert_eq!(said(&options(0, &stops, &[]), &ids), ended("a", Some(1)));
    assert_eq!(said(&options(2, &stops, &[]), &ids), ended("a", Some(1)));
    assert_eq!(said(&options(3, &stops, &[]), &ids), ended("abca", Some(1)));
    assert_eq!(said(&options(6, &stops, &[]), &ids), ended("abcabc", None));
    assert_eq!(said(&options(0, &[], &[2]), &ids), ended("a", None));
    // the second most likely is the lowest id of the others that may be chosen
    assert_eq!(said(&options(2, &[], &[2]), &ids), ended("aaca", None));
}

#[test]
fn logprobs_are_those_of_the_raw_logits() {
    let v = Pieces::new(&[b"a", b"b"]);
    let bias = SamplerConfig {
        logit_bias: vec![(2, -100.0)],
        ..SamplerConfig::default()
    };
    let options = GenerationParams {
        logprobs: Some(2),
        sampler: bias,
        ..limited(2)
    };
    let (out, _) = run(&[2, 3], &v, &options);
    assert_eq!(
        out.tokens,
        [0],
        "token 2 is biased away; 0 is the first of the rest, and ends the text"
    );
    // logits: 5 for token 2 and 0 for the three others
    let lse = (5f64.exp() + 3.0).ln();
    assert_eq!((out.logprobs.len(), out.logprobs[0].id), (1, 0));
    assert_abs_diff_eq!(out.logprobs[0].logprob, -lse, epsilon = 1e-12);
    assert_eq!(out.logprobs[0].top[0].0, 2);
    assert_abs_diff_eq!(out.logprobs[0].top[0].1, 5.0 - lse, epsilon = 1e-12);
}
