//! Image options, and loading of images and image encoders.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use clap::Args;
use octavo_engine::{DeviceChoice, Engine, EngineOptions, ImageHandle, LoadingSink};
use octavo_model::Hparams;
use octavo_text::tokenizer::{EncodeOptions, Tokenizer};
use octavo_vision::pixels::{DecodedImage, Limits, TokenLimits, decode};
use octavo_vision::{Encoder, EncoderCache, ImageEncoder, prompt};

use super::args::{ComputeArgs, ModelArgs};
use super::failure::Failure;
use super::hub;
use super::load;
use super::terminal;

/// Options of the number of image tokens.
#[derive(Debug, Args)]
#[command(next_help_heading = "Images")]
pub(super) struct ImageTokenArgs {
    /// Minimum number of tokens per image; smaller images are enlarged [default: the encoder's,
    /// such as 8]
    #[arg(long, value_name = "N")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=65536))]
    image_min_tokens: Option<u32>,
    /// Maximum number of tokens per image; larger images are shrunk [default: the encoder's, such
    /// as 4096]
    #[arg(long, value_name = "N")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=65536))]
    image_max_tokens: Option<u32>,
}

/// Options of the image encoder.
#[derive(Debug, Args)]
#[command(next_help_heading = "Images")]
#[command(mut_arg("image_min_tokens", |a| a.requires("mmproj")))]
#[command(mut_arg("image_max_tokens", |a| a.requires("mmproj")))]
pub(super) struct MmprojArgs {
    /// Image encoder (vision tower) of the model: a GGUF file (mmproj), a Hugging Face folder that
    /// has one, or hf:USER/REPO for the one beside that model [default: of a model hf:USER/REPO,
    /// the one beside it]
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    pub(super) mmproj: Option<PathBuf>,
    /// Take no image encoder
    #[arg(long, conflicts_with = "mmproj")]
    no_mmproj: bool,
    #[command(flatten)]
    image_tokens: ImageTokenArgs,
}

/// Options of images in a prompt.
#[derive(Debug, Args)]
#[command(next_help_heading = "Images")]
pub(super) struct ImageArgs {
    #[command(flatten)]
    pub(super) mmproj: MmprojArgs,
    /// Image: a PNG, JPEG, WebP, BMP or GIF file; may be given several times. Images replace
    /// <__media__> in the text, or come before it
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    #[arg(conflicts_with = "no_mmproj")]
    pub(super) image: Vec<PathBuf>,
}

impl ImageTokenArgs {
    /// Returns the limits of tokens per image.
    pub(super) fn limits(&self) -> Result<TokenLimits, Failure> {
        let number = |n: u32| n as usize;
        match (self.image_min_tokens, self.image_max_tokens) {
            (Some(min), Some(max)) if min > max => Err(Failure::Usage(format!(
                "--image-min-tokens {min}: expected at most --image-max-tokens, {max}"
            ))),
            (min, max) => Ok(TokenLimits {
                min: min.map(number),
                max: max.map(number),
            }),
        }
    }
}

impl MmprojArgs {
    /// Checks that the image encoder exists.
    pub(super) fn check(&self) -> Result<(), Failure> {
        self.image_tokens.limits()?;
        let path = self.mmproj.as_deref();
        path.map_or(Ok(()), |path| load::check_model("--mmproj", path))
    }

    /// Returns the path of the image encoder: the given one, or of a model of the hub the one
    /// beside it. It is downloaded unless it is cached, and so is the model: both from one listing.
    pub(super) fn path(&self, model: &ModelArgs) -> Result<Option<PathBuf>, Failure> {
        match (&self.mmproj, model.name()) {
            (Some(path), _) => Ok(Some(hub::mmproj(path)?)),
            (None, Some(name)) if !self.no_mmproj => hub::mmproj_beside(&name),
            _ => Ok(None),
        }
    }

    /// Loads the image encoder of a model, if there is one. One that was not asked for and cannot
    /// be loaded is passed over with a warning.
    pub(super) fn load(
        &self,
        model: &ModelArgs,
        engine: &Engine,
        compute: &ComputeArgs,
    ) -> Result<Option<EncoderCache>, Failure> {
        let Some(path) = self.path(model)? else {
            return Ok(None);
        };
        match self.load_from(&path, engine, compute) {
            Ok(encoder_cache) => Ok(Some(encoder_cache)),
            Err(failure) if self.mmproj.is_none() => {
                let message = failure.message();
                terminal::warn([format!("{message}; images are refused (--no-mmproj)")]);
                Ok(None)
            }
            Err(failure) => Err(failure),
        }
    }

    fn load_from(
        &self,
        path: &Path,
        engine: &Engine,
        compute: &ComputeArgs,
    ) -> Result<EncoderCache, Failure> {
        let token_limits = self.image_tokens.limits()?;
        let options = EngineOptions {
            pool: engine.pool(),
            ..options(compute)?
        };
        let encoder = encoder(path, token_limits, &options)?;
        let cache = EncoderCache::new(engine, encoder, Limits::default(), token_limits);
        Ok(cache?)
    }
}

impl ImageArgs {
    /// Checks that the image encoder and the images exist.
    pub(super) fn check(&self, model: &ModelArgs) -> Result<(), Failure> {
        self.mmproj.check()?;
        let is_of_hub = model.name().is_some_and(|name| hub::is_remote(&name));
        if !self.image.is_empty() && self.mmproj.mmproj.is_none() && !is_of_hub {
            let what = "--image: expected --mmproj <FILE> with it";
            return Err(Failure::Usage(what.to_owned()));
        }
        let mut images = self.image.iter();
        images.try_for_each(|path| load::check_there("--image", path))
    }

    /// Encodes all images for a model that is loaded later: by then the encoder is dropped and its
    /// memory is free.
    pub(super) fn encode(
        &self,
        model: &ModelArgs,
        compute: &ComputeArgs,
    ) -> Result<EncodedImages, Failure> {
        self.check(model)?;
        if self.image.is_empty() && self.mmproj.mmproj.is_none() {
            return Ok(EncodedImages(Vec::new()));
        }
        let path = self.mmproj.path(model)?.ok_or_else(|| {
            let name = model.name().unwrap_or_default();
            Failure::Input(hub::no_mmproj(&name))
        })?;
        let token_limits = self.mmproj.image_tokens.limits()?;
        let source = load::source_quietly(model)?;
        let text = source.open(true)?;
        let hparams = Hparams::from_gguf(&text)?;
        let encoder = encoder(&path, token_limits, &options(compute)?)?;
        let mut image_encoder = ImageEncoder::new(
            text.name(),
            &hparams,
            encoder,
            Limits::default(),
            token_limits,
        )?;
        let mut seen: Vec<octavo_engine::EncodedImage> = Vec::new();
        for path in &self.image {
            let file = read(path)?;
            let image = image_encoder.encode(&file);
            seen.push(image.map_err(|error| of_image(path, &error))?);
        }
        Ok(EncodedImages(seen))
    }

    /// Returns the text with markers for the images; unchanged without images.
    pub(super) fn place(&self, text: Vec<u8>) -> Vec<u8> {
        place(self.image.len(), text)
    }
}

/// Encoded images that are not registered with a model yet.
pub(super) struct EncodedImages(Vec<octavo_engine::EncodedImage>);

impl EncodedImages {
    /// Registers the images with the model.
    pub(super) fn register(self, engine: &Engine) -> Result<Vec<ImageHandle>, Failure> {
        let shown = self.0.into_iter().map(|image| engine.register(image));
        Ok(shown.collect::<Result<_, _>>()?)
    }
}

/// Returns the engine options of an image encoder.
fn options(compute: &ComputeArgs) -> Result<EngineOptions, Failure> {
    let mut options = compute.options()?;
    // a missing GPU is reported when the text model is loaded
    if let DeviceChoice::Auto { asked, .. } = &mut options.device {
        *asked = false;
    }
    Ok(options)
}

/// Returns the text with `images` markers before it, unless it has markers of its own.
pub(super) fn place(images: usize, text: Vec<u8>) -> Vec<u8> {
    if images == 0 || prompt::places(&text, prompt::MARKER) > 0 {
        return text;
    }
    let mut all = prompt::MARKER.repeat(images).into_bytes();
    all.extend(text);
    all
}

/// Tokenizes a text, with images in the places of its markers if there are any.
pub(super) fn tokens(
    tokenizer: &Tokenizer,
    text: &[u8],
    options: EncodeOptions,
    images: &[ImageHandle],
) -> Result<Vec<u32>, Failure> {
    match images {
        [] => Ok(tokenizer.encode(text, options)?),
        _ => Ok(prompt::tokens(tokenizer, text, prompt::MARKER, images)?),
    }
}

/// Loads an image encoder for images with these limits of tokens.
pub(super) fn encoder(
    path: &Path,
    token_limits: TokenLimits,
    options: &EngineOptions,
) -> Result<Encoder, Failure> {
    let load = |sink: &mut LoadingSink<'_>| Encoder::open(path, options, token_limits, sink);
    Ok(load::shown(load)?)
}

/// Encodes an image file for a model.
pub(super) fn register(encoder_cache: &EncoderCache, path: &Path) -> Result<ImageHandle, Failure> {
    let bytes = read(path)?;
    let shown = encoder_cache.register(&bytes);
    shown.map_err(|error| of_image(path, &error))
}

/// Decodes an image file.
pub(super) fn image(path: &Path) -> Result<DecodedImage, Failure> {
    let image = decode(&read(path)?, &Limits::default());
    image.map_err(|error| of_image(path, &error))
}

/// Names the image file in an error.
pub(super) fn of_image(path: &Path, error: &dyn std::fmt::Display) -> Failure {
    Failure::Input(format!("{}: {error}", path.display()))
}

/// Reads a file, up to one byte more than the limit, so that larger files are noticed.
fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    let most = Limits::default().bytes as u64 + 1;
    let mut bytes = Vec::new();
    let file = File::open(path).and_then(|file| file.take(most).read_to_end(&mut bytes));
    match file {
        Ok(_) => Ok(bytes),
        Err(error) => Err(of_image(path, &error)),
    }
}
