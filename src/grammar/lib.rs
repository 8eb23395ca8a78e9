//! Structured output: JSON schemas, regular expressions, grammars, and tool calls. A [`Demand`]
//! describes the allowed answers; a [`Compiler`] compiles it to a token constraint for one
//! vocabulary, with time and memory bounded for any demand.

mod budget;
mod built;
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

pub use budget::ReasoningBudget;
pub use call::tool_name;
pub use compile::{Compiled, Compiler};
pub use error::Error;
pub use reasoning::Reasoning;
pub use rule::{Calls, Demand, Rule};
