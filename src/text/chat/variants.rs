//! Template selection: a file may have one for conversations with tools, and others by name;
//! built-in ones have names of their own.

use std::sync::Arc;

use gguf_rs_lite::Gguf;
use serde_json::{Map, Value};

use super::{ChatTemplate, Error, builtin, context};
use crate::tokenizer::Tokenizer;

/// Key of a file's template; keys of named templates begin with it.
const KEY: &str = "tokenizer.chat_template";

/// Name of the template for conversations with tools.
const TOOL_USE: &str = "tool_use";

impl ChatTemplate {
    /// Reads the template of a file; `None` if it has none. If the file has another one for
    /// conversations with tools, that one renders those.
    ///
    /// # Errors
    /// If the metadata cannot be read or the template is invalid.
    pub fn from_gguf(gguf: &Gguf, tokenizer: &Tokenizer) -> Result<Option<ChatTemplate>, Error> {
        let tool_use = gguf.str(&format!("{KEY}.{TOOL_USE}"))?;
        let tool_use = tool_use.map(|source| ChatTemplate::of(gguf, tokenizer, source));
        let tool_use = tool_use.transpose()?;
        let Some(source) = gguf.str(KEY)? else {
            return Ok(tool_use);
        };
        Ok(Some(ChatTemplate {
            tool_use: tool_use.map(Arc::new),
            ..ChatTemplate::of(gguf, tokenizer, source)?
        }))
    }

    /// Returns the file's template of this name, else the built-in one; `None` if there is neither.
    ///
    /// # Errors
    /// As [`ChatTemplate::from_gguf`].
    pub fn named(
        gguf: &Gguf,
        tokenizer: &Tokenizer,
        name: &str,
    ) -> Result<Option<ChatTemplate>, Error> {
        let own = match name {
            "default" => gguf.str(KEY)?,
            name => gguf.str(&format!("{KEY}.{name}"))?,
        };
        let source = own.map(str::to_owned).or_else(|| builtin::source(name));
        source
            .map(|source| ChatTemplate::of(gguf, tokenizer, &source))
            .transpose()
    }

    /// Compiles a template from its source, or from the name of a built-in one, for the model of a
    /// file.
    ///
    /// # Errors
    /// If the template is invalid.
    pub fn of(gguf: &Gguf, tokenizer: &Tokenizer, source: &str) -> Result<ChatTemplate, Error> {
        let text = |id: Option<u32>| {
            let text = id.map(|id| tokenizer.token_text(id)).unwrap_or_default();
            String::from_utf8_lossy(text).into_owned()
        };
        let (bos, eos) = (text(tokenizer.bos()), text(tokenizer.eos()));
        let named = builtin::source(source);
        ChatTemplate::new(gguf.name(), named.as_deref().unwrap_or(source), bos, eos)
    }

    /// Returns the names of the built-in templates that [`ChatTemplate::named`] accepts.
    pub fn known_names() -> impl Iterator<Item = &'static str> {
        builtin::names()
    }

    /// Returns the template for conversations with or without tools.
    pub fn variant(&self, has_tools: bool) -> &ChatTemplate {
        match &self.tool_use {
            Some(tool_use) if has_tools => tool_use,
            _ => self,
        }
    }

    /// Sets default variables, which a conversation can override.
    ///
    /// # Errors
    /// [`Error::Reserved`] if one of them cannot be set.
    pub fn with_variables(self, variables: Map<String, Value>) -> Result<ChatTemplate, Error> {
        for name in variables.keys() {
            context::check_name(name).map_err(|unfit| self.unfit(unfit))?;
        }
        let tool_use = match &self.tool_use {
            Some(tool_use) => {
                let tool_use = ChatTemplate::clone(tool_use);
                Some(Arc::new(tool_use.with_variables(variables.clone())?))
            }
            None => None,
        };
        let mut all = self.variables.clone();
        all.extend(variables);
        Ok(ChatTemplate {
            tool_use,
            variables: all,
            ..self
        })
    }

    /// Sets another template for conversations with tools.
    #[must_use]
    pub fn with_tool_use(self, tool_use: ChatTemplate) -> ChatTemplate {
        ChatTemplate {
            tool_use: Some(Arc::new(tool_use)),
            ..self
        }
    }
}
