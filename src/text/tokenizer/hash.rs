//! Hashing of small numbers from a file: fast, and keyed, so that no file can choose collisions.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::OnceLock;

/// Multiplies by keys drawn at program start.
pub(super) struct KeyedHasher {
    keys: [u64; 2],
    state: u64,
}

impl Default for KeyedHasher {
    fn default() -> KeyedHasher {
        static KEYS: OnceLock<[u64; 2]> = OnceLock::new();
        let keys = *KEYS.get_or_init(|| {
            let random = RandomState::new();
            [random.hash_one(1) | 1, random.hash_one(2) | 1]
        });
        KeyedHasher { keys, state: 0 }
    }
}

impl Hasher for KeyedHasher {
    fn finish(&self) -> u64 {
        self.state
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes
            .iter()
            .for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    fn write_u32(&mut self, value: u32) {
        self.write_u64(u64::from(value));
    }

    fn write_u64(&mut self, value: u64) {
        let mixed = (self.state ^ value).wrapping_mul(self.keys[0]);
        self.state = (mixed ^ mixed >> 32)
            .wrapping_mul(self.keys[1])
            .rotate_left(26);
    }
}
