//! Accesses to the contents of frames: streaming to and from memory.
//!
//! A CPU streams at its own speed, which falls with the distance to the memory. All CPUs that stream to one node
//! share the bandwidth of its memory. Related files: `sim/bandwidth.rs` divides the bandwidth, `sim/hardware.rs`
//! defines the speeds.

use super::time::Time;
use super::world::World;

impl World {
    /// Streams `bytes` between the running CPU and the memory of the node with index `node`.
    pub fn stream(&self, node: usize, bytes: u64) {
        let start = self.now();
        let alone = self.stream_time(node, bytes);
        let end = self.bandwidth[node].borrow_mut().stream(start, alone, bytes, self.settled());
        self.set_now(end);
    }

    /// Returns the time that streaming takes without contention.
    #[must_use]
    pub fn stream_time(&self, node: usize, bytes: u64) -> Time {
        Time::from_seconds(bytes as f64 * self.stretch_to(node) / (self.hardware.cpu_gb_s * 1e9))
    }

    /// Returns the ratio of the latency to the node with index `node` and the local latency.
    #[must_use]
    fn stretch_to(&self, node: usize) -> f64 {
        self.hardware.stretch(self.geometry.distance(self.node(), node))
    }

    /// Returns the bytes that the memory of node index `node` transferred.
    #[must_use]
    pub fn carried(&self, node: usize) -> u64 {
        self.bandwidth[node].borrow().carried()
    }
}
