//! Maps from the numbers of cache lines. They are searched at each transfer of a contended line, and therefore hash a
//! number with one multiplication.
//!
//! Related files: `sim/coherence.rs` and `sim/lock_queues.rs` have such maps.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A map from line numbers. Its own order must not affect a simulation; [`by_line`] has the order of the numbers.
pub(super) type LineMap<T> = HashMap<usize, T, BuildHasherDefault<LineHasher>>;

/// Hashes a line number.
#[derive(Default)]
pub(super) struct LineHasher(u64);

impl Hasher for LineHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.write_usize(usize::from(byte)));
    }

    #[inline]
    fn write_usize(&mut self, line: usize) {
        // The map uses the upper and the lower bits of a hash; the product's lower bits depend on few bits of the number.
        let product = (self.0 ^ line as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        self.0 = product ^ product >> 32;
    }
}

/// Returns the entries of a map, in the order of the line numbers.
pub(super) fn by_line<T>(map: &LineMap<T>) -> Vec<(usize, &T)> {
    let mut entries: Vec<(usize, &T)> = map.iter().map(|(&line, entry)| (line, entry)).collect();
    entries.sort_unstable_by_key(|&(line, _)| line);
    entries
}
