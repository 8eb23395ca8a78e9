//! The sampler against its definition, written out naively, and the properties that users rely on.

mod defaults;
mod draws;
mod properties;

use octavo_engine::sample::{
    DryBreakers, SampleError, Sampler, SamplerConfig, Stage, argmax, logprobs, top_logits,
};
use proptest::prelude::*;

fn sampling() -> SamplerConfig {
    SamplerConfig {
        temperature: 1.0,
        ..SamplerConfig::default()
    }
}

fn sampler(config: SamplerConfig, n_vocab: usize) -> Sampler {
    Sampler::new(config, n_vocab, |_| DryBreakers::default()).expect("valid settings")
}

/// Returns every token that `n` draws produce, sorted.
fn support(config: &SamplerConfig, logits: &[f32], n: usize) -> Vec<u32> {
    let mut s = sampler(config.clone(), logits.len());
    let mut seen: Vec<u32> = (0..n)
        .map(|_| s.sample(logits).expect("finite logits"))
        .collect();
    seen.sort_unstable();
    seen.dedup();
    seen
}

/// Computes softmax in f64, by definition.
fn softmax(logits: &[f64]) -> Vec<f64> {
    let max = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let e: Vec<f64> = logits.iter().map(|l| (l - max).exp()).collect();
    let sum: f64 = e.iter().sum();
    e.iter().map(|x| x / sum).collect()
}

/// Returns the chain's result as probabilities over the vocabulary: full sorts, no shortcuts.
///
/// `slack` moves the cut-offs of min-p and top-p: above 0 they keep more, so that a cut decided by
/// rounding is allowed.
fn oracle(config: &SamplerConfig, logits: &[f32], recent: &[u32], slack: f64) -> Vec<f64> {
    let mut l: Vec<f64> = logits.iter().map(|&x| f64::from(x)).collect();
    for &(id, bias) in &config.logit_bias {
        l[id as usize] += f64::from(bias);
    }
    let recent = &recent[recent.len().saturating_sub(config.penalty_window)..];
    for stage in &config.order {
        // most likely first, equal ones by id; removed tokens are at minus infinity
        let mut ids: Vec<usize> = (0..l.len()).collect();
        ids.sort_by(|&a, &b| l[b].total_cmp(&l[a]).then(a.cmp(&b)));
        let p = softmax(&l);
        match stage {
            Stage::Penalties => {
                for (id, x) in l.iter_mut().enumerate() {
                    let n = recent.iter().filter(|&&t| t as usize == id).count();
                    if n > 0 && x.is_finite() {
                        let r = f64::from(config.repeat_penalty);
                        *x = if *x > 0.0 { *x / r } else { *x * r };
                        *x -= n as f64 * f64::from(config.frequency_penalty);
                        *x -= f64::from(config.presence_penalty);
                    }
                }
            }
            Stage::Temperature => l
                .iter_mut()
                .for_each(|x| *x /= f64::from(config.temperature)),
            Stage::MinP => {
                let floor = p[ids[0]] * f64::from(config.min_p) * (1.0 - slack);
                (0..l.len())
                    .filter(|&i| p[i] < floor)
                    .for_each(|i| l[i] = f64::NEG_INFINITY);
            }
            Stage::TopK if config.top_k > 0 => {
                ids.iter()
                    .skip(config.top_k)
                    .for_each(|&i| l[i] = f64::NEG_INFINITY);
            }
            Stage::TopK => {}
            Stage::TopP => {
                let mut sum = 0.0;
                for &i in &ids {
                    if config.top_p < 1.0 && sum >= f64::from(config.top_p) * (1.0 + slack) {
                        l[i] = f64::NEG_INFINITY;
                    }
                    sum += p[i];
                }
            }
            Stage::TypicalP => {
                let entropy: f64 = p.iter().filter(|p| **p > 0.0).map(|p| -p * p.ln()).sum();
                let distance = |i: usize| (-p[i].ln() - entropy).abs();
                ids.sort_by(|&a, &b| distance(a).total_cmp(&distance(b)).then(a.cmp(&b)));
                let mut sum = 0.0;
                for &i in &ids {
                    if config.typical_p < 1.0 && sum > f64::from(config.typical_p) + slack {
                        l[i] = f64::NEG_INFINITY;
                    }
                    sum += p[i];
                }
            }
            Stage::TopNSigma if config.top_n_sigma > 0.0 => {
                let left: Vec<f64> = l.iter().copied().filter(|l| l.is_finite()).collect();
                let n = left.len() as f64;
                let mean = left.iter().sum::<f64>() / n;
                let variance = left.iter().map(|l| (l - mean).powi(2)).sum::<f64>() / n;
                let least = l[ids[0]] - f64::from(config.top_n_sigma) * variance.sqrt() - slack;
                l.iter_mut()
                    .filter(|l| **l < least)
                    .for_each(|l| *l = f64::NEG_INFINITY);
            }
            // off by default; llama.cpp's tables hold them
            Stage::TopNSigma | Stage::Dry | Stage::Xtc | Stage::AdaptiveP => {}
        }
    }
    softmax(&l)
}

#[test]
fn greedy_takes_the_highest_logit_and_the_lowest_id_of_equals() {
    let mut s = sampler(SamplerConfig::default(), 5);
    assert_eq!(s.sample(&[1.0, 3.0, 2.0, 3.0, -1.0]), Ok(1));
    assert_eq!(s.sample(&[-1.0, -1.0, -1.0, -1.0, -1.0]), Ok(0));
    assert_eq!(s.sample(&[-0.0, 0.0, -0.0, 0.0, -1.0]), Ok(0));
    assert_eq!(argmax(&[]), None);
    let banned = SamplerConfig {
        logit_bias: vec![(0, f32::NEG_INFINITY)],
        ..SamplerConfig::default()
    };
    assert_eq!(
        sampler(banned, 3).sample(&[-0.0, -0.0, 0.0]),
        Ok(1),
        "ties after a bias, too"
    );
}

#[test]
fn greedy_honours_bias_and_penalties() {
    let logits = [1.0, 1.5, 0.9];
    let bias = SamplerConfig {
        logit_bias: vec![(2, 1.0)],
        ..SamplerConfig::default()
    };
    assert_eq!(sampler(bias, 3).sample(&logits), Ok(2));
    let mut s = sampler(
        SamplerConfig {
            repeat_penalty: 2.0,
            ..SamplerConfig::default()
        },
        3,
    );
    assert_eq!(s.sample(&logits), Ok(1));
    s.accept(1);
    assert_eq!(s.sample(&logits), Ok(0), "1.5 / 2 is below 1.0");
    let mut negative = sampler(
        SamplerConfig {
            repeat_penalty: 2.0,
            ..SamplerConfig::default()
        },
        2,
    );
    negative.accept(0);
    assert_eq!(
        negative.sample(&[-1.0, -1.5]),
        Ok(1),
        "-1.0 * 2 is below -1.5"
    );
}

#[test]
fn penalties_forget_what_left_the_window() {
    let config = SamplerConfig {
        presence_penalty: 5.0,
        penalty_window: 2,
        ..SamplerConfig::default()
    };
    let mut s = sampler(config, 4);
    s.accept(3);
    assert_eq!(s.sample(&[0.0, 0.0, 0.0, 1.0]), Ok(0));
    s.accept(3);
    s.accept(1);
    assert_eq!(
        s.sample(&[0.0, 0.0, 0.0, 1.0]),
        Ok(0),
        "one of two occurrences left the window"
    );
    s.accept(2);
    assert_eq!(s.sample(&[0.0, 0.0, 0.0, 1.0]), Ok(3), "both did");
    let frequency = SamplerConfig {
        frequency_penalty: 0.6,
        ..SamplerConfig::default()
    };
    let mut s = sampler(frequency, 2);
    s.accept(1);
    assert_eq!(s.sample(&[0.0, 1.0]), Ok(1));
    s.accept(1);
    assert_eq!(s.sample(&[0.0, 1.0]), Ok(0), "two times 0.6");
    let mut s = sampler(
        SamplerConfig {
            presence_penalty: 2.0,
            ..SamplerConfig::default()
        },
        2,
    );
    s.accept(1);
    (0..63).for_each(|_| s.accept(0));
    assert_eq!(s.sample(&[1.0, 2.5]), Ok(1), "both are among the last 64");
    s.accept(0);
    assert_eq!(s.sample(&[0.9, 1.0]), Ok(1), "only 0 is");
}

#[test]
fn logits_that_are_not_finite_are_refused_by_name() {
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        for config in [SamplerConfig::default(), sampling()] {
            match sampler(config, 3).sample(&[0.0, bad, bad]) {
                Err(SampleError::NonFinite { id: 1, value }) => {
                    assert_eq!(value.to_bits(), bad.to_bits())
                }
                other => panic!("expected a refusal of token 1, got {other:?}"),
            }
        }
        assert!(logprobs(&[0.0, bad], 0, 1).is_err());
    }
    let short = sampler(sampling(), 3).sample(&[0.0; 2]);
    assert_eq!(
        short,
        Err(SampleError::Length {
            expected: 3,
            got: 2
        })
    );
    let all = SamplerConfig {
        logit_bias: vec![(0, f32::NEG_INFINITY), (1, f32::NEG_INFINITY)],
        ..sampling()
    };
    assert_eq!(
        sampler(all, 2).sample(&[0.0, 1.0]),
        Err(SampleError::NothingLeft)
    );
}

#[test]
fn settings_out_of_range_are_refused() {
    let d = sampling;
    let bad = [
        SamplerConfig {
            temperature: -0.1,
            ..d()
        },
        SamplerConfig {
            temperature: f32::NAN,
            ..d()
        },
        SamplerConfig {
            temperature: f32::INFINITY,
            ..d()
        },
        SamplerConfig { top_p: 0.0, ..d() },
        SamplerConfig { top_p: 1.1, ..d() },
        SamplerConfig {
            top_p: f32::NAN,
            ..d()
        },
        SamplerConfig { min_p: -0.1, ..d() },
        SamplerConfig { min_p: 1.1, ..d() },
        SamplerConfig {
            min_p: f32::NAN,
            ..d()
        },
        SamplerConfig {
            repeat_penalty: 0.0,
            ..d()
        },
        SamplerConfig {
            repeat_penalty: f32::INFINITY,
            ..d()
        },
        SamplerConfig {
            presence_penalty: f32::NAN,
            ..d()
        },
        SamplerConfig {
            frequency_penalty: f32::INFINITY,
            ..d()
        },
        SamplerConfig {
            logit_bias: vec![(7, 0.0)],
            ..d()
        },
        SamplerConfig {
            logit_bias: vec![(0, f32::INFINITY)],
            ..d()
        },
        SamplerConfig {
            logit_bias: vec![(0, f32::NAN)],
            ..d()
        },
    ];
    for config in bad {
        let text = format!("{config:?}");
        let made = Sampler::new(config, 7, |_| DryBreakers::default());
        let error = made.expect_err(&text).to_string();
        assert!(
            error.contains("expected") && !error.contains('\n'),
            "{error}"
        );
    }
}

#[test]
fn orders_parse_and_bad_ones_are_refused() {
    assert_eq!(
        Stage::parse_order("top_k;temp,min-p"),
        Ok(vec![Stage::TopK, Stage::Temperature, Stage::MinP])
    );
    let default = Stage::DEFAULT_ORDER.map(Stage::name).join(";");
    assert_eq!(
        default,
        "penalties;dry;top_n_sigma;top_k;typ_p;top_p;min_p;xtc;temperature"
    );
    assert_eq!(
        Stage::parse_order(&default),
        Ok(Stage::DEFAULT_ORDER.to_vec())
    );
    assert!(Stage::parse_order("top_k;top_k").is_err());
    assert!(Stage::parse_order("infill").is_err());
    let letters = Stage::parse_letters("edskypmxt");
    assert_eq!(letters, Ok(Stage::DEFAULT_ORDER.to_vec()));
    assert!(Stage::parse_letters("kk").is_err());
    assert!(Stage::parse_letters("kz").is_err());
}

#[test]
fn filters_keep_what_their_definitions_say() {
    // probabilities 0.5, 0.25, 0.125, 0.125
    let logits = [0.5f32, 0.25, 0.125, 0.125].map(f32::ln);
    let top_k = |top_k| SamplerConfig {
        top_k,
        ..sampling()
    };
    let top_p = |top_p| SamplerConfig {
        top_p,
        ..sampling()
    };
    let min_p = |min_p| SamplerConfig {
        min_p,
        ..sampling()
    };
    let temperature = |temperature| SamplerConfig {
        temperature,
        ..sampling()
    };
    let cases = [
        (top_k(1), vec![0]),
        (top_k(3), vec![0, 1, 2]),
        (top_k(9), vec![0, 1, 2, 3]),
        (top_p(0.4), vec![0]),
        (top_p(0.6), vec![0, 1]),
        (top_p(0.8), vec![0, 1, 2]),
        (top_p(1e-9), vec![0]),
        (min_p(1.0), vec![0]),
        (min_p(0.4), vec![0, 1]),
        (min_p(0.2), vec![0, 1, 2, 3]),
        (temperature(1e-40), vec![0]),
    ];
    for (config, expected) in cases {
        assert_eq!(support(&config, &logits, 500), expected, "{config:?}");
    }
}

#[test]
fn the_order_of_stages_matters_and_a_missing_stage_does_not_run() {
    // at temperature 1, min-p 0.4 keeps two; at temperature 0.5 the second is at 0.25 of the first.
    // As in llama.cpp, cut-offs come first
    let logits = [0.5f32, 0.25, 0.125, 0.125].map(f32::ln);
    let base = SamplerConfig {
        temperature: 0.5,
        min_p: 0.4,
        ..sampling()
    };
    assert_eq!(support(&base, &logits, 300), [0, 1]);
    let before = SamplerConfig {
        order: vec![Stage::Temperature, Stage::MinP],
        ..base.clone()
    };
    assert_eq!(support(&before, &logits, 300), [0]);
    let without = SamplerConfig {
        order: vec![Stage::Temperature],
        ..base
    };
    assert_eq!(support(&without, &logits, 3000), [0, 1, 2, 3]);
}

#[test]
fn draws_follow_the_distribution() {
    let logits = [0.1f32, 2.0, -1.0, 0.7, 0.0, 1.1];
    let config = SamplerConfig {
        temperature: 0.8,
        top_p: 0.95,
        seed: 11,
        ..sampling()
    };
    let p = oracle(&config, &logits, &[], 0.0);
    let n = 20_000;
    let mut counts = [0u32; 6];
    let mut s = sampler(config, 6);
    for _ in 0..n {
        counts[s.sample(&logits).expect("finite") as usize] += 1;
    }
    for (id, &count) in counts.iter().enumerate() {
        // five standard deviations of a binomial, which a fixed seed either meets or not
        let bound = 5.0 * (f64::from(n) * p[id] * (1.0 - p[id])).sqrt();
        let off = (f64::from(count) - f64::from(n) * p[id]).abs();
        assert!(
            off <= bound,
            "token {id}: {count} of {n}, expected probability {}",
            p[id]
        );
    }
}

#[test]
fn a_seed_means_the_same_draws_for_ever() {
    // with a uniform distribution the draws show the generator's outputs
    let config = SamplerConfig {
        seed: 1_234_567,
        ..sampling()
    };
    let mut s = sampler(config, 1000);
    let drawn: Vec<u32> = (0..3)
        .map(|_| s.sample(&[0.0; 1000]).expect("finite"))
        .collect();
    // SplitMix64's published outputs for this seed, as thousandths of 2^64
    let outputs = [
        6_457_827_717_110_365_317u64,
        3_203_168_211_198_807_973,
        9_817_491_932_198_370_423,
    ];
    let expected: Vec<u32> = outputs
        .iter()
        .map(|&x| ((u128::from(x) * 1000) >> 64) as u32)
        .collect();
    assert_eq!(drawn, expected);
}

#[test]
fn logprobs_stay_finite_at_the_ends_of_the_range() {
    let got = logprobs(&[f32::MAX, f32::MIN, 0.0], 1, 3).expect("finite logits");
    assert_eq!(got.top[0], (0, 0.0));
    assert!(got.logprob.is_finite());
    assert!(
        logprobs(&[0.0], 1, 0).is_err(),
        "an id outside the vocabulary"
    );
}

#[test]
fn top_logits_never_hide_a_nan_among_the_best() {
    assert_eq!(top_logits(&[1.0, f32::NAN, 2.0], 2), [(2, 2.0), (0, 1.0)]);
    assert_eq!(top_logits(&[1.0, 1.0, 1.0], 2), [(0, 1.0), (1, 1.0)]);
    assert_eq!(top_logits(&[], 2), []);
    assert_eq!(top_logits(&[3.0], 0), []);
}
