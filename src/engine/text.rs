//! Text in, text out: generation, chat, logits and embeddings of one text, each in one call. A call
//! is a [`Batch`] of one request.

use octavo_kernels::Phase;
use octavo_text::chat::{self, Message};
use octavo_text::tokenizer::EncodeOptions;

use crate::batch::{Batch, BatchError, BatchOptions, Embed, Event, Request};
use crate::decoder::GenerationParams;
use crate::engine::Engine;
use crate::error::Error;
use crate::generate::{self, GenerateError, Generation};
use crate::session::{Logits, LogitsFor};

impl Engine {
    /// Continues a text.
    ///
    /// # Errors
    /// [`BatchError`]: if the text or an option does not fit, or a step fails.
    pub fn generate(
        &self,
        text: &str,
        params: &GenerationParams,
    ) -> Result<Generation, BatchError> {
        self.generate_stream(text, params, |_| {})
    }

    /// Continues a text, and hands out each new piece as soon as it is certain: never half a
    /// character, never part of a stop string.
    ///
    /// # Errors
    /// As [`Engine::generate`].
    pub fn generate_stream(
        &self,
        text: &str,
        params: &GenerationParams,
        on_text: impl FnMut(&str),
    ) -> Result<Generation, BatchError> {
        let prompt = self.prompt(text)?;
        self.complete(Request::new(&prompt, params), on_text)
    }

    /// Answers a conversation, rendered by the file's own chat template.
    ///
    /// # Errors
    /// As [`Engine::generate`], and if the file has no chat template, or it refuses the messages.
    pub fn chat(
        &self,
        messages: &[Message],
        params: &GenerationParams,
        on_text: impl FnMut(&str),
    ) -> Result<Generation, BatchError> {
        let Some(template) = self.chat_template()? else {
            let file = self.gguf().name().to_owned();
            return Err(Error::NoChatTemplate { file }.into());
        };
        let rendered = template.render(messages, true).map_err(Error::from)?;
        let prompt = chat::encode(self.tokenizer(), &rendered).map_err(Error::from)?;
        self.complete(Request::new(&prompt, params), on_text)
    }

    /// Computes the logits after every token of a text: `[tokens][n_vocab]`.
    ///
    /// # Errors
    /// As [`crate::Session::eval`].
    pub fn logits(&self, text: &str) -> Result<Logits, Error> {
        let tokens = self.prompt(text)?;
        self.session().eval(&tokens, Phase::Prefill, LogitsFor::All)
    }

    /// Computes the embedding of a text, pooled as the file says, of length 1: `[n_embd]`.
    ///
    /// # Errors
    /// As [`Engine::generate`].
    pub fn embed(&self, text: &str) -> Result<Vec<f32>, BatchError> {
        let embed = Embed {
            pooling: self.pooling(),
            normalize: true,
        };
        let mut batch = Batch::new(self, BatchOptions::default());
        batch.add(Request::embedding(self.prompt(text)?, embed))?;
        let mut result = None;
        while !batch.is_empty() {
            batch.step(&mut |_, event| match event {
                Event::Embedded { vector, .. } => result = Some(Ok(vector)),
                Event::Failed(error) => result = Some(Err(error)),
                Event::Started { .. }
                | Event::Read { .. }
                | Event::Prompt(_)
                | Event::Delta { .. }
                | Event::Finished { .. }
                | Event::Beams { .. } => {}
            })?;
        }
        result.expect("a request for an embedding ends with one, or with an error")
    }

    /// Tokenizes a prompt, with the special tokens that the model asks for around it.
    fn prompt(&self, text: &str) -> Result<Vec<u32>, Error> {
        let options = EncodeOptions::PROMPT;
        Ok(self.tokenizer().encode(text.as_bytes(), options)?)
    }

    /// Runs a request for one text to its end.
    fn complete(
        &self,
        request: Request,
        mut on_text: impl FnMut(&str),
    ) -> Result<Generation, BatchError> {
        let mut batch = Batch::new(self, BatchOptions::default());
        let id = batch.add(request)?;
        generate::run(&mut batch, id, &mut on_text).map_err(|error| match error {
            GenerateError::Batch(error) => error,
            GenerateError::Output(_) => unreachable!("a closure takes any text"),
        })
    }
}
