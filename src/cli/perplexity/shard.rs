//! Measures a part of the chunks and writes it as a shard.

use octavo_analysis::eval::base::Reader;
use octavo_analysis::eval::{self, Error, SmallReader};
use octavo_analysis::shards::{Content, Key, ShardIndex, sha256};
use octavo_engine::EngineOptions;

use std::io::{Read, Seek};
use std::path::Path;

use super::{CHUNK, PerplexityArgs, Watch, fit, open_base, scoring, small};
use crate::failure::{Exit, Failure};
use crate::load;
use crate::shards::{Job, Measured, about, add_computation, add_keys, add_model};
use crate::signal::Generating;

/// Measures one part, of a text or of a comparison with a base.
pub(super) fn measure(
    args: &PerplexityArgs,
    options: EngineOptions,
    text: Option<Vec<u8>>,
    job: &Job<'_>,
) -> Result<Exit, Failure> {
    match &args.kl_divergence_base {
        Some(path) if eval::is_small(path) => compare_small(args, options, path, text, job),
        Some(path) => compare(args, options, path, text, job),
        None => score(args, options, &text.unwrap_or_default(), job),
    }
}

fn score(
    args: &PerplexityArgs,
    mut options: EngineOptions,
    text: &[u8],
    job: &Job<'_>,
) -> Result<Exit, Failure> {
    let n_ctx = match options.ctx.unwrap_or(CHUNK) {
        0 => load::n_ctx_train(&load::source_quietly(&args.model)?)?,
        n_ctx => n_ctx,
    };
    options.ctx = Some(n_ctx);
    let mut key = Key::new("perplexity");
    add_model(&mut key, "model", args.model.path()?)?;
    add_keys(&mut key, &args.model);
    key.bytes("text", text)
        .set("tokens of a chunk", n_ctx)
        .set("chunks", args.chunks);
    if let Some(size) = args.small.size() {
        key.set("tokens of a row", size.top)
            .set("bits of a row", size.bits);
    }
    add_computation(&mut key, &options)?;
    job.run(key, |shard: ShardIndex| {
        let engine = load::engine_with(&args.model, options.clone())?;
        let text = args.cut(&engine, text)?;
        let units = text.shape().n_chunks;
        let text = text.only(shard.range(units));
        let (scoring, generating) = (scoring(&options), Generating::begin());
        let mut watch = Watch::new(args, &generating, "scoring");
        let result = match args.small.size() {
            Some(size) => eval::small_base_chunks(&engine, &text, size, &scoring, &mut watch)
                .map(Content::SmallBase),
            None => eval::perplexity(&engine, &text, &scoring, &mut watch)
                .map(|ppl| Content::Perplexity(ppl.by_chunk().to_vec())),
        };
        let Some(content) = watch.end(result)? else {
            return Ok(None);
        };
        Ok(Some(Measured {
            units,
            about: about(&engine, &options, String::new(), n_ctx)?,
            content,
        }))
    })
}

fn compare_small(
    args: &PerplexityArgs,
    mut options: EngineOptions,
    path: &Path,
    text: Option<Vec<u8>>,
    job: &Job<'_>,
) -> Result<Exit, Failure> {
    let mut base = SmallReader::open(path)?;
    let shape = base.shape();
    fit(base.file(), shape.n_ctx, &mut options)?;
    let units = small::units(args, shape);
    let mut key = Key::new("perplexity --kl-divergence");
    add_model(&mut key, "model", args.model.path()?)?;
    add_keys(&mut key, &args.model);
    key.files("small base", &[path.to_owned()])?
        .set("chunks", units);
    add_computation(&mut key, &options)?;
    job.run(key, |shard: ShardIndex| {
        let engine = load::engine_with(&args.model, options.clone())?;
        if let Some(text) = text {
            small::check_text(&base, &eval::encode(engine.tokenizer(), &text)?)?;
        }
        let generating = Generating::begin();
        let mut watch = Watch::new(args, &generating, "comparing");
        let (range, scoring) = (shard.range(units), scoring(&options));
        let result = eval::divergence_from_small(&engine, &mut base, range, &scoring, &mut watch);
        let Some((divergence, slacks)) = watch.end(result)? else {
            return Ok(None);
        };
        Ok(Some(Measured {
            units,
            about: about(&engine, &options, base.file().to_owned(), shape.n_ctx)?,
            content: Content::FromSmallBase {
                chunks: divergence.by_chunk().to_vec(),
                slacks,
            },
        }))
    })
}

fn compare(
    args: &PerplexityArgs,
    mut options: EngineOptions,
    path: &Path,
    text: Option<Vec<u8>>,
    job: &Job<'_>,
) -> Result<Exit, Failure> {
    let mut base = open_base(path, &mut options)?;
    let shape = base.shape();
    let units = args
        .chunks()
        .map_or(shape.n_chunks, |n| n.min(shape.n_chunks));
    let mut key = Key::new("perplexity --kl-divergence");
    add_model(&mut key, "model", args.model.path()?)?;
    add_keys(&mut key, &args.model);
    add_base(&mut key, &mut base)?;
    key.set("chunks", units);
    add_computation(&mut key, &options)?;
    job.run(key, |shard: ShardIndex| {
        let engine = load::engine_with(&args.model, options.clone())?;
        if let Some(text) = text {
            eval::check_text(&mut base, &eval::encode(engine.tokenizer(), &text)?)?;
        }
        let generating = Generating::begin();
        let mut watch = Watch::new(args, &generating, "comparing");
        let (range, scoring) = (shard.range(units), scoring(&options));
        let result = eval::divergence_of(&engine, &mut base, range, &scoring, &mut watch);
        let Some(divergence) = watch.end(result)? else {
            return Ok(None);
        };
        Ok(Some(Measured {
            units,
            about: about(&engine, &options, base.file().to_owned(), shape.n_ctx)?,
            content: Content::Divergence {
                cut: base.cut(),
                chunks: divergence.by_chunk().to_vec(),
            },
        }))
    })
}

/// Adds what identifies a base to the key: its shape, its tokens and the first row of each chunk.
/// Reading all of its rows would take as long for one part as for all of them.
fn add_base<R: Read + Seek>(key: &mut Key, base: &mut Reader<R>) -> Result<(), Error> {
    let shape = base.shape();
    key.set("tokens of a chunk", shape.n_ctx)
        .set("tokens of the vocabulary", shape.n_vocab)
        .set("chunks of the base", shape.n_chunks);
    let (mut tokens, mut rows) = (Vec::new(), Vec::new());
    let mut row = Vec::new();
    for chunk in 0..shape.n_chunks {
        tokens.extend(base.tokens(chunk)?.iter().flat_map(|id| id.to_le_bytes()));
        base.rows(chunk, 0..1, &mut row)?;
        rows.extend_from_slice(&sha256(&row));
    }
    key.bytes("text", &tokens)
        .bytes("first rows of the base", &rows);
    Ok(())
}
