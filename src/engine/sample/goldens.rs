//! The samplers against llama.cpp's own: the candidates left and their probabilities, step by step.

use std::sync::Arc;

use octavo_fixtures::shared;
use serde_json::Value;

use super::draw::Draw;
use super::history::History;
use super::random::SplitMix64;
use super::*;

/// Relative error of llama.cpp's probabilities, which it adds up in f32.
const RELATIVE: f64 = 2e-5;

/// A distance from a bound at which llama.cpp's rounding may decide.
const EDGE: f64 = 1e-6;

const FILES: [&str; 13] = [
    "adaptive_p",
    "chain",
    "dist",
    "dry",
    "logit_bias",
    "min_p",
    "mirostat_v1",
    "mirostat_v2",
    "penalties",
    "temperature",
    "top_k",
    "top_n_sigma",
    "top_p",
];
const MORE_FILES: [&str; 3] = ["typical", "xtc", "greedy"];

/// The Mersenne Twister of llama.cpp's draws (Matsumoto and Nishimura 1998), for XTC's alone.
struct Mersenne {
    state: [u32; 624],
    at: usize,
}

impl Mersenne {
    fn new(seed: u32) -> Mersenne {
        let mut state = [seed; 624];
        for i in 1..624 {
            let last = state[i - 1];
            state[i] = (last ^ (last >> 30))
                .wrapping_mul(1_812_433_253)
                .wrapping_add(i as u32);
        }
        Mersenne { state, at: 624 }
    }

    fn unit(&mut self) -> f64 {
        if self.at == 624 {
            for i in 0..624 {
                let both = self.state[i] & 0x8000_0000 | self.state[(i + 1) % 624] & 0x7fff_ffff;
                let odd = if both & 1 == 1 { 0x9908_b0df } else { 0 };
                self.state[i] = self.state[(i + 397) % 624] ^ (both >> 1) ^ odd;
            }
            self.at = 0;
        }
        let mut y = self.state[self.at];
        self.at += 1;
        y ^= y >> 11;
        y ^= y << 7 & 0x9d2c_5680;
        y ^= y << 15 & 0xefc6_0000;
        y ^= y >> 18;
        f64::from(y) / 4_294_967_296.0
    }
}

/// A chain of the tables.
struct Chain {
    config: SamplerConfig,
    breakers: DryBreakers,
    /// Probability and generator of XTC.
    xtc: Option<(f64, Mersenne)>,
    is_greedy: bool,
}

fn number(link: &Value, name: &str) -> Option<f64> {
    link[name].as_f64()
}

impl Chain {
    fn new(links: &[Value]) -> Chain {
        let mut chain = Chain {
            config: SamplerConfig {
                temperature: 1.0,
                order: Vec::new(),
                ..SamplerConfig::default()
            },
            breakers: DryBreakers::default(),
            xtc: None,
            is_greedy: false,
        };
        links.iter().for_each(|link| chain.add(link));
        chain
    }

    fn add(&mut self, link: &Value) {
        let kind = link["type"].as_str().expect("a type");
        let config = &mut self.config;
        let set = |to: &mut f32, name: &str| {
            if let Some(value) = number(link, name) {
                *to = value as f32;
            }
        };
        let count = |to: &mut usize, name: &str| {
            if let Some(value) = number(link, name) {
                *to = value.max(0.0) as usize;
            }
        };
        count(&mut config.min_keep, "min_keep");
        if let Ok(stage) = kind.parse() {
            config.order.push(stage);
        }
        match kind {
            "greedy" => self.is_greedy = true,
            "dist" => {}
            "logit_bias" => {
                let pair = |pair: &Value| {
                    let bias = pair[1]
                        .as_f64()
                        .map_or(f32::NEG_INFINITY, |bias| bias as f32);
                    (pair[0].as_u64().expect("an id") as u32, bias)
                };
                let pairs = link["bias"].as_array().expect("pairs").iter();
                config.logit_bias = pairs.map(pair).collect();
            }
            "penalties" => {
                count(&mut config.penalty_window, "last_n");
                set(&mut config.repeat_penalty, "repeat");
                set(&mut config.frequency_penalty, "freq");
                set(&mut config.presence_penalty, "present");
            }
            "dry" => {
                set(&mut config.dry_multiplier, "multiplier");
                set(&mut config.dry_base, "base");
                count(&mut config.dry_allowed_length, "allowed_length");
                count(&mut config.dry_penalty_last_n, "penalty_last_n");
                for breaker in link["breakers"].as_array().into_iter().flatten() {
                    let mut ids = ids(breaker).into_iter();
                    self.breakers
                        .add(ids.next().expect("a token"), ids.collect());
                }
            }
            "top_n_sigma" => set(&mut config.top_n_sigma, "n"),
            "top_k" => count(&mut config.top_k, "k"),
            "top_p" => set(&mut config.top_p, "p"),
            "min_p" => set(&mut config.min_p, "p"),
            "typ_p" => set(&mut config.typical_p, "p"),
            "xtc" => {
                set(&mut config.xtc_threshold, "threshold");
                let seed = number(link, "seed").unwrap_or(1.0) as u32;
                let probability = number(link, "probability").expect("a probability");
                self.xtc = Some((f64::from(probability as f32), Mersenne::new(seed)));
            }
            "temperature" => {
                set(&mut config.temperature, "temp");
                config.temperature = config.temperature.max(0.0);
                set(&mut config.dynatemp_range, "range");
                config.dynatemp_range = config.dynatemp_range.max(0.0);
                set(&mut config.dynatemp_exponent, "exponent");
            }
            "mirostat" | "mirostat_v2" => {
                config.mirostat = if kind == "mirostat" { 1 } else { 2 };
                set(&mut config.mirostat_tau, "tau");
                set(&mut config.mirostat_eta, "eta");
            }
            "adaptive_p" => {
                set(&mut config.adaptive_target, "target");
                set(&mut config.adaptive_decay, "decay");
            }
            other => panic!("a sampler {other}"),
        }
    }

    /// Makes a sampler without the checks of ranges: llama.cpp's tables go beyond ours.
    fn sampler(&self, n_vocab: usize) -> Sampler {
        let config = self.config.clone();
        Sampler {
            n_vocab,
            rng: SplitMix64::new(0),
            xtc: SplitMix64::new(0),
            history: History::new(&config),
            breakers: Arc::new(self.breakers.clone()),
            draw: Draw::new(&config, n_vocab),
            candidates: Candidates::default(),
            config,
        }
    }
}

fn ids(list: &Value) -> Vec<u32> {
    let ids = list.as_array().into_iter().flatten();
    ids.map(|id| id.as_u64().expect("an id") as u32).collect()
}

/// Returns probabilities by id: of all that can be drawn.
fn probabilities(sampler: &Sampler) -> Vec<(u32, f64)> {
    let log_sum = sampler.candidates.softmax().log_sum;
    let list = sampler.candidates.iter();
    list.map(|c| (c.id, (c.logit - log_sum).exp())).collect()
}

/// Returns whether two sets of candidates are the same but for the order of equal ones, and for one
/// more or less at the edge of a cut.
fn agree(ours: &[(u32, f64)], theirs: &[(u32, f64)], may_differ_by_one: bool) -> bool {
    let sorted = |list: &[(u32, f64)]| {
        let mut p: Vec<f64> = list.iter().map(|one| one.1).collect();
        p.retain(|p| *p > 1e-30);
        p.sort_by(|a, b| b.total_cmp(a));
        p
    };
    let (ours, theirs) = (sorted(ours), sorted(theirs));
    let same = |a: f64, b: f64| (a - b).abs() <= RELATIVE * a.max(b) + 1e-7;
    let n = ours.len().abs_diff(theirs.len());
    match n {
        0 => ours.iter().zip(&theirs).all(|(a, b)| same(*a, *b)),
        1 if may_differ_by_one => {
            // both hold the same first ones, in the same proportions
            let scale = ours[0] / theirs[0];
            let pairs = ours.iter().zip(&theirs);
            pairs.clone().all(|(a, b)| same(*a, *b * scale))
        }
        _ => false,
    }
}

/// Returns whether the bound of a cut is met to within rounding, so that one more may stay.
fn is_at_an_edge(config: &SamplerConfig, logits: &[f32]) -> bool {
    let mut sorted: Vec<f64> = logits.iter().map(|l| f64::from(*l)).collect();
    sorted.sort_by(|a, b| b.total_cmp(a));
    let sum: f64 = sorted.iter().map(|l| (l - sorted[0]).exp()).sum();
    let mut reached = 0.0;
    sorted.iter().any(|l| {
        reached += (l - sorted[0]).exp() / sum;
        [config.top_p, config.typical_p]
            .iter()
            .any(|p| (reached - f64::from(*p)).abs() < EDGE)
    })
}

/// Feeds the logits of a step, of which those that are `null` are masked; returns them.
fn feed(chain: &mut Chain, sampler: &mut Sampler, logits: &Value) -> Vec<f32> {
    let logits = logits.as_array().expect("logits").iter();
    let logits: Vec<Option<f64>> = logits.map(Value::as_f64).collect();
    let masked = (0u32..).zip(&logits).filter(|(_, l)| l.is_none());
    let bias = &mut sampler.config.logit_bias;
    bias.clone_from(&chain.config.logit_bias);
    bias.extend(masked.map(|(id, _)| (id, f32::NEG_INFINITY)));
    if let Some((probability, generator)) = &mut chain.xtc {
        let draws = *probability > 0.0 && generator.unit() <= *probability;
        sampler.config.xtc_probability = if draws { 1.0 } else { 0.0 };
    }
    let logits: Vec<f32> = logits.iter().map(|l| l.unwrap_or(0.0) as f32).collect();
    sampler.gather(&logits, Among::default()).expect("finite");
    sampler.reduce();
    logits
}

/// Returns what differs in a step.
fn compare(
    chain: &Chain,
    sampler: &Sampler,
    logits: &[f32],
    result: &Value,
) -> (Option<String>, Vec<(u32, f64)>) {
    let mut ours = probabilities(sampler);
    let is_greedy = chain.is_greedy || sampler.config.is_greedy();
    if is_greedy {
        let best = sampler.candidates.best().expect("a candidate");
        ours = vec![(best.id, 1.0)];
    }
    let found = ids(&result["ids"]);
    let p = result["p"].as_array().expect("probabilities").iter();
    let p = p.map(|p| p.as_f64().unwrap_or(0.0));
    let theirs: Vec<(u32, f64)> = found.iter().copied().zip(p).collect();
    let selected = result["selected"].as_u64();
    let size = sampler.candidates.size();
    let wrong = if chain.is_greedy {
        let own = (selected != Some(u64::from(ours[0].0))).then_some(ours[0]);
        own.map(|own| format!("{own:?}, expected {selected:?}"))
    } else if !agree(&ours, &theirs, is_at_an_edge(&chain.config, logits)) {
        Some(format!("{ours:?}, expected {theirs:?}"))
    } else if !is_greedy && size.abs_diff(found.len()) > 1 {
        Some(format!("{size} candidates, expected {}", found.len()))
    } else {
        None
    };
    (wrong, theirs)
}

/// Notes the token that llama.cpp drew as drawn; of equal candidates at a cut, it may have kept
/// another.
fn note(sampler: &mut Sampler, selected: u32, theirs: &[(u32, f64)]) {
    let ours = probabilities(sampler);
    let p = theirs
        .iter()
        .find(|one| one.0 == selected)
        .expect("a candidate")
        .1;
    let nearest = |a: &&(u32, f64), b: &&(u32, f64)| (a.1 - p).abs().total_cmp(&(b.1 - p).abs());
    let is_ours = ours.iter().any(|one| one.0 == selected);
    let noted = match is_ours {
        true => selected,
        false => ours.iter().min_by(nearest).expect("a candidate").0,
    };
    sampler.draw.note(&sampler.candidates, noted);
    sampler.accept(selected);
}

/// Runs a case; returns what differs.
fn run(case: &Value) -> Vec<String> {
    let mut chain = Chain::new(case["chain"].as_array().expect("a chain"));
    let steps = case["steps"].as_array().expect("steps");
    let mut sampler = chain.sampler(steps[0].as_array().expect("logits").len());
    ids(&case["history"])
        .iter()
        .for_each(|id| sampler.accept(*id));
    let mut wrong = Vec::new();
    let results = case["result"].as_array().expect("results");
    for (step, (logits, result)) in steps.iter().zip(results).enumerate() {
        let logits = feed(&mut chain, &mut sampler, logits);
        let (what, theirs) = compare(&chain, &sampler, &logits, result);
        wrong.extend(what.map(|what| format!("step {step}: {what}")));
        if let Some(selected) = result["selected"].as_u64() {
            note(&mut sampler, selected as u32, &theirs);
        }
    }
    wrong
}

#[test]
fn samplers_leave_the_candidates_that_llama_cpp_leaves() {
    let Some(folder) = shared("feat/samplers") else {
        return;
    };
    let (mut wrong, mut n) = (Vec::new(), 0);
    for name in FILES.into_iter().chain(MORE_FILES) {
        let text = std::fs::read_to_string(folder.join(format!("{name}.json"))).expect("a table");
        let cases: Vec<Value> = serde_json::from_str(&text).expect("JSON");
        for (number, case) in cases.iter().enumerate() {
            // llama.cpp's programs always estimate from 100
            let links = case["chain"].as_array().expect("a chain");
            if links
                .iter()
                .any(|link| link["m"].as_u64().is_some_and(|m| m != 100))
            {
                continue;
            }
            n += 1;
            let here = run(case)
                .into_iter()
                .map(|what| format!("{name} {number}: {what}"));
            wrong.extend(here);
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(n > 200, "{n} cases");
}

#[test]
fn strings_that_end_a_repetition_are_found_in_the_vocabulary() {
    let Some(folder) = shared("feat/samplers") else {
        return;
    };
    let Some(model) = shared("models/tiny-qwen3-F32.gguf") else {
        return;
    };
    let gguf =
        gguf_rs_lite::Gguf::open(&model, &gguf_rs_lite::OpenOptions::default()).expect("a model");
    let tokenizer = octavo_text::tokenizer::Tokenizer::from_gguf(&gguf).expect("a tokenizer");
    let text = std::fs::read_to_string(folder.join("dry_strings.json")).expect("a table");
    let cases: Vec<Value> = serde_json::from_str(&text).expect("JSON");
    for (number, case) in cases.iter().enumerate() {
        let link = &case["chain"][0];
        let mut chain = Chain::new(std::slice::from_ref(link));
        let strings = link["breaker_strings"].as_array().expect("strings").iter();
        let strings: Vec<String> = strings
            .map(|text| text.as_str().expect("a string").to_owned())
            .collect();
        let vocabulary: &dyn crate::decoder::Vocabulary = &tokenizer;
        chain.breakers = vocabulary.dry_breakers(&strings);
        let n_vocab = case["n_vocab"].as_u64().expect("a number") as usize;
        let mut sampler = chain.sampler(n_vocab);
        ids(&case["history"])
            .iter()
            .for_each(|id| sampler.accept(*id));
        sampler
            .gather(&vec![0.0; n_vocab], Among::default())
            .expect("finite");
        sampler.reduce();
        let list = sampler.candidates.iter();
        let ours: Vec<(u32, f64)> = list
            .filter(|c| c.logit != 0.0)
            .map(|c| (c.id, c.logit))
            .collect();
        let theirs = case["result"][0]["changed"]
            .as_array()
            .expect("changes")
            .iter();
        let theirs: Vec<(u32, f64)> = theirs
            .map(|pair| {
                let id = pair[0].as_u64().expect("an id") as u32;
                (id, pair[1].as_f64().expect("a penalty"))
            })
            .collect();
        let same = ours.len() == theirs.len()
            && ours
                .iter()
                .zip(&theirs)
                .all(|(a, b)| a.0 == b.0 && (a.1 - b.1).abs() <= RELATIVE * b.1.abs());
        assert!(same, "{number}: {ours:?}, expected {theirs:?}");
    }
    assert!(cases.len() >= 12, "{} cases", cases.len());
}

/// Prints the time of each sampler with the vocabulary of Qwen 3, in milliseconds. A sampler
/// that compares all candidates with each other takes minutes; the bound leaves room for a machine
/// that runs other programs.
#[test]
fn no_sampler_is_slow() {
    const N_VOCAB: u32 = 151_936;
    const MOST: f64 = 5.0;
    let logits: Vec<f32> = (0..N_VOCAB)
        .map(|id| (id.wrapping_mul(2_654_435_761) >> 8) as f32 / 1e6)
        .collect();
    let usual = SamplerDefaults::llama_server().config(|| 1);
    let with = |change: fn(&mut SamplerConfig)| {
        let mut config = SamplerConfig {
            temperature: 1.0,
            order: Vec::new(),
            ..SamplerConfig::default()
        };
        change(&mut config);
        config
    };
    let one = |stage: Stage| SamplerConfig {
        order: vec![stage],
        ..with(|config| {
            config.repeat_penalty = 1.1;
            config.dry_multiplier = 0.8;
            config.dry_penalty_last_n = usize::MAX;
            (config.top_n_sigma, config.top_k, config.typical_p) = (1.0, 40, 0.9);
            (config.top_p, config.min_p) = (0.95, 0.05);
            (config.xtc_probability, config.xtc_threshold) = (1.0, 1e-9);
            (config.dynatemp_range, config.adaptive_target) = (0.5, 0.5);
        })
    };
    let mut cases = vec![
        ("none".to_owned(), with(|_| {})),
        (
            "temperature alone".to_owned(),
            with(|config| {
                config.temperature = 0.8;
                config.order = vec![Stage::Temperature];
            }),
        ),
        ("greedy".to_owned(), SamplerConfig::default()),
        ("llama-server's".to_owned(), usual),
        ("mirostat 1".to_owned(), with(|config| config.mirostat = 1)),
        ("mirostat 2".to_owned(), with(|config| config.mirostat = 2)),
        ("adaptive_p".to_owned(), one(Stage::AdaptiveP)),
    ];
    cases.extend(Stage::DEFAULT_ORDER.map(|stage| (stage.to_string(), one(stage))));
    for (name, config) in cases {
        let made = Sampler::new(config, N_VOCAB as usize, |_| DryBreakers::default());
        let mut sampler = made.expect("valid settings");
        // a context of 4,096 tokens that repeats itself
        (0..4096).for_each(|at| sampler.accept(at % 100));
        let times = (0..20).map(|_| {
            let start = std::time::Instant::now();
            sampler.sample(&logits).expect("a token");
            start.elapsed().as_secs_f64()
        });
        let best = times.fold(f64::INFINITY, f64::min);
        println!("{name}: {:.2} ms", best * 1e3);
        assert!(best < MOST, "{name}: {best} s");
    }
}
