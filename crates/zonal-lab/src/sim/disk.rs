//! A simulated disk with one queue. A request takes a fixed time plus its sequential transfer time.
//!
//! Reads and writes are served in the order of submission. The submitting thread may wait for its request, or
//! continue while the disk works. Related files: `page_cache/` reads and writes files.

use std::cell::Cell;

use super::time::Time;
use super::world::World;

/// Direction of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Transfer {
    /// From the disk.
    Read,
    /// To the disk.
    Write,
}

/// A disk.
///
/// Invariant: after a request is submitted, the disk is busy without a pause until `idle_at`.
#[derive(Debug)]
pub struct Disk {
    bytes_per_second: f64,
    per_request: Time,
    idle_at: Cell<Time>,
    read: Cell<u64>,
    written: Cell<u64>,
}

impl Disk {
    /// Creates a disk with a bandwidth of `mb_s` MB/s (10^6 bytes) and a positioning time of `per_request`.
    #[must_use]
    pub fn new(mb_s: f64, per_request: Time) -> Self {
        Self {
            bytes_per_second: mb_s * 1e6,
            per_request,
            idle_at: Cell::default(),
            read: Cell::default(),
            written: Cell::default(),
        }
    }

    /// Queues a request and returns the time at which it will complete.
    pub fn submit(&self, world: &World, transfer: Transfer, bytes: u64) -> Time {
        world.sync(); // requests are queued in the order of virtual time
        let takes = self.per_request + Time::from_seconds(bytes as f64 / self.bytes_per_second);
        let done = self.idle_at.get().max(world.now()) + takes;
        self.idle_at.set(done);
        let sum = if transfer == Transfer::Read { &self.read } else { &self.written };
        sum.set(sum.get() + bytes);
        done
    }

    /// Submits a request and blocks the running thread until it completes.
    pub fn transfer(&self, world: &World, transfer: Transfer, bytes: u64) {
        let done = self.submit(world, transfer, bytes);
        world.sleep_until(done);
    }

    /// Returns the number of bytes read so far.
    #[must_use]
    pub fn read(&self) -> u64 {
        self.read.get()
    }

    /// Returns the number of bytes written so far.
    #[must_use]
    pub fn written(&self) -> u64 {
        self.written.get()
    }
}
