//! A vocabulary prepared for grammars.

use std::collections::HashMap;
use std::sync::Arc;

use llguidance::ParserFactory;
use llguidance::toktrie::{ApproximateTokEnv, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie};
use octavo_engine::Engine;
use octavo_engine::Vocabulary as Pieces;
use octavo_text::tokenizer::Tokenizer;
use serde_json::json;

/// Maximum bytes of a control token's text that is searched for in texts of a format.
const MAX_CONTROL: usize = 64;

/// A vocabulary, prepared for grammars.
pub(crate) struct Vocabulary {
    pub(crate) factory: ParserFactory,
    /// Text of each token, including control tokens.
    pub(crate) words: Arc<Vec<Vec<u8>>>,
    /// End-of-generation tokens.
    pub(crate) ends: Vec<u32>,
    env: TokEnv,
    /// Control tokens by text.
    controls: HashMap<Vec<u8>, u32>,
}

impl Vocabulary {
    /// Prepares the vocabulary of a model.
    ///
    /// # Errors
    /// If it has no token that can end a text.
    pub(crate) fn new(engine: &Engine) -> Result<Vocabulary, String> {
        let tokenizer = engine.tokenizer();
        let n_vocab = u32::try_from(engine.hparams().n_vocab()).unwrap_or(u32::MAX);
        let mut controls = HashMap::new();
        let mut words = Vec::new();
        let mut plain = Vec::new();
        for id in 0..n_vocab {
            let text = text(tokenizer, id);
            let mut word = text.to_vec();
            if tokenizer.is_special(id) {
                controls.insert(text.to_vec(), id);
                // control tokens are marked with a byte that no text has
                word.insert(0, TokTrie::SPECIAL_TOKEN_MARKER);
            }
            words.push(word);
            plain.push(text.to_vec());
        }
        let ends = tokenizer.eog_ids().to_vec();
        let eos = tokenizer.eos().or(ends.first().copied());
        let eos = eos.ok_or("it has no token that ends a text")?;
        let mut trie = TokTrie::from(&TokRxInfo::new(n_vocab, eos), &words);
        if !ends.is_empty() {
            trie = trie.with_eos_tokens(&ends);
        }
        let env: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let capabilities = InferenceCapabilities::default();
        let slices = llguidance::earley::SlicedBiasComputer::general_slices();
        let mut factory =
            ParserFactory::new(&env, capabilities, &slices).map_err(|error| error.to_string())?;
        factory.quiet();
        // no request's grammar may delay a step of all requests
        let limits = factory.limits_mut();
        limits.initial_lexer_fuel = 1_000_000;
        limits.step_lexer_fuel = 200_000;
        limits.step_max_items = 50_000;
        limits.max_lexer_states = 50_000;
        limits.max_grammar_size = 200_000;
        limits.verbose_errors = false;
        limits.precompute_large_lexemes = false;
        Ok(Vocabulary {
            factory,
            words: Arc::new(plain),
            ends: if ends.is_empty() { vec![eos] } else { ends },
            env,
            controls,
        })
    }

    /// Returns a text as a Lark expression, in which control tokens are token references.
    pub(crate) fn literal(&self, text: &str) -> String {
        let mut parts = Vec::new();
        let mut plain = String::new();
        let mut rest = text;
        while let Some(c) = rest.chars().next() {
            match self.control(rest) {
                Some((id, len)) => {
                    if !plain.is_empty() {
                        parts.push(quoted(&std::mem::take(&mut plain)));
                    }
                    parts.push(format!("<[{id}]>"));
                    rest = rest.get(len..).unwrap_or_default();
                }
                None => {
                    plain.push(c);
                    rest = rest.get(c.len_utf8()..).unwrap_or_default();
                }
            }
        }
        if !plain.is_empty() || parts.is_empty() {
            parts.push(quoted(&plain));
        }
        parts.join(" ")
    }

    /// Returns whether a text is a single end-of-generation token.
    pub(crate) fn ends_with(&self, text: &str) -> bool {
        let id = self.controls.get(text.as_bytes());
        id.is_some_and(|id| self.ends.contains(id))
    }

    /// Returns whether a text contains a control token.
    pub(crate) fn has_control(&self, text: &str) -> bool {
        text.char_indices()
            .any(|(i, _)| self.control(&text[i..]).is_some())
    }

    /// Returns the control token that a text begins with, and its length.
    fn control(&self, text: &str) -> Option<(u32, usize)> {
        if !text.starts_with(['<', '[', ']']) {
            return None;
        }
        let ends = text.char_indices().take_while(|(i, _)| *i < MAX_CONTROL);
        let ends = ends
            .filter(|(_, c)| matches!(c, '>' | ']'))
            .map(|(i, _)| i + 1);
        let found = |end: usize| {
            let id = self.controls.get(text.get(..end)?.as_bytes())?;
            Some((*id, end))
        };
        ends.filter_map(found).last()
    }

    /// Returns tokens that spell these bytes.
    pub(crate) fn spell(&self, bytes: &[u8]) -> Vec<u32> {
        self.env.tok_trie().greedy_tokenize(bytes)
    }

    /// Returns tokens that spell a marker, which may be a control token.
    pub(crate) fn spell_marker(&self, marker: &[u8]) -> Vec<u32> {
        match self.controls.get(marker) {
            Some(id) => vec![*id],
            None => self.spell(marker),
        }
    }

    /// Returns a standalone function that tokenizes bytes.
    pub(crate) fn speller(&self) -> Speller {
        let env = Arc::clone(&self.env);
        Box::new(move |bytes| env.tok_trie().greedy_tokenize(bytes))
    }
}

/// Function that returns tokens spelling the given bytes.
pub(crate) type Speller = Box<dyn Fn(&[u8]) -> Vec<u32> + Send + Sync>;

/// Returns the text of a token, also of a control token.
pub(crate) fn text(tokenizer: &Tokenizer, id: u32) -> &[u8] {
    match tokenizer.is_special(id) {
        true => tokenizer.token_text(id),
        false => Pieces::piece(tokenizer, id),
    }
}

/// Quotes a text, as in Lark and JSON.
pub(crate) fn quoted(text: &str) -> String {
    // Lark does not accept this character unescaped
    json!(text).to_string().replace('\u{7f}', "\\u007F")
}
