//! Decoded images, and limits of the files that they come from.

/// Limits of a decoded file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum bytes of the file.
    pub bytes: usize,
    /// Maximum pixels of the image.
    pub pixels: usize,
    /// Maximum bytes of memory for decoding.
    pub memory: u64,
}

impl Default for Limits {
    /// Allows files of 64 MiB, 64 million pixels, and the memory these take.
    fn default() -> Limits {
        Limits {
            bytes: 64 << 20,
            pixels: 64_000_000,
            memory: 768 << 20,
        }
    }
}

/// An image of 8 bits per colour.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DecodedImage {
    /// Pixels per row.
    pub width: usize,
    /// Rows.
    pub height: usize,
    /// `[height][width][3]`: red, green and blue.
    pub rgb: Vec<u8>,
}
