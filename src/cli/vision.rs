//! Pictures beside a text: the tower's file, and the images.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use gguf_rs_lite::{Gguf, OpenOptions};
use octavo_engine::{Engine, Shown};
use octavo_vision::pixels::{Limits, TokenLimits};
use octavo_vision::{Encoder, EncoderOptions, Sight, prompt};

use super::args::ComputeArgs;
use super::failure::Failure;
use super::load;

/// The tower, and how many cells pictures have.
#[derive(Debug, Args)]
#[command(next_help_heading = "Pictures")]
pub(super) struct SightArgs {
    /// The model's vision tower: a GGUF file (mmproj)
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    pub(super) mmproj: Option<PathBuf>,
    /// Cells that a picture has at least; smaller ones are enlarged [default: 8]
    #[arg(long, value_name = "N", requires = "mmproj")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=65536))]
    image_min_tokens: Option<u32>,
    /// Cells that a picture has at most; larger ones are shrunk [default: 4096]
    #[arg(long, value_name = "N", requires = "mmproj")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=65536))]
    image_max_tokens: Option<u32>,
}

/// Pictures beside a text.
#[derive(Debug, Args)]
#[command(next_help_heading = "Pictures")]
pub(super) struct PictureArgs {
    #[command(flatten)]
    pub(super) sight: SightArgs,
    /// A PNG, JPEG or WebP file; again for several. They stand where the text says <__media__>, or
    /// else before it
    #[arg(long, value_name = "FILE", requires = "mmproj", value_hint = clap::ValueHint::FilePath)]
    pub(super) image: Vec<PathBuf>,
}

impl SightArgs {
    /// Loads the tower, if there is one, for a model.
    pub(super) fn load(
        &self,
        engine: &Engine,
        compute: &ComputeArgs,
    ) -> Result<Option<Sight>, Failure> {
        let Some(path) = &self.mmproj else {
            return Ok(None);
        };
        let usual = TokenLimits::default();
        let cells = TokenLimits {
            min: self.image_min_tokens.map_or(usual.min, |n| n as usize),
            max: self.image_max_tokens.map_or(usual.max, |n| n as usize),
        };
        if cells.min > cells.max {
            let TokenLimits { min, max } = cells;
            return Err(Failure::Usage(format!(
                "--image-min-tokens {min}: expected at most --image-max-tokens, {max}"
            )));
        }
        let options = EncoderOptions {
            isa: compute.isa.resolve().map_err(octavo_engine::Error::from)?,
            threads: compute.threads.count(),
            // long and narrow ones gain more than asked for where they are enlarged
            most_cells: cells.max.max(1024) + cells.max / 4,
        };
        let mapped = OpenOptions {
            mmap: compute.mmap(),
            ..OpenOptions::default()
        };
        let gguf = Arc::new(Gguf::open(path, &mapped)?);
        let encoder = load::shown(|sink| Encoder::cpu(&gguf, &options, sink))?;
        Ok(Some(Sight::new(engine, encoder, Limits::default(), cells)?))
    }
}

/// Shows a model the picture of a file.
pub(super) fn see(sight: &Sight, path: &Path) -> Result<Shown, Failure> {
    let failed =
        |error: &dyn std::fmt::Display| Failure::Input(format!("{}: {error}", path.display()));
    let bytes = read(path).map_err(|error| failed(&error))?;
    sight.see(&bytes).map_err(|error| failed(&error))
}

/// The file's bytes, one more than may be if there are more.
fn read(path: &Path) -> std::io::Result<Vec<u8>> {
    use std::io::Read;
    let most = Limits::default().bytes as u64 + 1;
    let mut bytes = Vec::new();
    std::fs::File::open(path)?
        .take(most)
        .read_to_end(&mut bytes)?;
    Ok(bytes)
}

impl PictureArgs {
    /// Loads the tower, and shows the model all pictures.
    pub(super) fn see(
        &self,
        engine: &Engine,
        compute: &ComputeArgs,
    ) -> Result<Vec<Shown>, Failure> {
        let Some(sight) = self.sight.load(engine, compute)? else {
            return Ok(Vec::new());
        };
        self.image.iter().map(|path| see(&sight, path)).collect()
    }

    /// The text with places for the pictures; as it is, where there are none.
    pub(super) fn place(&self, text: Vec<u8>) -> Vec<u8> {
        match self.image.len() {
            0 => text,
            n => with_places(text, n),
        }
    }
}

/// Puts a place before a text for each picture, unless it has places.
fn with_places(text: Vec<u8>, pictures: usize) -> Vec<u8> {
    if prompt::places(&text, prompt::MARKER) > 0 {
        return text;
    }
    let mut all = prompt::MARKER.repeat(pictures).into_bytes();
    all.extend(text);
    all
}
