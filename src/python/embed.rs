//! Vectors and scores of texts.

use octavo_llm::engine::{Embed, Engine, Event, Pooling, Request};
use octavo_llm::text::pair::PairFormat;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

use crate::error::{BadArgument, Failure};
use crate::load::Loaded;
use crate::stream::wait;

/// Returns the tokens of a query with each document.
pub(crate) fn pairs(
    engine: &Engine,
    query: &str,
    documents: &[String],
) -> Result<Vec<Vec<u32>>, Failure> {
    let tokenizer = engine.tokenizer();
    let format = PairFormat::from_gguf(engine.gguf(), tokenizer)?;
    let pair = |document: &String| Ok(format.encode(tokenizer, query, document)?);
    documents.iter().map(pair).collect()
}

/// Computes the vectors of texts; returns all of them, and their width.
pub(crate) fn vectors(
    py: Python<'_>,
    loaded: &Loaded,
    prompts: Vec<Vec<u32>>,
    embed: Embed,
) -> PyResult<(Vec<f32>, usize)> {
    let raise = |failure: Failure| failure.into_py(py);
    let submit = |prompt: Vec<u32>| {
        let request = Request::embedding(prompt, embed);
        Ok(loaded.handle.submit(request)?.patient())
    };
    let streams = py.detach(|| {
        prompts
            .into_iter()
            .map(submit)
            .collect::<Result<Vec<_>, _>>()
    });
    let (mut values, mut width) = (Vec::new(), 0);
    for mut stream in streams.map_err(raise)? {
        loop {
            match wait(py, &mut stream)? {
                Some(Event::Embedded { vector, .. }) => {
                    width = vector.len();
                    values.extend(vector);
                    break;
                }
                Some(Event::Failed(error)) => return Err(raise(error.into())),
                Some(_) => {}
                None => return Err(PyRuntimeError::new_err("the request has ended")),
            }
        }
    }
    Ok((values, width))
}

/// Returns the pooling of a name; the model's own if there is none.
pub(crate) fn pooling_of(name: Option<&str>, engine: &Engine) -> Result<Pooling, Failure> {
    Ok(match name {
        None => engine.pooling(),
        Some("mean") => Pooling::Mean,
        Some("cls") => Pooling::First,
        Some("last") => Pooling::Last,
        Some("rank") => Pooling::Rank,
        Some(other) => {
            return Err(Failure::from(BadArgument {
                name: "pooling",
                expected: "mean, cls, last or rank".to_owned(),
                got: other.to_owned(),
            }));
        }
    })
}
