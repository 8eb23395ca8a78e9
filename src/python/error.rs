//! The library's errors as Python's exceptions (`octavo/errors.py`), with the data of each as
//! attributes.

use std::error::Error;
use std::path::Path;
use std::process;

use octavo_llm::analysis::{diff, eval, quantize};
use octavo_llm::engine::sample::ConfigError;
use octavo_llm::engine::{self as engine, BatchError, GenerationError};
use octavo_server::RequestError;
use pyo3::prelude::*;

/// An error of the library, with what is known where it is noticed.
#[derive(Debug)]
pub(crate) struct Failure {
    error: Box<dyn Error + Send + Sync>,
    file: Option<String>,
}

impl<E: Error + Send + Sync + 'static> From<E> for Failure {
    fn from(error: E) -> Failure {
        Failure {
            error: Box::new(error),
            file: None,
        }
    }
}

/// An argument that is not one of those expected.
#[derive(Debug)]
pub(crate) struct BadArgument {
    /// Name of the argument.
    pub(crate) name: &'static str,
    /// Expected values.
    pub(crate) expected: String,
    /// Value found.
    pub(crate) got: String,
}

impl std::fmt::Display for BadArgument {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let BadArgument {
            name,
            expected,
            got,
        } = self;
        write!(f, "{name}: expected {expected}, got {got}")
    }
}

impl Error for BadArgument {}

/// A field of an exception.
enum Field {
    Text(String),
    Number(usize),
}

impl From<&str> for Field {
    fn from(text: &str) -> Field {
        Field::Text(text.to_owned())
    }
}

impl From<&String> for Field {
    fn from(text: &String) -> Field {
        Field::Text(text.clone())
    }
}

impl From<&usize> for Field {
    fn from(number: &usize) -> Field {
        Field::Number(*number)
    }
}

impl From<&u32> for Field {
    fn from(number: &u32) -> Field {
        Field::Number(*number as usize)
    }
}

/// Class of an exception, and its fields.
type Class = (&'static str, Vec<(&'static str, Field)>);

macro_rules! class {
    ($name:literal $(, $field:ident = $value:expr)*) => {
        ($name, vec![$((stringify!($field), Field::from($value))),*])
    };
}

impl Failure {
    /// Names the model file that the error is about.
    pub(crate) fn of_file(error: impl Into<Failure>, file: &Path) -> Failure {
        Failure {
            file: Some(file.display().to_string()),
            ..error.into()
        }
    }

    /// Makes the exception.
    pub(crate) fn into_py(self, py: Python<'_>) -> PyErr {
        let (name, mut fields) = class(&*self.error).unwrap_or(match self.file {
            Some(_) => class!("ModelError"),
            None => class!("Error"),
        });
        if let (Some(file), "ModelError") = (&self.file, name) {
            fields.push(("file", Field::from(file)));
        }
        raise(py, name, &self.error.to_string(), fields)
    }
}

/// Makes an exception of the package.
fn raise(py: Python<'_>, name: &str, message: &str, fields: Vec<(&str, Field)>) -> PyErr {
    let made = py.import("octavo.errors").and_then(|errors| {
        let exception = errors.getattr(name)?.call1((message,))?;
        for (name, field) in fields {
            match field {
                Field::Text(text) => exception.setattr(name, text)?,
                Field::Number(number) => exception.setattr(name, number)?,
            }
        }
        Ok(exception)
    });
    made.map_or_else(|error| error, PyErr::from_value)
}

/// Makes the exception of a child process that uses what its parent loaded.
pub(crate) fn forked(py: Python<'_>, loaded_in: u32) -> PyErr {
    let pid = process::id();
    let message = format!(
        "the model was loaded in process {loaded_in} and this is process {pid}, which has none of \
         its threads: expected to load it after the fork, or the start method \"spawn\""
    );
    let fields = vec![
        ("loaded_in", Field::from(&loaded_in)),
        ("pid", Field::from(&pid)),
    ];
    raise(py, "ForkedError", &message, fields)
}

/// Makes the exception of a model that is closed.
pub(crate) fn closed(py: Python<'_>) -> PyErr {
    let message = "the model is closed: expected one that is loaded";
    raise(py, "ClosedError", message, Vec::new())
}

/// Returns the class and fields of an error; `None` for those without a class of their own.
fn class(error: &(dyn Error + 'static)) -> Option<Class> {
    if let Some(error) = error.downcast_ref::<engine::Error>() {
        of_engine(error)
    } else if let Some(error) = error.downcast_ref::<BatchError>() {
        match error {
            BatchError::Sequence(error) => of_generation(error),
            BatchError::Engine(error) | BatchError::Draft(error) => of_engine(error),
            _ => None,
        }
    } else if let Some(BadArgument {
        name,
        expected,
        got,
    }) = error.downcast_ref()
    {
        Some(class!(
            "ArgumentError",
            name = *name,
            expected = expected,
            got = got
        ))
    } else if let Some(error) = error.downcast_ref::<ConfigError>() {
        Some(of_config(error))
    } else if let Some(error) = error.downcast_ref::<RequestError>() {
        let mut class = class!("ArgumentError");
        let param = error.param.iter();
        class
            .1
            .extend(param.map(|param| ("name", Field::from(param))));
        Some(class)
    } else if let Some(octavo_server::Error::Engine(error)) = error.downcast_ref() {
        of_engine(error)
    } else if error.is::<octavo_hub::Error>() {
        Some(class!("HubError"))
    } else if error.is::<octavo_grammar::Error>() {
        Some(class!("ArgumentError"))
    } else {
        of_analysis(error)
    }
}

fn of_analysis(error: &(dyn Error + 'static)) -> Option<Class> {
    if let Some(error) = error.downcast_ref::<eval::Error>() {
        return match error {
            eval::Error::Engine(error) => of_engine(error),
            eval::Error::Context { n_ctx, limit } => {
                Some(class!("ContextError", tokens = n_ctx, n_ctx = limit))
            }
            _ => None,
        };
    }
    if let Some(error) = error.downcast_ref::<diff::Error>() {
        return match error {
            diff::Error::Engine(error) => of_engine(error),
            diff::Error::Differ { what, a, b } => {
                Some(class!("MismatchError", what = *what, a = a, b = b))
            }
            diff::Error::NoTap { file, name } => {
                Some(class!("TensorError", file = file, tensor = name))
            }
            _ => None,
        };
    }
    match error.downcast_ref::<quantize::Error>()? {
        quantize::Error::Requantize { tensor, .. }
        | quantize::Error::NeedsImportance { tensor, .. } => {
            Some(class!("TensorError", tensor = tensor))
        }
        _ => None,
    }
}

fn of_engine(error: &engine::Error) -> Option<Class> {
    use engine::Error as E;
    Some(match error {
        E::Context { have, new, n_ctx } => {
            class!("ContextError", tokens = &(have + new), n_ctx = n_ctx)
        }
        E::Positions { n_ctx, rows } => class!("ContextError", tokens = n_ctx, n_ctx = rows),
        E::Whole { tokens, most, .. } => class!("ContextError", tokens = tokens, n_ctx = most),
        E::Token { id, n_vocab } => class!("TokenError", id = id, n_vocab = n_vocab),
        E::NotFinite { position, tap } => {
            class!("NumericError", position = position, tensor = tap)
        }
        E::NoLogits { file, .. } | E::NoChatTemplate { file } => {
            class!("ModelError", file = file)
        }
        E::Isa(_) => class!("ArgumentError", name = "isa"),
        E::Cuda(_) => class!("DeviceError"),
        _ => return None,
    })
}

fn of_generation(error: &GenerationError) -> Option<Class> {
    Some(match error {
        GenerationError::PromptTooLong { prompt, n_ctx } => {
            class!("ContextError", tokens = prompt, n_ctx = n_ctx)
        }
        GenerationError::UnknownToken { id, n_vocab } => {
            class!("TokenError", id = id, n_vocab = n_vocab)
        }
        GenerationError::Config(error) => of_config(error),
        GenerationError::EmptyPrompt => class!("ArgumentError", name = "text"),
        GenerationError::Stop(_) => class!("ArgumentError", name = "stop"),
        GenerationError::Sample(_) => return None,
    })
}

fn of_config(error: &ConfigError) -> Class {
    let ConfigError {
        what,
        expected,
        got,
    } = error;
    class!(
        "ArgumentError",
        name = *what,
        expected = expected,
        got = got
    )
}
