//! Text in and out of a language model, without the model: [`tokenizer`] from a file's metadata,
//! [`chat`] templates within resource limits, [`pair`]s of a query and a document, and [`stop`]
//! strings. Contains no tensor code.

pub mod chat;
pub mod pair;
pub mod stop;
pub mod time;
pub mod tokenizer;
