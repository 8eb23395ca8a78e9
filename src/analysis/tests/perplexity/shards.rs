//! Scoring a text in shards: every digit equals that of the whole text scored at once.

use std::ops::Range;

use super::*;
use octavo_analysis::eval::divergence_of;

/// Returns ways to cut `n` chunks into shards, in order.
fn cuts(n: usize) -> Vec<Vec<Range<usize>>> {
    let even = |shards: usize| {
        (0..shards)
            .map(|i| n * i / shards..n * (i + 1) / shards)
            .collect()
    };
    vec![
        even(1),
        even(3),
        even(8),
        vec![0..1, 1..n],
        vec![0..n - 1, n - 1..n],
    ]
}

/// Returns all figures as bits.
fn bits(estimates: &[octavo_analysis::eval::Estimate]) -> Vec<[u64; 2]> {
    estimates
        .iter()
        .map(|e| [e.value.to_bits(), e.uncertainty.to_bits()])
        .collect()
}

#[test]
fn perplexity_has_the_same_digits_however_the_text_is_cut() {
    let engine = engine(&ModelSource::Demo, 8);
    let text = text(&engine, 8, None);
    let options = Options::default();
    let of = |text: &Text| perplexity(&engine, text, &options, &mut ()).expect("scores");
    let figures = |ppl: &Perplexity| bits(&[ppl.mean_nll(), ppl.ppl()]);
    let whole = of(&text);
    assert!(whole.chunks() > 8);
    for cut in cuts(whole.chunks()) {
        let mut merged = Perplexity::default();
        for shard in &cut {
            let shard = of(&text.only(shard.clone()));
            shard
                .by_chunk()
                .iter()
                .for_each(|chunk| merged.push(*chunk));
        }
        assert_eq!(merged.by_chunk(), whole.by_chunk(), "{cut:?}");
        assert_eq!(figures(&merged), figures(&whole), "{cut:?}");
        assert_eq!(merged.scored(), whole.scored());
    }
}

/// Returns every figure of a divergence and its percentiles as bits.
fn figures(d: &Divergence) -> (Vec<[u64; 2]>, [u32; 6]) {
    let estimates = [
        d.ppl(),
        d.ppl_base(),
        d.ln_ratio(),
        d.ratio(),
        d.difference(),
        d.kld(),
        d.dp(),
        d.rms_dp(),
        d.same_top(),
    ];
    let of = |values: &octavo_analysis::eval::Sorted| {
        [values.median(), values.percentile(0.99), values.minimum()].map(f32::to_bits)
    };
    let ([a, b, c], [d, e, f]) = (of(&d.klds()), of(&d.dps()));
    (bits(&estimates), [a, b, c, d, e, f])
}

fn is_the_same_however_it_is_cut(engine: &Engine, bytes: Vec<u8>) {
    let mut base = Reader::new(Cursor::new(bytes.clone()), "base").expect("sound");
    let options = Options::default();
    let whole = divergence(engine, &mut base, None, &options, &mut ()).expect("scores");
    let cut_at = base.cut();
    for cut in cuts(whole.chunks()) {
        let (mut merged, mut widest) = (Divergence::default(), 0.0f32);
        // last shard first: results must not depend on earlier reads
        let shards = cut.iter().rev().map(|shard| {
            let mut base = Reader::new(Cursor::new(bytes.clone()), "base").expect("sound");
            let scored = divergence_of(engine, &mut base, shard.clone(), &options, &mut ());
            widest = widest.max(base.cut());
            scored.expect("scores")
        });
        let shards: Vec<Divergence> = shards.collect();
        for shard in shards.iter().rev() {
            shard
                .by_chunk()
                .iter()
                .for_each(|chunk| merged.push(chunk.clone()));
        }
        assert_eq!(merged.by_chunk(), whole.by_chunk(), "{cut:?}");
        assert_eq!(figures(&merged), figures(&whole), "{cut:?}");
        assert_eq!(widest, cut_at, "{cut:?}");
    }
}

#[test]
fn divergence_has_the_same_digits_however_the_base_is_cut() {
    let engine = engine(&ModelSource::Demo, 8);
    let text = text(&engine, 8, None);
    is_the_same_however_it_is_cut(&engine, base_of(&text, &foreign_rows(&engine, &text)));
}

/// A row that goes down to 24 nats, as ik_llama.cpp writes it, affects its own chunk only,
/// whichever chunks were read before.
#[test]
fn a_wider_row_counts_for_its_own_chunk() {
    let engine = engine(&ModelSource::Demo, 8);
    let text = text(&engine, 8, None);
    let mut bytes = base_of(&text, &foreign_rows(&engine, &text));
    let shape = text.shape();
    let row = 20 + 4 * shape.n_ctx * shape.n_chunks + 2 * shape.rows() * shape.row_bytes();
    bytes[row..row + 4].copy_from_slice(&(24.0f32 / 65535.0).to_le_bytes());
    bytes[row + 4..row + 8].copy_from_slice(&(-24.0f32).to_le_bytes());
    let mut base = Reader::new(Cursor::new(bytes.clone()), "base").expect("sound");
    assert_eq!(
        [0, 1, 2, 3].map(|chunk| base.cut_of(chunk).expect("a cut")),
        [16.0, 16.0, 24.0, 16.0]
    );
    assert_eq!(base.cut(), 24.0);
    is_the_same_however_it_is_cut(&engine, bytes);
}
