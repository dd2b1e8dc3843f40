//! What was read: a sample with its rates and history, of all nodes or some.

use std::sync::Arc;

use crate::sample::{LocalityRates, Rates, Sample};
use crate::watch::{Moment, Watch};

/// The newest state of a source.
#[derive(Clone, Debug, Default)]
pub struct Reading {
    /// What is watched.
    pub title: String,
    /// The newest sample.
    pub sample: Arc<Sample>,
    /// Rates between the last two samples, if they can be compared.
    pub rates: Option<Rates>,
    /// The last 60 seconds, oldest first.
    pub history: Vec<Moment>,
    /// Why the source cannot be read now.
    pub problem: Option<String>,
}

impl Reading {
    /// Copies the state of a watch.
    #[must_use]
    pub fn of(watch: &Watch) -> Self {
        Self {
            title: watch.title(),
            sample: Arc::clone(watch.sample()),
            rates: watch.rates().cloned(),
            history: watch.history().iter().cloned().collect(),
            problem: watch.problem().map(ToString::to_string),
        }
    }

    /// Returns the ids of all nodes.
    #[must_use]
    pub fn nodes(&self) -> Vec<u64> {
        self.sample.nodes.iter().map(|node| node.id).collect()
    }

    /// Returns the part that concerns some nodes, or everything if `nodes` is empty. Totals are of all nodes.
    #[must_use]
    pub fn only(&self, nodes: &[u64]) -> Self {
        if nodes.is_empty() {
            return self.clone();
        }
        let keep = Kept::new(&self.sample, nodes);
        Self {
            title: self.title.clone(),
            sample: Arc::new(keep.sample(&self.sample)),
            rates: self.rates.as_ref().map(|rates| keep.rates(rates)),
            history: self.history.iter().map(|moment| keep.moment(moment)).collect(),
            problem: self.problem.clone(),
        }
    }
}

/// Which parts of a sample concern the wanted nodes.
struct Kept {
    nodes: Vec<bool>,
    zones: Vec<bool>,
    pagesets: Vec<bool>,
}

impl Kept {
    fn new(sample: &Sample, nodes: &[u64]) -> Self {
        let zones: Vec<bool> = sample.zones.iter().map(|zone| nodes.contains(&zone.node)).collect();
        Self {
            nodes: sample.nodes.iter().map(|node| nodes.contains(&node.id)).collect(),
            pagesets: sample.pagesets.iter().map(|pageset| zones[pageset.zone]).collect(),
            zones,
        }
    }

    fn sample(&self, sample: &Sample) -> Sample {
        let new_index = |zone: usize| self.zones[..zone].iter().filter(|&&is_kept| is_kept).count();
        let indexes: Vec<usize> = (0..self.zones.len()).map(new_index).collect();
        let mut pagesets = kept(&self.pagesets, &sample.pagesets);
        pagesets.iter_mut().for_each(|pageset| pageset.zone = indexes[pageset.zone]);
        Sample {
            unix_ms: sample.unix_ms,
            seconds: sample.seconds,
            program: sample.program.clone(),
            life: sample.life,
            page_bytes: sample.page_bytes,
            nodes: kept(&self.nodes, &sample.nodes),
            zones: kept(&self.zones, &sample.zones),
            pagesets,
            owners: sample.owners.clone(),
            totals: sample.totals.clone(),
            missing: sample.missing.clone(),
        }
    }

    fn rates(&self, rates: &Rates) -> Rates {
        Rates {
            seconds: rates.seconds,
            totals: rates.totals.clone(),
            nodes: kept(&self.nodes, &rates.nodes),
            zones: kept(&self.zones, &rates.zones),
            pagesets: kept(&self.pagesets, &rates.pagesets),
        }
    }

    fn moment(&self, moment: &Moment) -> Moment {
        let nodes = kept(&self.nodes, &moment.nodes);
        let sum = |sum: [f64; 3], node: [f64; 3]| [sum[0] + node[0], sum[1] + node[1], sum[2] + node[2]];
        Moment {
            seconds: moment.seconds,
            unix_ms: moment.unix_ms,
            free: kept(&self.zones, &moment.free),
            rates: moment.rates.clone(),
            locality: nodes.iter().flatten().copied().reduce(sum),
            nodes,
        }
    }
}

/// Returns the parts that are kept.
fn kept<T: Clone>(keep: &[bool], parts: &[T]) -> Vec<T> {
    parts.iter().zip(keep).filter(|(_, keep)| **keep).map(|(part, _)| part.clone()).collect()
}

/// Returns the rates of hits, misses and foreign allocations, each if known.
pub(super) fn parts(rates: Option<LocalityRates>) -> [Option<f64>; 3] {
    rates.map_or([None; 3], |rates| [rates.hit, rates.miss, rates.foreign].map(Some))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SimulatedSource;

    #[test]
    fn some_nodes_keep_what_belongs_to_them() {
        let mut watch = Watch::start(Box::new(SimulatedSource::new(4, 2))).unwrap();
        watch.tick();
        let all = Reading::of(&watch);
        let some = all.only(&[1, 3]);
        assert_eq!(some.nodes(), [1, 3]);
        assert_eq!(some.sample.zones[1], all.sample.zones[3]);
        assert_eq!(some.sample.pagesets.len(), 16);
        assert!(some.sample.pagesets[8..].iter().all(|pageset| pageset.zone == 1));
        assert_eq!(some.sample.pagesets[8].count, all.sample.pagesets[24].count);
        let (some_rates, all_rates) = (some.rates.unwrap(), all.rates.clone().unwrap());
        assert_eq!(some_rates.pagesets[8], all_rates.pagesets[24]);
        assert_eq!(some_rates.nodes, [all_rates.nodes[1], all_rates.nodes[3]]);
        let moment = some.history.last().unwrap();
        assert_eq!(moment.locality.unwrap()[0], 20_000.0 + 40_000.0);
        assert_eq!(all.only(&[]).nodes(), [0, 1, 2, 3]);
    }
}
