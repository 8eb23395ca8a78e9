//! Reads `tool_choice`: whether to call tools, and which ones.

use serde_json::Value;

use super::{MAX_TOOLS, tool_name};
use crate::error::ApiError;
use crate::fields::Fields;

const NAME: &str = "tool_choice";
const EXPECTED: &str = "none, auto, required, a function or allowed_tools";

/// Mode of tool calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ToolChoice {
    /// No calls: the model does not see the tools.
    None,
    /// The model decides.
    Auto,
    /// A call of any tool is forced.
    Required,
    /// A call of this tool is forced.
    Named(String),
}

/// Reads `tool_choice`; also returns the tools that the model sees.
pub(super) fn read(
    fields: &Fields<'_>,
    mut tools: Vec<Value>,
) -> Result<(ToolChoice, Vec<Value>), ApiError> {
    let choice = match fields.get(NAME) {
        None => ToolChoice::Auto,
        Some(Value::String(word)) => word_of(word).ok_or_else(|| fields.wrong(NAME, EXPECTED))?,
        Some(value) => of_object(fields, value, &mut tools)?,
    };
    match choice {
        ToolChoice::None => Ok((choice, Vec::new())),
        ToolChoice::Required if tools.is_empty() => Err(fields.wrong(NAME, "tools beside it")),
        choice => Ok((choice, tools)),
    }
}

fn word_of(word: &str) -> Option<ToolChoice> {
    match word {
        "none" => Some(ToolChoice::None),
        "auto" => Some(ToolChoice::Auto),
        "required" | "any" => Some(ToolChoice::Required),
        _ => None,
    }
}

/// Reads `{"type": "auto"}` and the like; `{"type": "function", "function": {"name"}}`, or the name
/// beside the type as in the responses API; `{"type": "allowed_tools"}`.
fn of_object(
    fields: &Fields<'_>,
    value: &Value,
    tools: &mut Vec<Value>,
) -> Result<ToolChoice, ApiError> {
    let outer = Fields::at(value, "tool_choice.")?;
    let kind = outer.str("type")?.unwrap_or("function");
    if kind == "allowed_tools" {
        return allowed(value, tools);
    }
    if let Some(choice) = word_of(kind) {
        return Ok(choice);
    }
    // the responses API has tools of the kind "custom", which are functions here
    if !matches!(kind, "function" | "tool" | "custom") {
        return Err(fields.wrong(NAME, EXPECTED));
    }
    let name = match outer.get("function") {
        Some(function) => {
            let inner = Fields::at(function, "tool_choice.function.")?;
            inner.need("name", inner.str("name")?)?
        }
        None => outer.need("function", outer.str("name")?)?,
    };
    known(tools, name, "tool_choice.function.name")?;
    Ok(ToolChoice::Named(name.to_owned()))
}

/// Refuses a name that is not among the tools.
fn known(tools: &[Value], name: &str, param: &str) -> Result<(), ApiError> {
    match tools.iter().any(|tool| tool_name(tool) == name) {
        true => Ok(()),
        false => Err(ApiError::bad_field(
            param,
            format!("{name:?} is not among the tools"),
        )),
    }
}

/// Reads `allowed_tools`: a mode and the tools that may be called; the model sees only these. The
/// chat API has both in an object of that name, the responses API beside the type.
fn allowed(value: &Value, tools: &mut Vec<Value>) -> Result<ToolChoice, ApiError> {
    let outer = Fields::at(value, "tool_choice.")?;
    let (value, path) = match outer.get("allowed_tools") {
        Some(inner) => (inner, "tool_choice.allowed_tools."),
        None => (value, "tool_choice."),
    };
    let inner = Fields::at(value, path)?;
    let mode = inner.str("mode")?.unwrap_or("auto");
    let choice = match word_of(mode) {
        Some(choice @ (ToolChoice::Auto | ToolChoice::Required)) => choice,
        _ => return Err(inner.wrong("mode", "auto or required")),
    };
    let mut names = Vec::new();
    let list = inner.need("tools", inner.list("tools", MAX_TOOLS)?)?;
    for (i, tool) in list.iter().enumerate() {
        let function = tool.get("function").unwrap_or(tool);
        let path = format!("{path}tools[{i}].");
        let fields = Fields::at(function, &path)?;
        let name = fields.need("name", fields.str("name")?)?;
        known(tools, name, &format!("{path}name"))?;
        names.push(name.to_owned());
    }
    tools.retain(|tool| names.iter().any(|name| name == tool_name(tool)));
    Ok(choice)
}
