//! `strftime_now`: date and time for templates that put them into the system prompt. Always UTC.

use std::time::{SystemTime, UNIX_EPOCH};

/// Longest output of a field, in bytes per byte of format.
pub(crate) const LONGEST_FIELD: usize = 16;

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = [
    "Sunday",
    "Monday",
    "Tuesday",
    "Wednesday",
    "Thursday",
    "Friday",
    "Saturday",
];

/// Returns seconds since 1970.
pub fn now() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_secs())
}

/// Formats a time (seconds since 1970) like C's `strftime` in the C locale; unknown fields are
/// copied.
pub fn strftime(format: &str, seconds: u64) -> String {
    let (day, second) = (seconds / 86_400, seconds % 86_400);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    let (year, month, date, day_of_year) = civil(day);
    let weekday = (day + 4) % 7;
    let twelve = if hour % 12 == 0 { 12 } else { hour % 12 };
    let name = |names: &[&'static str], i: u64| {
        usize::try_from(i)
            .ok()
            .and_then(|i| names.get(i))
            .copied()
            .unwrap_or("")
    };
    let mut out = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let mut field = chars.next();
        // glibc's flag for no padding.
        let bare = field == Some('-');
        if bare {
            field = chars.next();
        }
        let padded = |n: u64, width: usize| {
            if bare {
                n.to_string()
            } else {
                format!("{n:0width$}")
            }
        };
        let text = match field {
            Some('Y') => year.to_string(),
            Some('y') => padded(year % 100, 2),
            Some('m') => padded(month, 2),
            Some('d') => padded(date, 2),
            Some('e') => format!("{date:2}"),
            Some('j') => padded(day_of_year, 3),
            Some('H') => padded(hour, 2),
            Some('I') => padded(twelve, 2),
            Some('M') => padded(minute, 2),
            Some('S') => padded(second, 2),
            Some('p') => if hour < 12 { "AM" } else { "PM" }.to_owned(),
            Some('B') => name(&MONTHS, month - 1).to_owned(),
            Some('b' | 'h') => name(&MONTHS, month - 1).chars().take(3).collect(),
            Some('A') => name(&DAYS, weekday).to_owned(),
            Some('a') => name(&DAYS, weekday).chars().take(3).collect(),
            Some('w') => weekday.to_string(),
            Some('F') => format!("{year}-{month:02}-{date:02}"),
            Some('T') => format!("{hour:02}:{minute:02}:{second:02}"),
            Some('D') => format!("{month:02}/{date:02}/{:02}", year % 100),
            Some('R') => format!("{hour:02}:{minute:02}"),
            Some('Z') => "UTC".to_owned(),
            Some('z') => "+0000".to_owned(),
            Some('s') => seconds.to_string(),
            Some('%') => "%".to_owned(),
            Some(other) => format!("%{other}"),
            None => "%".to_owned(),
        };
        out.push_str(&text);
    }
    out
}

/// Returns year, month, day of the month and day of the year (the last three from 1) of a day
/// counted from 1970-01-01.
fn civil(day: u64) -> (u64, u64, u64, u64) {
    let leap = |year: u64| {
        year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
    };
    // Whole 400-year cycles first, so that the loop is short for any clock.
    let (mut year, mut left) = (1970 + day / 146_097 * 400, day % 146_097);
    while left >= 365 + u64::from(leap(year)) {
        left -= 365 + u64::from(leap(year));
        year += 1;
    }
    let day_of_year = left + 1;
    let february = 28 + u64::from(leap(year));
    let mut month = 1;
    for length in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if left < length {
            break;
        }
        left -= length;
        month += 1;
    }
    (year, month, left + 1, day_of_year)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates() {
        // Output of `date -u -d @N`.
        for (seconds, expected) in [
            (0, "1970-01-01 00:00:00 Thu 001"),
            (951_782_399, "2000-02-28 23:59:59 Mon 059"),
            (951_782_400, "2000-02-29 00:00:00 Tue 060"),
            (1_709_251_199, "2024-02-29 23:59:59 Thu 060"),
            (1_735_689_599, "2024-12-31 23:59:59 Tue 366"),
            (4_102_444_800, "2100-01-01 00:00:00 Fri 001"),
            (32_503_680_000, "3000-01-01 00:00:00 Wed 001"),
        ] {
            assert_eq!(strftime("%Y-%m-%d %H:%M:%S %a %j", seconds), expected);
        }
        assert_eq!(
            strftime("%d %b %Y, %A %B %-d %I:%M %p %% %Q %", 0),
            "01 Jan 1970, Thursday January 1 12:00 AM % %Q %"
        );
    }
}
