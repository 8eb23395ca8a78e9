//! Demands on the answer to a chat request: calls, a rule for the text, and the length of the
//! reasoning before.

use octavo_grammar::{Calls, Demand, Reasoning, ReasoningBudget, tool_name};
use octavo_text::chat::answer::CallFormat;
use octavo_text::chat::{Continued, Conversation};
use serde_json::Value;

use crate::app::App;
use crate::demand::{self, Demanded};
use crate::error::ApiError;
use crate::fields::Fields;
use crate::routes::conversation::ToolChoice;

/// Fields that limit the reasoning: llama-server's, another of its names, and vLLM's.
const BUDGETS: [&str; 3] = [
    "reasoning_budget_tokens",
    "thinking_budget_tokens",
    "thinking_token_budget",
];
const BUDGET_MESSAGE: &str = "reasoning_budget_message";

/// Largest message at the end of reasoning, in bytes.
const MAX_MESSAGE: usize = 4096;

/// Warning for a request that limits reasoning which a model does not have.
pub(super) const NO_REASONING: &str =
    "the reasoning budget is ignored: the chat template shows no reasoning";

/// Limit of a request's reasoning.
pub(super) struct Budget {
    pub(super) limit: ReasoningBudget,
    /// Whether the request sets it.
    pub(super) is_set: bool,
}

/// Reads the limit of the reasoning; the server's options have it where the request has none, or
/// -1.
pub(super) fn budget(app: &App, fields: &Fields<'_>) -> Result<Budget, ApiError> {
    let default = &app.options.reasoning_budget;
    let mut own = None;
    for name in BUDGETS {
        own = own.or(fields.limit(name, 0)?.flatten());
    }
    let message = fields.str(BUDGET_MESSAGE)?;
    if message.is_some_and(|text| text.len() > MAX_MESSAGE) {
        let expected = format!("at most {MAX_MESSAGE} bytes");
        return Err(fields.wrong(BUDGET_MESSAGE, &expected));
    }
    Ok(Budget {
        limit: ReasoningBudget {
            tokens: own.or(default.tokens),
            message: message.unwrap_or(&default.message).to_owned(),
        },
        is_set: own.is_some(),
    })
}

/// Returns the constraint on the answer: a forced call, the request's own, or either.
pub(super) fn demanded(
    fields: &Fields<'_>,
    conversation: &Conversation,
    choice: &ToolChoice,
    template: &str,
    rendered: &Continued,
    budget: ReasoningBudget,
) -> Result<Option<Demanded>, ApiError> {
    let text = demand::read(fields)?;
    let several = fields.bool("parallel_tool_calls")?.unwrap_or(true);
    let is_chosen = |tool: &&Value| match choice {
        ToolChoice::Named(name) => tool_name(tool) == name,
        ToolChoice::Required | ToolChoice::Auto => true,
        ToolChoice::None => false,
    };
    let tools: Vec<Value> = conversation
        .tools
        .iter()
        .filter(is_chosen)
        .cloned()
        .collect();
    let calls = (!tools.is_empty()).then(|| Calls {
        format: CallFormat::of(template),
        several: several && !matches!(choice, ToolChoice::Named(_)),
        required: *choice != ToolChoice::Auto,
        tools,
    });
    let reasoning = Reasoning::of(template, &rendered.prompt).within(budget);
    let reasoning = match rendered.in_thought {
        true => reasoning.in_thought(),
        false => reasoning,
    };
    let param = match (&text, &calls) {
        (Some(text), _) => text.param,
        (None, Some(_)) => "tools",
        (None, None) if reasoning.is_limited() => BUDGET_MESSAGE,
        (None, None) => return Ok(None),
    };
    let is_strict = |tool: &Value| tool["function"]["strict"] == true;
    let strict = calls
        .as_ref()
        .is_some_and(|calls| calls.tools.iter().any(is_strict));
    let text = text.map(|text| text.demand).unwrap_or_default();
    Ok(Some(Demanded {
        demand: Demand {
            calls,
            reasoning,
            strict: strict || text.strict,
            ..text
        },
        param,
    }))
}
