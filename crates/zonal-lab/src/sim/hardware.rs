//! Costs of a simulated machine, in physical units.
//!
//! Every field can be set in an experiment file, and a calibration can choose it. Latencies are given for distance 10
//! and grow with the distance between nodes (ACPI SLIT: 10 = local). Machines of one *generation* share their costs, so
//! that experiments agree about them. `docs/lab.md` explains the models behind the fields. Related files:
//! `sim/charge.rs` and `sim/locks.rs` charge these costs; `sim/touch.rs` charges the costs of memory bandwidth.

use serde::{Deserialize, Serialize};

use crate::bounds::{self, Bounds, COUNT, FACTOR, GB_S, MB_S, PAUSE_MS, WORK_NS};

/// Order in which CPUs that wait for the same line are served.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Arbitration {
    /// First come, first served.
    InOrder,
    /// A refused request is sent again, so CPUs nearer to the line's home node, whose memory contains the line, win
    /// more often. The choice is random: the probability of a CPU falls with its request latency to the power
    /// [`Hardware::retry_power`]. CPUs of the home node are served once in every [`Hardware::ports`] services.
    Retry,
}

/// How CPUs wait for a held lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum LockKind {
    /// Waiters queue up, each on its own line. A hand-over is one transfer, however many CPUs wait.
    Queued,
    /// All waiters spin on the lock's line and contend for it at each hand-over.
    Spinning,
}

/// How long the lock of a zone's free frames is held.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum LockHold {
    /// For the frames of a few words, as shipped.
    Batch,
    /// For all frames that an allocation or free moves, as in Linux.
    Operation,
}

/// How many frames pagesets drain under the tuning `depth-published`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum Drains {
    /// A batch.
    Batches,
    /// Twice as many as in the drain before, if the CPU allocated nothing in between. Linux: 5.14 to 6.6.
    Doubling,
}

/// Costs of one machine kind. Times are in nanoseconds and bandwidths in GB/s (10^9 bytes per second); the disk's
/// fields name their units.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(from = "Written")]
#[cfg_attr(test, schemars(!from, deny_unknown_fields, default))]
pub struct Hardware {
    /// Access to a line in the CPU's cache, including the instructions around it.
    pub hit_ns: f64,
    /// Fetch of a line from memory on the CPU's own node.
    pub memory_ns: f64,
    /// Fetches and transfers that a CPU overlaps while no other CPU accesses the same lines. Each fetch's latency is
    /// divided by this number. 1 = the CPU waits for each fetch.
    pub overlap: f64,
    /// Fetch of a line that another CPU on the same node has written, or invalidation of copies in other CPUs' caches.
    pub transfer_ns: f64,
    /// Latencies at a distance d > 10 are `1 + remote_step + distance_weight * (d - 10) / 10` times those at distance 10.
    pub remote_step: f64,
    /// Latency growth per 10 units of distance; see [`Self::remote_step`].
    pub distance_weight: f64,
    /// Transactions for an atomic read-modify-write of a line that the CPU does not own: 1 if it requests exclusive
    /// ownership immediately, 2 if it is a load and a compare-and-exchange.
    pub atomic_transactions: f64,
    /// Waiting requests at which the line's node only refuses requests. While other CPUs wait, a transfer takes
    /// `1 / (1 - waiting / refusal_limit)` times as long. 0 = waiters cost nothing.
    pub refusal_limit: f64,
    /// Order in which waiting CPUs are served.
    pub arbitration: Arbitration,
    /// Exponent with which a retried request's probability falls with its latency. 1 = distant CPUs send requests less
    /// often; 2 = their requests also arrive too late more often.
    pub retry_power: f64,
    /// Router ports that are served in turn; the node's own CPUs share one.
    pub ports: u32,
    /// How CPUs wait for locks.
    pub lock: LockKind,
    /// Time that a zone's lock is held per frame moved under it, for an allocator that links free frames' page
    /// structures in lists. It replaces the allocator's own accesses under the lock. 0 = no lists.
    pub list_work_ns: f64,
    /// Added to `list_work_ns` at each acquisition of the lock: the first accesses to the lists.
    pub lock_work_ns: f64,
    /// Whether the lock is held for a `batch`, or for a whole `operation` as in Linux.
    pub lock_hold: LockHold,
    /// How many frames pagesets drain under `depth-published`: `batches`, or `doubling` as in Linux 5.14 to 6.6.
    pub drains: Drains,
    /// Streaming bandwidth of one CPU to or from its own node's memory.
    pub cpu_gb_s: f64,
    /// Memory bandwidth of one node, shared by all CPUs; 0 = unlimited.
    pub node_gb_s: f64,
    /// Sequential bandwidth of the disk, in MB/s (10^6 bytes per second).
    pub disk_mb_s: f64,
    /// Positioning time of each disk request, in milliseconds.
    pub disk_request_ms: f64,
    /// Interrupt to another CPU and its acknowledgement.
    pub interrupt_ns: f64,
    /// Lines in a CPU's private cache: a power of two.
    pub cache_lines: usize,
    /// Places in the cache for each line: a power of two. 1 = direct-mapped.
    pub cache_ways: usize,
}

impl Default for Hardware {
    fn default() -> Self {
        Generation::default().costs()
    }
}

/// A generation of machines.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Generation {
    /// Two-socket servers of the early 2020s: Xeon of the generations Ice Lake and Sapphire Rapids.
    #[default]
    #[serde(rename = "server-2023")]
    Server2023,
    /// SGI Altix 3700 with Itanium 2 processors, of 2003 to 2006.
    #[serde(rename = "altix-3700")]
    Altix3700,
}

impl Generation {
    /// Returns this generation's costs.
    #[must_use]
    pub const fn costs(self) -> Hardware {
        let server = Hardware {
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
            lock_work_ns: 0.0,
            lock_hold: LockHold::Batch,
            drains: Drains::Batches,
            cpu_gb_s: 12.0,
            node_gb_s: 150.0,
            disk_mb_s: 200.0,
            disk_request_ms: 4.0,
            interrupt_ns: 2000.0,
            cache_lines: 1 << 12,
            cache_ways: 8,
        };
        match self {
            Self::Server2023 => server,
            Self::Altix3700 => Hardware {
                hit_ns: 2.0,
                memory_ns: 145.0,
                overlap: 1.0,
                transfer_ns: 135.0,
                distance_weight: 1.0,
                atomic_transactions: 3.0,
                refusal_limit: 1330.0,
                arbitration: Arbitration::Retry,
                retry_power: 2.0,
                ports: 14,
                lock: LockKind::Spinning,
                cpu_gb_s: 2.5,
                node_gb_s: 8.0,
                ..server
            },
        }
    }
}

macro_rules! written {
    ($($field:ident: $kind:ty),* $(,)?) => {
        /// Costs as written in a file: a generation, and the costs that differ from it.
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        pub(super) struct Written {
            $($field: Option<$kind>,)*
            generation: Option<Generation>,
        }

        impl From<Written> for Hardware {
            fn from(written: Written) -> Self {
                let costs = written.generation.unwrap_or_default().costs();
                Self { $($field: written.$field.unwrap_or(costs.$field),)* }
            }
        }
    };
}

written! {
    hit_ns: f64,
    memory_ns: f64,
    overlap: f64,
    transfer_ns: f64,
    remote_step: f64,
    distance_weight: f64,
    atomic_transactions: f64,
    refusal_limit: f64,
    arbitration: Arbitration,
    retry_power: f64,
    ports: u32,
    lock: LockKind,
    list_work_ns: f64,
    lock_work_ns: f64,
    lock_hold: LockHold,
    drains: Drains,
    cpu_gb_s: f64,
    node_gb_s: f64,
    disk_mb_s: f64,
    disk_request_ms: f64,
    interrupt_ns: f64,
    cache_lines: usize,
    cache_ways: usize,
}

/// Largest factor by which waiters can slow down transfers of a line.
const SLOWEST: f64 = 50.0;

impl Hardware {
    /// Returns the factor by which latencies grow over `distance`.
    #[must_use]
    pub fn stretch(&self, distance: u8) -> f64 {
        let step = if distance > 10 { self.remote_step } else { 0.0 };
        (1.0 + step + self.distance_weight * (f64::from(distance) - 10.0) / 10.0).max(0.1)
    }

    /// Returns the factor by which a transfer takes longer while `waiting` CPUs wait for the line.
    #[must_use]
    pub fn slowdown(&self, waiting: usize) -> f64 {
        if self.refusal_limit == 0.0 {
            return 1.0;
        }
        let busy = waiting as f64 / self.refusal_limit;
        if busy < 1.0 { (1.0 / (1.0 - busy)).min(SLOWEST) } else { SLOWEST }
    }

    /// Checks that all values are within their bounds. An error has the form `field: value, allowed values`.
    ///
    /// # Errors
    /// Returns the first field that is outside its bounds.
    pub fn check(&self) -> Result<(), String> {
        let figures: [(&str, f64, Bounds); 16] = [
            ("hit_ns", self.hit_ns, WORK_NS),
            ("memory_ns", self.memory_ns, WORK_NS),
            ("transfer_ns", self.transfer_ns, WORK_NS),
            ("remote_step", self.remote_step, FACTOR),
            ("distance_weight", self.distance_weight, FACTOR),
            ("refusal_limit", self.refusal_limit, 0.0..=1e9),
            ("retry_power", self.retry_power, FACTOR),
            ("list_work_ns", self.list_work_ns, WORK_NS),
            ("lock_work_ns", self.lock_work_ns, WORK_NS),
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
        for (field, value, bounds) in
            [("cache_lines", self.cache_lines, 2..=1 << 20), ("cache_ways", self.cache_ways, 1..=64)]
        {
            if !value.is_power_of_two() || !bounds.contains(&value) {
                let (least, most) = (bounds.start(), bounds.end());
                return Err(format!("{field} = {value}: must be a power of two from {least} to {most}"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_changes_single_costs_of_a_generation() {
        let read = |text: &str| toml::from_str::<Hardware>(text);
        assert_eq!(read("").unwrap(), Generation::Server2023.costs());
        let changed = read("memory_ns = 150.0\ngeneration = \"altix-3700\"").unwrap();
        assert_eq!(changed, Hardware { memory_ns: 150.0, ..Generation::Altix3700.costs() });
        let unknown = read("generation = \"altix\"").unwrap_err().to_string();
        assert!(unknown.contains("expected `server-2023` or `altix-3700`"), "{unknown}");
        assert!(read("mem_ns = 1.0").unwrap_err().to_string().contains("unknown field `mem_ns`"));
    }
}
