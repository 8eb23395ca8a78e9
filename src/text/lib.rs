//! Text in and out of a language model, without the model: [`tokenizer`] from a file's metadata,
//! [`chat`] templates within bounds, and [`stop`] strings. Knows no tensor.

pub mod chat;
pub mod stop;
pub mod time;
pub mod tokenizer;
