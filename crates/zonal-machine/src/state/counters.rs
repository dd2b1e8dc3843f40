//! The totals of a pool or a system: one table with the name, the unit and the meaning of each counter.

use std::collections::BTreeMap;

use serde::de::{Deserialize, Deserializer};
use serde::ser::{Serialize, SerializeMap, Serializer};

macro_rules! counters {
    ($($variant:ident $name:literal $unit:literal $help:literal),* $(,)?) => {
        /// A total that only grows.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum Counter {
            $(#[doc = $help] $variant),*
        }

        impl Counter {
            /// All counters, in the order in which they are shown.
            pub const ALL: [Self; [$($name),*].len()] = [$(Self::$variant),*];

            /// Returns the name in documents and metrics.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name),* }
            }

            /// Returns what is counted: frames, events or nanoseconds.
            #[must_use]
            pub const fn unit(self) -> &'static str {
                match self { $(Self::$variant => $unit),* }
            }

            /// Returns one sentence about the meaning.
            #[must_use]
            pub const fn help(self) -> &'static str {
                match self { $(Self::$variant => $help),* }
            }
        }
    };
}

counters! {
    Allocated "allocated" "frames" "Frames that the kernel has allocated.",
    Freed "freed" "frames" "Frames that the kernel has freed.",
    Refills "refills" "batches" "Batches moved from zones to pagesets.",
    Drains "drains" "batches" "Batches moved from pagesets to zones.",
    RemoteDrains "remote_drains" "batches" "Batches drained from pagesets of other CPUs.",
    BackgroundWakes "background_wakes" "events" "Requests to start background reclaim.",
    BackgroundRounds "background_rounds" "events" "Rounds of background reclaim.",
    BackgroundReclaimed "background_reclaimed" "frames" "Frames freed by background reclaim.",
    DirectStalls "direct_stalls" "events" "Rounds of direct reclaim, in which a request reclaims memory itself.",
    DirectReclaimed "direct_reclaimed" "frames" "Frames freed by direct reclaim.",
    DirectNs "direct_ns" "nanoseconds" "Time that requests spent in direct reclaim.",
    NodeReclaims "node_reclaims" "events" "Attempts to reclaim memory of a node before another node was tried.",
    NodeReclaimSuccesses "node_reclaim_successes" "events" "Attempts at node reclaim that freed enough.",
    NodeReclaimsSkipped "node_reclaims_skipped" "events" "Node reclaims not tried: not allowed, under way already, or too little to free.",
    CompactStalls "compact_stalls" "events" "Requests that had to compact memory themselves.",
    CompactFailures "compact_failures" "events" "Requests for which compaction did not help.",
    Failures "failures" "events" "Requests that were refused.",
    OomKills "oom_kills" "events" "Processes killed because memory was exhausted.",
    Probes "zonelist_probes" "events" "Zones that requests examined.",
    Marks "zonelist_marks" "events" "Zones that were marked full in zonelist caches.",
    Wipes "zonelist_wipes" "events" "Times that zonelist caches were cleared.",
    EarlyClears "zonelist_early_clears" "events" "Zones unmarked early, because frees lifted them above a watermark.",
    Retired "retired" "frames" "Bad frames taken out of use, including bad_frames and poison_found.",
    BadFrames "bad_frames" "frames" "Frames taken out of use at the program's request.",
    PoisonFound "poison_found" "frames" "Frames taken out of use because of changed poison.",
}

/// The value of each counter, or `None` if the source does not have it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Totals([Option<u64>; Counter::ALL.len()]);

impl Totals {
    /// Returns the value of a counter.
    #[must_use]
    pub fn get(&self, counter: Counter) -> Option<u64> {
        self.0[counter as usize]
    }

    /// Sets the value of a counter.
    pub fn set(&mut self, counter: Counter, value: u64) {
        self.0[counter as usize] = Some(value);
    }

    /// Adds to a counter, which becomes known.
    pub fn add(&mut self, counter: Counter, value: u64) {
        let sum = &mut self.0[counter as usize];
        *sum = Some(sum.unwrap_or(0).saturating_add(value));
    }

    /// Returns the counters that are known, with their values.
    pub fn known(&self) -> impl Iterator<Item = (Counter, u64)> + '_ {
        Counter::ALL.into_iter().filter_map(|counter| Some((counter, self.get(counter)?)))
    }
}

impl Serialize for Totals {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for (counter, value) in self.known() {
            map.serialize_entry(counter.name(), &value)?;
        }
        map.end()
    }
}

impl<'de> Deserialize<'de> for Totals {
    /// Reads the counters that are known; newer programs may write others.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let values = BTreeMap::<String, u64>::deserialize(deserializer)?;
        let mut totals = Self::default();
        for counter in Counter::ALL {
            if let Some(&value) = values.get(counter.name()) {
                totals.set(counter, value);
            }
        }
        Ok(totals)
    }
}
