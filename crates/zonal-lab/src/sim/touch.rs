//! What programs do to the frames themselves: streaming to and from memory.
//!
//! A CPU streams at its own speed, less over a distance, and all that stream to one node share what
//! its memory carries. Neighbours: `bandwidth.rs` shares, `hardware.rs` has the speeds.

use super::time::Time;
use super::world::World;

impl World {
    /// Streams `bytes` between the running CPU and the memory of the node at a place.
    pub fn stream(&self, node: usize, bytes: u64) {
        let start = self.now();
        let alone = self.stream_time(node, bytes);
        let mut memory = self.bandwidth[node].borrow_mut();
        memory.forget_before(self.settled());
        let carried = memory.carry(start, bytes);
        drop(memory);
        self.set_now(carried.max(start + alone));
    }

    /// What streaming takes when nobody else does.
    #[must_use]
    pub fn stream_time(&self, node: usize, bytes: u64) -> Time {
        Time::from_seconds(bytes as f64 * self.stretch_to(node) / (self.hardware.cpu_gb_s * 1e9))
    }

    /// How many times as long a latency is to the node at a place as within a node.
    #[must_use]
    fn stretch_to(&self, node: usize) -> f64 {
        self.hardware.stretch(self.geometry.distance(self.node(), node))
    }

    /// Bytes that the memory of the node at a place has carried.
    #[must_use]
    pub fn carried(&self, node: usize) -> u64 {
        self.bandwidth[node].borrow().carried()
    }
}
