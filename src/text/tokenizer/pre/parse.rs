//! Parses the subset of regular expressions that pre-tokenizers use, into a tree.
//!
//! Supports literals, escapes, classes with ranges and `\p{..}`, groups, alternation, greedy
//! `? * + {m} {m,n}`, look-ahead and `$`. No look-behind, captures or back-references: whether a
//! pattern matches at a position depends only on the following text.

use crate::tokenizer::unicode::{CategorySet, LETTER, MARK, NUMBER, PUNCTUATION, SYMBOL};

/// A pattern.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Ast {
    /// One character.
    Class(Class),
    /// Sequence.
    Concat(Vec<Ast>),
    /// Alternatives; the first that leads to a match.
    Alternate(Vec<Ast>),
    /// Greedy repetition.
    Repeat {
        what: Box<Ast>,
        min: u32,
        max: Option<u32>,
    },
    /// Look-ahead, possibly negated.
    Look { negated: bool, what: Box<Ast> },
    /// End of the piece.
    End,
}

/// A set of characters.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Class {
    /// Inclusive ranges of code points.
    ranges: Vec<(u32, u32)>,
    categories: CategorySet,
    /// Whether it contains everything except white space.
    not_space: bool,
    negated: bool,
}

impl Class {
    /// Returns whether `cp`, of category `category`, is in the set. White space outside ASCII must
    /// have been replaced before.
    pub(super) fn contains(&self, cp: u32, category: CategorySet) -> bool {
        let inside = self.categories & category != 0
            || (self.not_space && !is_ascii_space(cp))
            || self
                .ranges
                .iter()
                .any(|(first, last)| (*first..=*last).contains(&cp));
        inside != self.negated
    }

    /// Returns whether membership of a character outside ASCII depends on its category only.
    pub(super) fn by_category(&self) -> bool {
        self.ranges.iter().all(|(_, last)| *last < 0x80)
    }

    fn add_space(&mut self) {
        self.ranges.extend([(0x09, 0x0D), (0x20, 0x20)]);
    }
}

fn is_ascii_space(cp: u32) -> bool {
    matches!(cp, 0x09..=0x0D | 0x20)
}

/// Error in a pattern; patterns are embedded in the program, so only tests can see it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("pattern '{pattern}' at character {at}: {what}")]
pub(super) struct ParseError {
    pub(super) pattern: String,
    pub(super) at: usize,
    pub(super) what: &'static str,
}

/// Parses a pattern.
pub(super) fn parse(pattern: &str) -> Result<Ast, ParseError> {
    let mut parser = Parser {
        chars: pattern.chars().collect(),
        at: 0,
    };
    let ast = parser.alternation().and_then(|ast| match parser.peek() {
        None => Ok(ast),
        Some(_) => Err("unbalanced parenthesis"),
    });
    ast.map_err(|what| ParseError {
        pattern: pattern.to_owned(),
        at: parser.at,
        what,
    })
}

struct Parser {
    chars: Vec<char>,
    at: usize,
}

type Parsed<T> = Result<T, &'static str>;

impl Parser {
    fn peek(&self) -> Option<char> {
        self.chars.get(self.at).copied()
    }

    fn next(&mut self) -> Option<char> {
        let c = self.peek()?;
        self.at += 1;
        Some(c)
    }

    fn eat(&mut self, text: &str) -> bool {
        let found = self
            .chars
            .get(self.at..)
            .is_some_and(|rest| rest.iter().copied().take(text.len()).eq(text.chars()));
        if found {
            self.at += text.len();
        }
        found
    }

    fn alternation(&mut self) -> Parsed<Ast> {
        let mut branches = vec![self.concat()?];
        while self.eat("|") {
            branches.push(self.concat()?);
        }
        Ok(if branches.len() == 1 {
            branches.remove(0)
        } else {
            Ast::Alternate(branches)
        })
    }

    fn concat(&mut self) -> Parsed<Ast> {
        let mut parts = Vec::new();
        while !matches!(self.peek(), None | Some('|' | ')')) {
            let atom = self.atom()?;
            parts.push(self.quantified(atom)?);
        }
        Ok(if parts.len() == 1 {
            parts.remove(0)
        } else {
            Ast::Concat(parts)
        })
    }

    fn atom(&mut self) -> Parsed<Ast> {
        if self.eat("(?=") {
            return self.look(false);
        }
        if self.eat("(?!") {
            return self.look(true);
        }
        if self.eat("(?:") || self.eat("(") {
            return self.group();
        }
        match self.next() {
            Some('[') => Ok(Ast::Class(self.bracket()?)),
            Some('\\') => {
                let mut class = Class::default();
                self.escape(&mut class)?;
                Ok(Ast::Class(class))
            }
            Some('$') => Ok(Ast::End),
            Some('.' | '^' | '*' | '+' | '?' | '{') => Err("not in the supported subset"),
            Some(c) => Ok(Ast::Class(Class {
                ranges: vec![(c.into(), c.into())],
                ..Class::default()
            })),
            None => Err("unexpected end"),
        }
    }

    fn group(&mut self) -> Parsed<Ast> {
        let ast = self.alternation()?;
        if self.eat(")") {
            Ok(ast)
        } else {
            Err("missing ')'")
        }
    }

    fn look(&mut self, negated: bool) -> Parsed<Ast> {
        Ok(Ast::Look {
            negated,
            what: Box::new(self.group()?),
        })
    }

    fn quantified(&mut self, atom: Ast) -> Parsed<Ast> {
        let (min, max) = match self.peek() {
            Some('?') => (0, Some(1)),
            Some('*') => (0, None),
            Some('+') => (1, None),
            Some('{') => return self.counted(atom),
            _ => return Ok(atom),
        };
        self.at += 1;
        self.repeat(atom, min, max)
    }

    fn counted(&mut self, atom: Ast) -> Parsed<Ast> {
        self.at += 1;
        let min = self.number()?;
        let max = if self.eat(",") { self.number()? } else { min };
        if !self.eat("}") || max < min || max == 0 {
            return Err("bad repetition count");
        }
        self.repeat(atom, min, Some(max))
    }

    fn repeat(&mut self, atom: Ast, min: u32, max: Option<u32>) -> Parsed<Ast> {
        if matches!(self.peek(), Some('?' | '+' | '*' | '{')) {
            return Err("lazy, possessive and repeated quantifiers are not supported");
        }
        Ok(Ast::Repeat {
            what: Box::new(atom),
            min,
            max,
        })
    }

    fn number(&mut self) -> Parsed<u32> {
        let mut digits = String::new();
        while let Some(c) = self.peek().filter(char::is_ascii_digit) {
            digits.push(c);
            self.at += 1;
        }
        digits.parse().map_err(|_| "expected a number")
    }

    fn bracket(&mut self) -> Parsed<Class> {
        let mut class = Class {
            negated: self.eat("^"),
            ..Class::default()
        };
        loop {
            let first = match self.next() {
                None => return Err("missing ']'"),
                Some(']') => return Ok(class),
                Some('\\') => self.escape(&mut class)?,
                Some(c) => Some(c),
            };
            let Some(first) = first else { continue };
            let range =
                self.peek() == Some('-') && self.chars.get(self.at + 1).is_some_and(|c| *c != ']');
            let last = if range { self.range_end()? } else { first };
            if last < first {
                return Err("range out of order");
            }
            class.ranges.push((first.into(), last.into()));
        }
    }

    fn range_end(&mut self) -> Parsed<char> {
        self.at += 1;
        match self.next() {
            Some('\\') => self
                .escape(&mut Class::default())?
                .ok_or("a class cannot end a range"),
            Some(c) => Ok(c),
            None => Err("missing ']'"),
        }
    }

    /// Parses the rest of an escape: a class is added to `class`; a literal is added if outside
    /// brackets, and returned.
    fn escape(&mut self, class: &mut Class) -> Parsed<Option<char>> {
        let literal = match self.next() {
            Some('s') => {
                class.add_space();
                return Ok(None);
            }
            Some('S') => {
                class.not_space = true;
                return Ok(None);
            }
            Some('d') => {
                class.ranges.push((0x30, 0x39));
                return Ok(None);
            }
            Some('p') => {
                self.property(class)?;
                return Ok(None);
            }
            Some('r') => '\r',
            Some('n') => '\n',
            Some('t') => '\t',
            Some(c) if c.is_ascii_punctuation() => c,
            _ => return Err("unknown escape"),
        };
        class.ranges.push((literal.into(), literal.into()));
        Ok(Some(literal))
    }

    fn property(&mut self, class: &mut Class) -> Parsed<()> {
        if !self.eat("{") {
            return Err("expected '{'");
        }
        let mut name = String::new();
        while let Some(c) = self.next().filter(|c| *c != '}') {
            name.push(c);
        }
        class.categories |= match name.as_str() {
            // llama.cpp ignores case: every kind of letter means any letter, and files are checked
            // against it.
            "L" | "Lu" | "Ll" | "Lt" | "Lm" | "Lo" => LETTER,
            "M" => MARK,
            "N" => NUMBER,
            "P" => PUNCTUATION,
            "S" => SYMBOL,
            "Han" => {
                class.ranges.extend(HAN);
                return Ok(());
            }
            _ => return Err("unknown property"),
        };
        Ok(())
    }
}

/// Blocks of Chinese characters: whole blocks, including unassigned code points.
const HAN: [(u32, u32); 9] = [
    (0x3400, 0x4DBF),
    (0x4E00, 0x9FFF),
    (0xF900, 0xFAFF),
    (0x2_0000, 0x2_A6DF),
    (0x2_A700, 0x2_B73F),
    (0x2_B740, 0x2_B81F),
    (0x2_B820, 0x2_CEAF),
    (0x2_CEB0, 0x2_EBEF),
    (0x2_F800, 0x2_FA1F),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn class(pattern: &str) -> Class {
        match parse(pattern).expect("a valid pattern") {
            Ast::Class(class) => class,
            other => panic!("{pattern}: expected a class, got {other:?}"),
        }
    }

    #[test]
    fn classes() {
        let c = class(r"[\p{P}!-/:-@\[-`{-~]");
        for (ch, category, inside) in [
            ('[', PUNCTUATION, true),
            ('^', SYMBOL, true),
            ('a', LETTER, false),
            ('`', SYMBOL, true),
        ] {
            assert_eq!(c.contains(ch.into(), category), inside, "{ch}");
        }
        let c = class(r"[^\r\n\p{L}]");
        assert!(!c.contains(13, 0) && !c.contains(0xE9, LETTER) && c.contains(0x20, 0));
        let c = class(r"[a\-z]");
        assert!(c.contains('-'.into(), 0) && !c.contains('m'.into(), 0));
        assert!(class(r"\S").contains(0x41, LETTER) && !class(r"\S").contains(0x0B, 0));
        assert!(class("[a-z]").by_category() && !class("[一-龥]").by_category());
    }

    #[test]
    fn what_is_outside_the_subset_is_refused() {
        for bad in [
            "a**",
            "a+?",
            "(a",
            "a)",
            "[a",
            r"\q",
            r"\p{Greek}",
            "a{2,1}",
            "a{0}",
            "a{x}",
            "^a",
            ".",
            "[z-a]",
            "+",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
