//! Pictures that timelines hold. A picture's cells are tokens whose ids lie beyond every
//! vocabulary: equal pictures have equal ids, so that whatever compares, shares or forgets tokens
//! does the same with pictures, and only a step needs to know what stands for them.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use octavo_kernels::{GivenRows, Turns};

/// Ids from here on are cells of pictures.
pub(crate) const FIRST_CELL: u32 = 1 << 31;

/// Whether an id is a picture's cell, and no token of a vocabulary.
pub fn is_cell(id: u32) -> bool {
    id >= FIRST_CELL
}

/// What stands for a picture's cells, and what tells the picture from others.
#[derive(Clone, Debug, PartialEq)]
pub struct Picture {
    /// Cells across.
    pub nx: usize,
    /// And down.
    pub ny: usize,
    /// `[ny][nx][width]`, of the model's [`picture_width`](octavo_model::Hparams::picture_width).
    pub rows: Vec<f32>,
    /// Of what the rows were computed from.
    pub digest: [u8; 32],
}

/// A picture that an engine knows as long as somebody holds this.
#[derive(Clone, Debug)]
pub struct Shown(Arc<Known>);

#[derive(Debug)]
struct Known {
    first: u32,
    picture: Picture,
}

impl Shown {
    /// The cells as tokens of a prompt, from the left, then from the top.
    pub fn tokens(&self) -> Range<u32> {
        self.0.first..self.0.first + self.0.picture.cells() as u32
    }

    /// Positions that the picture takes: as many as its longer side has cells.
    pub fn positions(&self) -> usize {
        self.0.picture.positions()
    }

    /// What is shown.
    pub fn picture(&self) -> &Picture {
        &self.0.picture
    }
}

impl Picture {
    /// How many cells.
    pub fn cells(&self) -> usize {
        self.nx * self.ny
    }

    fn positions(&self) -> usize {
        self.nx.max(self.ny)
    }
}

/// Whether an id is a cell of one of these pictures.
pub(crate) fn holds(pictures: &[Shown], id: u32) -> bool {
    pictures.iter().any(|shown| shown.tokens().contains(&id))
}

/// How many of the tokens right before `at` are cells of the picture that token `at` is of: not 0
/// if a cut there would leave a part of a picture.
pub(crate) fn cells_before(tokens: &[u32], at: usize) -> usize {
    let goes_on = |i: &usize| is_cell(tokens[*i]) && tokens[i - 1] + 1 == tokens[*i];
    let end = (at + 1).min(tokens.len());
    (1..end).rev().take_while(goes_on).count()
}

/// All pictures that somebody was shown: an engine, or who computes without one.
#[derive(Debug, Default)]
pub struct Pictures(Mutex<Album>);

#[derive(Debug, Default)]
struct Album {
    /// First ids; a picture keeps its own also when nobody holds it any more.
    ids: HashMap<([u8; 32], usize, usize), u32>,
    known: BTreeMap<u32, Weak<Known>>,
    /// Cells that have ids.
    n_cells: u32,
}

/// What a step needs to know of new tokens beside their ids.
#[derive(Debug, Default)]
pub struct Scene {
    /// By what each token's pairs turn; empty where that is its place in the timeline.
    pub turns: Vec<Turns>,
    given: Vec<Given>,
}

/// Neighbouring cells of one picture.
#[derive(Debug)]
struct Given {
    first: usize,
    picture: Arc<Known>,
    cells: Range<usize>,
}

impl Scene {
    /// Rows in the place of embeddings.
    pub fn given(&self) -> Vec<GivenRows<'_>> {
        self.given.iter().map(Given::rows).collect()
    }
}

impl Given {
    fn rows(&self) -> GivenRows<'_> {
        let picture = &self.picture.picture;
        let width = picture.rows.len() / picture.cells();
        GivenRows {
            first: self.first,
            rows: &picture.rows[self.cells.start * width..self.cells.end * width],
        }
    }
}

impl Pictures {
    fn album(&self) -> MutexGuard<'_, Album> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives a picture's cells their ids; `None` if there are none left.
    pub fn show(&self, picture: Picture) -> Option<Shown> {
        let mut album = self.album();
        let Album {
            ids,
            known,
            n_cells,
        } = &mut *album;
        let first = match ids.entry((picture.digest, picture.nx, picture.ny)) {
            Entry::Occupied(entry) => *entry.get(),
            Entry::Vacant(entry) => {
                let after = n_cells.checked_add(u32::try_from(picture.cells()).ok()?)?;
                if after > u32::MAX - FIRST_CELL {
                    return None;
                }
                *entry.insert(FIRST_CELL + std::mem::replace(n_cells, after))
            }
        };
        if let Some(known) = known.get(&first).and_then(Weak::upgrade) {
            return Some(Shown(known));
        }
        // what nobody holds any more
        known.retain(|_, picture| picture.strong_count() > 0);
        let shown = Arc::new(Known { first, picture });
        known.insert(first, Arc::downgrade(&shown));
        Some(Shown(shown))
    }

    /// What a step needs to know of `tokens`, which follow `before` in a timeline.
    ///
    /// # Errors
    /// The id of a cell whose picture nobody holds.
    pub fn scene(&self, before: &[u32], tokens: &[u32]) -> Result<Scene, u32> {
        let mut scene = Scene::default();
        // who was never shown a picture need not look for one in all that came before
        let can_have_cells = self.album().n_cells > 0 || tokens.iter().copied().any(is_cell);
        let all = || before.iter().chain(tokens).copied();
        if !can_have_cells || !all().any(is_cell) {
            return Ok(scene);
        }
        let mut walk = Walk::default();
        for (at, id) in all().enumerate() {
            let cell = match is_cell(id) {
                true => Some(walk.find(self, id)?),
                false => None,
            };
            let turns = walk.step(cell);
            let Some(at) = at.checked_sub(before.len()) else {
                continue;
            };
            scene.turns.push(turns);
            if let Some(cell) = cell {
                scene.add(at, cell, walk.picture.as_ref().expect("just found"));
            }
        }
        Ok(scene)
    }

    /// The picture of a cell, if somebody holds it.
    pub fn picture_of(&self, id: u32) -> Option<Shown> {
        self.find(id).map(Shown)
    }

    fn find(&self, id: u32) -> Option<Arc<Known>> {
        let album = self.album();
        let (_, known) = album.known.range(..=id).next_back()?;
        let known = known.upgrade()?;
        ((id - known.first) < known.picture.cells() as u32).then_some(known)
    }
}

impl Scene {
    /// Adds a cell of a picture, which stands for token `at`.
    fn add(&mut self, at: usize, cell: usize, picture: &Arc<Known>) {
        if let Some(last) = self.given.last_mut()
            && Arc::ptr_eq(&last.picture, picture)
            && last.cells.end == cell
            && last.first + last.cells.len() == at
        {
            last.cells.end += 1;
            return;
        }
        self.given.push(Given {
            first: at,
            picture: picture.clone(),
            cells: cell..cell + 1,
        });
    }
}

/// Goes along a timeline and knows what its tokens turn by.
#[derive(Default)]
struct Walk {
    /// Where the next text would go on.
    next: u32,
    /// Where the picture began that the last cell was of.
    start: u32,
    /// The cell that would go on with the picture.
    cell: Option<usize>,
    picture: Option<Arc<Known>>,
}

impl Walk {
    /// Which cell of which picture an id is.
    fn find(&mut self, pictures: &Pictures, id: u32) -> Result<usize, u32> {
        let is_of = |known: &Arc<Known>| {
            id.checked_sub(known.first)
                .is_some_and(|cell| cell < known.picture.cells() as u32)
        };
        if !self.picture.as_ref().is_some_and(is_of) {
            self.picture = Some(pictures.find(id).ok_or(id)?);
            self.cell = None;
        }
        let known = self.picture.as_ref().expect("just found");
        Ok((id - known.first) as usize)
    }

    /// A text's token turns by its position along all axes. All cells of a picture have the time at
    /// which it begins; text goes on behind the longer of its sides.
    fn step(&mut self, cell: Option<usize>) -> Turns {
        let Some(cell) = cell else {
            self.cell = None;
            self.next += 1;
            return [self.next - 1; 3];
        };
        let picture = &self.picture.as_ref().expect("a cell's").picture;
        if self.cell != Some(cell) {
            self.start = self.next;
            self.next += picture.positions() as u32;
        }
        self.cell = Some(cell + 1);
        let (row, column) = (cell / picture.nx, cell % picture.nx);
        [
            self.start,
            self.start + row as u32,
            self.start + column as u32,
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn picture(nx: usize, ny: usize, seed: u8) -> Picture {
        Picture {
            nx,
            ny,
            rows: (0..2 * nx * ny)
                .map(|i| i as f32 + f32::from(seed))
                .collect(),
            digest: [seed; 32],
        }
    }

    #[test]
    fn equal_pictures_have_equal_ids_and_others_have_others() {
        let pictures = Pictures::default();
        let show = |p| pictures.show(p).expect("ids are left");
        let (a, b) = (show(picture(3, 2, 1)), show(picture(2, 2, 2)));
        assert_eq!(a.tokens(), FIRST_CELL..FIRST_CELL + 6);
        assert_eq!(b.tokens(), FIRST_CELL + 6..FIRST_CELL + 10);
        assert_eq!(show(picture(3, 2, 1)).tokens(), a.tokens());
        // the same file in another size
        assert_eq!(show(picture(2, 3, 1)).tokens().start, FIRST_CELL + 10);
        let first = a.tokens().start;
        drop(a);
        assert_eq!(pictures.scene(&[], &[first]).err(), Some(first));
        assert_eq!(show(picture(3, 2, 1)).tokens().start, first);
    }

    #[test]
    fn text_goes_on_behind_the_longer_side() {
        let pictures = Pictures::default();
        let shown = pictures.show(picture(3, 2, 1)).expect("ids are left");
        let mut tokens = vec![7, 8];
        tokens.extend(shown.tokens());
        tokens.push(9);
        // the same once more, right behind another
        tokens.extend(shown.tokens());
        tokens.extend(shown.tokens());
        tokens.push(5);
        let all = pictures.scene(&[], &tokens).expect("it is held");
        let at = |t: u32| {
            [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2]].map(|[y, x]| [t, t + y, t + x])
        };
        let expected = [
            &[[0; 3], [1; 3]][..],
            &at(2),
            &[[5; 3]],
            &at(6),
            &at(9),
            &[[12; 3]],
        ]
        .concat();
        assert_eq!(all.turns, expected);
        let given = all.given();
        assert_eq!(given.len(), 3);
        assert_eq!(given[0].first, 2);
        assert_eq!(given[0].rows, shown.picture().rows);
        // any cut gives the same
        for cut in 0..=tokens.len() {
            let (before, rest) = tokens.split_at(cut);
            let part = pictures.scene(before, rest).expect("it is held");
            assert_eq!(part.turns, expected[cut..], "after {cut}");
            let rows = |scene: &Scene| -> usize {
                scene.given().iter().map(|given| given.rows.len()).sum()
            };
            let cells = rest.iter().filter(|id| is_cell(**id)).count();
            assert_eq!(rows(&part), 2 * cells, "after {cut}");
        }
    }

    #[test]
    fn a_cut_inside_of_a_picture_is_seen() {
        let pictures = Pictures::default();
        let shown = pictures.show(picture(3, 1, 1)).expect("ids are left");
        let mut tokens = vec![7, 8];
        tokens.extend(shown.tokens());
        tokens.extend(shown.tokens());
        let before: Vec<usize> = (0..8).map(|at| cells_before(&tokens, at)).collect();
        assert_eq!(before, [0, 0, 0, 1, 2, 0, 1, 2]);
    }

    #[test]
    fn texts_alone_turn_by_their_places() {
        let scene = Pictures::default()
            .scene(&[1, 2], &[3])
            .expect("no picture");
        assert!(scene.turns.is_empty() && scene.given().is_empty());
    }
}
