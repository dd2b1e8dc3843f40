//! A disk of a simulated machine: one queue, a fixed time for each request, then its bytes in sequence.
//!
//! Requests are served in the order in which they are made, whether they read or write. Whoever makes
//! one may wait until it is done, or do something else meanwhile. Neighbours: `page_cache/` reads and
//! writes files.

use std::cell::Cell;

use super::time::Time;
use super::world::World;

/// What a request does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Transfer {
    /// From the disk.
    Read,
    /// To the disk.
    Write,
}

/// A disk.
///
/// Invariant: it is busy without a pause from any request made before `idle_at` until then.
#[derive(Debug)]
pub struct Disk {
    bytes_per_second: f64,
    per_request: Time,
    idle_at: Cell<Time>,
    read: Cell<u64>,
    written: Cell<u64>,
}

impl Disk {
    /// A disk that carries so many MB/s (10^6 bytes) after `per_request` of positioning.
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

    /// Queues a request; gives when it will be done.
    pub fn submit(&self, world: &World, transfer: Transfer, bytes: u64) -> Time {
        world.sync(); // requests queue up in the order of time
        let takes = self.per_request + Time::from_seconds(bytes as f64 / self.bytes_per_second);
        let done = self.idle_at.get().max(world.now()) + takes;
        self.idle_at.set(done);
        let sum = if transfer == Transfer::Read { &self.read } else { &self.written };
        sum.set(sum.get() + bytes);
        done
    }

    /// Has the running thread wait until a request of its own is done.
    pub fn transfer(&self, world: &World, transfer: Transfer, bytes: u64) {
        let done = self.submit(world, transfer, bytes);
        world.sleep_until(done);
    }

    /// Bytes read so far.
    #[must_use]
    pub fn read(&self) -> u64 {
        self.read.get()
    }

    /// Bytes written so far.
    #[must_use]
    pub fn written(&self) -> u64 {
        self.written.get()
    }
}
