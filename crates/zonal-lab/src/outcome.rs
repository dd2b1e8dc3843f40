//! What a run gives: metrics, series over time, and what was waited for.
//!
//! Plain values, the same whatever the workload. Neighbours: `workload/` makes them, reports show them.

use std::collections::BTreeMap;

use crate::hands::Hands;
use crate::sim::Time;

/// A figure.
#[derive(Clone, PartialEq, Debug)]
pub struct Metric {
    /// Its name, as in the published tables.
    pub name: &'static str,
    /// Its unit.
    pub unit: &'static str,
    /// Its value.
    pub value: f64,
}

/// A figure over time.
#[derive(Clone, PartialEq, Debug)]
pub struct Series {
    /// What is shown: series of one `plot` belong into one picture.
    pub plot: &'static str,
    /// Which line of the picture it is.
    pub name: String,
    /// Unit of the values.
    pub unit: &'static str,
    /// Seconds of virtual time and values, in the order of time.
    pub points: Vec<(f64, f64)>,
}

/// Something that was waited for.
#[derive(Clone, PartialEq, Debug)]
pub struct Cause {
    /// What: a class of the allocator's state, or a program's own lock or line.
    pub what: String,
    /// Whether it is a lock or a line.
    pub kind: &'static str,
    /// How often somebody waited.
    pub waits: u64,
    /// How long, summed over all threads, in seconds.
    pub seconds: f64,
}

/// What a run gives.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Outcome {
    /// Figures.
    pub metrics: Vec<Metric>,
    /// Figures over time.
    pub series: Vec<Series>,
    /// What was waited for, longest first.
    pub causes: Vec<Cause>,
    /// Events of the allocator by name.
    pub events: BTreeMap<&'static str, u64>,
    /// Page operations.
    pub operations: u64,
    /// Virtual time of the run.
    pub seconds: f64,
}

impl Outcome {
    /// Adds a figure.
    pub fn metric(&mut self, name: &'static str, unit: &'static str, value: f64) {
        self.metrics.push(Metric { name, unit, value });
    }

    /// A figure by its name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<f64> {
        self.metrics.iter().find(|metric| metric.name == name).map(|metric| metric.value)
    }

    /// What the allocator and the machine say after a run that took so long.
    #[must_use]
    pub fn after(hands: &Hands<'_, '_>, took: Time) -> Self {
        let events = hands.sim.allocator.events();
        let events = BTreeMap::from([
            ("probes", events.probes),
            ("marks", events.marks),
            ("wipes", events.wipes),
            ("early_clears", events.early_clears),
            ("node_reclaim_no_scan", events.node_reclaim_no_scan),
            ("node_reclaim_full", events.node_reclaim_full),
            ("node_reclaim_some", events.node_reclaim_some),
            ("node_reclaim_success", events.node_reclaim_success),
            ("background_wakes", events.background_wakes),
            ("background_reclaimed", events.background_reclaimed),
            ("direct_stalls", events.direct_stalls),
            ("direct_reclaimed", events.direct_reclaimed),
            ("refills", events.refills),
            ("drains", events.drains),
            ("failures", events.failures),
        ]);
        let causes = hands.sim.causes();
        Self { events, causes, operations: hands.operations(), seconds: took.seconds(), ..Self::default() }
    }
}
