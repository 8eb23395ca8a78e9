//! Tokens that seeds draw from a large vocabulary. The expected tokens are those of a few lines of
//! Python with `math.exp` and sums in the order of the candidates; every bound and every target of
//! a draw there is at least a millionth of the total away from where another token would be drawn.

use super::*;
use octavo_engine::sample::SamplerDefaults;

const N_VOCAB: u32 = 151_936;

/// Logits from 0 to 16.8, evenly spread.
fn logits() -> Vec<f32> {
    let spread = |id: u32| (id.wrapping_mul(2_654_435_761) >> 8) as f32 / 1e6;
    (0..N_VOCAB).map(spread).collect()
}

#[test]
fn seeds_draw_what_they_always_drew() {
    let plain = SamplerConfig {
        temperature: 1.0,
        ..SamplerConfig::default()
    };
    let cases = [
        (plain.clone(), [59241, 2558, 136_871, 88576, 68747, 37917]),
        (
            SamplerConfig {
                temperature: 0.8,
                ..plain.clone()
            },
            [59241, 2558, 136_879, 88576, 68747, 37917],
        ),
        (
            SamplerDefaults::llama_server().config(|| 0),
            [107_863, 50549, 81790, 75025, 147_466, 17711],
        ),
        (
            SamplerConfig {
                top_p: 0.9,
                ..plain.clone()
            },
            [115_170, 114_018, 63519, 98323, 98357, 6498],
        ),
        (
            SamplerConfig {
                typical_p: 0.5,
                ..plain.clone()
            },
            [82209, 57466, 34951, 92490, 63744, 89872],
        ),
        (
            SamplerConfig {
                min_p: 0.5,
                ..plain
            },
            [59254, 2571, 136_897, 88610, 68747, 37938],
        ),
    ];
    let logits = logits();
    for (config, expected) in cases {
        let config = SamplerConfig { seed: 7, ..config };
        let mut sampler = sampler(config.clone(), N_VOCAB as usize);
        let drawn = expected.map(|_| sampler.sample(&logits).expect("a token"));
        assert_eq!(drawn, expected, "{config:?}");
    }
}

#[test]
fn a_banned_token_is_passed_over_and_others_keep_their_order() {
    let logits = logits();
    let base = SamplerConfig {
        temperature: 1.0,
        seed: 7,
        ..SamplerConfig::default()
    };
    // tokens of so little probability that no draw is moved over a boundary
    let least = |id: &u32| logits[*id as usize] < 1e-3;
    let banned: Vec<u32> = (0..N_VOCAB).filter(least).take(3).collect();
    let config = SamplerConfig {
        logit_bias: banned.iter().map(|id| (*id, f32::NEG_INFINITY)).collect(),
        ..base.clone()
    };
    assert_eq!(banned.len(), 3);
    let mut without = sampler(config, N_VOCAB as usize);
    let mut with = sampler(base, N_VOCAB as usize);
    for _ in 0..6 {
        assert_eq!(without.sample(&logits), with.sample(&logits));
    }
}
