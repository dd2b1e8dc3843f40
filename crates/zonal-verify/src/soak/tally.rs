//! What a soak did, and which faults it planted and survived.

/// What was done so far.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Tally {
    /// Rounds that ended without a finding, the lab's included.
    pub rounds: u64,
    /// Blocks taken and given back.
    pub operations: u64,
    /// Walks over a whole pool that found nothing.
    pub verified: u64,
    /// Frames held at most at a pause, of one pool.
    pub held_max: u64,
    /// Times that a thread on another CPU drained pagesets, folded their counters or took frames.
    pub visits: u64,
    /// What was survived.
    pub faults: Faults,
    /// Operations of the lab's threads.
    pub simulated: u64,
}

/// Faults that were planted and survived.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Faults {
    /// Frees that had to be refused, and were.
    pub wrong_frees: u64,
    /// Blocks freed by two threads at once.
    pub raced_frees: u64,
    /// Requests that found no memory.
    pub failed_requests: u64,
    /// Reclaimers that panicked.
    pub panics: u64,
    /// Reclaimers that lied, blocked or used the pool meanwhile.
    pub odd_reclaims: u64,
    /// CPUs that left or came back under load.
    pub cpus: u64,
    /// Ranges of memory that left or came back under load.
    pub ranges: u64,
    /// Settings changed under load.
    pub settings: u64,
}

impl Faults {
    /// Returns the sum of all.
    #[must_use]
    pub fn sum(&self) -> u64 {
        self.wrong_frees
            + self.raced_frees
            + self.failed_requests
            + self.panics
            + self.odd_reclaims
            + self.cpus
            + self.ranges
            + self.settings
    }

    pub(super) fn add(&mut self, other: &Self) {
        self.wrong_frees += other.wrong_frees;
        self.raced_frees += other.raced_frees;
        self.failed_requests += other.failed_requests;
        self.panics += other.panics;
        self.odd_reclaims += other.odd_reclaims;
        self.cpus += other.cpus;
        self.ranges += other.ranges;
        self.settings += other.settings;
    }
}
