//! Images that sequences hold. An image's tokens have ids beyond every vocabulary, and equal images
//! have equal ids: whatever compares, shares or drops tokens does the same with images, and only a
//! step needs their embeddings.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use octavo_kernels::{EmbeddingRows, RopePosition};

/// First id of image tokens.
pub(crate) const FIRST_IMAGE_TOKEN: u32 = 1 << 31;

/// Returns whether an id is an image token rather than a token of a vocabulary.
pub fn is_image_token(id: u32) -> bool {
    id >= FIRST_IMAGE_TOKEN
}

/// An encoded image: the embeddings of its tokens, and a digest that identifies it.
#[derive(Clone, Debug, PartialEq)]
pub struct EncodedImage {
    /// Image tokens per row.
    pub nx: usize,
    /// Rows of image tokens.
    pub ny: usize,
    /// Embeddings, `[ny][nx][width]`; `width` is the model's
    /// [`image_embedding_width`](octavo_model::Hparams::image_embedding_width).
    pub rows: Vec<f32>,
    /// Digest of the input that the embeddings were computed from.
    pub digest: [u8; 32],
}

/// Handle to a registered image; the image is known as long as a handle exists.
#[derive(Clone, Debug)]
pub struct ImageHandle(Arc<RegisteredImage>);

#[derive(Debug)]
struct RegisteredImage {
    first: u32,
    image: EncodedImage,
}

impl ImageHandle {
    /// Returns the image tokens for a prompt, row by row, each from the left.
    pub fn tokens(&self) -> Range<u32> {
        self.0.first..self.0.first + self.0.image.n_tokens() as u32
    }

    /// Returns the number of positions that the image takes: the tokens along its longer side.
    pub fn positions(&self) -> usize {
        self.0.image.positions()
    }

    /// Returns the image.
    pub fn image(&self) -> &EncodedImage {
        &self.0.image
    }
}

impl EncodedImage {
    /// Returns the number of image tokens.
    pub fn n_tokens(&self) -> usize {
        self.nx * self.ny
    }

    fn positions(&self) -> usize {
        self.nx.max(self.ny)
    }
}

/// Returns whether an id is a token of one of these images.
pub(crate) fn holds(images: &[ImageHandle], id: u32) -> bool {
    images.iter().any(|handle| handle.tokens().contains(&id))
}

/// Returns how many of the tokens right before `at` belong to the same image as token `at`: not 0
/// if a cut there would split an image.
pub(crate) fn image_tokens_before(tokens: &[u32], at: usize) -> usize {
    let goes_on = |i: &usize| is_image_token(tokens[*i]) && tokens[i - 1] + 1 == tokens[*i];
    let end = (at + 1).min(tokens.len());
    (1..end).rev().take_while(goes_on).count()
}

/// Registry of images, of an engine or of a caller that computes without one.
#[derive(Debug, Default)]
pub struct ImageRegistry(Mutex<Registered>);

#[derive(Debug, Default)]
struct Registered {
    /// First id of each image; an image keeps its ids after its last handle is dropped.
    ids: HashMap<([u8; 32], usize, usize), u32>,
    known: BTreeMap<u32, Weak<RegisteredImage>>,
    /// Number of ids in use.
    n_tokens: u32,
}

/// Inputs of a step for new tokens, beside their ids.
#[derive(Debug, Default)]
pub struct MultimodalInput {
    /// RoPE position of each token; empty where that is its place in the sequence.
    pub rope_positions: Vec<RopePosition>,
    embedding_inputs: Vec<ImageRows>,
}

/// Consecutive tokens of one image.
#[derive(Debug)]
struct ImageRows {
    first: usize,
    image: Arc<RegisteredImage>,
    tokens: Range<usize>,
}

impl MultimodalInput {
    /// Returns the embeddings that replace those of tokens.
    pub fn embedding_inputs(&self) -> Vec<EmbeddingRows<'_>> {
        self.embedding_inputs.iter().map(ImageRows::rows).collect()
    }
}

impl ImageRows {
    fn rows(&self) -> EmbeddingRows<'_> {
        let image = &self.image.image;
        let width = image.rows.len() / image.n_tokens();
        EmbeddingRows {
            first: self.first,
            rows: &image.rows[self.tokens.start * width..self.tokens.end * width],
        }
    }
}

impl ImageRegistry {
    fn registered(&self) -> MutexGuard<'_, Registered> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers an image and gives its tokens their ids; `None` if there are none left.
    pub fn register(&self, image: EncodedImage) -> Option<ImageHandle> {
        let mut registered = self.registered();
        let Registered {
            ids,
            known,
            n_tokens,
        } = &mut *registered;
        let first = match ids.entry((image.digest, image.nx, image.ny)) {
            Entry::Occupied(entry) => *entry.get(),
            Entry::Vacant(entry) => {
                let after = n_tokens.checked_add(u32::try_from(image.n_tokens()).ok()?)?;
                if after > u32::MAX - FIRST_IMAGE_TOKEN {
                    return None;
                }
                *entry.insert(FIRST_IMAGE_TOKEN + std::mem::replace(n_tokens, after))
            }
        };
        if let Some(known) = known.get(&first).and_then(Weak::upgrade) {
            return Some(ImageHandle(known));
        }
        // drop images that have no handle any more
        known.retain(|_, image| image.strong_count() > 0);
        let handle = Arc::new(RegisteredImage { first, image });
        known.insert(first, Arc::downgrade(&handle));
        Some(ImageHandle(handle))
    }

    /// Returns the inputs that a step needs for `tokens`, which follow `before` in a sequence.
    ///
    /// # Errors
    /// The id of an image token whose image has no handle any more.
    pub fn input(&self, before: &[u32], tokens: &[u32]) -> Result<MultimodalInput, u32> {
        let mut input = MultimodalInput::default();
        // without registered images there is no need to search all earlier tokens
        let can_have_images =
            self.registered().n_tokens > 0 || tokens.iter().copied().any(is_image_token);
        let all = || before.iter().chain(tokens).copied();
        if !can_have_images || !all().any(is_image_token) {
            return Ok(input);
        }
        let mut walk = PositionWalk::default();
        for (at, id) in all().enumerate() {
            let token = match is_image_token(id) {
                true => Some(walk.find(self, id)?),
                false => None,
            };
            let rope_positions = walk.step(token);
            let Some(at) = at.checked_sub(before.len()) else {
                continue;
            };
            input.rope_positions.push(rope_positions);
            if let Some(token) = token {
                input.add(at, token, walk.image.as_ref().expect("just found"));
            }
        }
        Ok(input)
    }

    /// Returns the image of an image token, if it still has a handle.
    pub fn image_of(&self, id: u32) -> Option<ImageHandle> {
        self.find(id).map(ImageHandle)
    }

    fn find(&self, id: u32) -> Option<Arc<RegisteredImage>> {
        let registered = self.registered();
        let (_, known) = registered.known.range(..=id).next_back()?;
        let known = known.upgrade()?;
        ((id - known.first) < known.image.n_tokens() as u32).then_some(known)
    }
}

impl MultimodalInput {
    /// Adds a token of an image, which stands at token `at`.
    fn add(&mut self, at: usize, token: usize, image: &Arc<RegisteredImage>) {
        if let Some(last) = self.embedding_inputs.last_mut()
            && Arc::ptr_eq(&last.image, image)
            && last.tokens.end == token
            && last.first + last.tokens.len() == at
        {
            last.tokens.end += 1;
            return;
        }
        self.embedding_inputs.push(ImageRows {
            first: at,
            image: image.clone(),
            tokens: token..token + 1,
        });
    }
}

/// Walks along a sequence and computes the RoPE positions of its tokens.
#[derive(Default)]
struct PositionWalk {
    /// RoPE position of the next text token.
    next: u32,
    /// RoPE position at which the current image began.
    start: u32,
    /// Image token that would continue the current image.
    token: Option<usize>,
    image: Option<Arc<RegisteredImage>>,
}

impl PositionWalk {
    /// Returns the place of an image token in its image.
    fn find(&mut self, images: &ImageRegistry, id: u32) -> Result<usize, u32> {
        let is_of = |known: &Arc<RegisteredImage>| {
            id.checked_sub(known.first)
                .is_some_and(|token| token < known.image.n_tokens() as u32)
        };
        if !self.image.as_ref().is_some_and(is_of) {
            self.image = Some(images.find(id).ok_or(id)?);
            self.token = None;
        }
        let known = self.image.as_ref().expect("just found");
        Ok((id - known.first) as usize)
    }

    /// Returns a token's RoPE position along all axes: time, row, column. For a text token they are
    /// equal. All tokens of an image have the time at which it begins; text goes on behind the
    /// longer of its sides.
    fn step(&mut self, token: Option<usize>) -> RopePosition {
        let Some(token) = token else {
            self.token = None;
            self.next += 1;
            return [self.next - 1; 3];
        };
        let image = &self.image.as_ref().expect("a token's").image;
        if self.token != Some(token) {
            self.start = self.next;
            self.next += image.positions() as u32;
        }
        self.token = Some(token + 1);
        let (row, column) = (token / image.nx, token % image.nx);
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

    fn image(nx: usize, ny: usize, seed: u8) -> EncodedImage {
        EncodedImage {
            nx,
            ny,
            rows: (0..2 * nx * ny)
                .map(|i| i as f32 + f32::from(seed))
                .collect(),
            digest: [seed; 32],
        }
    }

    #[test]
    fn equal_images_have_equal_ids_and_others_have_others() {
        let images = ImageRegistry::default();
        let register = |p| images.register(p).expect("ids are left");
        let (a, b) = (register(image(3, 2, 1)), register(image(2, 2, 2)));
        assert_eq!(a.tokens(), FIRST_IMAGE_TOKEN..FIRST_IMAGE_TOKEN + 6);
        assert_eq!(b.tokens(), FIRST_IMAGE_TOKEN + 6..FIRST_IMAGE_TOKEN + 10);
        assert_eq!(register(image(3, 2, 1)).tokens(), a.tokens());
        // the same file in another size
        assert_eq!(
            register(image(2, 3, 1)).tokens().start,
            FIRST_IMAGE_TOKEN + 10
        );
        let first = a.tokens().start;
        drop(a);
        assert_eq!(images.input(&[], &[first]).err(), Some(first));
        assert_eq!(register(image(3, 2, 1)).tokens().start, first);
    }

    #[test]
    fn text_goes_on_behind_the_longer_side() {
        let images = ImageRegistry::default();
        let handle = images.register(image(3, 2, 1)).expect("ids are left");
        let mut tokens = vec![7, 8];
        tokens.extend(handle.tokens());
        tokens.push(9);
        // the same image twice more, one right behind the other
        tokens.extend(handle.tokens());
        tokens.extend(handle.tokens());
        tokens.push(5);
        let all = images.input(&[], &tokens).expect("it is held");
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
        assert_eq!(all.rope_positions, expected);
        let inputs = all.embedding_inputs();
        assert_eq!(inputs.len(), 3);
        assert_eq!(inputs[0].first, 2);
        assert_eq!(inputs[0].rows, handle.image().rows);
        // any cut gives the same
        for cut in 0..=tokens.len() {
            let (before, rest) = tokens.split_at(cut);
            let part = images.input(before, rest).expect("it is held");
            assert_eq!(part.rope_positions, expected[cut..], "after {cut}");
            let rows = |input: &MultimodalInput| -> usize {
                input
                    .embedding_inputs()
                    .iter()
                    .map(|rows| rows.rows.len())
                    .sum()
            };
            let tokens = rest.iter().filter(|id| is_image_token(**id)).count();
            assert_eq!(rows(&part), 2 * tokens, "after {cut}");
        }
    }

    #[test]
    fn a_cut_inside_of_a_image_is_seen() {
        let images = ImageRegistry::default();
        let handle = images.register(image(3, 1, 1)).expect("ids are left");
        let mut tokens = vec![7, 8];
        tokens.extend(handle.tokens());
        tokens.extend(handle.tokens());
        let before: Vec<usize> = (0..8).map(|at| image_tokens_before(&tokens, at)).collect();
        assert_eq!(before, [0, 0, 0, 1, 2, 0, 1, 2]);
    }

    #[test]
    fn texts_alone_turn_by_their_places() {
        let input = ImageRegistry::default()
            .input(&[1, 2], &[3])
            .expect("no image");
        assert!(input.rope_positions.is_empty() && input.embedding_inputs().is_empty());
    }
}
