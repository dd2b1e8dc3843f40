//! The memory bandwidth of one node, shared by all CPUs that stream to or from it.
//!
//! Time is divided into slices, and each slice has capacity for a fixed number of bytes. A transfer uses the
//! remaining capacity of the slices from its start onwards. The order of requests within a slice does not change the
//! capacity that they use, so requests do not have to arrive in the order of virtual time.
//!
//! Slices alone serve the first request: CPUs that run first stream at full speed, and the others wait until
//! these have ended. Memory controllers are fair, so while CPUs demand more than the memory transfers, all of them are
//! slowed down by the same factor (`sim/demand.rs`). Related files: `sim/touch.rs` issues the transfers.

use std::collections::VecDeque;

use super::demand::Demand;
use super::time::Time;

/// Capacity of a slice, in bytes. A slice holds several pages, so that no page spans many slices. The size is a power
/// of two because the code divides by it.
const SLICE_BYTES: u64 = 256 << 10;

/// The reserved bandwidth of a node's memory.
///
/// Only slices with reservations are stored, and only while a request can still reach them. The storage therefore
/// grows with the number of concurrent transfers and not with time.
///
/// Invariant: the slices in `used` ascend, none is earlier than `first`, and each carries at most `SLICE_BYTES`. Slices
/// before `first` are in the past.
#[derive(Debug)]
pub(crate) struct Bandwidth {
    slice: Time,
    first: u64,
    /// Slices and the bytes that they carry.
    used: VecDeque<(u64, u64)>,
    demand: Demand,
    carried: u64,
}

impl Bandwidth {
    /// Creates the reservations of a node whose memory transfers `bytes_per_second`; `None` means unlimited
    /// bandwidth.
    pub(crate) fn new(bytes_per_second: Option<f64>) -> Self {
        let slice = bytes_per_second.map_or(Time::ZERO, |rate| Time::from_seconds(SLICE_BYTES as f64 / rate));
        let demand = Demand::new(bytes_per_second.unwrap_or(f64::INFINITY));
        Self { slice, first: 0, used: VecDeque::new(), demand, carried: 0 }
    }

    /// Transfers `bytes` from `start` onwards for a CPU that needs the time `alone` if no other CPU streams. Returns the
    /// time at which the last byte arrives. No later transfer starts before `settled`.
    pub(crate) fn stream(&mut self, start: Time, alone: Time, bytes: u64, settled: Time) -> Time {
        self.forget_before(settled);
        let carried = self.carry(start, bytes);
        if self.slice == Time::ZERO {
            return start + alone;
        }
        let end = carried.max(start + alone.scaled(self.demand.excess(start, settled)));
        self.demand.note(start, alone, bytes, end);
        end
    }

    /// Transfers `bytes` from `start` onwards and returns the time at which the last byte arrives.
    fn carry(&mut self, start: Time, bytes: u64) -> Time {
        self.carried += bytes;
        if self.slice == Time::ZERO {
            return start;
        }
        let length = self.slice.ps();
        let own = start.ps() / length;
        let mut slice = own.max(self.first);
        let mut left = bytes;
        loop {
            let used = self.used_in(slice);
            let took = left.min(SLICE_BYTES - *used);
            *used += took;
            left -= took;
            if left == 0 {
                let used = *used;
                // A half-full slice completes at its midpoint. A transfer never completes earlier than it would
                // without contention.
                let time_of = |bytes: u64| {
                    let ps = u128::from(bytes) * u128::from(length) / u128::from(SLICE_BYTES);
                    Time::from_ps(u64::try_from(ps).unwrap_or(u64::MAX))
                };
                let at_best = start + time_of(bytes);
                let full = used == SLICE_BYTES || slice > own;
                let crowded = self.slice.times(slice) + time_of(used);
                return if full { crowded.max(at_best) } else { at_best };
            }
            slice += 1;
        }
    }

    /// Returns the bytes that a slice carries.
    fn used_in(&mut self, slice: u64) -> &mut u64 {
        // Slices in use are mostly adjacent, so the distance from the earliest one is usually the index.
        let earliest = self.used.front().map_or(slice, |&(earliest, _)| earliest);
        let mut at = slice.wrapping_sub(earliest) as usize;
        if self.used.get(at).is_none_or(|&(there, _)| there != slice) {
            at = self.used.partition_point(|&(there, _)| there < slice);
            if self.used.get(at).is_none_or(|&(there, _)| there != slice) {
                self.used.insert(at, (slice, 0));
            }
        }
        &mut self.used[at].1
    }

    /// Removes slices that end before `now`, because no later request can reach them.
    fn forget_before(&mut self, now: Time) {
        // The multiplication shows without a division that most times are within the first slice.
        if self.slice != Time::ZERO && now >= self.slice.times(self.first + 1) {
            self.first = now.ps() / self.slice.ps();
            while self.used.front().is_some_and(|&(earliest, _)| earliest < self.first) {
                self.used.pop_front();
            }
        }
    }

    /// Returns the number of bytes transferred so far.
    pub(crate) const fn carried(&self) -> u64 {
        self.carried
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Computes the same time as [`Bandwidth::carry`], with every slice stored.
    fn carry_in_dense_slices(used: &mut Vec<u64>, length: u64, start: u64, bytes: u64) -> u64 {
        let (mut slice, mut left) = ((start / length) as usize, bytes);
        loop {
            used.resize(used.len().max(slice + 1), 0);
            let took = left.min(SLICE_BYTES - used[slice]);
            used[slice] += took;
            left -= took;
            if left == 0 {
                let at_best = start + bytes * length / SLICE_BYTES;
                let full = used[slice] == SLICE_BYTES || slice as u64 > start / length;
                let crowded = slice as u64 * length + used[slice] * length / SLICE_BYTES;
                return if full { crowded.max(at_best) } else { at_best };
            }
            slice += 1;
        }
    }

    #[test]
    fn slices_that_carry_nothing_make_no_difference() {
        let mut random = fastrand::Rng::with_seed(7);
        for gb_s in [0.5, 8.0, 150.0] {
            let mut memory = Bandwidth::new(Some(gb_s * 1e9));
            let (length, mut dense, mut now) = (memory.slice.ps(), Vec::new(), 0);
            for _ in 0..5000 {
                now += random.u64(..length / 40);
                let (start, bytes) = (now + random.u64(..20 * length), random.u64(..40_000));
                memory.forget_before(Time::from_ps(now));
                let carried = memory.carry(Time::from_ps(start), bytes);
                assert_eq!(carried.ps(), carry_in_dense_slices(&mut dense, length, start, bytes));
            }
        }
    }

    #[test]
    fn what_is_kept_does_not_grow_with_time() {
        let mut memory = Bandwidth::new(Some(150e9));
        for hour in 0..24 * 90 {
            let start = Time::from_seconds(f64::from(hour) * 3600.0);
            memory.carry(start, 4096);
            assert_eq!(memory.used.len(), 1 + usize::from(hour != 0), "hour {hour}");
            memory.forget_before(start);
        }
    }

    #[test]
    fn the_end_of_time_is_carried_too() {
        let mut memory = Bandwidth::new(Some(1e6));
        memory.carry(Time::NEVER, 1 << 30);
        assert_eq!(memory.carry(Time::NEVER, 1 << 30), Time::NEVER);
    }
}
