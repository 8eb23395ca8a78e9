//! Tests that both programs run.

use crate::model;

/// A test: arguments of `octavo bench` for a model of random weights.
#[derive(Clone, Debug)]
pub(super) struct Case {
    pub(super) name: String,
    /// Name of the model, for [`write_named`](crate::model::write_named).
    pub(super) model: &'static str,
    pub(super) args: &'static [&'static str],
    /// Number of repetitions in each run of a program.
    pub(super) repetitions: u32,
}

/// A row of the tests of one model: name, arguments, repetitions.
type Row = (&'static str, &'static [&'static str], u32);

const OF_EACH_TYPE: [Row; 2] = [
    ("prompt", &["-p", "512", "-n", "0"], 8),
    ("generation", &["-p", "0", "-n", "64"], 3),
];

/// Tests of one type, of all that depends on the type little.
const OF_Q4_K: [Row; 8] = [
    (
        "4 sequences",
        &["-p", "0", "-n", "32", "--sequences", "4"],
        4,
    ),
    (
        "16 sequences",
        &["-p", "0", "-n", "32", "--sequences", "16"],
        2,
    ),
    ("prompt at 4096", &["-p", "128", "-n", "0", "-d", "4096"], 4),
    (
        "generation at 4096",
        &["-p", "0", "-n", "32", "-d", "4096"],
        4,
    ),
    (
        "generation at 4096, KV q8_0",
        &["-p", "0", "-n", "32", "-d", "4096", "--kv-type", "q8_0"],
        4,
    ),
    (
        "prompt in 8 bits",
        &["-p", "512", "-n", "0", "--prompt-bits", "8"],
        8,
    ),
    (
        "prompt, not repacked",
        &["-p", "512", "-n", "0", "--no-repack"],
        3,
    ),
    (
        "generation, not repacked",
        &["-p", "0", "-n", "16", "--no-repack"],
        4,
    ),
];

/// Tests of a mixture of experts.
const OF_EXPERTS: [Row; 3] = [
    ("prompt", &["-p", "512", "-n", "0"], 5),
    ("generation", &["-p", "0", "-n", "64"], 3),
    (
        "16 sequences",
        &["-p", "0", "-n", "32", "--sequences", "16"],
        2,
    ),
];

/// Name of the model of experts.
const EXPERTS: &str = "experts";

/// Returns the tests whose names contain one of these parts; all if there are none.
///
/// # Errors
/// A part that no name contains.
pub(super) fn chosen(only: &[String]) -> Result<Vec<Case>, String> {
    let all = all();
    let holds = |case: &Case, part: &String| case.name.contains(part.as_str());
    if let Some(part) = only
        .iter()
        .find(|part| !all.iter().any(|case| holds(case, part)))
    {
        return Err(format!("expected a part of a test's name, got {part:?}"));
    }
    let is_chosen = |case: &Case| only.is_empty() || only.iter().any(|part| holds(case, part));
    Ok(all.into_iter().filter(is_chosen).collect())
}

/// All tests, those of one model one after the other.
fn all() -> Vec<Case> {
    let of_types = model::ALL_TYPES.iter().flat_map(|ty| {
        let more: &[Row] = if *ty == "Q4_K" { &OF_Q4_K } else { &[] };
        OF_EACH_TYPE.iter().chain(more).map(|row| case(ty, row))
    });
    of_types
        .chain(OF_EXPERTS.iter().map(|row| case(EXPERTS, row)))
        .collect()
}

fn case(model: &'static str, &(name, args, repetitions): &Row) -> Case {
    Case {
        name: format!("{model} {name}"),
        model,
        args,
        repetitions,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_are_chosen_by_parts_of_their_names() {
        let names = |only: &[&str]| {
            let only: Vec<String> = only.iter().map(|part| (*part).to_owned()).collect();
            chosen(&only).map(|cases| cases.len())
        };
        assert_eq!(names(&[]), Ok(28 * 2 + 8 + 3));
        assert_eq!(names(&["Q4_K"]), Ok(10));
        assert_eq!(names(&["F16 prompt", "experts"]), Ok(1 + 1 + 3));
        assert!(names(&["Q4_K", "Q9_K"]).is_err_and(|message| message.contains("Q9_K")));
    }
}
