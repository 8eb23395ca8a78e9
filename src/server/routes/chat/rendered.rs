//! Renders the prompt of a conversation.

use octavo_engine::ImageHandle;
use octavo_text::chat::Continued;

use super::{template, tokens};
use crate::app::App;
use crate::error::ApiError;
use crate::prompt::check_length;
use crate::routes::conversation::{Asked, ToolChoice};

/// A prompt that fits in the context.
pub(super) struct Prompt {
    pub(super) rendered: Continued,
    pub(super) tokens: Vec<u32>,
    /// Warning for the client.
    pub(super) warning: Option<String>,
}

/// Renders a request's conversation. If its last message is continued, the prompt ends with that
/// message's text.
pub(crate) fn render(app: &App, asked: &Asked<'_>) -> Result<Continued, ApiError> {
    let template = template(app)?;
    let Some(part) = asked.continues else {
        return Ok(Continued {
            prompt: template.render_conversation(&asked.conversation)?,
            in_thought: false,
        });
    };
    template
        .render_continued(&asked.conversation, part)?
        .ok_or_else(|| {
            let expected = "expected a text of the assistant as the last message";
            ApiError::bad_field("continue_final_message", expected)
        })
}

/// Renders a request's conversation and tokenizes it. If only the tool definitions make the prompt
/// too long, they are left out with a warning, unless a call is forced or the template itself
/// supports tools.
pub(super) fn fitting(
    app: &App,
    asked: &mut Asked<'_>,
    images: &[ImageHandle],
) -> Result<Prompt, ApiError> {
    let error = match whole(app, asked, images) {
        Err(error) if error.is_of_length() => error,
        other => return other,
    };
    let are_needed = asked.choice != ToolChoice::Auto || template(app)?.takes_tools();
    if are_needed || asked.conversation.tools.is_empty() {
        return Err(error);
    }
    asked.conversation.tools.clear();
    let warning = "the tools are left out: the chat template has no place for them, and with them \
                   the prompt is too long for the context";
    Ok(Prompt {
        warning: Some(warning.to_owned()),
        ..whole(app, asked, images)?
    })
}

fn whole(app: &App, asked: &Asked<'_>, images: &[ImageHandle]) -> Result<Prompt, ApiError> {
    let rendered = render(app, asked)?;
    let tokens = tokens(app, &rendered.prompt, images)?;
    check_length(app, &tokens)?;
    Ok(Prompt {
        rendered,
        tokens,
        warning: None,
    })
}
