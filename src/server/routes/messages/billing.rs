//! The line about billing that Claude Code puts at the head of its system prompt.
//!
//! It is meant for Anthropic's servers: `x-anthropic-billing-header: cc_version=2.1.101.e51;
//! cc_entrypoint=cli; cch=a5145;`. Its hashes change with every request and conversation, so that
//! nothing after it would come from the prefix cache. llama-server overwrites `cch`; here all of it
//! is left out, since `cc_version` ends in a hash too and a model has no use for any of it.

const HEAD: &str = "x-anthropic-billing-header:";

/// Returns a system prompt without the line.
pub(super) fn without_billing(text: &str) -> &str {
    let Some(mut rest) = text.strip_prefix(HEAD) else {
        return text;
    };
    while let Some(next) = after_pair(rest) {
        rest = next;
    }
    rest.trim_start()
}

/// Returns what follows a `name=value` and its semicolon; `None` if the text begins with none.
fn after_pair(text: &str) -> Option<&str> {
    let text = text.trim_start_matches([' ', '\t']);
    let end = text.find([';', '\n']).unwrap_or(text.len());
    let (name, value) = text[..end].split_once('=')?;
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let is_pair = !name.is_empty() && name.chars().all(is_name) && !value.contains(' ');
    let rest = &text[end..];
    is_pair.then(|| rest.strip_prefix(';').unwrap_or(rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_line_about_billing_is_left_out() {
        let line =
            "x-anthropic-billing-header: cc_version=2.1.101.e51; cc_entrypoint=cli; cch=a51;";
        let prompt = "You are Claude Code; a=b is an assignment.\nc=d;";
        for joint in ["", "\n", "\n\n", " "] {
            assert_eq!(without_billing(&format!("{line}{joint}{prompt}")), prompt);
        }
        let open = line.trim_end_matches(';');
        assert_eq!(without_billing(&format!("{open}\n{prompt}")), prompt);
        for line in [line, open, HEAD] {
            assert_eq!(without_billing(line), "");
        }
        for text in ["", prompt, " x-anthropic-billing-header: a=b;"] {
            assert_eq!(without_billing(text), text);
        }
    }
}
