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
        let alone = self.stream_time_again(node, bytes);
        let end = self.bandwidth[node].borrow_mut().stream(start, alone, bytes, self.settled());
        self.set_now(end);
    }

    /// Returns the time that streaming takes without contention.
    #[must_use]
    pub fn stream_time(&self, node: usize, bytes: u64) -> Time {
        self.stream_time_over(self.geometry.distance(self.node(), node), bytes)
    }

    fn stream_time_over(&self, distance: u8, bytes: u64) -> Time {
        Time::from_seconds(bytes as f64 * self.hardware.stretch(distance) / (self.hardware.cpu_gb_s * 1e9))
    }

    /// Returns the same as [`Self::stream_time`], computed only if the distance or the size differs from the last one.
    fn stream_time_again(&self, node: usize, bytes: u64) -> Time {
        let distance = self.geometry.distance(self.node(), node);
        let (last_distance, last_bytes, time) = self.last_stream.get();
        if (last_distance, last_bytes) == (distance, bytes) {
            return time;
        }
        let time = self.stream_time_over(distance, bytes);
        self.last_stream.set((distance, bytes, time));
        time
    }

    /// Returns the bytes that the memory of node index `node` transferred.
    #[must_use]
    pub fn carried(&self, node: usize) -> u64 {
        self.bandwidth[node].borrow().carried()
    }
}
