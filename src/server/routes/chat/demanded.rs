//! Demands on the answer to a chat request: calls, a rule for the text, and the length of the
//! reasoning before.

use octavo_grammar::{Calls, Demand, Reasoning, ReasoningBudget, tool_name};
use octavo_text::chat::answer::{CallFormat, Thoughts};
use octavo_text::chat::{Continued, Conversation};
use serde_json::Value;

use crate::app::App;
use crate::auth::Caller;
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
const NO_REASONING: &str = "the reasoning budget is ignored: the chat template shows no reasoning";

/// A rendered conversation, whose answer is demanded.
pub(super) struct Asks<'a> {
    pub(super) conversation: &'a Conversation,
    pub(super) choice: &'a ToolChoice,
    /// Source of the chat template.
    pub(super) template: &'a str,
    pub(super) rendered: &'a Continued,
}

/// Reads what a request demands of its answer; returns it with a warning, if there is one.
pub(super) fn read(
    app: &App,
    caller: &Caller,
    fields: &Fields<'_>,
    asks: &Asks<'_>,
) -> Result<(Option<Demanded>, Option<String>), ApiError> {
    let own = own_budget(fields)?;
    let is_ignored = own.is_some() && !Thoughts::of(asks.template).is_shown();
    let budget = ReasoningBudget {
        tokens: own.or(app.options.reasoning_budget.tokens),
        message: message(app, fields)?,
    };
    let mut demanded = demanded(fields, asks, budget)?;
    if caller.has_helper()
        && let Some(demanded) = &mut demanded
    {
        demanded.demand.strict = false;
    }
    Ok((demanded, is_ignored.then(|| NO_REASONING.to_owned())))
}

/// Reads the limit of the reasoning; -1 leaves it to the server's options.
fn own_budget(fields: &Fields<'_>) -> Result<Option<usize>, ApiError> {
    let mut own = None;
    for name in BUDGETS {
        own = own.or(fields.limit(name, 0)?.flatten());
    }
    Ok(own)
}

/// Reads the text that ends reasoning which is too long.
fn message(app: &App, fields: &Fields<'_>) -> Result<String, ApiError> {
    let message = fields.str(BUDGET_MESSAGE)?;
    if message.is_some_and(|text| text.len() > MAX_MESSAGE) {
        let expected = format!("at most {MAX_MESSAGE} bytes");
        return Err(fields.wrong(BUDGET_MESSAGE, &expected));
    }
    let default = &app.options.reasoning_budget.message;
    Ok(message.unwrap_or(default).to_owned())
}

/// Returns the constraint on the answer: a forced call, the request's own, or either.
fn demanded(
    fields: &Fields<'_>,
    asks: &Asks<'_>,
    budget: ReasoningBudget,
) -> Result<Option<Demanded>, ApiError> {
    let Asks {
        conversation,
        choice,
        template,
        rendered,
    } = *asks;
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
