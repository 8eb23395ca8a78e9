//! Chats in this process: requests as OpenAI's chat API has them, read, rendered, constrained and
//! answered as the server does, without HTTP.

use std::sync::Arc;

use octavo_engine::{Engine, EngineHandle, EventStream, FinishReason};
use octavo_text::chat::answer::{AnswerParser, Piece};
use octavo_vision::EncoderCache;
use serde_json::Value;

use crate::app::App;
use crate::auth::Caller;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::model::Model;
use crate::routes::chat::{self, Assembled, Prepared, rendered};
use crate::routes::conversation;
use crate::server::Server;
use crate::{Error, ModelLimits, ModelOptions, Models, Options, images};

/// A request that cannot be answered.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{message}")]
pub struct RequestError {
    /// Description, with the field's name in front if one is to blame.
    pub message: String,
    /// Path of the field: `messages[0].role`.
    pub param: Option<String>,
}

impl From<ApiError> for RequestError {
    fn from(error: ApiError) -> RequestError {
        let (message, param) = error.into_parts();
        RequestError { message, param }
    }
}

/// Answers chat requests with a loaded model.
pub struct LocalChats {
    app: Arc<App>,
}

impl LocalChats {
    /// Creates it for a model that runs on the thread of `handle`.
    ///
    /// # Errors
    /// If the file's chat template is invalid.
    pub fn new(
        engine: &Engine,
        handle: EngineHandle,
        encoder_cache: Option<Arc<EncoderCache>>,
    ) -> Result<LocalChats, Error> {
        let template = engine.chat_template()?;
        let options = ModelOptions {
            encoder_cache,
            ..ModelOptions::default()
        };
        let none = Models {
            entries: Vec::new(),
            limits: ModelLimits::default(),
            source: None,
        };
        let server = Server::new(none, Options::default(), &mut |_| {})?;
        let parts = (template, server.metrics.of(""), None);
        let model = Model::new(Vec::new(), (engine.clone(), handle), options, parts);
        let app = App::new(Arc::new(server), Arc::new(model), None);
        Ok(LocalChats { app: Arc::new(app) })
    }

    /// Renders the prompt of a request's conversation.
    ///
    /// # Errors
    /// A wrong field, or a conversation that the template refuses.
    pub fn render(&self, request: &Value) -> Result<String, RequestError> {
        let asked = conversation::read(&self.app, &Fields::of(request)?)?;
        Ok(rendered::render(&self.app, &asked)?.prompt)
    }

    /// Submits a request for one text.
    ///
    /// # Errors
    /// A wrong field, a conversation that the template refuses or that does not fit, or a rule that
    /// cannot be compiled.
    pub fn begin(&self, request: &Value) -> Result<LocalAnswer, RequestError> {
        let app = &self.app;
        let images = images::see_here(app, request)?;
        let Prepared {
            mut request,
            demanded,
            style,
            ..
        } = chat::prepare(app, &Caller::default(), request, images)?;
        request.n = 1;
        let mut warnings = style.warnings.clone();
        if let Some(demanded) = demanded {
            let compiled = app.grammars.compile(&demanded.demand);
            let compiled = compiled.map_err(|error| ApiError::of_rule(&error, demanded.param))?;
            request.constraint = compiled.constraint;
            warnings.extend(compiled.warning);
        }
        let prompt = request.prompt.clone();
        let stream = app.handle.submit(request).map_err(ApiError::from)?;
        Ok(LocalAnswer {
            app: Arc::clone(app),
            stream: stream.patient(),
            prompt,
            parser: style.parser(),
            message: Assembled::default(),
            warnings,
        })
    }
}

/// An answer in the making. Dropping it ends the request.
pub struct LocalAnswer {
    app: Arc<App>,
    /// Events of the request.
    pub stream: EventStream,
    /// Token ids of the prompt.
    pub prompt: Vec<u32>,
    /// Parts of the request that have no effect, one line each.
    pub warnings: Vec<String>,
    parser: AnswerParser,
    message: Assembled,
}

impl LocalAnswer {
    /// Takes more of the generated text; returns the content and the reasoning that became certain.
    pub fn push(&mut self, text: &str) -> (String, String) {
        let pieces = self.parser.push(text);
        self.add(pieces)
    }

    /// Returns the content and the reasoning that end the answer, after all of its text.
    pub fn finish(&mut self) -> (String, String) {
        let pieces = self.parser.finish();
        self.add(pieces)
    }

    fn add(&mut self, pieces: Vec<Piece>) -> (String, String) {
        let (mut content, mut reasoning) = (String::new(), String::new());
        for piece in &pieces {
            match piece {
                Piece::Content(text) => content.push_str(text),
                Piece::Reasoning(text) => reasoning.push_str(text),
                Piece::CallBegins { .. } | Piece::CallArguments { .. } => {}
            }
        }
        self.message.add(pieces);
        (content, reasoning)
    }

    /// Returns the assistant's message so far, as OpenAI's API has it.
    pub fn message(&self) -> Value {
        self.message.to_json(&self.app)
    }

    /// Returns the finish reason as OpenAI's API has it.
    pub fn finish_reason(&self, finish: FinishReason) -> &'static str {
        chat::finish_reason(finish, self.message.has_called())
    }
}
