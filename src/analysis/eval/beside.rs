//! Divergence of models from another that is computed beside them, in the same process: chunk by
//! chunk, with no base in between. Nothing is rounded and nothing is cut off.

use super::divergence::{ChunkDivergence, Divergence, Token};
use super::pass::{ChunkRows, Pass, for_each};
use super::{Error, Observer, Options, Text};
use octavo_engine::Engine;

/// Scores a text by a reference model, and the predictions of other models against the reference's.
/// The reference is computed once, whatever the number of the others. Returns the divergence of
/// each of them, in their order.
///
/// # Errors
/// [`enum@Error`]: a model has another vocabulary or too short a context, an engine fails, or the
/// observer cancels.
pub fn divergence_beside(
    reference: &Engine,
    models: &[Engine],
    text: &Text,
    options: &Options,
    observer: &mut dyn Observer<Vec<Divergence>>,
) -> Result<Vec<Divergence>, Error> {
    let shape = text.shape();
    let mut first = Pass::new(reference, shape, "text", options)?;
    let others = models
        .iter()
        .map(|model| Pass::new(model, shape, "text", options));
    let mut others: Vec<Pass> = others.collect::<Result<_, _>>()?;
    let mut so_far = vec![Divergence::default(); models.len()];
    for tokens in text.tokens().chunks_exact(shape.n_ctx) {
        let cancelled = &|| observer.cancelled();
        let mut chunks = vec![ChunkDivergence::default(); models.len()];
        first.begin(tokens, cancelled)?;
        for other in &mut others {
            other.begin(tokens, cancelled)?;
        }
        for rows in first.parts() {
            let targets = first.targets(tokens, &rows);
            let base = first.rows(tokens, rows.clone(), cancelled)?;
            for (other, chunk) in others.iter_mut().zip(&mut chunks) {
                let part = ChunkRows {
                    first: rows.start,
                    logits: other.rows(tokens, rows.clone(), cancelled)?,
                    targets,
                };
                for token in &score(&part, base, shape.n_vocab, options.threads) {
                    chunk.add(token);
                }
            }
        }
        for (so_far, chunk) in so_far.iter_mut().zip(chunks) {
            so_far.push(chunk);
        }
        observer.chunk(&so_far, shape.n_chunks);
    }
    Ok(so_far)
}

fn score(part: &ChunkRows<'_>, base: &[f32], n_vocab: usize, threads: usize) -> Vec<Token> {
    let mut tokens = vec![Token::default(); part.targets.len()];
    for_each(threads, &mut tokens, |i, token| {
        let row = i * n_vocab..(i + 1) * n_vocab;
        let target = part.targets[i] as usize;
        *token = Token::between(&part.logits[row.clone()], &base[row], target);
    });
    tokens
}
