//! Shared by the IQ quantizers: searchable grids, and the fit of a group to one.
//!
//! A group of 8 (or 4) values becomes a point of the format's grid. Rounding each value alone gives
//! a point of the lattice the grid was chosen from; where that is not in the grid, one of the
//! nearest points of the grid is taken, by weighted error. A point is represented by the list of
//! its coordinates' positions in the format's list of levels; a fit treats position `l` as the
//! value `2 * l + 1`, which is close to the actual level.

use std::sync::LazyLock;

use crate::bits::nearest_int;
use crate::grids;

/// A grid, and for every point of its lattice the grid index or the neighbours in the grid.
pub(crate) struct Grid<const D: usize> {
    /// Levels per coordinate.
    levels: u8,
    points: Vec<[u8; D]>,
    /// Indexed by code (digits to base `levels`, lowest first): the grid index, or the range of
    /// neighbours.
    lattice: Vec<Place>,
    neighbours: Vec<u16>,
    /// Values a fit uses for the neighbours, `2 * l + 1` at each position `l`: copies, so that they
    /// are contiguous.
    values: Vec<[f32; D]>,
}

#[derive(Clone, Copy)]
enum Place {
    On(u16),
    Near { start: u32, len: u32 },
}

impl<const D: usize> Grid<D> {
    /// Builds the grid. `values` are its points, `list` the levels in ascending order. Neighbours
    /// are all points at the `nearest` smallest distances.
    fn new(values: &[[i8; D]], list: &[i8], nearest: usize) -> Grid<D> {
        let position = |v: i8| list.iter().position(|&l| l == v).map_or(0, |at| at as u8);
        let points: Vec<[u8; D]> = values.iter().map(|p| p.map(position)).collect();
        let levels = list.len() as u8;
        let mut grid = Grid {
            levels,
            points,
            lattice: Vec::new(),
            neighbours: Vec::new(),
            values: Vec::new(),
        };
        for code in 0..usize::from(levels).pow(D as u32) {
            let at: [u8; D] = std::array::from_fn(|i| {
                (code / usize::from(levels).pow(i as u32) % list.len()) as u8
            });
            let place = match grid.points.iter().position(|p| *p == at) {
                Some(index) => Place::On(index as u16),
                None => grid.add_neighbours(&at, nearest),
            };
            grid.lattice.push(place);
        }
        grid.values = grid
            .neighbours
            .iter()
            .map(|&n| grid.point(n).map(|l| f32::from(2 * l + 1)))
            .collect();
        grid
    }

    /// Appends the neighbours in order of distance, then of index: on ties of the error the first
    /// one wins.
    fn add_neighbours(&mut self, at: &[u8; D], nearest: usize) -> Place {
        let start = self.neighbours.len();
        let distance = |p: &[u8; D]| {
            (0..D)
                .map(|i| u32::from(p[i].abs_diff(at[i])).pow(2))
                .sum::<u32>()
        };
        let distances: Vec<u32> = self.points.iter().map(distance).collect();
        let mut next = 0;
        for _ in 0..nearest {
            let Some(least) = distances.iter().copied().filter(|&d| d >= next).min() else {
                break;
            };
            let found = (0u16..)
                .zip(&distances)
                .filter(|(_, d)| **d == least)
                .map(|(index, _)| index);
            self.neighbours.extend(found);
            next = least + 1;
        }
        Place::Near {
            start: start as u32,
            len: (self.neighbours.len() - start) as u32,
        }
    }

    fn place(&self, at: &[u8; D]) -> Place {
        // multiplying by a constant becomes a shift; the searches spend much of their time here
        let code = match self.levels {
            8 => at
                .iter()
                .rev()
                .fold(0, |code, &l| code * 8 + usize::from(l)),
            levels => at
                .iter()
                .rev()
                .fold(0, |code, &l| code * usize::from(levels) + usize::from(l)),
        };
        self.lattice[code]
    }

    /// Returns the index of a grid point; for other points that of some neighbour.
    pub(crate) fn index(&self, at: &[u8; D]) -> u16 {
        match self.place(at) {
            Place::On(index) => index,
            Place::Near { start, .. } => self.neighbours[start as usize],
        }
    }

    /// Returns the point with this index.
    pub(crate) fn point(&self, index: u16) -> &[u8; D] {
        &self.points[usize::from(index)]
    }

    /// Returns the index of `at` itself, or of the neighbour with the least error, and whether it
    /// was `at`. If all errors are NaN the first neighbour wins.
    pub(crate) fn nearest(&self, at: &[u8; D], error: impl Fn(&[u8; D]) -> f32) -> (u16, bool) {
        match self.place(at) {
            Place::On(index) => (index, true),
            Place::Near { start, len } => {
                let neighbours = &self.neighbours[start as usize..(start + len) as usize];
                (
                    neighbours[least(neighbours.iter().map(|&index| error(self.point(index))))],
                    false,
                )
            }
        }
    }

    /// Does the same as [`Grid::nearest`] with the error of `scale * (2 * l + 1)` for `x`, weighted
    /// by `w`.
    fn nearest_scaled(&self, at: &[u8; D], scale: f32, x: &[f32; D], w: &[f32; D]) -> (u16, bool) {
        let (start, len) = match self.place(at) {
            Place::On(index) => return (index, true),
            Place::Near { start, len } => (start as usize, len as usize),
        };
        let errors = self.values[start..start + len].iter().map(|value| {
            let weighted: [f32; D] = std::array::from_fn(|i| {
                let diff = scale * value[i] - x[i];
                w[i] * diff * diff
            });
            weighted.iter().fold(0.0, |sum, e| sum + e)
        });
        (self.neighbours[start + least(errors)], false)
    }
}

/// Returns the index of the first smallest number; 0 if all are NaN or too large.
fn least(numbers: impl Iterator<Item = f32>) -> usize {
    let (mut at, mut least) = (0, f32::MAX);
    for (i, number) in numbers.enumerate() {
        if number < least {
            (at, least) = (i, number);
        }
    }
    at
}

const IQ2_LEVELS: [i8; 3] = [8, 25, 43];

pub(crate) static IQ1: LazyLock<Grid<8>> = LazyLock::new(|| Grid::new(&grids::IQ1, &[-1, 0, 1], 3));
pub(crate) static IQ2_XXS: LazyLock<Grid<8>> =
    LazyLock::new(|| Grid::new(&grids::IQ2_XXS, &IQ2_LEVELS, 2));
pub(crate) static IQ2_XS: LazyLock<Grid<8>> =
    LazyLock::new(|| Grid::new(&grids::IQ2_XS, &IQ2_LEVELS, 2));
pub(crate) static IQ2_S: LazyLock<Grid<8>> =
    LazyLock::new(|| Grid::new(&grids::IQ2_S, &IQ2_LEVELS, 1));
pub(crate) static IQ3_XXS: LazyLock<Grid<4>> =
    LazyLock::new(|| Grid::new(&grids::IQ3_XXS, &[4, 12, 20, 28, 36, 44, 52, 62], 2));
pub(crate) static IQ3_S: LazyLock<Grid<4>> =
    LazyLock::new(|| Grid::new(&grids::IQ3_S, &[1, 3, 5, 7, 9, 11, 13, 15], 3));

/// Parts that are rounded again with the best scale.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Again {
    /// Parts that were off the grid.
    OffGrid,
    /// All parts, if one was off the grid; all count as off before the first candidate.
    AllIfOff,
    /// All parts.
    All,
}

/// Candidate inverse scales: `(top + step * i) / max` for `i` in `-steps..=steps`, where `top` is
/// the largest value.
pub(crate) struct Candidates {
    /// Assumed largest magnitude.
    pub(crate) max: f32,
    /// Fallback scale if no candidate improves the error.
    pub(crate) scale: f32,
    pub(crate) steps: i32,
    pub(crate) step: f32,
    pub(crate) again: Again,
}

/// A group's magnitudes and their weights.
pub(crate) struct Group<'a, const N: usize> {
    pub(crate) x: &'a [f32; N],
    pub(crate) w: &'a [f32; N],
    /// Square roots of `w`: the weights for the choice among neighbours.
    pub(crate) root: &'a [f32; N],
}

impl<const N: usize> Group<'_, N> {
    /// Rounds part `k` to its nearest grid point; returns whether the rounded point was in the
    /// grid.
    fn round<const D: usize>(
        &self,
        grid: &Grid<D>,
        k: usize,
        id: f32,
        scale: f32,
    ) -> ([u8; D], bool) {
        let (x, root) = (
            &self.x.as_chunks::<D>().0[k],
            &self.root.as_chunks::<D>().0[k],
        );
        let top = i32::from(grid.levels) - 1;
        let at = x.map(|v| nearest_int(0.5 * (id * v - 1.0)).clamp(0, top) as u8);
        let (index, on) = grid.nearest_scaled(&at, scale, x, root);
        (*grid.point(index), on)
    }

    fn sums<const D: usize>(&self, points: &[[u8; D]]) -> (f32, f32) {
        let (mut xq, mut q2) = (0.0f32, 0.0f32);
        for (i, &l) in points.as_flattened().iter().enumerate() {
            let q = f32::from(2 * l + 1);
            xq += self.w[i] * self.x[i] * q;
            q2 += self.w[i] * q * q;
        }
        (xq, q2)
    }

    /// Returns the scale and points with the least weighted error among the candidates. The scale
    /// may be negative.
    pub(crate) fn fit<const D: usize, const P: usize>(
        &self,
        grid: &Grid<D>,
        c: &Candidates,
    ) -> (f32, [[u8; D]; P]) {
        const { assert!(P * D == N) };
        let top = 2.0 * f32::from(grid.levels) - 1.0;
        let (mut scale, mut best, mut points) = (c.scale, 0.0f32, [[0; D]; P]);
        let mut on = [c.again != Again::AllIfOff; P];
        for i in -c.steps..=c.steps {
            let id = (top + i as f32 * c.step) / c.max;
            let rounded: [_; P] = std::array::from_fn(|k| self.round(grid, k, id, 1.0 / id));
            let these = rounded.map(|(point, _)| point);
            let (xq, q2) = self.sums(&these);
            if q2 > 0.0 && xq * xq > best * q2 {
                scale = xq / q2;
                best = scale * xq;
                points = these;
                on = rounded.map(|(_, on)| on);
            }
        }
        let any_off = on.contains(&false);
        if scale > 0.0 && (any_off || c.again == Again::All) {
            for (k, point) in points.iter_mut().enumerate() {
                if c.again != Again::OffGrid || !on[k] {
                    *point = self.round(grid, k, 1.0 / scale, scale).0;
                }
            }
            let (xq, q2) = self.sums(&points);
            if q2 > 0.0 {
                scale = xq / q2;
            }
        }
        (scale, points)
    }
}

/// Takes the signs off 8 values: bit `i` is set for a value below zero (or NaN).
pub(crate) fn take_signs(x: &mut [f32; 8]) -> u8 {
    let mut signs = 0;
    for (i, v) in x.iter_mut().enumerate() {
        if *v < 0.0 || v.is_nan() {
            *v = -*v;
            signs |= 1 << i;
        }
    }
    signs
}

/// Does the same as [`take_signs`] with an even number of signs: if it is odd, the value that costs
/// the least error keeps the wrong sign.
pub(crate) fn take_even_signs(x: &mut [f32; 8], w: &[f32; 8]) -> u8 {
    let cost: [f32; 8] = std::array::from_fn(|i| w[i] * x[i] * x[i]);
    let mut signs = take_signs(x);
    if signs.count_ones() % 2 == 1 {
        let mut least = 0;
        for i in 1..8 {
            if cost[i] < cost[least] {
                least = i;
            }
        }
        x[least] = -x[least];
        signs ^= 1 << least;
    }
    signs & 127
}

/// Returns the largest value, with C's comparison semantics.
pub(crate) fn largest(x: &[f32]) -> f32 {
    x.iter()
        .skip(1)
        .fold(x[0], |most, &v| if most > v { most } else { v })
}

/// Quantizes the scale of a group to 4 bits: `scale ~ d * (2 * level + 1)`.
pub(crate) fn scale_level(id: f32, scale: f32, top: i32) -> u8 {
    nearest_int(0.5 * (id * scale - 1.0)).clamp(0, top) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check<const D: usize>(grid: &Grid<D>, nearest: usize) {
        for (index, point) in (0..).zip(&grid.points) {
            assert_eq!(grid.index(point), index);
        }
        let distance = |a: &[u8; D], b: &[u8; D]| {
            (0..D)
                .map(|i| u32::from(a[i].abs_diff(b[i])).pow(2))
                .sum::<u32>()
        };
        let mut off = 0;
        for code in 0..grid.lattice.len() {
            let levels = usize::from(grid.levels);
            let at: [u8; D] = std::array::from_fn(|i| (code / levels.pow(i as u32) % levels) as u8);
            let Place::Near { start, len } = grid.place(&at) else {
                continue;
            };
            let found = &grid.neighbours[start as usize..(start + len) as usize];
            let mut all: Vec<(u32, u16)> = (0..)
                .zip(&grid.points)
                .map(|(i, p)| (distance(p, &at), i))
                .collect();
            all.sort_unstable();
            let mut distances: Vec<u32> = all.iter().map(|a| a.0).collect();
            distances.dedup();
            let limit = distances[nearest - 1];
            let want: Vec<u16> = all.iter().filter(|a| a.0 <= limit).map(|a| a.1).collect();
            assert_eq!(found, want, "{at:?}");
            off += 1;
        }
        assert_eq!(off + grid.points.len(), grid.lattice.len());
    }

    /// Compares with a sort of all points, which is the definition.
    #[test]
    fn neighbours_are_the_nearest_points_in_order() {
        check(&IQ2_XXS, 2);
        check(&IQ2_S, 1);
        check(&IQ3_XXS, 2);
        check(&IQ3_S, 3);
    }

    #[test]
    fn an_odd_number_of_signs_gives_up_the_cheapest() {
        let mut x = [1.0, -2.0, 3.0, 0.5, -1.0, -4.0, 2.0, 1.0];
        assert_eq!(take_even_signs(&mut x, &[1.0; 8]), 0b011_1010);
        assert_eq!(x, [1.0, 2.0, 3.0, -0.5, 1.0, 4.0, 2.0, 1.0]);
        let mut x = [-1.0, -2.0, 0.0, -0.0, 1.0, 1.0, 1.0, 1.0];
        assert_eq!(take_signs(&mut x), 0b11);
        assert_eq!(x[..4], [1.0, 2.0, 0.0, 0.0]);
    }
}
