//! Draft tokens change no text: tested on a device whose next token depends on all tokens before.

use std::sync::LazyLock;
use std::time::Duration;

use octavo_engine::sample::SamplerConfig;
use octavo_engine::{Engine, EngineOptions, Generation, GenerationParams, Lookup};
use octavo_text::tokenizer::EncodeOptions;
use proptest::prelude::*;

use crate::scripted::{self, Behaviour, Calls};

/// Letters of which the texts are made; in place of the first one the text ends.
const LETTERS: &str = "-abcdefghijk";

/// Letters of the prompt, by index.
const PROMPT: [usize; 9] = [1, 2, 3, 4, 5, 6, 7, 1, 2];

/// A device that repeats the text most of the time, and otherwise picks a letter by a hash of all
/// before.
struct Parrot {
    n_ctx: usize,
    batch: usize,
    /// How many of 16 letters come from the hash.
    whims: u64,
    seed: u64,
    step_time: Duration,
}

impl Parrot {
    fn load(&self, letters: Vec<u32>, n_vocab: usize) -> (Engine, Calls) {
        let options = EngineOptions {
            ctx: Some(self.n_ctx),
            batch: Some(self.batch),
            threads: Some(1),
            ..EngineOptions::default()
        };
        let (whims, seed) = (self.whims, self.seed);
        let behaviour = Behaviour {
            step_time: self.step_time,
            ..Behaviour::default()
        };
        scripted::engine(&options, behaviour, move |text| {
            let mut hash = seed;
            for token in text {
                hash = (hash ^ u64::from(*token)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
                hash ^= hash >> 29;
            }
            let whim = hash % 16 < whims;
            let next = match text.len().checked_sub(7) {
                Some(at) if !whim => text[at],
                _ => letters[(hash >> 8) as usize % letters.len()],
            };
            let mut logits = vec![-100.0; n_vocab];
            for (i, letter) in letters.iter().enumerate() {
                logits[*letter as usize] = ((hash >> (i + 12)) % 8) as f32 / 8.0;
            }
            logits[next as usize] += 4.0;
            logits
        })
    }
}

/// The tokens of the letters, and the size of the vocabulary.
static VOCABULARY: LazyLock<(Vec<u32>, usize)> = LazyLock::new(|| {
    let demo = Engine::builder().threads(1);
    let demo = demo.open_source(&octavo_engine::ModelSource::Demo);
    let demo = demo.expect("it loads");
    let id = |letter: char| match letter {
        '-' => demo.tokenizer().eog_ids()[0],
        letter => {
            let text = letter.to_string();
            let ids = demo
                .tokenizer()
                .encode(text.as_bytes(), EncodeOptions::default());
            let ids = ids.expect("a letter");
            assert_eq!(ids.len(), 1, "{letter}");
            ids[0]
        }
    };
    (LETTERS.chars().map(id).collect(), demo.hparams().n_vocab())
});

fn params() -> impl Strategy<Value = GenerationParams> {
    let limits = (0..60usize, 0..20usize);
    let choice = (0..3u64, any::<bool>(), any::<bool>(), 0..4usize);
    (limits, choice).prop_map(
        |((max, min), (heat, penalty, probs, stop))| GenerationParams {
            max_tokens: (max < 50).then_some(max),
            min_tokens: min,
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
        },
    )
}

fn run(lookup: Lookup, params: &GenerationParams, engine: &Engine, prompt: &[u32]) -> Generation {
    let params = GenerationParams {
        lookup,
        ..params.clone()
    };
    let mut streamed = String::new();
    let mut watch = |text: &str| streamed.push_str(text);
    let mut session = engine.session();
    let out = session.generate(prompt, &params, None, &mut watch);
    let out = out.expect("a generation");
    assert_eq!(streamed, out.text);
    let text = [prompt, &out.tokens].concat();
    assert!(
        text.starts_with(session.tokens()),
        "drafts are left in the cache"
    );
    out
}

proptest! {
    #[test]
    fn drafts_change_no_text(
        params in params(),
        seed: u64,
        whims in 0..12u64,
        (n_ctx, batch) in (9..80usize, 1..40usize),
    ) {
        let parrot = Parrot { n_ctx, batch, whims, seed, step_time: Duration::ZERO };
        let (letters, n_vocab) = VOCABULARY.clone();
        let prompt = PROMPT.map(|i| letters[i]);
        let (engine, _) = parrot.load(letters, n_vocab);
        let expected = run(Lookup::Off, &params, &engine, &prompt);
        prop_assert_eq!(expected.timing.drafts.drafted, 0);
        for lookup in [Lookup::On, Lookup::Auto] {
            let got = run(lookup, &params, &engine, &prompt);
            prop_assert_eq!(&got.text, &expected.text);
            prop_assert_eq!(&got.tokens, &expected.tokens);
            prop_assert_eq!(got.finish, expected.finish);
            prop_assert_eq!(&got.logprobs, &expected.logprobs);
            prop_assert_eq!(got.timing.generated_tokens, expected.timing.generated_tokens);
            prop_assert!(got.timing.drafts.accepted <= got.timing.drafts.drafted);
        }
    }
}

#[test]
fn what_repeats_takes_few_steps() {
    let parrot = Parrot {
        n_ctx: 1000,
        batch: 100,
        whims: 0,
        seed: 1,
        // draft tokens are worth what steps are measured to take; far longer than a busy machine
        // lets a thread wait
        step_time: Duration::from_millis(20),
    };
    let (letters, n_vocab) = VOCABULARY.clone();
    let prompt = PROMPT.map(|i| letters[i]);
    let (engine, calls) = parrot.load(letters, n_vocab);
    let params = GenerationParams {
        max_tokens: Some(200),
        ..GenerationParams::default()
    };
    let out = run(Lookup::On, &params, &engine, &prompt);
    assert_eq!(out.tokens.len(), 200);
    let drafts = out.timing.drafts;
    assert!(drafts.accepted > 150, "{drafts:?}");
    let steps = calls.lock().expect("no panic").len();
    assert!(steps < 50, "{steps} steps");
}
