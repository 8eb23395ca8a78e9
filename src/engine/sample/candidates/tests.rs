use super::*;
use crate::sample::random::SplitMix64;

/// Candidates over several blocks, with ties, and the same as a plain list; every third token is
/// masked if `some` is true.
fn candidates(n: u32, some: bool) -> (Candidates, Vec<Candidate>) {
    let mut rng = SplitMix64::new(u64::from(n));
    let logits: Vec<f32> = (0..n)
        .map(|_| (rng.unit() * 160.0) as i32 as f32 / 8.0)
        .collect();
    let mut all = Candidates::default();
    assert!(all.fill(&logits));
    let mut list = all.all();
    if some {
        all.mask(f64::MIN, |c| c.id % 3 != 0);
        list.retain(|c| c.id % 3 != 0);
    }
    (all, list)
}

const SIZES: [u32; 7] = [1, 2, 255, 256, 257, 1000, 5000];

#[test]
fn the_largest_are_those_of_a_sorted_list() {
    for (n, some) in SIZES.into_iter().flat_map(|n| [(n, false), (n, true)]) {
        let (all, mut list) = candidates(n, some);
        list.sort_by(likelier);
        assert_eq!(all.best(), list.first().copied(), "{n}");
        for k in [0, 1, 3, 18, 19, 20, 300, 6000] {
            assert_eq!(all.largest(k), list[..k.min(list.len())], "{k} of {n}");
        }
    }
}

#[test]
fn a_draw_is_where_the_sum_of_the_powers_passes_its_target() {
    for (n, some) in SIZES.into_iter().flat_map(|n| [(n, false), (n, true)]) {
        let (all, list) = candidates(n, some);
        let total: f64 = list.iter().map(|c| c.logit.exp()).sum();
        assert_eq!(all.draw(0.0), list.first().map(|c| c.id));
        let mut sum = 0.0;
        for c in &list {
            let (from, power) = (sum / total, c.logit.exp() / total);
            sum += c.logit.exp();
            assert_eq!(all.draw(from + 0.5 * power), Some(c.id), "of {n}");
            assert!((all.logprob(c.id) - power.ln()).abs() < 1e-12, "of {n}");
        }
        // only rounding asks for more than there is
        assert_eq!(all.draw(1.0), list.last().map(|c| c.id));
        assert_eq!(all.logprob(n), f64::NEG_INFINITY);
    }
}

#[test]
fn the_entropy_is_that_of_the_probabilities() {
    for n in SIZES {
        let (all, list) = candidates(n, false);
        let mut probabilities = Vec::new();
        all.probabilities(&mut probabilities);
        let total: f64 = probabilities.iter().sum();
        let entropy: f64 = probabilities.iter().map(|p| -p * p.ln()).sum();
        assert!((total - 1.0).abs() < 1e-12);
        assert!(
            (all.softmax().entropy - entropy).abs() <= 1e-12 * entropy,
            "{n}"
        );
        assert_eq!(probabilities.len(), list.len());
    }
}

#[test]
fn tokens_are_masked_and_changed_wherever_they_stand() {
    let (mut all, mut list) = candidates(1000, false);
    let banned = [999, 0, 500, 0, 2000];
    all.bias(&[(3, 1.5), (7, f32::NEG_INFINITY)], &banned);
    list[3].logit += 1.5;
    list.retain(|c| c.id != 7 && !banned.contains(&c.id));
    assert_eq!(all.all(), list);
    assert_eq!((all.len(), all.size()), (996, 1000));
    let changed = BTreeMap::from([(1, 2.0), (7, 9.0), (998, -1.0)]);
    let change = |all: &mut Candidates, list: &mut Vec<Candidate>| {
        all.adjust(&changed, |logit, by| logit + by);
        for c in list.iter_mut() {
            c.logit += changed.get(&c.id).copied().unwrap_or(0.0);
        }
        assert_eq!(all.all(), *list);
        assert_eq!(
            all.best(),
            list.iter().min_by(|a, b| likelier(a, b)).copied()
        );
    };
    change(&mut all, &mut list);
    list.sort_by(likelier);
    all.replace(&list);
    change(&mut all, &mut list);
}
