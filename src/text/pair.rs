//! A query and a document as one text, in the form that a reranker was trained on.

use gguf_rs_lite::Gguf;

use crate::tokenizer::{EncodeOptions, Error, MAX_TEXT_BYTES, Tokenizer};

/// Key of the template of a pair.
const TEMPLATE: &str = "tokenizer.chat_template.rerank";

/// Places of the two texts in it.
const QUERY: &str = "{query}";
const DOCUMENT: &str = "{document}";

/// Pre-tokenizers whose texts of two parts have a separator between them, as in llama.cpp.
const SEPARATED: [&str; 3] = ["jina-v1-en", "jina-v2-code", "roberta-bpe"];

/// The form of a pair.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PairFormat {
    /// A text with `{query}` and `{document}` in it, which may hold special tokens.
    Template(String),
    /// Special tokens around the two: before the query, after it, before the document, after it.
    Tokens {
        /// First token.
        first: Option<u32>,
        /// Token that ends the query, and the document.
        end: Option<u32>,
        /// Token between the query's end and the document.
        separator: Option<u32>,
    },
}

impl PairFormat {
    /// Reads the form from a file's keys; what they leave open is llama.cpp's default for the kind
    /// of tokenizer.
    ///
    /// # Errors
    /// If a key has another type.
    pub fn from_gguf(gguf: &Gguf, tokenizer: &Tokenizer) -> Result<PairFormat, Error> {
        if let Some(template) = gguf.str(TEMPLATE)? {
            return Ok(PairFormat::Template(template.to_owned()));
        }
        let flag = |name: &str, default: bool| -> Result<bool, Error> {
            let value = gguf.bool(&format!("tokenizer.ggml.add_{name}_token"))?;
            Ok(value.unwrap_or(default))
        };
        let model = gguf.str("tokenizer.ggml.model")?;
        let (bos, eos, sep) = match model {
            Some("bert") => (true, false, true),
            Some("t5") => (false, true, false),
            _ => {
                let pre = gguf.str("tokenizer.ggml.pre")?.unwrap_or_default();
                let sep = SEPARATED.contains(&pre);
                (tokenizer.add_bos(), tokenizer.add_eos(), sep)
            }
        };
        let special = tokenizer.special();
        let is_added = |is_added: bool, token: Option<u32>| token.filter(|_| is_added);
        Ok(PairFormat::Tokens {
            first: is_added(flag("bos", bos)?, special.bos),
            end: is_added(flag("eos", eos)?, special.eos.or(special.sep)),
            separator: is_added(flag("sep", sep)?, special.sep),
        })
    }

    /// Returns the tokens of a pair. Text of special tokens in the query or the document is plain
    /// text, unless a template puts them together.
    ///
    /// # Errors
    /// If a text cannot be tokenized.
    pub fn encode(
        &self,
        tokenizer: &Tokenizer,
        query: &str,
        document: &str,
    ) -> Result<Vec<u32>, Error> {
        let (first, end, separator) = match self {
            PairFormat::Template(template) => {
                let text = fill(template, query, document)?;
                let options = EncodeOptions {
                    add_special: false,
                    parse_special: true,
                };
                return tokenizer.encode(text.as_bytes(), options);
            }
            PairFormat::Tokens {
                first,
                end,
                separator,
            } => (*first, *end, *separator),
        };
        let piece = |text: &str| tokenizer.encode(text.as_bytes(), EncodeOptions::PIECE);
        let mut tokens: Vec<u32> = first.into_iter().collect();
        tokens.extend(piece(query)?);
        tokens.extend(end);
        tokens.extend(separator);
        tokens.extend(piece(document)?);
        tokens.extend(end);
        Ok(tokens)
    }
}

/// Puts both texts into a template. Unlike in llama.cpp, a query with `{document}` in it stays as
/// it is: otherwise a short request could become an endless text.
fn fill(template: &str, query: &str, document: &str) -> Result<String, Error> {
    let parts = |text: &'static str| template.matches(text).count();
    let got = template.len() + parts(QUERY) * query.len() + parts(DOCUMENT) * document.len();
    if got > MAX_TEXT_BYTES {
        let limit = MAX_TEXT_BYTES;
        return Err(Error::TextTooLong { got, limit });
    }
    let mut text = String::with_capacity(got);
    for (i, part) in template.split(QUERY).enumerate() {
        if i > 0 {
            text.push_str(query);
        }
        text.push_str(&part.replace(DOCUMENT, document));
    }
    Ok(text)
}
