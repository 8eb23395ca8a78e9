//! File format of a shard: a magic line, CBOR (RFC 8949), and the SHA-256 of both.

use std::io::Write;
use std::path::Path;

use sha2::{Digest, Sha256};

use super::key::hex;
use super::{Error, Shard};

/// First line of every shard.
pub const MAGIC: &str = "octavo piece 1\n";
/// The magic without its version.
const ANY: &str = "octavo piece ";
/// Bytes of the digest at the end.
const DIGEST: usize = 32;

impl Shard {
    /// Encodes the shard as a file. `name` is its name in messages.
    ///
    /// # Errors
    /// [`Error::Encoding`].
    pub fn to_bytes(&self, name: &str) -> Result<Vec<u8>, Error> {
        let failed = |what: String| Error::Encoding {
            file: name.to_owned(),
            what,
        };
        let mut bytes = MAGIC.as_bytes().to_vec();
        ciborium::into_writer(self, &mut bytes).map_err(|error| failed(error.to_string()))?;
        let digest = Sha256::digest(&bytes);
        bytes
            .write_all(&digest)
            .map_err(|error| failed(error.to_string()))?;
        Ok(bytes)
    }

    /// Reads a shard and verifies its digest.
    ///
    /// # Errors
    /// [`enum@Error`].
    pub fn open(path: &Path) -> Result<Shard, Error> {
        let file = path.display().to_string();
        let bytes = std::fs::read(path).map_err(|source| Error::Io {
            file: file.clone(),
            source,
        })?;
        Shard::from_bytes(&bytes, &file)
    }

    /// As [`Shard::open`], from the file's bytes.
    ///
    /// # Errors
    /// As [`Shard::open`].
    pub fn from_bytes(bytes: &[u8], name: &str) -> Result<Shard, Error> {
        let file = || name.to_owned();
        if !bytes.starts_with(MAGIC.as_bytes()) {
            return Err(Error::NotAShard {
                file: file(),
                expected: MAGIC,
                got: match bytes {
                    [] => "an empty file",
                    bytes if bytes.starts_with(ANY.as_bytes()) => "a shard of another version",
                    _ => "something else",
                },
            });
        }
        let body = bytes.len().saturating_sub(DIGEST).max(MAGIC.len());
        let (content, expected) = bytes.split_at(body);
        let got = Sha256::digest(content);
        if *expected != *got {
            return Err(Error::Damaged {
                file: file(),
                expected: hex(expected),
                got: hex(&got),
            });
        }
        let mut rest = &content[MAGIC.len()..];
        let shard: Shard = ciborium::from_reader(&mut rest).map_err(|error| Error::Fields {
            file: file(),
            what: error.to_string(),
        })?;
        if !rest.is_empty() || !shard.is_sound() {
            return Err(Error::Unsound { file: file() });
        }
        Ok(shard)
    }
}
