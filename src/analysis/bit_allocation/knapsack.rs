//! The multiple-choice knapsack: one option for each item, with the least loss in so many bytes.
//!
//! Of each item's options only those on the lower convex hull of (bytes, loss) are of interest at
//! first. Going from one hull point to the next is a step with a gain per byte; taking the steps of
//! all items by falling gain per byte solves the problem's linear relaxation, whose loss no choice
//! can go below (Sinha and Zoltners, 1979). Where the next step does not fit, smaller ones are
//! taken: the choice is within one step's gain of the best, and [`Allocation::bound`] says how
//! near.

/// An option of an item.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Size in bytes.
    pub bytes: u64,
    /// Loss; that of several items is the sum.
    pub loss: f64,
}

/// Change of an item to its next hull point.
#[derive(Clone, Copy, Debug)]
struct Step {
    item: usize,
    to: usize,
    bytes: u64,
    gain: f64,
}

impl Step {
    fn rate(&self) -> f64 {
        self.gain / self.bytes as f64
    }
}

/// An option for each item.
#[derive(Clone, Debug, PartialEq)]
pub struct Allocation {
    /// Index of each item's option.
    pub choices: Vec<usize>,
    /// Sum of the options' bytes.
    pub bytes: u64,
    /// Sum of the options' losses.
    pub loss: f64,
    /// No choice in these bytes has a smaller loss than this.
    pub bound: f64,
}

/// The best choices of all sizes.
#[derive(Clone, Debug)]
pub struct Front {
    items: Vec<Vec<Point>>,
    /// First hull point of each item: its smallest option.
    smallest: Vec<usize>,
    /// Steps by falling gain per byte; those of an item are in their order.
    steps: Vec<Step>,
}

/// Returns the indices of the options on the lower convex hull, by size.
fn hull(options: &[Point]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..options.len()).collect();
    order.sort_by(|&a, &b| {
        let (a, b) = (options[a], options[b]);
        a.bytes.cmp(&b.bytes).then(a.loss.total_cmp(&b.loss))
    });
    let mut hull: Vec<usize> = Vec::new();
    for next in order {
        let p = options[next];
        if hull
            .last()
            .is_some_and(|&last| p.loss >= options[last].loss)
        {
            continue;
        }
        while let [.., before, last] = hull[..] {
            // the last point stays if it lies below the line from the one before it to the next
            let (a, b) = (options[before], options[last]);
            let across = (a.loss - p.loss) * (b.bytes - a.bytes) as f64;
            if (a.loss - b.loss) * (p.bytes - a.bytes) as f64 > across {
                break;
            }
            hull.pop();
        }
        hull.push(next);
    }
    hull
}

impl Front {
    /// Sorts the steps of these items, each with at least one option of finite loss.
    pub fn new(items: Vec<Vec<Point>>) -> Front {
        let hulls: Vec<Vec<usize>> = items.iter().map(|options| hull(options)).collect();
        let mut steps: Vec<Step> = Vec::new();
        for (item, (hull, options)) in hulls.iter().zip(&items).enumerate() {
            steps.extend(hull.windows(2).map(|pair| Step {
                item,
                to: pair[1],
                bytes: options[pair[1]].bytes - options[pair[0]].bytes,
                gain: options[pair[0]].loss - options[pair[1]].loss,
            }));
        }
        // stable: an item's steps have falling rates, and stay in order where two are equal
        steps.sort_by(|a, b| b.rate().total_cmp(&a.rate()));
        Front {
            smallest: hulls.iter().map(|hull| hull[0]).collect(),
            items,
            steps,
        }
    }

    /// Returns the smallest choice.
    fn start(&self) -> Allocation {
        let mut start = Allocation {
            choices: self.smallest.clone(),
            bytes: 0,
            loss: 0.0,
            bound: 0.0,
        };
        self.sum(&mut start);
        start.bound = start.loss;
        start
    }

    /// Computes the sums of a choice anew, so that they do not depend on how it was found.
    fn sum(&self, of: &mut Allocation) {
        let points = || {
            let items = self.items.iter().zip(&of.choices);
            items.map(|(options, &choice)| options[choice])
        };
        let (bytes, loss) = (
            points().map(|p| p.bytes).sum(),
            points().map(|p| p.loss).sum(),
        );
        (of.bytes, of.loss) = (bytes, loss);
    }

    /// Returns the size and loss of the smallest choice and after each step, by size.
    pub fn curve(&self) -> Vec<Point> {
        let start = self.start();
        let mut at = Point {
            bytes: start.bytes,
            loss: start.loss,
        };
        let mut curve = vec![at];
        for step in &self.steps {
            at.bytes += step.bytes;
            at.loss -= step.gain;
            curve.push(at);
        }
        curve
    }

    /// Returns the best choice in at most `bytes`; `None` if even the smallest has more.
    pub fn within(&self, bytes: u64) -> Option<Allocation> {
        let mut best = self.start();
        let mut left = bytes.checked_sub(best.bytes)?;
        let mut bound = None;
        let mut stuck = vec![false; self.items.len()];
        let mut loss = best.loss;
        for step in &self.steps {
            if step.bytes > left || stuck[step.item] {
                bound.get_or_insert(loss - step.rate() * left as f64);
                stuck[step.item] = true;
                continue;
            }
            left -= step.bytes;
            loss -= step.gain;
            best.choices[step.item] = step.to;
        }
        while let Some((item, to)) = self.largest_gain(&best.choices, left) {
            left -= self.items[item][to].bytes - self.items[item][best.choices[item]].bytes;
            best.choices[item] = to;
        }
        self.sum(&mut best);
        best.bound = bound.unwrap_or(best.loss).min(best.loss);
        Some(best)
    }

    /// Returns the change of one item that gains most in at most `left` more bytes.
    fn largest_gain(&self, choices: &[usize], left: u64) -> Option<(usize, usize)> {
        let mut best = None;
        for (item, (options, &choice)) in self.items.iter().zip(choices).enumerate() {
            let own = options[choice];
            for (to, p) in options.iter().enumerate() {
                let gain = own.loss - p.loss;
                let fits = p.bytes >= own.bytes && p.bytes - own.bytes <= left;
                if fits && gain > best.map_or(0.0, |(most, _, _)| most) {
                    best = Some((gain, item, to));
                }
            }
        }
        best.map(|(_, item, to)| (item, to))
    }

    /// Returns the smallest choice found with at most this loss; the largest choice if none has so
    /// small a loss.
    pub fn at_most(&self, loss: f64) -> Allocation {
        let mut best = self.start();
        let mut now = best.loss;
        for step in &self.steps {
            if now <= loss {
                break;
            }
            now -= step.gain;
            best.choices[step.item] = step.to;
        }
        self.sum(&mut best);
        // the last step may have gained more than was missing: other items give bytes back
        while let Some((item, to)) = self.largest_saving(&best.choices, loss - best.loss) {
            best.choices[item] = to;
            self.sum(&mut best);
        }
        best.bound = best.loss;
        best
    }

    /// Returns the change of one item that saves most bytes at `more` loss at most.
    fn largest_saving(&self, choices: &[usize], more: f64) -> Option<(usize, usize)> {
        let mut best: Option<(u64, usize, usize)> = None;
        for (item, (options, &choice)) in self.items.iter().zip(choices).enumerate() {
            let own = options[choice];
            for (to, p) in options.iter().enumerate() {
                let saved = own.bytes.saturating_sub(p.bytes);
                if p.loss - own.loss <= more && saved > best.map_or(0, |(most, _, _)| most) {
                    best = Some((saved, item, to));
                }
            }
        }
        best.map(|(_, item, to)| (item, to))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns the least loss in at most `bytes` by trying every choice.
    fn by_trying(items: &[Vec<Point>], bytes: u64) -> Option<f64> {
        let Some((first, rest)) = items.split_first() else {
            return Some(0.0);
        };
        let options = first.iter().filter(|p| p.bytes <= bytes);
        let with = options.filter_map(|p| Some(p.loss + by_trying(rest, bytes - p.bytes)?));
        with.min_by(f64::total_cmp)
    }

    fn points() -> impl Strategy<Value = Vec<Point>> {
        let point = (1u64..40, 0.0..10.0).prop_map(|(bytes, loss)| Point { bytes, loss });
        prop::collection::vec(point, 1..6)
    }

    proptest! {
        #[test]
        fn choices_are_within_the_bound_of_the_best(
            items in prop::collection::vec(points(), 1..6),
            bytes in 1u64..200,
        ) {
            let front = Front::new(items.clone());
            let best = by_trying(&items, bytes);
            let found = front.within(bytes);
            prop_assert_eq!(best.is_some(), found.is_some());
            let (Some(best), Some(found)) = (best, found) else { return Ok(()) };
            prop_assert!(found.bytes <= bytes);
            prop_assert!(found.bound <= best + 1e-9 && best <= found.loss + 1e-9);
            // the relaxation differs from a choice in one step
            let step = front.steps.iter().map(|s| s.gain).fold(0.0, f64::max);
            prop_assert!(found.loss - found.bound <= step + 1e-9);
            let sums = items.iter().zip(&found.choices).map(|(item, &i)| item[i]);
            prop_assert_eq!(sums.map(|p| p.bytes).sum::<u64>(), found.bytes);
            // as small a loss needs no more bytes than the choice that has it
            let again = front.at_most(found.loss);
            prop_assert!(again.loss <= found.loss + 1e-9);
        }

        #[test]
        fn the_curve_is_convex_and_falls(items in prop::collection::vec(points(), 1..6)) {
            let curve = Front::new(items).curve();
            let rates: Vec<f64> = curve
                .windows(2)
                .map(|p| (p[0].loss - p[1].loss) / (p[1].bytes - p[0].bytes) as f64)
                .collect();
            prop_assert!(rates.iter().all(|rate| *rate > 0.0));
            prop_assert!(rates.windows(2).all(|r| r[0] >= r[1] - 1e-9));
        }
    }

    #[test]
    fn what_does_not_pay_is_not_taken() {
        let item = |points: &[(u64, f64)]| {
            let point = |&(bytes, loss)| Point { bytes, loss };
            points.iter().map(point).collect::<Vec<_>>()
        };
        // the second option of the first item is above the line between its neighbours
        let front = Front::new(vec![
            item(&[(10, 8.0), (20, 7.9), (30, 0.0)]),
            item(&[(10, 1.0), (20, 0.5)]),
        ]);
        assert_eq!(front.curve().len(), 3);
        assert!(front.within(19).is_none());
        assert_eq!(front.within(30).unwrap().choices, [0, 1]);
        assert_eq!(front.within(40).unwrap().choices, [2, 0]);
        assert_eq!(front.within(1000).unwrap().choices, [2, 1]);
        assert_eq!(front.at_most(1.0).choices, [2, 0]);
        assert_eq!(front.at_most(0.0).choices, [2, 1]);
    }
}
