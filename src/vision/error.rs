//! Errors of image input: one line each.

/// Any failure.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // the fields are what the messages say
pub enum Error {
    /// Invalid keys or tensors of the vision encoder.
    #[error(transparent)]
    Tower(#[from] octavo_model::Error),
    /// Invalid GGUF container of the vision encoder.
    #[error(transparent)]
    Gguf(#[from] gguf_rs_lite::Error),
    /// Failure of the engine or device.
    #[error(transparent)]
    Engine(#[from] octavo_engine::Error),
    /// The vision encoder belongs to another text model.
    #[error(
        "{file}: its rows have {got} values, expected {expected} for the text model: \
         {n_embd} of an embedding and as many for each of {deepstack} layers"
    )]
    OtherModel {
        file: String,
        n_embd: usize,
        deepstack: usize,
        expected: usize,
        got: usize,
    },
    /// Sides are not a multiple of an image token's.
    #[error("an image of {width} x {height} pixels: expected sides that are multiples of {unit}")]
    Sides {
        width: usize,
        height: usize,
        unit: usize,
    },
    /// Sides are not those of the only size that an encoder takes.
    #[error("an image of {width} x {height} pixels: expected {side} x {side}")]
    Square {
        width: usize,
        height: usize,
        side: usize,
    },
    /// A side has more patches than there are position embeddings.
    #[error("an image of {width} x {height} patches: expected at most {most} on each side")]
    Positions {
        width: usize,
        height: usize,
        most: usize,
    },
    /// The text model takes no images.
    #[error("{file}: architecture {arch} reads text alone: expected a model that takes images")]
    ReadsText { file: String, arch: &'static str },
    /// The number of markers differs from the number of images.
    #[error("the text has {markers} places for images: expected {images}, one for each image")]
    Markers { markers: usize, images: usize },
    /// Unsupported file format.
    #[error("expected a PNG, JPEG, WebP, BMP or GIF file, got {got}")]
    Format { got: String },
    /// The image cannot be decoded.
    #[error("a damaged image: {why}")]
    Damaged { why: String },
    /// The file exceeds the size limit.
    #[error("an image's file of {got} bytes: expected at most {most}")]
    TooManyBytes { got: usize, most: usize },
    /// The image exceeds the pixel limit.
    #[error("an image of {width} x {height} pixels: expected at most {most} pixels")]
    TooManyPixels {
        width: usize,
        height: usize,
        most: usize,
    },
    /// The image is too narrow to be resized within the limits.
    #[error(
        "an image of {width} x {height} pixels is too long and narrow to be cut into image tokens"
    )]
    TooNarrow { width: usize, height: usize },
    /// The image has more tokens than the encoder was prepared for.
    #[error("an image of {got} tokens: expected at most {most}")]
    TooManyImageTokens { got: usize, most: usize },
    /// Unsupported format of a sound file.
    #[error("expected a WAV, MP3 or FLAC file, got {got}")]
    AudioFormat { got: String },
    /// The sound cannot be decoded.
    #[error("a damaged sound file: {why}")]
    DamagedAudio { why: String },
    /// The sound file exceeds the size limit.
    #[error("a sound file of {got} bytes: expected at most {most}")]
    TooManyAudioBytes { got: usize, most: usize },
    /// The sound exceeds the time limit.
    #[error("sound of more than {most} seconds: expected at most {most}")]
    TooLong { most: usize },
}
