//! Why a picture cannot be shown to a model: one line each.

/// Any failure.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // the fields are what the messages say
pub enum Error {
    /// The tower's keys or tensors.
    #[error(transparent)]
    Tower(#[from] octavo_model::Error),
    /// Its container.
    #[error(transparent)]
    Gguf(#[from] gguf_rs_lite::Error),
    /// The device.
    #[error(transparent)]
    Engine(#[from] octavo_engine::Error),
    /// A tower for another text model.
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
    /// Sides that are not whole cells.
    #[error("a picture of {width} x {height} pixels: expected sides that are multiples of {unit}")]
    Sides {
        width: usize,
        height: usize,
        unit: usize,
    },
    /// A text model that sees nothing.
    #[error("{file}: architecture {arch} reads text alone: expected a model that sees pictures")]
    ReadsText { file: String, arch: &'static str },
    /// Places for pictures.
    #[error(
        "the text has {markers} places for pictures: expected {pictures}, one for each picture"
    )]
    Markers { markers: usize, pictures: usize },
    /// No picture that can be read.
    #[error("expected a PNG, JPEG, WebP, BMP or GIF file, got {got}")]
    Format { got: String },
    /// A picture that cannot be read.
    #[error("a damaged picture: {why}")]
    Damaged { why: String },
    /// A file beyond the limit.
    #[error("a picture's file of {got} bytes: expected at most {most}")]
    TooManyBytes { got: usize, most: usize },
    /// A picture beyond the limit.
    #[error("a picture of {width} x {height} pixels: expected at most {most} pixels")]
    TooManyPixels {
        width: usize,
        height: usize,
        most: usize,
    },
    /// A picture that no cells fit.
    #[error("a picture of {width} x {height} pixels is too long and narrow to be cut into cells")]
    TooNarrow { width: usize, height: usize },
    /// More cells than there is room for.
    #[error("a picture of {got} cells: expected at most {most}")]
    TooManyCells { got: usize, most: usize },
}
