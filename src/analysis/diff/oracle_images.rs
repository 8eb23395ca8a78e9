//! Images of a text, as the oracle takes them.

use octavo_engine::is_image_token;
use octavo_reference::{ImageRows, Piece};

use super::Error;
use super::target::Text;

/// Images of a text as the oracle takes them: start position and rows of each.
pub struct Images(Vec<(usize, ImageRows)>);

impl Images {
    /// Looks up the images of a text, in order of appearance.
    ///
    /// # Errors
    /// If one of them is no longer registered.
    pub fn of(text: Text<'_>) -> Result<Images, Error> {
        let (mut images, mut at) = (Vec::new(), 0);
        while let Some(&id) = text.tokens.get(at) {
            if !is_image_token(id) {
                at += 1;
                continue;
            }
            let shown = text.images.image_of(id);
            let shown = shown.ok_or(octavo_engine::Error::ImageNotHeld { id })?;
            let image = shown.image();
            // tokens of an image may have text between them
            let (first, end) = ((id - shown.tokens().start) as usize, shown.tokens().end);
            let goes_on = |(next, own): &(u32, &u32)| *next == **own && *next < end;
            let n = (id..).zip(&text.tokens[at..]).take_while(goes_on).count();
            let width = image.rows.len() / image.n_tokens();
            let rows = &image.rows[first * width..(first + n) * width];
            let rows = rows.iter().map(|x| f64::from(*x)).collect();
            let [nx, ny] = match n == image.n_tokens() {
                true => [image.nx, image.ny],
                false => [n, 1],
            };
            images.push((at, ImageRows::new(nx, ny, rows)?));
            at += n;
        }
        Ok(Images(images))
    }

    /// Splits the text into alternating pieces of tokens and images.
    pub fn pieces<'a>(&'a self, tokens: &'a [u32]) -> Vec<Piece<'a>> {
        let (mut pieces, mut behind) = (Vec::new(), 0);
        for (at, rows) in &self.0 {
            pieces.push(Piece::Tokens(&tokens[behind..*at]));
            pieces.push(Piece::Image(rows));
            behind = at + rows.nx() * rows.ny();
        }
        pieces.push(Piece::Tokens(&tokens[behind..]));
        pieces
    }
}
