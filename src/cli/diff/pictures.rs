//! Pictures of a comparison: of a tower the only thing that it sees, of a text model what stands
//! among its tokens.

use std::sync::Arc;

use gguf_rs_lite::Gguf;
use octavo_engine::{Picture as Rows, Pictures, Shown};
use octavo_kernels::IsaChoice;
use octavo_text::tokenizer::Tokenizer;
use octavo_vision::pixels::{Picture, Prepared};
use octavo_vision::{Encoder, prompt};

use super::DiffArgs;
use crate::cli::failure::Failure;
use crate::cli::load::{self, shown};
use crate::cli::vision::{self, of_image, place};

/// The picture that a tower is to see.
pub(super) fn only(args: &DiffArgs) -> Result<Picture, Failure> {
    let has_text = args.text.is_given() || args.tokens.is_some();
    if args.mmproj.is_some() || args.llama_cpp.is_some() || has_text {
        return Err(Failure::Usage(
            "a vision tower sees pictures: expected --image FILE, and no text, --mmproj or \
             --llama-cpp"
                .to_owned(),
        ));
    }
    match &args.image[..] {
        [path] => vision::picture(path),
        other => Err(Failure::Usage(format!(
            "a vision tower sees one picture at a time: expected one --image FILE, got {}",
            other.len()
        ))),
    }
}

/// A text's tokens with those of pictures among them.
pub(super) struct Prompt {
    pub(super) pictures: Pictures,
    /// Held as long as their cells are among the tokens.
    shown: Vec<Shown>,
    text: Vec<u8>,
}

impl Prompt {
    /// Computes the pictures' rows, with one instruction set for both computations: towers are
    /// compared by themselves.
    pub(super) fn see(args: &DiffArgs, isa: IsaChoice) -> Result<Prompt, Failure> {
        let pictures = Pictures::default();
        let text = args.text.read()?.unwrap_or_default();
        let Some(path) = &args.mmproj else {
            let shown = Vec::new();
            return Ok(Prompt {
                pictures,
                shown,
                text,
            });
        };
        let cells = args.cells.limits()?;
        let options = vision::encoder_options(cells, &args.compute, isa)?;
        let gguf: Arc<Gguf> = Arc::new(load::source_at(Some(path)).open(args.compute.mmap())?);
        let mut encoder = shown(|sink| Encoder::cpu(&gguf, &options, sink))?;
        let mut all = Vec::new();
        for (number, path) in args.image.iter().enumerate() {
            let picture = vision::picture(path)?;
            let prepared = Prepared::new(&picture, &encoder.tower().hparams, cells);
            let prepared = prepared.map_err(|error| of_image(path, &error))?;
            let cells = encoder.encode(prepared.pixels(), None);
            let cells = cells.map_err(|error| of_image(path, &error))?;
            let mut digest = [0; 32];
            digest[..8].copy_from_slice(&(number as u64).to_le_bytes());
            let rows = Rows {
                nx: cells.nx,
                ny: cells.ny,
                rows: cells.rows,
                digest,
            };
            let shown = pictures.show(rows);
            all.push(shown.ok_or(octavo_engine::Error::TooManyPictures)?);
        }
        Ok(Prompt {
            pictures,
            shown: all,
            text: place(args.image.len(), text),
        })
    }

    pub(super) fn has_pictures(&self) -> bool {
        !self.shown.is_empty()
    }

    /// What a model's vocabulary makes of the text around the pictures.
    pub(super) fn tokens(&self, tokenizer: &Tokenizer) -> Result<Vec<u32>, Failure> {
        Ok(prompt::tokens(
            tokenizer,
            &self.text,
            prompt::MARKER,
            &self.shown,
        )?)
    }
}
