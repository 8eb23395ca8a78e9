//! Checks done before scoring, which takes minutes where these take no time.

use std::path::PathBuf;

use gguf_rs_lite::{Gguf, TensorType};

use super::{Error, Setup, sensitivity};
use crate::eval::Text;
use crate::quantize::{Plan, Target};
use octavo_engine::ModelSource;
use octavo_model::Model;
use octavo_text::tokenizer::Tokenizer;

/// `tokenizer.ggml.token_type` of an unused token: converters give these different names.
const UNUSED: i128 = 5;

/// Checks the request against the models, without scoring anything: `targets` to quantize the model
/// to, the type of [`sensitivity`](super::sensitivity()) and whether it is grouped by role, and
/// other models to score.
///
/// # Errors
/// A text that is too short; a model that cannot be loaded; a target that the model cannot be
/// quantized to, because it is quantized already, or an importance matrix is missing or from
/// another model; no tensor to rank; another model with another vocabulary.
pub fn check(
    setup: &Setup<'_>,
    targets: &[Target],
    ranked_to: Option<(TensorType, bool)>,
    also: &[PathBuf],
) -> Result<(), Error> {
    let (gguf, n_vocab) = open(setup.model.to_owned())?;
    Text::new(setup.tokens.clone(), n_vocab, setup.n_ctx, setup.chunks)?;
    for &target in targets {
        let fits = |source| Error::Target { target, source };
        let plan = Plan::new(&gguf, setup.importance, &setup.quantizing(target)).map_err(fits)?;
        plan.check().map_err(fits)?;
    }
    if let Some(ranking) = ranked_to {
        sensitivity::groups(&gguf, setup, ranking)?;
    }
    also.iter().try_for_each(|path| {
        let (other, other_vocab) = open(path.clone())?;
        same_vocabulary((&gguf, n_vocab), (&other, other_vocab))
    })
}

/// Opens a model, binds its weights and tokenizer, and returns its vocabulary size.
fn open(path: PathBuf) -> Result<(Gguf, usize), Error> {
    let gguf = ModelSource::Path(path).open(true)?;
    let model = Model::load(&gguf).map_err(octavo_engine::Error::from)?;
    Tokenizer::from_gguf(&gguf).map_err(octavo_engine::Error::from)?;
    Ok((gguf, model.hparams.n_vocab()))
}

/// Refuses a model with another vocabulary: divergence compares probabilities of the same tokens.
fn same_vocabulary(
    (gguf, expected): (&Gguf, usize),
    (other, got): (&Gguf, usize),
) -> Result<(), Error> {
    let names = || (other.name().to_owned(), gguf.name().to_owned());
    if expected != got {
        let (file, model) = names();
        return Err(Error::Vocabulary {
            file,
            model,
            expected,
            got,
        });
    }
    let (ours, theirs) = (tokens(gguf)?, tokens(other)?);
    let differs =
        |(a, b): &(&VocabEntry<'_>, &VocabEntry<'_>)| a.text != b.text && !(a.unused && b.unused);
    match ours
        .iter()
        .zip(&theirs)
        .enumerate()
        .find(|(_, pair)| differs(pair))
    {
        Some((id, (a, b))) => {
            let (file, model) = names();
            let text = |row: &VocabEntry<'_>| String::from_utf8_lossy(row.text).into_owned();
            Err(Error::Token {
                file,
                model,
                id,
                expected: text(a),
                got: text(b),
            })
        }
        None => Ok(()),
    }
}

/// One token of a vocabulary.
struct VocabEntry<'a> {
    text: &'a [u8],
    unused: bool,
}

fn tokens(gguf: &Gguf) -> Result<Vec<VocabEntry<'_>>, Error> {
    let texts = gguf.array("tokenizer.ggml.tokens")?;
    let types = gguf.array("tokenizer.ggml.token_type")?;
    let mut types = types
        .into_iter()
        .flat_map(|types| types.iter().map(|ty| ty.as_int() == Some(UNUSED)));
    let texts = texts
        .and_then(|texts| texts.strings())
        .into_iter()
        .flatten();
    Ok(texts
        .map(|text| VocabEntry {
            text,
            unused: types.next().unwrap_or(false),
        })
        .collect())
}
