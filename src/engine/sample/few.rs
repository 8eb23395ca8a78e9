//! Tests that a few of the largest logits draw the tokens that all of them do.

use super::*;

const N_VOCAB: usize = 500;

fn sampler(config: &SamplerConfig) -> Sampler {
    let breakers = |_: &[String]| DryBreakers::default();
    Sampler::new(config.clone(), N_VOCAB, breakers).expect("valid settings")
}

/// Logits with many equal ones, zeros of both signs among them.
fn logits(rng: &mut SplitMix64) -> Vec<f32> {
    let coarse = rng.unit() < 0.5;
    let mut one = || {
        let x = (rng.unit() * 12.0 - 6.0) as f32;
        match coarse {
            true => (x * 2.0).round() / 2.0,
            false => x,
        }
    };
    (0..N_VOCAB).map(|_| one()).collect()
}

/// The `n` largest, by a sort of all.
fn largest(logits: &[f32], n: usize) -> Vec<(u32, f32)> {
    let mut all: Vec<(u32, f32)> = (0..).zip(logits.iter().copied()).collect();
    all.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    all.truncate(n);
    all
}

fn chains() -> Vec<SamplerConfig> {
    let chat = SamplerConfig {
        temperature: 0.8,
        top_k: 40,
        top_p: 0.95,
        min_p: 0.05,
        ..SamplerConfig::default()
    };
    let of = |change: &dyn Fn(&mut SamplerConfig)| {
        let mut config = chat.clone();
        change(&mut config);
        config
    };
    vec![
        of(&|_| ()),
        of(&|c| c.top_k = 1),
        of(&|c| c.top_k = 7),
        of(&|c| (c.top_p, c.min_p) = (1.0, 0.0)),
        of(&|c| (c.typical_p, c.min_keep) = (0.7, 3)),
        of(&|c| (c.xtc_probability, c.xtc_threshold) = (0.5, 0.1)),
        of(&|c| (c.dynatemp_range, c.top_k) = (0.5, 100)),
        of(&|c| (c.adaptive_target, c.order) = (0.3, vec![Stage::TopK, Stage::AdaptiveP])),
        of(&|c| c.order = vec![Stage::Temperature, Stage::TopK, Stage::TopP]),
        of(&|c| c.logit_bias = (0..9).map(|id| (7 * id, f32::NEG_INFINITY)).collect()),
        // no top-n-sigma, whose place is before top-k
        of(&|c| (c.top_n_sigma, c.order) = (1.0, vec![Stage::TopK, Stage::TopNSigma])),
    ]
}

#[test]
fn a_few_draw_what_all_draw() {
    let mut rng = SplitMix64::new(3);
    for (i, chain) in chains().into_iter().enumerate() {
        for seed in 0..20 {
            let config = SamplerConfig {
                seed,
                ..chain.clone()
            };
            let [mut of_all, mut of_few] = [sampler(&config), sampler(&config)];
            let enough = of_few.enough_candidates().expect("a few are enough");
            assert_eq!(enough, config.top_k + config.logit_bias.len(), "chain {i}");
            for draw in 0..30 {
                let logits = logits(&mut rng);
                let few = largest(&logits, enough + draw % 3 * 5);
                let expected = of_all.sample(&logits).expect("finite logits");
                let got = of_few.sample_from(&few).expect("some are left");
                assert_eq!(got, expected, "chain {i}, seed {seed}, draw {draw}");
                of_all.accept(got);
                of_few.accept(got);
            }
        }
    }
}

#[test]
fn chains_that_look_at_more_take_all() {
    let chat = &chains()[0];
    let with = |change: &dyn Fn(&mut SamplerConfig)| {
        let mut config = chat.clone();
        change(&mut config);
        sampler(&config).enough_candidates()
    };
    assert_eq!(with(&|_| ()), Some(40));
    let all: [&dyn Fn(&mut SamplerConfig); 11] = [
        &|c| c.temperature = 0.0,
        &|c| c.top_k = 0,
        &|c| c.repeat_penalty = 1.1,
        &|c| c.presence_penalty = 0.1,
        &|c| c.dry_multiplier = 0.8,
        &|c| c.top_n_sigma = 1.0,
        &|c| c.mirostat = 2,
        &|c| c.logit_bias = vec![(3, 1.0)],
        &|c| c.order = vec![Stage::TopP, Stage::TopK],
        &|c| c.order = vec![Stage::MinP, Stage::TopK],
        &|c| (c.dynatemp_range, c.order) = (0.5, vec![Stage::Temperature, Stage::TopK]),
    ];
    for (i, change) in all.into_iter().enumerate() {
        assert_eq!(with(change), None, "{i}");
    }
}

/// A test of Kolmogorov and Smirnov at the level of 1 %: draws from a few follow the softmax of
/// those.
#[test]
fn draws_follow_the_softmax_of_the_largest() {
    let logits = logits(&mut SplitMix64::new(8));
    let config = SamplerConfig {
        temperature: 0.25,
        top_k: 25,
        seed: 4,
        ..SamplerConfig::default()
    };
    let few = largest(&logits, 25);
    let mut sampler = sampler(&config);
    let n = 20_000;
    let mut counts = [0usize; 25];
    for _ in 0..n {
        let id = sampler.sample_from(&few).expect("some are left");
        let place = few.iter().position(|(own, _)| *own == id);
        counts[place.expect("one of them")] += 1;
    }
    let powers: Vec<f64> = few
        .iter()
        .map(|(_, l)| (f64::from(*l) / 0.25).exp())
        .collect();
    let total: f64 = powers.iter().sum();
    let distance = |scale: &dyn Fn(usize) -> f64| {
        let (mut drawn, mut expected, mut most) = (0.0, 0.0, 0.0f64);
        for (i, count) in counts.iter().enumerate() {
            drawn += *count as f64 / f64::from(n);
            expected += scale(i);
            most = most.max((drawn - expected).abs());
        }
        most
    };
    let critical = 1.63 / f64::from(n).sqrt();
    let right = distance(&|i| powers[i] / total);
    assert!(right < critical, "{right}, at most {critical}");
    let uniform = distance(&|_| 1.0 / 25.0);
    assert!(
        uniform > 5.0 * critical,
        "the test sees another distribution"
    );
}
