//! Images of a comparison: the input of an image encoder, or part of the text of a text model.

use gguf_rs_lite::Gguf;
use octavo_engine::{DeviceChoice, EngineOptions, ImageHandle, ImageRegistry};
use octavo_kernels::IsaChoice;
use octavo_model::Hparams;
use octavo_text::tokenizer::Tokenizer;
use octavo_vision::pixels::{DecodedImage, Prepared};

use super::{DiffArgs, encoding};
use crate::failure::Failure;
use crate::vision::{self, of_image, place};

/// Returns the image to encode with an image encoder.
pub(super) fn only(args: &DiffArgs) -> Result<DecodedImage, Failure> {
    let has_text = args.text.is_set() || args.tokens.is_some();
    if args.mmproj.is_some() || args.llama_cpp.is_some() || has_text {
        return Err(Failure::Usage(
            "a vision tower takes images: expected --image FILE, and no text, --mmproj or \
             --llama-cpp"
                .to_owned(),
        ));
    }
    match &args.image[..] {
        [path] => vision::image(path),
        other => Err(Failure::Usage(format!(
            "a vision tower takes one image at a time: expected one --image FILE, got {}",
            other.len()
        ))),
    }
}

/// A text with images.
pub(super) struct Prompt {
    pub(super) images: ImageRegistry,
    /// Registered images, held as long as their tokens are in use.
    shown: Vec<ImageHandle>,
    /// The text, read only once because it may come from a pipe.
    text: Option<Vec<u8>>,
}

impl Prompt {
    /// Encodes the images, with one instruction set for both computations: image encoders are
    /// compared separately.
    pub(super) fn see(args: &DiffArgs, model: &Gguf, isa: IsaChoice) -> Result<Prompt, Failure> {
        let mut prompt = Prompt {
            images: ImageRegistry::new(&Hparams::from_gguf(model)?),
            shown: Vec::new(),
            text: args.text.read()?,
        };
        let Some(path) = &args.mmproj else {
            return Ok(prompt);
        };
        let token_limits = args.image_tokens.limits()?;
        let options = EngineOptions {
            device: DeviceChoice::Cpu,
            isa,
            ..args.compute.options()?
        };
        let mut encoder = vision::encoder(path, token_limits, &options)?;
        for (number, path) in args.image.iter().enumerate() {
            let image = vision::image(path)?;
            let prepared = Prepared::new(&image, &encoder.tower().hparams, token_limits);
            let prepared = prepared.map_err(|error| of_image(path, &error))?;
            let mut digest = [0; 32];
            digest[..8].copy_from_slice(&(number as u64).to_le_bytes());
            let image = encoder.image(&prepared, digest);
            let image = image.map_err(|error| of_image(path, &error))?;
            let shown = prompt.images.register(image);
            let shown = shown.ok_or(octavo_engine::Error::TooManyImages)?;
            prompt.shown.push(shown);
        }
        let text = prompt.text.unwrap_or_default();
        prompt.text = Some(place(args.image.len(), text));
        Ok(prompt)
    }

    /// Tokenizes the text with its images, or returns the given token ids.
    pub(super) fn tokens(
        &self,
        args: &DiffArgs,
        tokenizer: &Tokenizer,
    ) -> Result<Vec<u32>, Failure> {
        let tokens = match (&args.tokens, &self.text) {
            (Some(ids), _) => ids.clone(),
            (None, Some(text)) => vision::tokens(tokenizer, text, encoding(args), &self.shown)?,
            (None, None) => return Err(Failure::Usage(super::NO_TEXT.to_owned())),
        };
        match tokens.is_empty() {
            true => Err(Failure::Input(
                "the text has no tokens: expected at least one".to_owned(),
            )),
            false => Ok(tokens),
        }
    }
}
