//! Text in, text out: generation, chat, logits and embeddings of one text, each in one call. A call
//! is a [`Batch`] of one request.

use octavo_kernels::Phase;
use octavo_text::chat::{self, Message};
use octavo_text::tokenizer::EncodeOptions;

use crate::batch::{Batch, BatchError, BatchOptions, Embed, Event, Request, Task, Timing};
use crate::generate::{Generation, Stats};
use crate::sequence::{GenerationParams, Text};
use crate::{Engine, Error, Logits, LogitsFor};

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
        let task = Task::Embedding(Embed {
            pooling: self.pooling(),
            normalize: true,
        });
        let request = Request {
            prompt: self.prompt(text)?,
            n: 1,
            task,
            ..Request::default()
        };
        let mut embedding = Vec::new();
        self.finish(request, |event| {
            if let Event::Embedded { vector, .. } = event {
                embedding = vector;
            }
        })?;
        Ok(embedding)
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
        let mut generation = None;
        self.finish(request, |event| match event {
            Event::Delta { delta, .. } if !delta.text.is_empty() => on_text(&delta.text),
            Event::Finished { text, timing, .. } => generation = Some(finished(text, timing)),
            _ => {}
        })?;
        Ok(generation.expect("a request for text ends with one, or with an error"))
    }

    /// Runs a request alone until it has ended.
    fn finish(&self, request: Request, mut on_event: impl FnMut(Event)) -> Result<(), BatchError> {
        let mut batch = Batch::new(self, BatchOptions::default());
        batch.add(request)?;
        let mut failed = None;
        while !batch.is_empty() {
            batch.step(&mut |_, event| match event {
                Event::Failed(error) => failed = Some(error),
                event => on_event(event),
            })?;
        }
        failed.map_or(Ok(()), Err)
    }
}

fn finished(text: Text, timing: Timing) -> Generation {
    Generation {
        text: text.text,
        tokens: text.tokens,
        finish: text.finish,
        logprobs: text.logprobs,
        stats: Stats {
            prompt_tokens: timing.prompt_tokens,
            cached_tokens: timing.cached,
            generated_tokens: timing.generated_tokens,
            prompt: timing.prompt,
            first_token: timing.first_token,
            generation: timing.generation,
            drafts: timing.drafts,
        },
    }
}
