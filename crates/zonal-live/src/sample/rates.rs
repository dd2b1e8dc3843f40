//! What changed between two samples, per second.

use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};

use super::{Counter, Locality, PagesetSample, Sample};

/// Changes per second between two samples of one source.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct Rates {
    /// Seconds between the samples.
    pub seconds: f64,
    /// Each counter's rate in the order of [`Counter::ALL`], in its unit.
    #[serde(serialize_with = "by_name")]
    pub totals: Vec<Option<f64>>,
    /// Rates of each node, in the order of [`Sample::nodes`].
    pub nodes: Vec<Option<LocalityRates>>,
    /// Rates of each zone, in the order of [`Sample::zones`].
    pub zones: Vec<Option<LocalityRates>>,
    /// Rates of each pageset, in the order of [`Sample::pagesets`].
    pub pagesets: Vec<Option<PagesetRates>>,
}

/// Allocations per second by where they were served.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
pub struct LocalityRates {
    /// See [`Locality::hit`].
    pub hit: f64,
    /// See [`Locality::miss`].
    pub miss: f64,
    /// See [`Locality::foreign`].
    pub foreign: f64,
}

/// Batches per second.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
pub struct PagesetRates {
    /// Refills.
    pub refills: f64,
    /// Drains.
    pub drains: f64,
}

impl Rates {
    /// Compares two samples. Returns `None` if no time has passed, if the pool is another one, if nodes, zones or pagesets
    /// have changed, or if a counter has become much smaller, as it does when a system starts anew.
    #[must_use]
    pub fn between(old: &Sample, new: &Sample) -> Option<Self> {
        let seconds = new.seconds - old.seconds;
        if seconds <= 0.0 || old.life != new.life || !same_parts(old, new) || went_back(old, new) {
            return None;
        }
        let rate = |old: u64, new: u64| new.saturating_sub(old) as f64 / seconds;
        let locality = |old: Option<Locality>, new: Option<Locality>| {
            let (old, new) = (old?, new?);
            Some(LocalityRates {
                hit: rate(old.hit, new.hit),
                miss: rate(old.miss, new.miss),
                foreign: rate(old.foreign, new.foreign),
            })
        };
        let totals =
            Counter::ALL.map(|counter| Some(rate(old.totals.get(counter)?, new.totals.get(counter)?)));
        let nodes = old.nodes.iter().zip(&new.nodes);
        let nodes = nodes.map(|(before, now)| locality(old.locality_of(before), new.locality_of(now)));
        let zones = old.zones.iter().zip(&new.zones);
        let zones = zones.map(|(before, now)| locality(before.locality, now.locality));
        let pagesets = old.pagesets.iter().zip(&new.pagesets).map(|(before, now)| {
            let refills = rate(before.refills?, now.refills?);
            Some(PagesetRates { refills, drains: rate(before.drains?, now.drains?) })
        });
        Some(Self {
            seconds,
            totals: totals.into(),
            nodes: nodes.collect(),
            zones: zones.collect(),
            pagesets: pagesets.collect(),
        })
    }

    /// Returns the rate of a counter.
    #[must_use]
    pub fn get(&self, counter: Counter) -> Option<f64> {
        self.totals.get(counter as usize).copied().flatten()
    }

    /// Returns the rates of all nodes together.
    #[must_use]
    pub fn locality(&self) -> Option<LocalityRates> {
        self.nodes.iter().flatten().copied().reduce(|sum, node| LocalityRates {
            hit: sum.hit + node.hit,
            miss: sum.miss + node.miss,
            foreign: sum.foreign + node.foreign,
        })
    }
}

/// Whether the nodes, zones and pagesets are the same.
fn same_parts(old: &Sample, new: &Sample) -> bool {
    let pageset = |pageset: &PagesetSample| (pageset.zone, pageset.cpu);
    old.nodes.iter().map(|node| node.id).eq(new.nodes.iter().map(|node| node.id))
        && old.zones.len() == new.zones.len()
        && old.zones.iter().zip(&new.zones).all(|(old, new)| old.node == new.node && old.kind == new.kind)
        && old.pagesets.iter().map(pageset).eq(new.pagesets.iter().map(pageset))
}

/// Whether the counters belong to different lives of a program. Counters that CPUs keep may go back a little.
fn went_back(old: &Sample, new: &Sample) -> bool {
    let halved = |old: u64, new: u64| new < old / 2;
    let total = |counter| Some(halved(old.totals.get(counter)?, new.totals.get(counter)?));
    Counter::ALL.into_iter().any(|counter| total(counter) == Some(true))
        || matches!((old.locality(), new.locality()), (Some(old), Some(new)) if halved(old.hit, new.hit))
}

fn by_name<S: Serializer>(rates: &[Option<f64>], serializer: S) -> Result<S::Ok, S::Error> {
    let mut map = serializer.serialize_map(None)?;
    for (counter, rate) in Counter::ALL.into_iter().zip(rates) {
        if let Some(rate) = rate {
            map.serialize_entry(counter.name(), rate)?;
        }
    }
    map.end()
}

#[cfg(test)]
mod tests {
    use super::super::{Node, Totals};
    use super::*;

    fn sample(seconds: f64, hit: u64, refills: u64) -> Sample {
        let mut totals = Totals::default();
        totals.set(Counter::Refills, refills);
        let locality = Some(Locality { hit, ..Locality::default() });
        Sample {
            seconds,
            nodes: vec![Node { locality, ..Node::default() }],
            pagesets: vec![PagesetSample {
                refills: Some(refills),
                drains: Some(7),
                ..PagesetSample::default()
            }],
            totals,
            ..Sample::default()
        }
    }

    #[test]
    fn rates_are_changes_per_second() {
        let rates = Rates::between(&sample(1.0, 100, 10), &sample(3.0, 300, 20)).unwrap();
        assert_eq!(rates.seconds, 2.0);
        assert_eq!(rates.get(Counter::Refills), Some(5.0));
        assert_eq!(rates.get(Counter::Drains), None);
        assert_eq!(rates.locality().unwrap().hit, 100.0);
        assert_eq!(rates.pagesets, [Some(PagesetRates { refills: 5.0, drains: 0.0 })]);
    }

    #[test]
    fn another_life_or_other_parts_have_no_rates() {
        let old = sample(1.0, 100, 10);
        assert_eq!(Rates::between(&old, &old), None, "no time");
        assert_eq!(Rates::between(&old, &sample(2.0, 3, 20)), None, "the hits were reset");
        assert_eq!(Rates::between(&old, &sample(2.0, 100, 1)), None, "a total was reset");
        let other = Sample { life: Some((7, 1)), ..sample(2.0, 200, 20) };
        assert_eq!(Rates::between(&old, &other), None, "another program");
        let mut other = sample(2.0, 200, 20);
        other.nodes[0].id = 1;
        assert_eq!(Rates::between(&old, &other), None, "another node");
        let mut other = sample(2.0, 200, 20);
        other.pagesets[0].cpu = 9;
        assert_eq!(Rates::between(&old, &other), None, "another CPU");
        assert!(Rates::between(&old, &sample(2.0, 99, 10)).is_some(), "a counter went back a little");
    }
}
