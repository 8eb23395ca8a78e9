//! Near ties: whether a top-k choice may differ because values are nearly equal.
//!
//! The i-th largest of all values changes by no more than a single value does, so a value that
//! takes its place is within twice the error of it. Groups, of which the best are selected first,
//! have the sums of their two largest values as scores, and so the errors of both.

use octavo_kernels::TopGroups;
use serde::Serialize;

/// Score gap between entries that differ in two choices, for the pair that is hardest to explain.
/// The gap is NaN for scores that were not observed.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Tie {
    /// Gap in the first's scores.
    pub apart: f64,
    /// Largest gap that the measured errors of the scores allow.
    pub allowed: f64,
    /// Whether the scores are those of expert groups.
    pub of_groups: bool,
}

impl Tie {
    /// Tie of scores that were not observed.
    pub(super) const UNSEEN: Tie = Tie {
        apart: f64::NAN,
        allowed: f64::NAN,
        of_groups: false,
    };

    /// Returns whether the errors explain the difference.
    pub fn is_near(&self) -> bool {
        // NaN scores explain any choice
        self.apart.is_nan() || self.apart <= self.allowed
    }

    /// Returns the tie that is harder to explain.
    pub(super) fn harder(self, other: Tie) -> Tie {
        match other.part() > self.part() {
            true => other,
            false => self,
        }
    }

    fn part(&self) -> f64 {
        match self.apart == 0.0 {
            true => 0.0,
            false => self.apart / self.allowed,
        }
    }
}

/// Compares `ids` with the largest values of a row, in descending order, if each value may change
/// by up to `error`. `None` if they are not a valid choice: an index that does not exist or may not
/// be chosen, or one chosen twice.
pub(super) fn tie(row: &[f32], groups: Option<TopGroups>, ids: &[f32], error: f64) -> Option<Tie> {
    let error = if error.is_nan() { f64::INFINITY } else { error };
    let find = |id: &f32| (0..row.len()).find(|place| *place as f32 == *id);
    let places: Vec<usize> = ids.iter().map(find).collect::<Option<_>>()?;
    let is_new = |i: usize| !places[..i].contains(&places[i]);
    if !(0..places.len()).all(is_new) {
        return None;
    }
    let (candidates, of_groups) = match groups {
        None => ((0..row.len()).collect(), 0.0),
        Some(groups) => candidates(row, groups, &places, error)?,
    };
    if !places.iter().all(|place| candidates.contains(place)) {
        return None;
    }
    let values: Vec<f32> = candidates.iter().map(|place| row[*place]).collect();
    let largest = descending(&values);
    let gaps = places.iter().zip(&largest);
    let apart = gaps.map(|(place, largest)| (largest - f64::from(row[*place])).abs());
    let of_values = Tie {
        apart: apart.fold(0.0, f64::max),
        allowed: 2.0 * error,
        of_groups: false,
    };
    let of_groups = Tie {
        apart: of_groups,
        allowed: 4.0 * error,
        of_groups: true,
    };
    Some(of_values.harder(of_groups))
}

/// Returns the indices that such a choice may come from, and the largest shortfall of a counted
/// group's score below that of the last of the best groups. `None` if the choice is from more
/// groups than count, or from one that cannot.
fn candidates(
    row: &[f32],
    TopGroups { count, used }: TopGroups,
    places: &[usize],
    error: f64,
) -> Option<(Vec<usize>, f64)> {
    let size = row.len() / count;
    let best: Vec<Vec<f64>> = row.chunks_exact(size).map(descending).collect();
    let scores: Vec<f64> = best.iter().map(|best| best[..2].iter().sum()).collect();
    let mut ordered = scores.clone();
    ordered.sort_by(|a, b| b.total_cmp(a));
    let last = ordered[used - 1];
    let next = ordered.get(used).copied().unwrap_or(f64::NEG_INFINITY);
    let surely = |group: &usize| scores[*group] > next + 4.0 * error;
    let maybe = |group: &usize| scores[*group] >= last - 4.0 * error;
    let chosen = |group: &usize| places.iter().any(|place| place / size == *group);
    let mut retained: Vec<usize> = (0..count).filter(|g| surely(g) || chosen(g)).collect();
    if retained.len() > used || !retained.iter().all(maybe) {
        return None;
    }
    // of the other groups that may count, those with the smallest largest value contradict a choice
    // least
    let mut others: Vec<usize> = (0..count).filter(|g| !retained.contains(g)).collect();
    others.retain(maybe);
    others.sort_by(|a, b| best[*a][0].total_cmp(&best[*b][0]));
    retained.extend(others.into_iter().take(used - retained.len()));
    let less = retained.iter().map(|group| last - scores[*group]);
    let candidates = (0..row.len()).filter(|place| retained.contains(&(place / size)));
    Some((candidates.collect(), less.fold(0.0, f64::max)))
}

fn descending(values: &[f32]) -> Vec<f64> {
    let mut values: Vec<f64> = values.iter().map(|x| f64::from(*x)).collect();
    values.sort_by(|a, b| b.total_cmp(a));
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns whether a choice is within the errors of a row.
    fn near(row: &[f32], ids: &[f32], groups: Option<TopGroups>, error: f64) -> bool {
        tie(row, groups, ids, error).is_some_and(|tie| tie.is_near())
    }

    #[test]
    fn a_choice_may_differ_only_where_values_are_as_close_as_their_errors() {
        let row = [0.5, 0.1, 0.25, 0.105];
        assert!(near(&row, &[0.0, 2.0], None, 0.0));
        // the second and the third are 0.145 apart
        assert!(!near(&row, &[0.0, 3.0], None, 0.05));
        assert!(near(&row, &[0.0, 3.0], None, 0.08));
        assert!(near(&row, &[0.0, 1.0], None, 0.08));
        // a near tie at the end explains nothing at the beginning
        assert!(near(&row, &[0.0, 2.0, 1.0], None, 0.003));
        assert!(!near(&row, &[2.0, 0.0, 1.0], None, 0.003));
        assert!(!near(&row, &[0.0, 2.0, 1.0], None, 0.002));
        let found = tie(&row, None, &[0.0, 3.0], 0.05).expect("a choice");
        assert!((found.apart - 0.145).abs() < 1e-7 && !found.of_groups);
        assert!((found.allowed - 0.1).abs() < 1e-12);
    }

    #[test]
    fn what_is_no_choice_is_never_explained() {
        let row = [0.5, 0.5, 0.5];
        assert!(near(&row, &[2.0, 0.0], None, 0.0));
        for ids in [
            [1.0, 1.0],
            [0.0, 3.0],
            [0.5, 1.0],
            [-1.0, 0.0],
            [f32::NAN, 0.0],
        ] {
            assert!(!near(&row, &ids, None, 1.0), "{ids:?}");
        }
    }

    #[test]
    fn groups_that_count_are_certain_where_their_scores_are_apart() {
        let row = [0.5, 0.1, 0.25, 0.105];
        // scores 0.6 and 0.355: from 0.062 on, the other group may be the better one
        let groups = Some(TopGroups { count: 2, used: 1 });
        assert!(!near(&row, &[2.0], groups, 0.06));
        assert!(near(&row, &[2.0], groups, 0.07));
        let found = tie(&row, groups, &[2.0], 0.07).expect("a choice");
        assert!((found.apart - 0.245).abs() < 1e-7 && found.of_groups);
        assert!(near(&[1.0, 1.0, 3.0, 2.0], &[2.0, 3.0], groups, 0.1));
        assert!(!near(&[1.0, 1.0, 3.0, 2.0], &[3.0, 2.0], groups, 0.1));
        assert!(!near(&[1.0, 1.0, 3.0, 2.0], &[2.0, 0.0], groups, 0.1));
    }

    /// Groups that are nearly tied do not explain arbitrary choices.
    #[test]
    fn near_ties_of_groups_explain_choices_of_these_groups_alone() {
        let groups = Some(TopGroups { count: 4, used: 2 });
        // scores 9, 5, 5 and 1
        let row = [5.0, 4.0, 3.0, 2.0, 3.5, 1.5, 1.0, 0.0];
        for ids in [[0.0, 1.0], [1.0, 0.0]] {
            assert_eq!(near(&row, &ids, groups, 0.1), ids[0] == 0.0, "{ids:?}");
        }
        let three = |third: f32| near(&row, &[0.0, 1.0, third], groups, 0.1);
        assert!(three(2.0) && three(4.0));
        // a group that is far behind, a smaller value of a group, and two groups of which only one
        // counts
        assert!(!three(6.0) && !three(5.0));
        assert!(!near(&row, &[0.0, 1.0, 4.0, 2.0], groups, 0.1));
        // the first group counts in any case, and has the larger values
        assert!(!near(&row, &[4.0, 5.0], groups, 0.1));
    }

    #[test]
    fn errors_that_are_no_numbers_explain_anything() {
        let row = [0.5, 0.1, 0.25, 0.105];
        assert!(near(&row, &[1.0, 3.0], None, f64::NAN));
        let groups = Some(TopGroups { count: 2, used: 1 });
        assert!(near(&row, &[3.0, 2.0], groups, f64::NAN));
        assert!(near(&[f32::NAN, 1.0, 2.0], &[1.0, 2.0], None, 0.0));
    }
}
