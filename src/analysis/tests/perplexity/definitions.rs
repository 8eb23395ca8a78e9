//! Divergence against its written-out definitions.

use super::*;

/// Values of each token by definition, from the model's logits and the base's bytes.
#[derive(Default)]
struct Expected {
    nll: Vec<f64>,
    nll_base: Vec<f64>,
    kld: Vec<f64>,
    dp: Vec<f64>,
    /// Number of tokens with the same most likely token.
    same: usize,
}

impl Expected {
    fn of(engine: &Engine, text: &Text, bytes: &[u8]) -> Expected {
        let mut all = Expected::default();
        let stored = stored(bytes, text.shape());
        for ((row, target), base) in scored(engine, text).iter().zip(stored) {
            let lse = log_sum_exp(row);
            let ln_q = |id: usize| f64::from(row[id]) - lse;
            all.nll.push(-ln_q(*target));
            all.nll_base.push(-base[*target]);
            let terms = base.iter().enumerate().filter(|(_, ln_p)| **ln_p > -16.0);
            let kld = terms.map(|(id, ln_p)| ln_p.exp() * (ln_p - ln_q(id)));
            all.kld.push(kld.sum::<f64>());
            all.dp.push(ln_q(*target).exp() - base[*target].exp());
            let top = |values: &dyn Fn(usize) -> f64| {
                (1..row.len()).fold(0, |top, id| if values(id) > values(top) { id } else { top })
            };
            all.same += usize::from(top(&ln_q) == top(&|id| base[id]));
        }
        all
    }

    /// Returns Pearson's correlation of both negative log-likelihoods.
    fn correlation(&self) -> f64 {
        let (mean_a, mean_b) = (
            mean_and_error(&self.nll).0,
            mean_and_error(&self.nll_base).0,
        );
        let both = self.nll.iter().zip(&self.nll_base);
        let products: f64 = both.map(|(a, b)| (a - mean_a) * (b - mean_b)).sum();
        let squares = |v: &[f64], mean: f64| v.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>();
        products / (squares(&self.nll, mean_a) * squares(&self.nll_base, mean_b)).sqrt()
    }
}

#[test]
fn divergence_is_what_the_definitions_say() {
    let engine = engine(&ModelSource::Demo, 16);
    let text = text(&engine, 16, None);
    let bytes = base_of(&text, &foreign_rows(&engine, &text));
    let all = Expected::of(&engine, &text, &bytes);
    let mut reader = Reader::new(Cursor::new(bytes), "base").expect("sound");
    let got = divergence(&engine, &mut reader, None, &Options::default(), &mut ()).expect("scores");
    let (n, same) = (all.nll.len(), all.same);
    assert!(
        n > 20 && same > 0 && same < n,
        "{n} tokens, {same} with the same top"
    );
    assert_eq!((got.scored(), got.chunks()), (n, text.shape().n_chunks));
    let check = |what, got: octavo_analysis::eval::Estimate, values: &[f64]| {
        let (mean, error) = mean_and_error(values);
        close(what, got.value, mean, 1e-5);
        close(what, got.uncertainty, error, 1e-4);
    };
    let ratio: Vec<f64> = all
        .nll
        .iter()
        .zip(&all.nll_base)
        .map(|(a, b)| a - b)
        .collect();
    check("KLD", got.kld(), &all.kld);
    check("dp", got.dp(), &all.dp);
    check("ln ratio", got.ln_ratio(), &ratio);
    let (mean, error) = mean_and_error(&all.nll_base);
    close("PPL(base)", got.ppl_base().value, mean.exp(), 1e-5);
    close(
        "its uncertainty",
        got.ppl_base().uncertainty,
        mean.exp() * error,
        1e-4,
    );
    close(
        "PPL",
        got.ppl().value,
        mean_and_error(&all.nll).0.exp(),
        1e-5,
    );
    close(
        "PPL ratio",
        got.ratio().value,
        mean_and_error(&ratio).0.exp(),
        1e-5,
    );
    close(
        "PPL difference",
        got.difference().value,
        got.ppl().value - got.ppl_base().value,
        1e-9,
    );
    close("correlation", got.correlation(), all.correlation(), 1e-5);
    let rms = (all.dp.iter().map(|x| x * x).sum::<f64>() / n as f64).sqrt();
    close("RMS", got.rms_dp().value, rms, 1e-5);
    close(
        "same top",
        got.same_top().value,
        same as f64 / n as f64,
        1e-12,
    );
    let Expected {
        mut kld, mut dp, ..
    } = all;
    kld.sort_by(f64::total_cmp);
    dp.sort_by(f64::total_cmp);
    close("maximum", got.klds().maximum().into(), kld[n - 1], 1e-5);
    close("minimum", got.klds().minimum().into(), kld[0], 1e-4);
    close("minimum", got.dps().minimum().into(), dp[0], 1e-4);
    close(
        "median",
        got.klds().median().into(),
        (kld[(n - 1) / 2] + kld[n / 2]) / 2.0,
        1e-4,
    );
}
