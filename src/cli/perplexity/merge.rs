//! Formats the figures of all chunks as one run prints them.

use std::path::Path;

use octavo_analysis::eval::{ChunkDivergence, ChunkLikelihood, Divergence, Perplexity, Slack};
use octavo_analysis::shards::About;

use super::{print, small};

/// Formats the perplexity of a text as one run prints it, which may have written a base.
pub(crate) fn perplexity(
    chunks: Vec<ChunkLikelihood>,
    base: Option<&Path>,
    about: &About,
    json: bool,
) -> Result<String, serde_json::Error> {
    let mut ppl = Perplexity::default();
    let (mut out, mut chunk_ppl) = (String::new(), Vec::new());
    for chunk in chunks {
        ppl.push(chunk);
        chunk_ppl.push(ppl.ppl().value);
        out += &print::perplexity_chunk(&ppl);
    }
    match json {
        true => print::perplexity_json(&ppl, &chunk_ppl, base, about),
        false => Ok(out + "\n" + &print::final_estimate(&ppl)),
    }
}

/// Joins the chunks of a comparison; returns them with the lines that one run prints of them.
fn by_chunk(chunks: Vec<ChunkDivergence>) -> (Divergence, String) {
    let (mut all, mut out) = (Divergence::default(), String::new());
    for chunk in chunks {
        all.push(chunk);
        out += &print::divergence_chunk(&all);
    }
    (all, out)
}

/// Formats a comparison with a base as one run prints it.
pub(crate) fn divergence(
    chunks: Vec<ChunkDivergence>,
    cut: f32,
    about: &About,
    json: bool,
) -> Result<String, serde_json::Error> {
    let (all, out) = by_chunk(chunks);
    match json {
        true => print::divergence_json(&all, Some(cut), about),
        false => Ok(out + &print::divergence(&all)),
    }
}

/// Formats a comparison with a small base as one run prints it.
pub(crate) fn divergence_from_small(
    chunks: Vec<ChunkDivergence>,
    slacks: &[Slack],
    about: &About,
    json: bool,
) -> Result<String, serde_json::Error> {
    let (all, out) = by_chunk(chunks);
    let figures = small::figures(
        &all,
        Slack::of_mean(slacks, all.scored()),
        json.then_some(about),
    )?;
    Ok(match json {
        true => figures,
        false => out + &figures,
    })
}
