//! Options of the chat template and its variables.

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use octavo_engine::Engine;
use octavo_grammar::ReasoningBudget;
use octavo_text::chat::{ChatTemplate, thinking};
use serde_json::{Map, Value};

use super::super::load;
use super::Failure;

/// Options of the chat template, the same for every command that has chats.
#[derive(Debug, Args)]
#[command(next_help_heading = "Chat template")]
pub(crate) struct TemplateArgs {
    /// Use this chat template instead of the model's own: a name (one of the file's own, such as
    /// tool_use, or a well-known one: chatml, llama3, gemma, ...), a file, or the template itself
    #[arg(long, value_name = "NAME|FILE", alias = "chat-template-file")]
    #[arg(value_hint = clap::ValueHint::FilePath)]
    chat_template: Option<String>,
    /// Variables of the chat template as a JSON object, such as {"enable_thinking": false}
    #[arg(long, value_name = "JSON", value_parser = kwargs)]
    chat_template_kwargs: Option<Kwargs>,
    /// Reasoning before the answer, where the chat template lets one choose; auto reasons where the
    /// template has enable_thinking
    #[arg(long, value_name = "WHETHER", value_enum, default_value_t = Reasoning::Auto)]
    reasoning: Reasoning,
    /// Maximum number of reasoning tokens: the reasoning is closed when it has that many; 0 closes
    /// it at once, and -1 sets no limit
    #[arg(long, value_name = "N", default_value_t = -1, allow_negative_numbers = true)]
    #[arg(value_parser = clap::value_parser!(i64).range(-1..=MAX_BUDGET))]
    reasoning_budget: i64,
    /// Text to write before reasoning is closed because its budget is used up
    #[arg(
        long,
        value_name = "TEXT",
        default_value = "",
        hide_default_value = true
    )]
    reasoning_budget_message: String,
}

/// Largest reasoning budget.
const MAX_BUDGET: i64 = 1 << 30;

/// Whether a model reasons before it answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Reasoning {
    On,
    Off,
    Auto,
}

/// Variables of a template.
#[derive(Clone, Debug)]
struct Kwargs(Map<String, Value>);

fn kwargs(text: &str) -> Result<Kwargs, String> {
    match serde_json::from_str(text) {
        Ok(Value::Object(object)) => Ok(Kwargs(object)),
        Ok(_) => Err("expected a JSON object".to_owned()),
        Err(error) => Err(format!("expected a JSON object: {error}")),
    }
}

impl TemplateArgs {
    /// Returns whether any of these options is given.
    pub(crate) fn is_set(&self) -> bool {
        self.chat_template.is_some()
            || self.chat_template_kwargs.is_some()
            || self.reasoning != Reasoning::Auto
    }

    /// Returns the limit of the reasoning.
    pub(crate) fn reasoning_budget(&self) -> ReasoningBudget {
        ReasoningBudget {
            tokens: usize::try_from(self.reasoning_budget).ok(),
            message: self.reasoning_budget_message.clone(),
        }
    }

    /// Checks that the template exists if it can only be a file. This runs before the model, which
    /// may have templates of other names, is loaded.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        match &self.chat_template {
            Some(name) if name.contains(std::path::is_separator) && !is_template(name) => {
                load::check_there("--chat-template", Path::new(name))
            }
            _ => Ok(()),
        }
    }

    /// Loads the template; `None` if the model has none and none is given.
    pub(crate) fn load(&self, engine: &Engine) -> Result<Option<ChatTemplate>, Failure> {
        let template = match &self.chat_template {
            Some(name) => Some(named(engine, name)?),
            None => engine.chat_template()?,
        };
        let Some(template) = template else {
            return Ok(None);
        };
        let mut variables = Map::new();
        match self.reasoning {
            Reasoning::On => variables.extend(thinking(true)),
            Reasoning::Off => variables.extend(thinking(false)),
            Reasoning::Auto => {}
        }
        if let Some(Kwargs(kwargs)) = &self.chat_template_kwargs {
            variables.extend(kwargs.clone());
        }
        let template = template.with_variables(variables);
        template
            .map(Some)
            .map_err(|error| Failure::Usage(format!("--chat-template-kwargs: {error}")))
    }
}

/// Returns whether this is a template, not the name of one.
fn is_template(text: &str) -> bool {
    text.contains("{%") || text.contains("{{")
}

fn named(engine: &Engine, name: &str) -> Result<ChatTemplate, Failure> {
    if let Some(template) = engine.named_chat_template(name)? {
        return Ok(template);
    }
    if Path::new(name).is_file() {
        let path = PathBuf::from(name);
        let text = std::fs::read_to_string(&path)
            .map_err(|error| Failure::Input(format!("{}: {error}", path.display())))?;
        return Ok(engine.chat_template_of(&text)?);
    }
    if is_template(name) {
        return Ok(engine.chat_template_of(name)?);
    }
    let known: Vec<&str> = ChatTemplate::known_names().collect();
    Err(Failure::Usage(format!(
        "--chat-template: expected the name of a template, a file or a template, got {name:?} \
         (well-known names: {})",
        known.join(", ")
    )))
}
