//! Case folding and accent stripping of code points before words are looked up: lower case, and the
//! first code point of a decomposition. Data of Unicode 15.1, as `unicode.rs`.

use std::sync::OnceLock;

/// Code points `step` apart, and the mapping of the first; the others map in steps of `to_step`, or
/// all to the same code point if that is 0.
struct Run {
    first: u32,
    last: u32,
    step: u32,
    to: u32,
    to_step: u32,
}

/// Runs in ascending order.
struct Runs(Vec<Run>);

impl Runs {
    /// Maps a code point.
    fn of(&self, cp: u32) -> u32 {
        let behind = self.0.partition_point(|run| run.first <= cp);
        let run = behind.checked_sub(1).and_then(|at| self.0.get(at));
        let run = run.filter(|run| cp <= run.last && (cp - run.first).is_multiple_of(run.step));
        run.map_or(cp, |run| run.to + (cp - run.first) / run.step * run.to_step)
    }

    fn parse(table: &str, kind: &str, run: fn(&[u32]) -> Option<Run>) -> Runs {
        let lines = table.lines().filter_map(|line| line.strip_prefix(kind));
        let numbers = |word: &str| -> Vec<u32> {
            let hex = |digits| u32::from_str_radix(digits, 16);
            let all = word
                .split('-')
                .map(|digits| hex(digits).expect("hexadecimal digits"));
            all.collect()
        };
        let runs = lines
            .flat_map(str::split_ascii_whitespace)
            .map(|word| run(&numbers(word)).expect("the embedded table has runs of its kind"));
        Runs(runs.collect())
    }
}

struct Folding {
    lower: Runs,
    base: Runs,
}

/// Returns the embedded table, parsed once.
fn folding() -> &'static Folding {
    static TABLE: OnceLock<Folding> = OnceLock::new();
    TABLE.get_or_init(|| {
        let table = include_str!("folding_15_1.txt");
        Folding {
            lower: Runs::parse(table, "lower ", |numbers| match *numbers {
                [first, count, step, to] => Some(Run {
                    first,
                    last: first + (count - 1) * step,
                    step,
                    to,
                    to_step: step,
                }),
                _ => None,
            }),
            base: Runs::parse(table, "base ", |numbers| match *numbers {
                [first, last, to] => Some(Run {
                    first,
                    last,
                    step: 1,
                    to,
                    to_step: 0,
                }),
                _ => None,
            }),
        }
    })
}

/// Returns the lower case; the first code point if there are several.
pub(super) fn lower(cp: u32) -> u32 {
    folding().lower.of(cp)
}

/// Returns the first code point of the decomposition: for a letter with accents, the letter.
pub(super) fn base(cp: u32) -> u32 {
    folding().base.of(cp)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lower_case_is_that_of_the_standard_library() {
        let mut others = 0;
        for c in '\0'..=char::MAX {
            let expected = c.to_lowercase().next().map_or(0, u32::from);
            // the standard library may know letters that are newer than the table
            if lower(u32::from(c)) != expected {
                assert_eq!(lower(u32::from(c)), u32::from(c), "{c:?}");
                others += 1;
            }
        }
        assert!(others < 100, "{others} code points are another");
    }

    #[test]
    fn accents_are_left_out() {
        for (with, without) in [
            ('é', 'e'),
            ('Ç', 'C'),
            ('ǖ', 'u'),
            ('ấ', 'a'),
            ('Å', 'A'),
            ('が', 'か'),
            ('한', '\u{1112}'),
            ('豈', '豈'),
            ('a', 'a'),
            ('ß', 'ß'),
            ('字', '字'),
        ] {
            assert_eq!(base(u32::from(with)), u32::from(without), "{with}");
        }
        assert_eq!(base(u32::MAX), u32::MAX);
    }
}
