//! The bandwidth of one node's memory, shared by all that want it.
//!
//! Time is cut into slices, each of which carries so many bytes; a transfer takes what is left of the
//! slices from its start on. The order of requests within a slice does not matter, so those who ask
//! need not ask in the order of time. Neighbours: `touch.rs` asks.

use std::collections::VecDeque;

use super::time::Time;

/// Bytes that one slice carries: several pages, so that no page spans many slices. A power of two, for it
/// divides.
const SLICE_BYTES: u64 = 256 << 10;

/// What a node's memory has promised to carry.
///
/// Invariant: `used[i] <= SLICE_BYTES` for the slice `first + i`; earlier slices are over.
#[derive(Debug)]
pub(crate) struct Bandwidth {
    slice: Time,
    first: u64,
    used: VecDeque<u64>,
    carried: u64,
}

impl Bandwidth {
    /// A node's memory that carries so many bytes a second; `None` carries any amount at once.
    pub(crate) fn new(bytes_per_second: Option<f64>) -> Self {
        let slice = bytes_per_second.map_or(Time::ZERO, |rate| Time::from_seconds(SLICE_BYTES as f64 / rate));
        Self { slice, first: 0, used: VecDeque::new(), carried: 0 }
    }

    /// Carries `bytes` from `start` on; gives when the last of them is there.
    pub(crate) fn carry(&mut self, start: Time, bytes: u64) -> Time {
        self.carried += bytes;
        if self.slice == Time::ZERO {
            return start;
        }
        let length = self.slice.ps();
        let mut slice = (start.ps() / length).max(self.first);
        let mut left = bytes;
        loop {
            let at = (slice - self.first) as usize;
            if at >= self.used.len() {
                self.used.resize(at + 1, 0);
            }
            let took = left.min(SLICE_BYTES - self.used[at]);
            self.used[at] += took;
            left -= took;
            if left == 0 {
                // A slice that is half full is over at its half, but nobody is done before starting.
                let time_of = |bytes: u64| bytes * length / SLICE_BYTES;
                let at_best = start.ps() + time_of(bytes);
                let full = self.used[at] == SLICE_BYTES || slice > start.ps() / length;
                let crowded = slice * length + time_of(self.used[at]);
                return Time::from_ps(if full { crowded.max(at_best) } else { at_best });
            }
            slice += 1;
        }
    }

    /// Forgets slices that end before `now`: nobody asks for them any more.
    pub(crate) fn forget_before(&mut self, now: Time) {
        if self.slice != Time::ZERO {
            let keep = now.ps() / self.slice.ps();
            while self.first < keep && self.used.pop_front().is_some() {
                self.first += 1;
            }
            if self.used.is_empty() {
                self.first = self.first.max(keep);
            }
        }
    }

    /// Bytes carried so far.
    pub(crate) const fn carried(&self) -> u64 {
        self.carried
    }
}
