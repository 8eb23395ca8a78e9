//! Checks of a template's tokens before anything recurses over them.

use std::fmt::Display;

use minijinja::machinery::{Token, WhitespaceConfig, tokenize};
use minijinja::syntax::SyntaxConfig;
use minijinja::{Error, ErrorKind};

/// Most tokens in one tag: bounds the depth of an expression before anything recurses over it.
const MAX_TOKENS_IN_TAG: usize = 4000;
/// Most `elif` in all: each is nested in the one before.
const MAX_ELIFS: usize = 500;

type Result<T> = std::result::Result<T, Error>;

/// Returns the error for an unsupported construct.
pub(super) fn unsupported(what: impl Display) -> Error {
    Error::new(ErrorKind::SyntaxError, what.to_string())
}

/// Refuses tags and chains that are too long, and names reserved for the guards.
pub(super) fn check_tokens(source: &str, whitespace: WhitespaceConfig) -> Result<()> {
    let (mut in_tag, mut elifs) = (0, 0);
    for token in tokenize(source, false, SyntaxConfig, whitespace) {
        match token?.0 {
            Token::TemplateData(_) | Token::VariableStart | Token::BlockStart => in_tag = 0,
            Token::Ident("elif") if in_tag == 0 => elifs += 1,
            Token::Ident(name) if name.starts_with("__guard") => {
                return Err(unsupported(format!("the name {name} is reserved")));
            }
            _ => in_tag += 1,
        }
        if in_tag > MAX_TOKENS_IN_TAG {
            return Err(unsupported(format!(
                "a tag has more than {MAX_TOKENS_IN_TAG} tokens"
            )));
        }
        if elifs > MAX_ELIFS {
            return Err(unsupported(format!(
                "there are more than {MAX_ELIFS} elif tags"
            )));
        }
    }
    Ok(())
}

/// Replaces transformers' own tags `{% generation %}` and `{% endgeneration %}`, which mark the
/// assistant's text for training and do nothing in inference. They become an `if`, so that white
/// space around them is handled in the same way.
pub(super) fn without_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        let (before, tag) = rest.split_at(start);
        out.push_str(before);
        let end = tag.find("%}").map_or(tag.len(), |end| end + 2);
        let (tag, after) = tag.split_at(end);
        let word = tag
            .trim_start_matches(['{', '%', '-', '+'])
            .trim_end_matches(['}', '%', '-', '+'])
            .trim();
        match word {
            "generation" => out.push_str(&tag.replace("generation", "if true")),
            "endgeneration" => out.push_str(&tag.replace("endgeneration", "endif")),
            _ => out.push_str(tag),
        }
        rest = after;
    }
    out + rest
}
