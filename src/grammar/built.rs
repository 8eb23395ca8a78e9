//! A grammar as it is built.

use llguidance::api::TopLevelGrammar;
use serde_json::Value;

use crate::rule::Rule;

/// A grammar, and the parts that limits are checked on.
pub(crate) struct Built {
    pub(crate) grammar: TopLevelGrammar,
    /// The schemas it contains, in the form that is checked against limits.
    pub(crate) schemas: Vec<Value>,
    /// The rule, if the request gave it as text.
    pub(crate) rule: Option<Rule>,
    /// Bytes of the grammar of calls.
    pub(crate) n_call_bytes: usize,
    /// Demands that are not enforced.
    pub(crate) unheld: Vec<String>,
}
