//! The amount of work that a soak did, and the faults that it made on purpose.

/// The work done so far.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Tally {
    /// Rounds that ended without a failed check, including simulated ones.
    pub rounds: u64,
    /// Blocks allocated and freed.
    pub operations: u64,
    /// Walks over a whole pool that found no error.
    pub verified: u64,
    /// Maximum number of one pool's frames that were held at a pause.
    pub held_max: u64,
    /// Number of times that a thread on another CPU drained pagesets, folded their counters or allocated frames.
    pub visits: u64,
    /// Faults that the pools handled correctly.
    pub faults: Faults,
    /// Rounds in which the pool's memory was mapped a second time.
    pub shared_rounds: u64,
    /// Operations on simulated machines.
    pub simulated: u64,
}

/// Faults that the soak made and the pools handled correctly.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Faults {
    /// Invalid frees that the pool refused, as it must.
    pub invalid_frees: u64,
    /// Blocks freed by two threads at once.
    pub raced_frees: u64,
    /// Requests that failed for lack of memory.
    pub failed_requests: u64,
    /// Panics of reclaimers.
    pub panics: u64,
    /// Calls of reclaimers that reported a wrong count, blocked or used the pool.
    pub odd_reclaims: u64,
    /// CPUs that went offline or online under load.
    pub cpus: u64,
    /// Ranges of memory that went offline or online under load.
    pub ranges: u64,
    /// Settings changed under load.
    pub settings: u64,
    /// Times that a pool shrank or grew by parts under load.
    pub resizes: u64,
    /// Times that the memory of a pool's free frames was returned under load, or that a pool with poison refused to.
    pub trims: u64,
}

impl Faults {
    /// Returns the sum of all faults.
    #[must_use]
    pub fn sum(&self) -> u64 {
        self.invalid_frees
            + self.raced_frees
            + self.failed_requests
            + self.panics
            + self.odd_reclaims
            + self.cpus
            + self.ranges
            + self.settings
            + self.resizes
            + self.trims
    }

    pub(super) fn add(&mut self, other: &Self) {
        self.invalid_frees += other.invalid_frees;
        self.raced_frees += other.raced_frees;
        self.failed_requests += other.failed_requests;
        self.panics += other.panics;
        self.odd_reclaims += other.odd_reclaims;
        self.cpus += other.cpus;
        self.ranges += other.ranges;
        self.settings += other.settings;
        self.resizes += other.resizes;
        self.trims += other.trims;
    }
}
