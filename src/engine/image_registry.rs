//! Images that sequences hold. An image's tokens have ids beyond every vocabulary, and equal images
//! have equal ids: whatever compares, shares or drops tokens does the same with images, and only a
//! step needs their embeddings.

#[cfg(test)]
mod tests;

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use octavo_kernels::{EmbeddingRows, RopePosition};
use octavo_model::Hparams;
use sha2::{Digest, Sha256};

use crate::error::Error;

/// First id of image tokens.
pub(crate) const FIRST_IMAGE_TOKEN: u32 = 1 << 31;
/// First id of tokens of images whose tokens attend to each other.
const FIRST_WHOLE_TOKEN: u32 = 3 << 30;

/// Returns whether an id is an image token rather than a token of a vocabulary.
pub fn is_image_token(id: u32) -> bool {
    id >= FIRST_IMAGE_TOKEN
}

/// An encoded image: the embeddings of its tokens, and a digest that identifies it.
#[derive(Clone, Debug, Default, PartialEq)]
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
    /// Whether its tokens attend to each other, in the layers where the text model lets them.
    pub bidirectional: bool,
    /// Tokens that a prompt has in place of the image, in order; empty for its own alone.
    pub parts: Vec<ImagePart>,
}

/// A part of what a prompt has in place of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ImagePart {
    /// Text, with control tokens.
    Text(String),
    /// The next image tokens, this many.
    Tokens(usize),
}

/// Handle to a registered image; the image is known as long as a handle exists.
#[derive(Clone, Debug)]
pub struct ImageHandle(Arc<RegisteredImage>);

#[derive(Debug)]
struct RegisteredImage {
    first: u32,
    image: EncodedImage,
    /// Digest of its embeddings and its shape, once it is needed.
    content: OnceLock<[u8; 32]>,
}

impl RegisteredImage {
    fn content(&self) -> [u8; 32] {
        let EncodedImage {
            nx,
            ny,
            rows,
            bidirectional,
            ..
        } = &self.image;
        *self.content.get_or_init(|| {
            let mut hash = Sha256::new();
            hash.update(format!("{nx} {ny} {bidirectional} "));
            rows.iter().for_each(|x| hash.update(x.to_le_bytes()));
            hash.finalize().into()
        })
    }
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

    /// Returns whether its tokens attend to each other, so that one step has all of them.
    pub(crate) fn is_computed_whole(&self) -> bool {
        self.0.first >= FIRST_WHOLE_TOKEN
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

/// Returns how many tokens from `from` on to compute in a step of about `n`: where tokens of an
/// image attend to each other, a step has all of them that are left.
pub(crate) fn with_whole_images(tokens: &[u32], from: usize, n: usize) -> usize {
    let end = from + n;
    let is_whole = |id: &u32| *id >= FIRST_WHOLE_TOKEN;
    if !tokens.get(end).is_some_and(is_whole) {
        return n;
    }
    match image_tokens_before(tokens, end) {
        0 => n,
        before if before < n => n - before,
        // the image begins here, or its first tokens come from the prefix cache
        _ => {
            let goes_on = |pair: &&[u32]| pair[0] + 1 == pair[1];
            n + 1 + tokens[end..].windows(2).take_while(goes_on).count()
        }
    }
}

/// Registry of images, of an engine or of a caller that computes without one.
#[derive(Debug, Default)]
pub struct ImageRegistry {
    /// Whether heads are rotated by the axes of images, and not by the places of tokens.
    has_axes: bool,
    /// Whether tokens of an image may attend to each other.
    sees_whole_images: bool,
    /// Factor of the model on all embeddings, which those of images do not have; 0 for 1.
    factor: f32,
    registered: Mutex<Registered>,
}

#[derive(Debug, Default)]
struct Registered {
    /// First id of each image; an image keeps its ids after its last handle is dropped.
    ids: HashMap<([u8; 32], usize, usize), u32>,
    known: BTreeMap<u32, Weak<RegisteredImage>>,
    /// Number of ids in use, of images that are causal and of others.
    n_tokens: [u32; 2],
}

/// Inputs of a step for new tokens, beside their ids.
#[derive(Debug, Default)]
pub struct MultimodalInput {
    /// RoPE position of each token; empty where that is its place in the sequence.
    pub rope_positions: Vec<RopePosition>,
    /// Ranges of the tokens of each image whose tokens attend to each other.
    pub images: Vec<Range<usize>>,
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
    /// Creates a registry of images for the text model with these hyperparameters.
    pub fn new(h: &Hparams) -> ImageRegistry {
        ImageRegistry {
            has_axes: h.has_image_axes(),
            sees_whole_images: h.sees_whole_images(),
            factor: h.factors.embedding,
            registered: Mutex::default(),
        }
    }

    fn registered(&self) -> MutexGuard<'_, Registered> {
        let registered = self.registered.lock();
        registered.unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers an image and gives its tokens their ids; `None` if there are none left.
    pub fn register(&self, mut image: EncodedImage) -> Option<ImageHandle> {
        let is_whole = self.sees_whole_images && image.bidirectional;
        if ![0.0, 1.0].contains(&self.factor) {
            // the graph multiplies all rows with it, llama.cpp those of text alone
            image.rows.iter_mut().for_each(|x| *x /= self.factor);
        }
        let mut registered = self.registered();
        let Registered {
            ids,
            known,
            n_tokens,
        } = &mut *registered;
        let first = match ids.entry((image.digest, image.nx, image.ny)) {
            Entry::Occupied(entry) => *entry.get(),
            Entry::Vacant(entry) => {
                let (n_tokens, first, end) = match is_whole {
                    false => (&mut n_tokens[0], FIRST_IMAGE_TOKEN, FIRST_WHOLE_TOKEN),
                    true => (&mut n_tokens[1], FIRST_WHOLE_TOKEN, u32::MAX),
                };
                // with an id between two images, their tokens never look like those of one
                let n = u32::try_from(image.n_tokens()).ok()?.checked_add(1)?;
                let after = n_tokens.checked_add(n)?;
                if after > end - first {
                    return None;
                }
                *entry.insert(first + std::mem::replace(n_tokens, after))
            }
        };
        if let Some(known) = known.get(&first).and_then(Weak::upgrade) {
            return Some(ImageHandle(known));
        }
        // drop images that have no handle any more
        known.retain(|_, image| image.strong_count() > 0);
        let handle = Arc::new(RegisteredImage {
            first,
            image,
            content: OnceLock::new(),
        });
        known.insert(first, Arc::downgrade(&handle));
        Some(ImageHandle(handle))
    }

    /// Returns the inputs that a step needs for `tokens`, which follow `before` in a sequence.
    ///
    /// # Errors
    /// If an image of an image token has no handle any more, or the tokens end in an image whose
    /// tokens attend to each other.
    pub fn input(&self, before: &[u32], tokens: &[u32]) -> Result<MultimodalInput, Error> {
        let mut input = MultimodalInput::default();
        // without registered images there is no need to search all earlier tokens
        let can_have_images =
            self.registered().n_tokens != [0; 2] || tokens.iter().copied().any(is_image_token);
        let all = || before.iter().chain(tokens).copied();
        if !can_have_images || !all().any(is_image_token) {
            return Ok(input);
        }
        let mut walk = PositionWalk::default();
        for (at, id) in all().enumerate() {
            let token = match is_image_token(id) {
                true => {
                    let token = walk.find(self, id);
                    Some(token.map_err(|id| Error::ImageNotHeld { id })?)
                }
                false => None,
            };
            let rope_positions = walk.step(token);
            let Some(at) = at.checked_sub(before.len()) else {
                continue;
            };
            if self.has_axes {
                input.rope_positions.push(rope_positions);
            }
            if let Some(token) = token {
                input.add(at, token, walk.image.as_ref().expect("just found"));
            }
        }
        input.find_whole_images()?;
        Ok(input)
    }

    /// Returns the image of an image token, if it still has a handle.
    pub fn image_of(&self, id: u32) -> Option<ImageHandle> {
        self.find(id).map(ImageHandle)
    }

    /// Returns a digest of what an image token stands for, equal in all programs, and its place in
    /// the image; `None` if the image has no handle any more.
    pub(crate) fn content_of(&self, id: u32) -> Option<([u8; 32], u32)> {
        let image = self.find(id)?;
        Some((image.content(), id - image.first))
    }

    fn find(&self, id: u32) -> Option<Arc<RegisteredImage>> {
        let registered = self.registered();
        let (_, known) = registered.known.range(..=id).next_back()?;
        let known = known.upgrade()?;
        ((id - known.first) < known.image.n_tokens() as u32).then_some(known)
    }
}

impl MultimodalInput {
    /// Finds the images whose tokens attend to each other, of which all tokens must be there.
    fn find_whole_images(&mut self) -> Result<(), Error> {
        let inputs = self.embedding_inputs.iter();
        for rows in inputs.filter(|rows| rows.image.first >= FIRST_WHOLE_TOKEN) {
            let (end, tokens) = (rows.tokens.end, rows.image.image.n_tokens());
            if end < tokens {
                return Err(Error::ImageCut { end, tokens });
            }
            self.images.push(rows.first..rows.first + rows.tokens.len());
        }
        Ok(())
    }

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
