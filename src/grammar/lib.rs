//! Rules for generated text: JSON schemas, regular expressions, grammars, and calls of tools. A
//! [`Demand`] says what an answer must be; a [`Compiler`] turns it into a constraint for one
//! vocabulary, within bounds of time and memory whatever the demand.

mod call;
mod compile;
mod constraint;
mod deferred;
mod error;
mod gbnf;
mod grammar;
mod limits;
mod marker;
mod notation;
mod reasoning;
mod rule;
mod schema;
mod vocabulary;

pub use call::tool_name;
pub use compile::{Compiled, Compiler};
pub use error::Error;
pub use reasoning::Reasoning;
pub use rule::{Calls, Demand, Rule};
