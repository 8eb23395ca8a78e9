//! Images that sequences hold. An image's tokens have ids beyond every vocabulary, and equal images
//! have equal ids: whatever compares, shares or drops tokens does the same with images, and only a
//! step needs their embeddings.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use octavo_kernels::{GivenRows, Turns};

/// First id of image tokens.
pub(crate) const FIRST_CELL: u32 = 1 << 31;

/// Returns whether an id is an image token rather than a token of a vocabulary.
pub fn is_cell(id: u32) -> bool {
    id >= FIRST_CELL
}

/// An encoded image: the embeddings of its tokens, and a digest that identifies it.
#[derive(Clone, Debug, PartialEq)]
pub struct Picture {
    /// Image tokens per row.
    pub nx: usize,
    /// Rows of image tokens.
    pub ny: usize,
    /// Embeddings, `[ny][nx][width]`; `width` is the model's
    /// [`picture_width`](octavo_model::Hparams::picture_width).
    pub rows: Vec<f32>,
    /// Digest of the input that the embeddings were computed from.
    pub digest: [u8; 32],
}

/// Handle to a registered image; the image is known as long as a handle exists.
#[derive(Clone, Debug)]
pub struct Shown(Arc<Known>);

#[derive(Debug)]
struct Known {
    first: u32,
    picture: Picture,
}

impl Shown {
    /// Returns the image tokens for a prompt, row by row, each from the left.
    pub fn tokens(&self) -> Range<u32> {
        self.0.first..self.0.first + self.0.picture.cells() as u32
    }

    /// Returns the number of positions that the image takes: the tokens along its longer side.
    pub fn positions(&self) -> usize {
        self.0.picture.positions()
    }

    /// Returns the image.
    pub fn picture(&self) -> &Picture {
        &self.0.picture
    }
}

impl Picture {
    /// Returns the number of image tokens.
    pub fn cells(&self) -> usize {
        self.nx * self.ny
    }

    fn positions(&self) -> usize {
        self.nx.max(self.ny)
    }
}

/// Returns whether an id is a token of one of these images.
pub(crate) fn holds(pictures: &[Shown], id: u32) -> bool {
    pictures.iter().any(|shown| shown.tokens().contains(&id))
}

/// Returns how many of the tokens right before `at` belong to the same image as token `at`: not 0
/// if a cut there would split an image.
pub(crate) fn cells_before(tokens: &[u32], at: usize) -> usize {
    let goes_on = |i: &usize| is_cell(tokens[*i]) && tokens[i - 1] + 1 == tokens[*i];
    let end = (at + 1).min(tokens.len());
    (1..end).rev().take_while(goes_on).count()
}

/// Registry of images, of an engine or of a caller that computes without one.
#[derive(Debug, Default)]
pub struct Pictures(Mutex<Album>);

#[derive(Debug, Default)]
struct Album {
    /// First id of each image; an image keeps its ids after its last handle is dropped.
    ids: HashMap<([u8; 32], usize, usize), u32>,
    known: BTreeMap<u32, Weak<Known>>,
    /// Number of ids in use.
    n_cells: u32,
}

/// Inputs of a step for new tokens, beside their ids.
#[derive(Debug, Default)]
pub struct Scene {
    /// RoPE position of each token; empty where that is its place in the sequence.
    pub turns: Vec<Turns>,
    given: Vec<Given>,
}

/// Neighboring tokens of one image.
#[derive(Debug)]
struct Given {
    first: usize,
    picture: Arc<Known>,
    cells: Range<usize>,
}

impl Scene {
    /// Returns the embeddings that replace those of tokens.
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

    /// Registers an image and gives its tokens their ids; `None` if there are none left.
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
        // drop images that have no handle any more
        known.retain(|_, picture| picture.strong_count() > 0);
        let shown = Arc::new(Known { first, picture });
        known.insert(first, Arc::downgrade(&shown));
        Some(Shown(shown))
    }

    /// Returns the inputs that a step needs for `tokens`, which follow `before` in a sequence.
    ///
    /// # Errors
    /// The id of an image token whose image has no handle any more.
    pub fn scene(&self, before: &[u32], tokens: &[u32]) -> Result<Scene, u32> {
        let mut scene = Scene::default();
        // without registered images there is no need to search all earlier tokens
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

    /// Returns the image of an image token, if it still has a handle.
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
    /// Adds a token of an image, which stands at token `at`.
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

/// Walks along a sequence and computes the RoPE positions of its tokens.
#[derive(Default)]
struct Walk {
    /// RoPE position of the next text token.
    next: u32,
    /// RoPE position at which the current image began.
    start: u32,
    /// Image token that would continue the current image.
    cell: Option<usize>,
    picture: Option<Arc<Known>>,
}

impl Walk {
    /// Returns the place of an image token in its image.
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

    /// Returns a token's RoPE position along all axes: time, row, column. For a text token they are
    /// equal. All tokens of an image have the time at which it begins; text goes on behind the
    /// longer of its sides.
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
        // the same image twice more, one right behind the other
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
