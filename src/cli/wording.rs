//! How text from outside, and sizes, are written in messages.

/// Maximum number of characters of a message to show: of a longer one, this many of its beginning
/// and of its end.
const SHOWN: (usize, usize) = (1300, 500);

/// Makes text from outside fit for one line of a terminal: line breaks become spaces, other control
/// characters and those that change the direction of text are escaped, and very long text is cut in
/// the middle.
pub(super) fn one_line(text: &str) -> String {
    let (begin, end) = SHOWN;
    let n = text.chars().count();
    let mut line = String::with_capacity(text.len());
    for (i, c) in text.chars().enumerate() {
        if n > begin + end && (begin..n - end).contains(&i) {
            if i == begin {
                line.push_str(" [...] ");
            }
            continue;
        }
        match c {
            '\n' | '\r' | '\t' => line.push(' '),
            c if c.is_control() || is_invisible(c) => line.extend(c.escape_unicode()),
            c => line.push(c),
        }
    }
    line
}

/// Returns whether a character is invisible and changes how others are shown.
fn is_invisible(c: char) -> bool {
    matches!(
        c,
        '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}'
    )
}

/// Formats a number of bytes.
pub(super) fn size(bytes: u64) -> String {
    let mut value = bytes as f64;
    for unit in ["B", "KiB", "MiB"] {
        if value < 1024.0 {
            return if unit == "B" {
                format!("{bytes} B")
            } else {
                format!("{value:.1} {unit}")
            };
        }
        value /= 1024.0;
    }
    format!("{value:.2} GiB")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_one_line_of_visible_text() {
        assert_eq!(one_line("a\nb\tc"), "a b c");
        assert_eq!(one_line("\u{1b}[2Jx\u{7}"), "\\u{1b}[2Jx\\u{7}");
        assert_eq!(one_line("\u{202e}x\u{9b}"), "\\u{202e}x\\u{9b}");
        assert_eq!(one_line("größer 日本"), "größer 日本");
        let long = format!("tensor {}: expected 3", "x".repeat(100_000));
        let line = one_line(&long);
        assert!(line.len() < 2000, "{}", line.len());
        assert!(line.starts_with("tensor x") && line.ends_with("x: expected 3"));
    }

    #[test]
    fn sizes_have_a_unit() {
        assert_eq!(
            [size(0), size(1023), size(1024), size(1 << 20)],
            ["0 B", "1023 B", "1.0 KiB", "1.0 MiB"]
        );
        assert_eq!(size(3 << 30), "3.00 GiB");
    }
}
