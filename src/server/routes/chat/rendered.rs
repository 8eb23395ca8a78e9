//! The prompt of a conversation.

use octavo_text::chat::Continued;

use super::template;
use crate::app::App;
use crate::error::ApiError;
use crate::routes::conversation::Asked;

/// Renders what a request asks for. Where its last message is continued, the prompt ends with that
/// message's text.
pub(crate) fn render(app: &App, asked: &Asked<'_>) -> Result<Continued, ApiError> {
    let template = template(app)?;
    if !asked.continues {
        return Ok(Continued {
            prompt: template.render_conversation(&asked.conversation)?,
            in_thought: false,
        });
    }
    template
        .render_continued(&asked.conversation)?
        .ok_or_else(|| {
            let expected = "expected a text of the assistant as the last message";
            ApiError::bad_field("continue_final_message", expected)
        })
}
