//! The loss of a tensor in types in which it was not measured.
//!
//! As long as rounding moves the logits little, their KL divergence is a quadratic form of the
//! change of the weights, so that for a tensor it is in proportion to the squared error: from one
//! measured type to another it changes as the error does. Between two measured types, the loss
//! follows a power of the error.

use gguf_rs_lite::TensorType;

use super::Candidate;

/// Smallest loss that can be told from none, in nats: the measurements' own rounding.
pub(super) const FLOOR: f64 = 1e-8;

/// Returns the loss of each of a tensor's candidates, given its measurements; 0 for types
/// that change nothing, such as that of the source; `None` if nothing was measured.
pub(super) fn losses(candidates: &[Candidate], measured: &[(TensorType, f64)]) -> Option<Vec<f64>> {
    let mut known: Vec<(TensorType, f64, f64)> = measured
        .iter()
        .filter_map(|&(ty, loss)| {
            let error = candidates.iter().find(|c| c.ty == ty)?.error;
            (error > 0.0).then_some((ty, error, loss.max(FLOOR)))
        })
        .collect();
    known.sort_by(|a, b| a.1.total_cmp(&b.1));
    let is_exact = candidates.iter().all(|c| c.error <= 0.0);
    (is_exact || !known.is_empty()).then_some(())?;
    let loss = |c: &Candidate| {
        let exact = known.iter().find(|(ty, _, _)| *ty == c.ty);
        match exact {
            _ if c.error <= 0.0 => 0.0,
            Some((_, _, loss)) => *loss,
            None => between(&known, c.error),
        }
    };
    Some(candidates.iter().map(loss).collect())
}

/// Returns the loss at an error, from those at known errors in ascending order.
fn between(known: &[(TensorType, f64, f64)], error: f64) -> f64 {
    let above = known.partition_point(|(_, e, _)| *e <= error);
    let (low, high) = (above.checked_sub(1).map(|i| known[i]), known.get(above));
    match (low, high) {
        (Some((_, e0, l0)), Some((_, e1, l1))) if *e1 > e0 => {
            let part = (error / e0).ln() / (e1 / e0).ln();
            (l0.ln() + part * (l1 / l0).ln()).exp()
        }
        (Some((_, e, loss)), _) => loss * error / e,
        (None, Some((_, e, loss))) => loss * error / e,
        (None, None) => FLOOR,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidates(errors: &[(TensorType, f64)]) -> Vec<Candidate> {
        let candidate = |&(ty, error)| Candidate {
            ty,
            bytes: 0,
            error,
        };
        errors.iter().map(candidate).collect()
    }

    #[test]
    fn losses_follow_the_errors() {
        use TensorType as T;
        let of = candidates(&[
            (T::Q2_K, 0.08),
            (T::Q3_K, 0.02),
            (T::Q4_K, 0.005),
            (T::Q8_0, 0.00001),
            (T::F16, 0.0),
        ]);
        let near = |got: &[f64], expected: &[f64]| {
            let pairs = got.iter().zip(expected);
            assert_eq!(got.len(), expected.len());
            assert!(
                pairs.clone().all(|(a, b)| (a - b).abs() <= 1e-9 * b.abs()),
                "{got:?} {expected:?}"
            );
        };
        let one = losses(&of, &[(T::Q4_K, 0.01)]).unwrap();
        near(&one, &[0.16, 0.04, 0.01, 0.00002, 0.0]);
        // between two measured types by a power of the error, here its square root
        let two = [(T::Q2_K, 0.04), (T::Q4_K, 0.01)];
        near(
            &losses(&of, &two).unwrap(),
            &[0.04, 0.02, 0.01, 0.00002, 0.0],
        );
        assert!(losses(&of, &[]).is_none());
        // noise below zero is no gain
        let noise = losses(&of, &[(T::Q8_0, -1e-6)]).unwrap();
        assert!(noise.iter().all(|loss| *loss >= 0.0) && noise[3] == FLOOR);
    }
}
