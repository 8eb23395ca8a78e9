//! Number of a shard out of how many, and the range of units it covers.

use std::fmt;
use std::ops::Range;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Index of one of several shards of about equal size, numbered from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardIndex {
    number: u32,
    of: u32,
}

impl ShardIndex {
    /// Returns its number, from 1.
    pub fn number(self) -> u32 {
        self.number
    }

    /// Returns the number of shards.
    pub fn of(self) -> u32 {
        self.of
    }

    /// Returns its share of `units` units. All shards together cover each unit once, in order; if
    /// there are more shards than units, some shards are empty.
    pub fn range(self, units: usize) -> Range<usize> {
        let end = |number: u32| {
            let units = units as u128 * u128::from(number) / u128::from(self.of.max(1));
            usize::try_from(units).unwrap_or(usize::MAX)
        };
        end(self.number.saturating_sub(1))..end(self.number)
    }

    /// Returns whether the numbers are valid: data from a file is untrusted.
    pub(super) fn is_sound(self) -> bool {
        (1..=self.of).contains(&self.number)
    }
}

impl fmt::Display for ShardIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.number, self.of)
    }
}

impl FromStr for ShardIndex {
    type Err = String;

    fn from_str(text: &str) -> Result<ShardIndex, String> {
        let shard = text.split_once('/').and_then(|(number, of)| {
            let (number, of) = (number.trim().parse().ok()?, of.trim().parse().ok()?);
            Some(ShardIndex { number, of })
        });
        shard
            .filter(|shard| shard.is_sound())
            .ok_or_else(|| "expected I/N such as 3/8: a shard from 1 to N".to_owned())
    }
}

/// Lists the numbers from 1 to `of` that are not in `there` (ascending), as in `3,5-7`; `None` if
/// none is missing.
pub(super) fn missing(there: &[u32], of: u32) -> Option<String> {
    let mut gaps = Vec::new();
    let (mut next, of) = (1, u64::from(of));
    for number in there.iter().copied().map(u64::from) {
        if number > next {
            gaps.push(next..=number - 1);
        }
        next = number + 1;
    }
    if next <= of {
        gaps.push(next..=of);
    }
    let text = |gap: &std::ops::RangeInclusive<u64>| match (gap.start(), gap.end()) {
        (a, b) if a == b => a.to_string(),
        (a, b) => format!("{a}-{b}"),
    };
    let list: Vec<String> = gaps.iter().map(text).collect();
    (!list.is_empty()).then(|| list.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_have_every_unit_once_and_in_order() {
        for units in [0, 1, 2, 7, 8, 100, usize::MAX] {
            for of in [1, 2, 3, 8, 1000, u32::MAX] {
                let numbers = [1, 2, 3, 7, 8, 999, 1000, of / 2, of - 1, of];
                for number in numbers.into_iter().filter(|n| (1..=of).contains(n)) {
                    let own = ShardIndex { number, of }.range(units);
                    assert!(own.start <= own.end && own.end <= units);
                    if number > 1 {
                        let before = ShardIndex {
                            number: number - 1,
                            of,
                        };
                        assert_eq!(before.range(units).end, own.start);
                    }
                }
                assert_eq!(ShardIndex { number: 1, of }.range(units).start, 0);
                assert_eq!(ShardIndex { number: of, of }.range(units).end, units);
            }
        }
    }

    #[test]
    fn shards_are_read_as_they_are_written() {
        let shard: ShardIndex = "3/8".parse().unwrap();
        assert_eq!(
            (shard.number(), shard.of(), shard.to_string()),
            (3, 8, "3/8".to_owned())
        );
        for text in [
            "",
            "3",
            "0/8",
            "9/8",
            "-1/8",
            "1/0",
            "a/b",
            "1/8/2",
            "1/99999999999",
        ] {
            assert!(text.parse::<ShardIndex>().is_err(), "{text}");
        }
    }

    #[test]
    fn gaps_are_lists_of_ranges() {
        assert_eq!(missing(&[1, 2, 3], 3), None);
        assert_eq!(missing(&[2, 4], 8).unwrap(), "1,3,5-8");
        assert_eq!(missing(&[], 2).unwrap(), "1-2");
        assert_eq!(
            missing(&[u32::MAX], u32::MAX).unwrap(),
            format!("1-{}", u32::MAX - 1)
        );
    }
}
