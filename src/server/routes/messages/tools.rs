//! Converts `tools` and `tool_choice`.

use serde_json::{Map, Value, json};

use crate::error::ApiError;
use crate::fields::Fields;
use crate::routes::conversation::MAX_TOOLS;
use crate::routes::converted::Names;

/// Adds the tools of a request to the chat request, and whether they must be called.
pub(super) fn convert(
    fields: &Fields<'_>,
    chat: &mut Map<String, Value>,
    names: &mut Names,
) -> Result<(), ApiError> {
    let tools = fields.list("tools", MAX_TOOLS)?.unwrap_or_default();
    let mut functions = Vec::new();
    for (i, tool) in tools.iter().enumerate() {
        let path = format!("tools[{i}].");
        functions.push(function(&Fields::at(tool, &path)?)?);
        names.tools.push(format!("tools[{i}]"));
    }
    if !functions.is_empty() {
        chat.insert("tools".to_owned(), json!(functions));
    }
    if let Some(choice) = fields.get("tool_choice") {
        let choice = Fields::at(choice, "tool_choice.")?;
        chat.insert("tool_choice".to_owned(), chosen(&choice)?);
        if let Some(is_one) = choice.bool("disable_parallel_tool_use")? {
            chat.insert("parallel_tool_calls".to_owned(), json!(!is_one));
        }
    }
    Ok(())
}

/// Converts a tool of the client. Tools with a type of their own are run by Anthropic's servers, or
/// have a schema that only its models know.
fn function(tool: &Fields<'_>) -> Result<Value, ApiError> {
    let kind = tool.str("type")?.unwrap_or("custom");
    if kind != "custom" {
        let expected = "custom: this server has no tools of its own";
        return Err(tool.wrong("type", expected));
    }
    let mut function = Map::new();
    let name = tool.need("name", tool.str("name")?)?;
    function.insert("name".to_owned(), json!(name));
    if let Some(description) = tool.str("description")? {
        function.insert("description".to_owned(), json!(description));
    }
    let schema = tool.need("input_schema", tool.object("input_schema")?)?;
    function.insert("parameters".to_owned(), json!(schema));
    if let Some(strict) = tool.bool("strict")? {
        function.insert("strict".to_owned(), json!(strict));
    }
    Ok(json!({ "type": "function", "function": function }))
}

fn chosen(choice: &Fields<'_>) -> Result<Value, ApiError> {
    Ok(match choice.need("type", choice.str("type")?)? {
        "auto" => json!("auto"),
        "any" => json!("required"),
        "none" => json!("none"),
        "tool" => {
            let name = choice.need("name", choice.str("name")?)?;
            json!({ "type": "function", "function": { "name": name } })
        }
        _ => return Err(choice.wrong("type", "auto, any, tool or none")),
    })
}
