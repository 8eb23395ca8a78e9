//! The prompt of a text, the constraint of its answer and the parser that reads it.

use octavo_engine::{Engine, ImageHandle};
use octavo_grammar::Reasoning;
use octavo_text::chat::answer::AnswerParser;
use octavo_text::chat::{self, ChatTemplate, Message};
use octavo_text::tokenizer::EncodeOptions;
use octavo_vision::prompt;

use super::RunArgs;
use crate::args::{Constraints, RuleArg};
use crate::failure::Failure;
use crate::prompt::Prompt;
use crate::{chat as conversation, reply, vision};

/// Makes the prompts of texts.
pub(super) struct Prompts<'a> {
    args: &'a RunArgs,
    engine: &'a Engine,
    images: &'a [ImageHandle],
    /// The chat template, with `--chat`.
    template: Option<ChatTemplate>,
    system: Option<String>,
    constraints: Constraints,
}

impl<'a> Prompts<'a> {
    pub(super) fn new(
        args: &'a RunArgs,
        engine: &'a Engine,
        images: &'a [ImageHandle],
        rule: Option<RuleArg>,
    ) -> Result<Prompts<'a>, Failure> {
        let template = match args.chat {
            true => Some(conversation::template(engine, &args.template)?),
            false => None,
        };
        Ok(Prompts {
            args,
            engine,
            images,
            template,
            system: args.system.read()?,
            constraints: Constraints::new(engine, rule, args.template.reasoning_budget()),
        })
    }

    /// Returns whether control tokens must be shown, because they mark the reasoning.
    pub(super) fn shows_special(&self) -> bool {
        let parser = self.parser("");
        parser.is_some_and(|parser| parser.has_control_words(self.engine.tokenizer()))
    }

    /// Returns the parser of an answer; `None` with --special, and for plain text.
    fn parser(&self, rendered: &str) -> Option<AnswerParser> {
        let template = self.template.as_ref()?;
        let is_raw = self.args.generate.shows_special();
        (!is_raw).then(|| reply::parser(template.source(), rendered))
    }

    /// Makes the prompt of a text.
    pub(super) fn of(&self, text: Vec<u8>) -> Result<Prompt, Failure> {
        let text = self.args.images.place(text);
        let Some(template) = &self.template else {
            let options = EncodeOptions::PROMPT;
            let ids = vision::tokens(self.engine.tokenizer(), &text, options, self.images)?;
            return Ok(Prompt {
                text,
                ids,
                parser: None,
                constraint: self.constraints.make(Reasoning::default())?,
            });
        };
        let rendered = template.render(&self.messages(text)?, true)?;
        let ids = match self.images {
            [] => chat::encode(self.engine.tokenizer(), &rendered)?,
            _ => prompt::tokens(
                self.engine.tokenizer(),
                rendered.as_bytes(),
                prompt::MARKER,
                self.images,
            )?,
        };
        Ok(Prompt {
            ids,
            parser: self.parser(&rendered),
            constraint: self
                .constraints
                .make(Reasoning::of(template.source(), &rendered))?,
            text: rendered.into_bytes(),
        })
    }

    /// Returns the conversation that ends with a text.
    fn messages(&self, text: Vec<u8>) -> Result<Vec<Message>, Failure> {
        let content = String::from_utf8(text).map_err(|e| {
            Failure::Input(format!(
                "--chat: expected a message in UTF-8: {}",
                e.utf8_error()
            ))
        })?;
        let system = self.system.iter();
        let mut messages: Vec<Message> = system.map(|s| Message::new("system", s)).collect();
        messages.push(Message::new("user", content));
        Ok(messages)
    }
}
