//! Properties of any logits with any settings.

use super::*;

fn any_logits() -> impl Strategy<Value = Vec<f32>> {
    // eighths give many exact ties; the long case exceeds the sorted front of top-p
    prop_oneof![
        prop::collection::vec((-40i32..40).prop_map(|i| i as f32 / 8.0), 1..40),
        prop::collection::vec(-20.0f32..20.0, 1..40),
        prop::collection::vec((-16i32..16).prop_map(|i| i as f32 / 8.0), 100..1500),
    ]
}

fn any_config() -> impl Strategy<Value = SamplerConfig> {
    let cutoffs = (0.1f32..3.0, 0usize..30, 0.01f32..=1.0, 0.0f32..=1.0);
    let rarer = (0.01f32..=1.5, -1.0f32..3.0);
    let penalties = (0.5f32..2.0, -1.0f32..1.0, -1.0f32..1.0, 0usize..12);
    (
        cutoffs,
        penalties,
        any::<u64>(),
        Just(Stage::DEFAULT_ORDER.to_vec()).prop_shuffle(),
        0usize..=9,
        rarer,
    )
        .prop_map(
            |(
                (temperature, top_k, top_p, min_p),
                (repeat, presence, frequency, window),
                seed,
                mut order,
                n,
                (typical_p, top_n_sigma),
            )| {
                order.truncate(n);
                SamplerConfig {
                    temperature,
                    top_k,
                    top_p,
                    min_p,
                    repeat_penalty: repeat,
                    presence_penalty: presence,
                    frequency_penalty: frequency,
                    penalty_window: window,
                    typical_p: typical_p.min(1.0),
                    top_n_sigma,
                    seed,
                    order,
                    ..SamplerConfig::default()
                }
            },
        )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn a_draw_is_possible_under_the_naive_chain(
        logits in any_logits(),
        config in any_config(),
        recent in prop::collection::vec(0u32..40, 0..20),
    ) {
        let recent: Vec<u32> = recent.into_iter().map(|id| id % logits.len() as u32).collect();
        let p = oracle(&config, &logits, &recent, 1e-9);
        let mut s = sampler(config, logits.len());
        recent.iter().for_each(|&id| s.accept(id));
        let mut again = s.clone();
        for _ in 0..8 {
            let id = s.sample(&logits).expect("finite logits");
            prop_assert!(p[id as usize] > 0.0, "token {} was cut off; {:?}", id, p);
            prop_assert_eq!(again.sample(&logits), Ok(id), "the same state draws the same");
        }
    }

    #[test]
    fn temperature_zero_is_argmax_whatever_the_cut_offs(
        logits in any_logits(),
        config in any_config(),
    ) {
        let (temperature, penalty_window, typical_p) = (0.0, 0, 1.0);
        let config = SamplerConfig { temperature, penalty_window, typical_p, ..config };
        let best = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let first = logits.iter().position(|&l| l == best).expect("not empty") as u32;
        prop_assert_eq!(sampler(config, logits.len()).sample(&logits), Ok(first));
    }

    #[test]
    fn logprobs_are_log_softmax_of_the_raw_logits(
        logits in any_logits(),
        n in 0usize..12,
        pick in any::<prop::sample::Index>(),
    ) {
        let id = pick.index(logits.len()) as u32;
        let got = logprobs(&logits, id, n).expect("finite");
        let p = softmax(&logits.iter().map(|&l| f64::from(l)).collect::<Vec<_>>());
        prop_assert!((got.logprob - p[id as usize].ln()).abs() < 1e-9);
        prop_assert_eq!(got.top.len(), n.min(logits.len()));
        for (rank, &(id, lp)) in got.top.iter().enumerate() {
            prop_assert!((lp - p[id as usize].ln()).abs() < 1e-9);
            let before = logits.iter().enumerate().filter(|&(j, &l)| {
                l > logits[id as usize] || (l == logits[id as usize] && (j as u32) < id)
            }).count();
            prop_assert_eq!(before, rank, "token {} stands at the wrong place", id);
        }
    }
}
