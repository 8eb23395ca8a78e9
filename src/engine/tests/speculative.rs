//! Draft tokens change no text: tested on models whose next token depends on all tokens before.

use std::convert::Infallible;

use octavo_engine::generate::{Generation, GenerationParams, Lm, Next, Vocabulary, generate};
use octavo_engine::sample::SamplerConfig;
use octavo_engine::speculative::Lookup;
use octavo_kernels::Phase;
use proptest::prelude::*;

const N_VOCAB: usize = 12;

/// A model that repeats itself most of the time, and otherwise picks a token by a hash of all
/// before.
struct Parrot {
    tokens: Vec<u32>,
    n_ctx: usize,
    most_outputs: usize,
    /// Granularity of truncation: it goes back to a multiple of this many tokens.
    stride: usize,
    /// How many of 16 tokens come from the hash.
    whims: u64,
    seed: u64,
    steps: usize,
}

impl Parrot {
    fn logits(&self, end: usize) -> Vec<f32> {
        let text = &self.tokens[..end];
        let mut hash = self.seed;
        for token in text {
            hash = (hash ^ u64::from(*token)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            hash ^= hash >> 29;
        }
        let whim = hash % 16 < self.whims;
        let next = match text.len().checked_sub(7) {
            Some(at) if !whim => text[at],
            _ => (hash >> 8) as u32 % N_VOCAB as u32,
        };
        let mut logits: Vec<f32> = (0..N_VOCAB)
            .map(|id| ((hash >> (id + 12)) % 8) as f32 / 8.0)
            .collect();
        logits[next as usize] += 4.0;
        logits
    }
}

impl Lm for Parrot {
    type Error = Infallible;

    fn n_ctx(&self) -> usize {
        self.n_ctx
    }

    fn n_vocab(&self) -> usize {
        N_VOCAB
    }

    fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    fn most_outputs(&self) -> usize {
        self.most_outputs
    }

    fn truncate(&mut self, n: usize) {
        if n < self.tokens.len() {
            // like a recurrent layer, which has no state in between
            let kept = n / self.stride * self.stride;
            self.tokens.truncate(kept.max(PROMPT.len().min(n)));
        }
    }

    fn eval(&mut self, tokens: &[u32], _: Phase, next: Next<'_>) -> Result<(), Infallible> {
        self.steps += 1;
        self.tokens.extend_from_slice(tokens);
        assert!(self.tokens.len() <= self.n_ctx, "written past the context");
        let end = self.tokens.len();
        let rows = |rows: usize| (end + 1 - rows..=end).map(|end| self.logits(end));
        match next {
            Next::Nothing => {}
            Next::Logits { rows: n, into } => {
                assert!(n <= tokens.len().min(self.most_outputs), "{n} outputs");
                *into = rows(n).flatten().collect();
            }
            Next::Argmax { rows: n, into } => {
                assert!(n <= tokens.len().min(self.most_outputs), "{n} outputs");
                let best = |row: Vec<f32>| {
                    let largest = row.iter().copied().fold(f32::MIN, f32::max);
                    row.iter().position(|x| *x == largest).expect("a row") as u32
                };
                *into = rows(n).map(best).collect();
            }
        }
        Ok(())
    }
}

struct Letters;

impl Vocabulary for Letters {
    fn piece(&self, id: u32) -> &[u8] {
        &b"-abcdefghijk"[id as usize..][..1]
    }

    fn is_special(&self, id: u32) -> bool {
        id == 0
    }

    fn eog_ids(&self) -> &[u32] {
        &[0]
    }
}

const PROMPT: [u32; 9] = [1, 2, 3, 4, 5, 6, 7, 1, 2];

fn options() -> impl Strategy<Value = GenerationParams> {
    let limits = (0..60usize, 0..20usize, 1..40usize);
    let choice = (0..3u64, any::<bool>(), any::<bool>(), 0..4usize);
    (limits, choice).prop_map(|((max, min, chunk), (heat, penalty, probs, stop))| {
        GenerationParams {
            max_tokens: (max < 50).then_some(max),
            min_tokens: min,
            chunk,
            logprobs: probs.then_some(2),
            stop: ["abc", "aa", "kd"].map(str::to_owned)[..stop.min(3)].to_vec(),
            ignore_eos: penalty,
            sampler: SamplerConfig {
                temperature: heat as f32 / 2.0,
                seed: heat,
                repeat_penalty: if penalty { 1.1 } else { 1.0 },
                ..SamplerConfig::default()
            },
            ..GenerationParams::default()
        }
    })
}

fn run(lookup: Lookup, options: &GenerationParams, parrot: &mut Parrot) -> Generation {
    let options = GenerationParams {
        lookup,
        ..options.clone()
    };
    let mut streamed = String::new();
    let mut watch = |text: &str| streamed.push_str(text);
    let out = generate(parrot, &Letters, &PROMPT, &options, &mut watch).expect("a generation");
    assert_eq!(streamed, out.text);
    let text: Vec<u32> = PROMPT.iter().chain(&out.tokens).copied().collect();
    assert!(
        text.starts_with(parrot.tokens()),
        "drafts are left in the cache"
    );
    out
}

proptest! {
    #[test]
    fn drafts_change_no_text(
        options in options(),
        seed: u64,
        whims in 0..12u64,
        (n_ctx, most_outputs, stride) in (9..80usize, 1..20usize, 1..9usize),
    ) {
        let parrot = || Parrot {
            tokens: Vec::new(), n_ctx, most_outputs, stride, whims, seed, steps: 0,
        };
        let expected = run(Lookup::Off, &options, &mut parrot());
        prop_assert_eq!(expected.stats.drafts.drafted, 0);
        for lookup in [Lookup::On, Lookup::Auto] {
            let got = run(lookup, &options, &mut parrot());
            prop_assert_eq!(&got.text, &expected.text);
            prop_assert_eq!(&got.tokens, &expected.tokens);
            prop_assert_eq!(got.finish, expected.finish);
            prop_assert_eq!(&got.logprobs, &expected.logprobs);
            prop_assert_eq!(got.stats.generated_tokens, expected.stats.generated_tokens);
            prop_assert!(got.stats.drafts.accepted <= got.stats.drafts.drafted);
        }
    }
}

#[test]
fn what_repeats_takes_few_steps() {
    let mut parrot = Parrot {
        tokens: Vec::new(),
        n_ctx: 1000,
        most_outputs: 100,
        stride: 1,
        whims: 0,
        seed: 1,
        steps: 0,
    };
    let options = GenerationParams {
        max_tokens: Some(200),
        ..GenerationParams::default()
    };
    let out = run(Lookup::On, &options, &mut parrot);
    assert_eq!(out.tokens.len(), 200);
    let drafted = out.stats.drafts;
    assert!(drafted.accepted > 150, "{drafted:?}");
    assert!(parrot.steps < 50, "{} steps", parrot.steps);
}
