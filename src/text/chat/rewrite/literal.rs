//! String literals with Python's escapes.

/// Decodes one literal, including its quotes. `None` if it is not one, or has nothing that the
/// engine reads differently: `\\U`, `\\a`, `\\v`, `\\/` and escaped line breaks.
pub(super) fn text(literal: &str) -> Option<String> {
    let mark = literal.chars().next().filter(|c| matches!(c, '"' | '\''))?;
    let inside = literal.strip_prefix(mark)?.strip_suffix(mark)?;
    let mut out = String::with_capacity(inside.len());
    let mut rest = inside;
    while let Some(c) = rest.chars().next() {
        if c == mark {
            // Two adjacent literals.
            return None;
        }
        if c != '\\' {
            out.push(c);
            rest = &rest[c.len_utf8()..];
            continue;
        }
        let escape = rest.chars().nth(1)?;
        let after = rest.get(1 + escape.len_utf8()..)?;
        let digits = |n: usize| {
            after
                .get(..n)
                .and_then(|hex| u32::from_str_radix(hex, 16).ok())
        };
        let (decoded, used) = match escape {
            '\n' => (None, 0),
            '\\' | '\'' | '"' => (Some(escape), 0),
            'a' => (Some('\u{7}'), 0),
            'b' => (Some('\u{8}'), 0),
            'f' => (Some('\u{c}'), 0),
            'n' => (Some('\n'), 0),
            'r' => (Some('\r'), 0),
            't' => (Some('\t'), 0),
            'v' => (Some('\u{b}'), 0),
            '0'..='7' => {
                let more = after
                    .bytes()
                    .take(2)
                    .take_while(|b| (b'0'..=b'7').contains(b))
                    .count();
                let octal = rest.get(1..2 + more)?;
                (char::from_u32(u32::from_str_radix(octal, 8).ok()?), more)
            }
            'x' => (Some(char::from_u32(digits(2)?)?), 2),
            // Surrogate pairs are left to the engine.
            'u' => (Some(char::from_u32(digits(4)?)?), 4),
            'U' => (Some(char::from_u32(digits(8)?)?), 8),
            'N' => return None,
            other => {
                out.push('\\');
                (Some(other), 0)
            }
        };
        out.extend(decoded);
        rest = after.get(used..)?;
    }
    Some(out)
}
