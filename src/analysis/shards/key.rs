//! Keys: everything that the numbers of a shard depend on.

use std::collections::BTreeMap;
use std::fmt::{Display, Write as _};
use std::fs::File;
use std::io::Read;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::Error;

/// Bytes per read.
const BLOCK: usize = 1 << 20;

/// Settings and file digests, by their name in messages.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Key(BTreeMap<String, String>);

impl Key {
    /// Creates a key for this kind of measurement and this version of the program.
    pub fn new(measurement: &str) -> Key {
        let mut key = Key(BTreeMap::new());
        key.set("measurement", measurement)
            .set("version", env!("CARGO_PKG_VERSION"));
        key
    }

    /// Adds a setting.
    pub fn set(&mut self, name: &str, value: impl Display) -> &mut Key {
        self.0.insert(name.to_owned(), value.to_string());
        self
    }

    /// Adds the SHA-256 of some bytes.
    pub fn bytes(&mut self, name: &str, bytes: &[u8]) -> &mut Key {
        self.set(name, hex(&Sha256::digest(bytes)))
    }

    /// Adds the SHA-256 of a file; for several, that of a list with each one's name and SHA-256.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn files(&mut self, name: &str, paths: &[PathBuf]) -> Result<&mut Key, Error> {
        if let [one] = paths {
            let digest = digest(one)?;
            return Ok(self.set(name, digest));
        }
        let mut list = String::new();
        for path in paths {
            let file = path.file_name().unwrap_or_default().to_string_lossy();
            // writing to a String never fails
            let _ = writeln!(list, "{}  {file}", digest(path)?);
        }
        Ok(self.bytes(name, list.as_bytes()))
    }

    /// Returns the first entry that differs from another key: its name and both values.
    pub fn difference(&self, other: &Key) -> Option<(String, String, String)> {
        let value = |key: &Key, name: &String| key.0.get(name).cloned();
        // another measurement or version explains all other differences
        let first = ["measurement", "version"].map(str::to_owned);
        first
            .iter()
            .chain(self.0.keys())
            .chain(other.0.keys())
            .find(|name| value(self, name) != value(other, name))
            .map(|name| {
                let shown = |key| value(key, name).unwrap_or_else(|| "none".to_owned());
                (name.clone(), shown(self), shown(other))
            })
    }
}

fn digest(path: &PathBuf) -> Result<String, Error> {
    let failed = |source| Error::Io {
        file: path.display().to_string(),
        source,
    };
    let mut file = File::open(path).map_err(failed)?;
    let (mut sum, mut block) = (Sha256::new(), vec![0; BLOCK]);
    loop {
        match file.read(&mut block).map_err(failed)? {
            0 => return Ok(hex(&sum.finalize())),
            n => sum.update(&block[..n]),
        }
    }
}

/// Returns the SHA-256 of some bytes.
pub fn sha256(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}

/// Returns bytes as hexadecimal digits.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
