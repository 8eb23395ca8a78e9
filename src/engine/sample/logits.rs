//! Reads rows of logits: the largest values, and log-probabilities.

use octavo_kernels::LogitKernels;

use super::SampleError;

/// Output of a model for one token.
#[derive(Clone, Copy, Debug)]
pub(crate) enum OutputValue<'a> {
    /// `[n_vocab]`, all finite; or the token's vector, where that was asked for.
    Logits(&'a [f32]),
    /// Id of the largest logit, the lowest id of equals.
    Argmax(u32),
    /// The largest logits with their tokens, all finite, the largest first and the lowest id first
    /// of equals: at least as many as were asked for.
    Candidates(&'a [(u32, f32)]),
}

/// Part of an output that is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OutputNeed {
    /// All logits.
    Logits,
    /// The id of the largest.
    Argmax,
    /// This many of the largest, or more; all logits will do as well.
    Candidates(usize),
}

/// Checks the number of logits.
pub(super) fn check_length(logits: &[f32], n_vocab: usize) -> Result<(), SampleError> {
    match logits.len() == n_vocab {
        true => Ok(()),
        false => Err(SampleError::Length {
            expected: n_vocab,
            got: logits.len(),
        }),
    }
}

/// Returns an error that names the first logit that is not finite, unless `are_finite`.
pub(super) fn check_finite(logits: &[f32], are_finite: bool) -> Result<(), SampleError> {
    if are_finite {
        return Ok(());
    }
    match logits.iter().position(|l| !l.is_finite()) {
        Some(id) => Err(SampleError::NonFinite {
            id,
            value: logits[id],
        }),
        None => Ok(()),
    }
}

/// Values compared side by side: the widest vector register, 512 bits.
const LANES: usize = 16;

/// Values of a block; at first only the largest of each block is found.
const BLOCK: usize = 64 * LANES;

/// Returns the token with the highest logit, the lowest id of equals; `None` of an empty row. NaN
/// is never chosen unless there is nothing else. Vocabularies are long, so this finds the largest
/// of each block and searches only the best block.
pub fn argmax(logits: &[f32]) -> Option<u32> {
    let mut best = (0, f32::NEG_INFINITY);
    for (block, values) in logits.chunks(BLOCK).enumerate() {
        let largest = largest(values);
        if largest > best.1 {
            best = (block, largest);
        }
    }
    let first = best.0 * BLOCK;
    let place = logits.get(first..)?.iter().position(|l| *l == best.1);
    u32::try_from(first + place.unwrap_or(0))
        .ok()
        .filter(|_| !logits.is_empty())
}

/// Iterates over the largest of each block; NaN is none.
fn maxima(logits: &[f32]) -> impl Iterator<Item = f32> {
    logits.chunks(BLOCK).map(largest)
}

fn largest(values: &[f32]) -> f32 {
    let max = |a: f32, b: f32| if b > a { b } else { a };
    let (lanes, rest) = values.as_chunks::<LANES>();
    let mut most = [f32::NEG_INFINITY; LANES];
    for lane in lanes {
        most.iter_mut()
            .zip(lane)
            .for_each(|(most, value)| *most = max(*most, *value));
    }
    most.iter()
        .chain(rest)
        .copied()
        .fold(f32::NEG_INFINITY, max)
}

/// Returns whether all values are finite.
pub(crate) fn are_finite(values: &[f32]) -> bool {
    // the products are zero, or NaN where the value is not finite
    let (lanes, rest) = values.as_chunks::<LANES>();
    let mut sums = [0.0f32; LANES];
    for lane in lanes {
        sums.iter_mut()
            .zip(lane)
            .for_each(|(sum, value)| *sum += value * 0.0);
    }
    sums.iter().all(|sum| *sum == 0.0) && rest.iter().all(|value| value.is_finite())
}

/// A token's natural log-probability under the raw logits, and the most likely tokens with theirs.
#[derive(Clone, Debug, PartialEq)]
pub struct Logprobs {
    /// The chosen token.
    pub id: u32,
    /// Its log-probability over the whole vocabulary.
    pub logprob: f64,
    /// The most likely tokens, best first, with theirs.
    pub top: Vec<(u32, f64)>,
}

/// Returns the mean log-probability of the tokens; 0 if there are none.
pub fn mean_logprob(tokens: &[Logprobs]) -> f64 {
    let sum: f64 = tokens.iter().map(|token| token.logprob).sum();
    sum / tokens.len().max(1) as f64
}

/// Computes log-probabilities before bias, penalties and filters: `ln softmax` over the whole
/// vocabulary in f64.
///
/// # Errors
/// [`SampleError::NonFinite`] if a logit is not finite, [`SampleError::Length`] if there is none
/// for `id`.
pub fn logprobs(logits: &[f32], id: u32, n_top: usize) -> Result<Logprobs, SampleError> {
    let mut all = all_logprobs(logits, &[id], n_top)?;
    Ok(all.remove(0))
}

/// As [`logprobs`], of several tokens in order.
pub(crate) fn all_logprobs(
    logits: &[f32],
    ids: &[u32],
    n_top: usize,
) -> Result<Vec<Logprobs>, SampleError> {
    check_finite(logits, are_finite(logits))?;
    let max = maxima(logits).fold(f32::NEG_INFINITY, f32::max);
    let max = f64::from(max);
    let blocks = LogitKernels::default().exp_sums_f32(logits, max);
    let total: f64 = blocks.iter().map(|sums| sums.powers).sum();
    let lse = max + total.ln();
    let top: Vec<(u32, f64)> = top_logits(logits, n_top)
        .into_iter()
        .map(|(id, l)| (id, f64::from(l) - lse))
        .collect();
    let one = |&id: &u32| {
        let length = SampleError::Length {
            expected: id as usize + 1,
            got: logits.len(),
        };
        Ok(Logprobs {
            id,
            logprob: f64::from(*logits.get(id as usize).ok_or(length)?) - lse,
            top: top.clone(),
        })
    };
    ids.iter().map(one).collect()
}

/// Returns the `n` highest logits with their tokens, best first, equal ones by id; NaN counts as
/// lowest.
pub fn top_logits(logits: &[f32], n: usize) -> Vec<(u32, f32)> {
    let key = |l: f32| {
        if l.is_nan() {
            f32::NEG_INFINITY
        } else {
            l + 0.0
        }
    }; // + 0.0: a negative zero equals zero
    let order = |a: &u32, b: &u32| {
        key(logits[*b as usize])
            .total_cmp(&key(logits[*a as usize]))
            .then(a.cmp(b))
    };
    if n == 0 {
        return Vec::new();
    }
    // the largest of n blocks are n logits: no smaller one can be among the n largest
    let largest: Vec<f32> = maxima(logits).map(key).collect();
    let floor = match n <= largest.len() {
        true => {
            let mut sorted = largest.clone();
            *sorted
                .select_nth_unstable_by(n - 1, |a, b| b.total_cmp(a))
                .1
        }
        false => f32::NEG_INFINITY,
    };
    let mut ids = Vec::new();
    for (block, values) in (0u32..).zip(logits.chunks(BLOCK)) {
        if largest[block as usize] >= floor {
            let places = (block * BLOCK as u32..).zip(values);
            ids.extend(places.filter(|(_, l)| key(**l) >= floor).map(|(id, _)| id));
        }
    }
    if n < ids.len() {
        ids.select_nth_unstable_by(n, order);
        ids.truncate(n);
    }
    ids.sort_unstable_by(order);
    ids.into_iter()
        .map(|id| (id, logits[id as usize]))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_is_found_wherever_it_stands() {
        assert_eq!(argmax(&[]), None);
        for len in [
            1,
            2,
            LANES,
            LANES + 1,
            BLOCK - 1,
            BLOCK,
            BLOCK + 1,
            3 * BLOCK + 5,
        ] {
            let mut values: Vec<f32> = (0..len).map(|i| -1.0 - (i % 7) as f32).collect();
            assert_eq!(
                argmax(&values),
                Some(0),
                "the lowest id of equals, of {len}"
            );
            for at in [0, len / 2, len - 1] {
                values[at] = 3.0;
                // an equal one after it
                values[len - 1] = 3.0;
                assert_eq!(argmax(&values), Some(at as u32), "of {len}");
                values[len - 1] = -9.0;
                values[at] = f32::NAN;
                let other = values
                    .iter()
                    .position(|v| *v == -1.0)
                    .or(values.iter().position(|v| !v.is_nan()));
                assert_eq!(
                    argmax(&values),
                    Some(other.unwrap_or(0) as u32),
                    "of {len}, without {at}"
                );
                values[at] = -9.0;
            }
            assert_eq!(argmax(&vec![f32::NEG_INFINITY; len]), Some(0));
        }
    }

    #[test]
    fn one_value_that_is_not_finite_is_seen() {
        for len in [1, LANES, 3 * LANES + 5] {
            let mut values = vec![f32::MAX; len];
            assert!(are_finite(&values));
            for at in 0..len {
                for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                    values[at] = bad;
                    assert!(!are_finite(&values), "{bad} at {at} of {len}");
                }
                values[at] = f32::MIN_POSITIVE;
            }
        }
    }
}
