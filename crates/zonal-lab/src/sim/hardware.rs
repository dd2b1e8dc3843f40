//! What things cost on a simulated machine, in physical units.
//!
//! Everything here can be written in an experiment file and be set by its calibration. Latencies hold
//! at distance 10 and grow with the distance of nodes (ACPI SLIT: 10 = local); `docs/lab.md` says
//! what each figure stands for and how the published machines' were found. Neighbours:
//! `coherence.rs` and `locks.rs` charge them, `touch.rs` those of memory.

use serde::{Deserialize, Serialize};

use crate::bounds::{self, Bounds, COUNT, FACTOR, GB_S, MB_S, PAUSE_MS, WORK_NS};

/// Who is served next when several CPUs want one line.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Arbitration {
    /// In the order of asking.
    InOrder,
    /// A refused request is sent again, so those nearer to the line's home win more often: at random, with
    /// a chance that falls with the time a request takes to the power [`Hardware::retry_power`]. CPUs of
    /// the home node have their turn every [`Hardware::ports`] services.
    Retry,
}

/// How a lock that is held is waited for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LockKind {
    /// Waiters queue up, each on a line of its own; a hand-over is one transfer however many wait.
    Queued,
    /// All waiters spin on the lock's line, and contend for it at each hand-over.
    Spinning,
}

/// Costs of one kind of machine. Times in nanoseconds, bandwidths in GB/s (10^9 bytes a second), but for
/// the disk.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Hardware {
    /// An access to a line that the CPU has, with the instructions around it.
    pub hit_ns: f64,
    /// Fetching a line from the memory of the CPU's own node.
    pub memory_ns: f64,
    /// Fetches and transfers that a CPU has under way at once where nobody else wants the same lines: what
    /// each of them takes is divided by this. 1 = a CPU that waits for each.
    pub overlap: f64,
    /// Fetching a line that another CPU of the same node has written, or taking it away from those who
    /// share it.
    pub transfer_ns: f64,
    /// How much latencies grow by leaving the node at all, and with distance: at a distance d > 10 they are
    /// `1 + remote_step + distance_weight * (d - 10) / 10` times those at 10.
    pub remote_step: f64,
    /// See [`Self::remote_step`].
    pub distance_weight: f64,
    /// Transactions of an atomic read-modify-write of a line that the CPU does not have: 1 where such
    /// an instruction asks for the line at once, 2 where it is a load followed by a compare-and-exchange.
    pub atomic_transactions: f64,
    /// Requests for one line that would keep its home busy with refusing them; a transfer takes
    /// `1 / (1 - waiting / refusal_limit)` times as long while others wait. 0 = waiters cost nothing.
    pub refusal_limit: f64,
    /// Who is served next.
    pub arbitration: Arbitration,
    /// How fast the chance of a request that is sent again falls with the time it takes: 1 = it is sent less
    /// often, 2 = it also comes too late more often.
    pub retry_power: f64,
    /// Ports of a router that take turns, of which a node's own CPUs have one.
    pub ports: u32,
    /// How locks are waited for.
    pub lock: LockKind,
    /// How long a zone's lock is held at least for each frame moved there: what an allocator takes that
    /// keeps free frames in linked lists of page structures.
    pub list_work_ns: f64,
    /// What one CPU can stream to or from the memory of its own node.
    pub cpu_gb_s: f64,
    /// What the memory of one node carries for all; 0 = any amount.
    pub node_gb_s: f64,
    /// What the disk reads or writes in sequence, in MB/s (10^6 bytes).
    pub disk_mb_s: f64,
    /// What each request costs the disk before its first byte, in milliseconds.
    pub disk_request_ms: f64,
    /// An interrupt to another CPU and its answer.
    pub interrupt_ns: f64,
    /// Lines in a CPU's private cache: a power of two.
    pub cache_lines: usize,
}

impl Default for Hardware {
    /// A two-socket server of the 2020s.
    fn default() -> Self {
        Self {
            hit_ns: 0.8,
            memory_ns: 90.0,
            overlap: 4.0,
            transfer_ns: 60.0,
            remote_step: 0.0,
            distance_weight: 0.6,
            atomic_transactions: 1.0,
            refusal_limit: 0.0,
            arbitration: Arbitration::InOrder,
            retry_power: 1.0,
            ports: 1,
            lock: LockKind::Queued,
            list_work_ns: 0.0,
            cpu_gb_s: 12.0,
            node_gb_s: 150.0,
            disk_mb_s: 200.0,
            disk_request_ms: 4.0,
            interrupt_ns: 2000.0,
            cache_lines: 1 << 12,
        }
    }
}

/// Most that waiters can slow a line's home down.
const SLOWEST: f64 = 50.0;

impl Hardware {
    /// How many times as long latencies are over `distance`.
    #[must_use]
    pub fn stretch(&self, distance: u8) -> f64 {
        let step = if distance > 10 { self.remote_step } else { 0.0 };
        (1.0 + step + self.distance_weight * (f64::from(distance) - 10.0) / 10.0).max(0.1)
    }

    /// How many times as long a transfer takes while so many others wait for the line.
    #[must_use]
    pub fn slowdown(&self, waiting: usize) -> f64 {
        if self.refusal_limit == 0.0 {
            return 1.0;
        }
        let busy = waiting as f64 / self.refusal_limit;
        if busy < 1.0 { (1.0 / (1.0 - busy)).min(SLOWEST) } else { SLOWEST }
    }

    /// What is wrong with a value, as `field: what would be right`.
    ///
    /// # Errors
    /// The first field out of its bounds.
    pub fn check(&self) -> Result<(), String> {
        let figures: [(&str, f64, Bounds); 15] = [
            ("hit_ns", self.hit_ns, WORK_NS),
            ("memory_ns", self.memory_ns, WORK_NS),
            ("transfer_ns", self.transfer_ns, WORK_NS),
            ("remote_step", self.remote_step, FACTOR),
            ("distance_weight", self.distance_weight, FACTOR),
            ("refusal_limit", self.refusal_limit, 0.0..=1e9),
            ("retry_power", self.retry_power, FACTOR),
            ("list_work_ns", self.list_work_ns, WORK_NS),
            ("disk_request_ms", self.disk_request_ms, PAUSE_MS),
            ("interrupt_ns", self.interrupt_ns, WORK_NS),
            ("disk_mb_s", self.disk_mb_s, MB_S),
            ("cpu_gb_s", self.cpu_gb_s, GB_S),
            ("overlap", self.overlap, 1.0..=100.0),
            ("atomic_transactions", self.atomic_transactions, 1.0..=8.0),
            ("ports", f64::from(self.ports), COUNT),
        ];
        for (field, value, bounds) in figures {
            bounds::check(value, &bounds).map_err(|problem| format!("{field} = {problem}"))?;
        }
        if self.node_gb_s != 0.0 {
            let refused = |problem| format!("node_gb_s = {problem}, or 0 for any amount");
            bounds::check(self.node_gb_s, &GB_S).map_err(refused)?;
        }
        if !self.cache_lines.is_power_of_two() || !(2..=1 << 20).contains(&self.cache_lines) {
            return Err(format!(
                "cache_lines = {}: must be a power of two from 2 to {}",
                self.cache_lines,
                1 << 20
            ));
        }
        Ok(())
    }
}
