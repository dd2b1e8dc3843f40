//! The outcome of a run: metrics, time series, and the causes of waiting.
//!
//! An outcome has the same structure for every workload. Related files: `workload/` produces outcomes, `report/`
//! renders them.

use std::borrow::Cow;
use std::collections::BTreeMap;

use crate::sim::Time;
use crate::system::System;

/// A scalar result.
#[derive(Clone, PartialEq, Debug)]
pub struct Metric {
    /// Name, as in the published tables. If several programs run, the program's name is a prefix: `web.throughput`.
    pub name: Cow<'static, str>,
    /// Unit of the value.
    pub unit: &'static str,
    /// The value.
    pub value: f64,
}

/// A result over time.
#[derive(Clone, PartialEq, Debug)]
pub struct Series {
    /// Name of the plot; series with the same `plot` share one chart.
    pub plot: &'static str,
    /// Name of this line in the chart.
    pub name: String,
    /// Unit of the values.
    pub unit: &'static str,
    /// Points of (virtual time in seconds, value), in ascending order of time.
    pub points: Vec<(f64, f64)>,
}

/// A cause of waiting.
#[derive(Clone, PartialEq, Debug)]
pub struct Cause {
    /// The object that threads waited for: a part of the allocator's state, or a program's own lock or cache line.
    pub what: String,
    /// Kind of the object: lock or line.
    pub kind: &'static str,
    /// Number of waits.
    pub waits: u64,
    /// Total waiting time of all threads, in seconds.
    pub seconds: f64,
}

/// The outcome of a run.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Outcome {
    /// Scalar results.
    pub metrics: Vec<Metric>,
    /// Names of results that the run does not have, because nothing was measured for them.
    pub unmeasured: Vec<Cow<'static, str>>,
    /// Results over time.
    pub series: Vec<Series>,
    /// Causes of waiting, longest total time first.
    pub causes: Vec<Cause>,
    /// Counts of allocator events, by name.
    pub events: BTreeMap<&'static str, u64>,
    /// Number of page operations (allocations and frees).
    pub operations: u64,
    /// Virtual duration of the run, in seconds.
    pub seconds: f64,
}

impl Outcome {
    /// Adds a scalar result.
    pub fn metric(&mut self, name: impl Into<Cow<'static, str>>, unit: &'static str, value: f64) {
        self.metrics.push(Metric { name: name.into(), unit, value });
    }

    /// Adds a scalar result, or notes that nothing was measured for it.
    pub fn sampled(&mut self, name: impl Into<Cow<'static, str>>, unit: &'static str, value: Option<f64>) {
        match value {
            Some(value) => self.metric(name, unit, value),
            None => self.unmeasured.push(name.into()),
        }
    }

    /// Returns the value of the metric called `name`.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<f64> {
        self.metrics.iter().find(|metric| metric.name == name).map(|metric| metric.value)
    }

    /// Collects the counters of the allocator and the machine after a run that took `took`, without set-ups.
    #[must_use]
    pub fn after(system: &System<'_, '_>, took: Time) -> Self {
        let counts = system.counts();
        let causes = system.sim.causes();
        Self {
            events: counts.events,
            causes,
            operations: counts.operations,
            seconds: took.seconds(),
            ..Self::default()
        }
    }
}
