//! How much more than a node's bandwidth the CPUs that stream to its memory demand.
//!
//! A CPU that streams for some time demands the bytes that it could have transferred alone in this time. Demand is
//! summed up over *epochs* of equal length. While an epoch's demand exceeds the bandwidth, all transfers in a later
//! epoch take longer by the ratio of both, so CPUs share the bandwidth in proportion to their own speeds. Only epochs to
//! which no thread can return are used, because threads run ahead of each other (`sim/world.rs`).

use std::collections::VecDeque;

use super::time::Time;

/// Length of an epoch. It is about as long as a thread may run ahead of others.
const EPOCH: Time = Time::from_ps(100_000_000);

/// The demand for a node's bandwidth.
///
/// Invariant: `open[i]` is the demand in epoch `first + i`, and `last` that in the epoch before `first`.
#[derive(Debug)]
pub(super) struct Demand {
    /// Bytes that the node's memory transfers in an epoch.
    capacity: f64,
    first: u64,
    open: VecDeque<f64>,
    last: f64,
}

impl Demand {
    /// Creates the demand for memory that transfers `bytes_per_second`.
    pub(super) fn new(bytes_per_second: f64) -> Self {
        Self { capacity: bytes_per_second * EPOCH.seconds(), first: 0, open: VecDeque::new(), last: 0.0 }
    }

    /// Returns the factor by which a transfer at `start` takes longer, if no thread can return to a time before
    /// `settled`.
    pub(super) fn excess(&mut self, start: Time, settled: Time) -> f64 {
        let now = settled.min(start).ps() / EPOCH.ps();
        while self.first < now {
            match self.open.pop_front() {
                Some(demand) => self.last = demand,
                None => {
                    (self.last, self.first) = (0.0, now);
                    break;
                }
            }
            self.first += 1;
        }
        (self.last / self.capacity).max(1.0)
    }

    /// Adds the demand of a CPU that streamed `bytes` from `start` to `end`, and needs the time `alone` for this if no
    /// other CPU streams.
    pub(super) fn note(&mut self, start: Time, alone: Time, bytes: u64, end: Time) {
        let rate = bytes as f64 / alone.ps().max(1) as f64;
        let (mut from, mut epoch) = (start.ps(), start.ps() / EPOCH.ps());
        while from < end.ps() && epoch - self.first.min(epoch) < EPOCHS_MAX {
            let until = end.ps().min((epoch + 1).saturating_mul(EPOCH.ps()));
            if let Some(at) = epoch.checked_sub(self.first) {
                let at = at as usize;
                if self.open.len() <= at {
                    self.open.resize(at + 1, 0.0);
                }
                self.open[at] += rate * (until - from) as f64;
            }
            (from, epoch) = (until, epoch + 1);
        }
    }
}

/// Epochs in the future for which demand is stored: more than any page takes.
const EPOCHS_MAX: u64 = 1 << 12;
