//! Digests that name pages: a chain over the tokens, as the path in the prefix tree.

use sha2::{Digest as _, Sha256};

use crate::image_registry::{ImageRegistry, is_image_token};
use crate::kv::prefix_cache::PageKey;

/// A SHA-256 digest.
pub(crate) type Digest = [u8; 32];

/// Returns the digest before the first page of texts with this salt.
pub(crate) fn root(identity: &Digest, salt: Option<&str>) -> Digest {
    let mut hash = Sha256::new();
    hash.update(identity);
    hash.update([u8::from(salt.is_some())]);
    hash.update(salt.unwrap_or_default());
    hash.finalize().into()
}

/// Returns the digest of a page that follows the one of digest `before`; `None` if it has a token
/// of an image that is known no more. An image counts by its rows: ids are of this program.
pub(crate) fn page_digest(
    before: &Digest,
    key: &PageKey,
    images: &ImageRegistry,
) -> Option<Digest> {
    let mut hash = Sha256::new();
    hash.update(before);
    hash.update(key.generated.to_le_bytes());
    hash.update(key.adapters);
    for &token in &key.tokens {
        if is_image_token(token) {
            let (image, place) = images.content_of(token)?;
            hash.update([1]);
            hash.update(image);
            hash.update(place.to_le_bytes());
        } else {
            hash.update([0]);
            hash.update(token.to_le_bytes());
        }
    }
    Some(hash.finalize().into())
}
