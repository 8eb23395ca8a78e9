//! Images cut into tiles.

use super::image::DecodedImage;

/// The tiles of an image.
#[derive(Clone, Debug, PartialEq)]
pub struct Tiles {
    /// All of one size, row by row; an overview of the whole image may follow.
    pub images: Vec<DecodedImage>,
    /// Columns and rows of tiles; an overview is in none.
    pub grid: [usize; 2],
}

impl Tiles {
    /// Returns no tiles.
    pub(crate) fn none() -> Tiles {
        Tiles {
            images: Vec::new(),
            grid: [0, 0],
        }
    }

    /// Returns an image as a single tile.
    pub(crate) fn one(image: DecodedImage) -> Tiles {
        Tiles {
            images: vec![image],
            grid: [1, 1],
        }
    }

    /// Cuts an image whose sides are multiples of `side` into squares of that side.
    pub(crate) fn cut(image: &DecodedImage, side: usize) -> Tiles {
        let grid = [image.width / side, image.height / side];
        let tile = |row: usize, column: usize| {
            let lines = image.rgb.chunks_exact(3 * image.width);
            let lines = lines.skip(row * side).take(side);
            let pixels = lines.flat_map(|line| &line[3 * column * side..][..3 * side]);
            DecodedImage {
                width: side,
                height: side,
                rgb: pixels.copied().collect(),
            }
        };
        let images = (0..grid[1]).flat_map(|row| (0..grid[0]).map(move |column| (row, column)));
        Tiles {
            images: images.map(|(row, column)| tile(row, column)).collect(),
            grid,
        }
    }

    /// Adds an overview.
    pub(crate) fn with(mut self, overview: DecodedImage) -> Tiles {
        self.images.push(overview);
        self
    }
}
