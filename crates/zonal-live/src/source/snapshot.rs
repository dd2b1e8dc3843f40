//! The state of a pool, as it travels: what a snapshot has, and which ones are refused.
//!
//! The members have the names of `publish/answer.rs` in `zonal-linux`; members that are not known here are ignored.
//! Related file: `pool.rs` asks for snapshots.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, SeqAccess, Visitor};
use zonal_machine::Excerpt;

use zonal_machine::state::{NODES_MAX, ORDERS_MAX, PAGESETS_MAX};

use crate::sample::{Counter, Locality, Node, Owner, PagesetSample, Sample, Totals, ZoneSample};

/// A pool's zone kinds.
const KINDS: [&str; 4] = ["DMA", "DMA32", "Normal", "Movable"];
/// The most processes that can share a pool.
const OWNERS_MAX: usize = 64;

/// The state of a pool, as it travels.
#[derive(Deserialize)]
pub(super) struct Snapshot {
    program: Option<Program>,
    page_bytes: u64,
    events: Events,
    nodes: Vec<WireNode>,
    zones: Vec<WireZone>,
    pagesets: Vec<WirePageset>,
    #[serde(default, deserialize_with = "first::<OWNERS_MAX, _, _>")]
    owners: Vec<Owner>,
}

#[derive(Deserialize)]
struct Program {
    pid: u64,
    name: String,
    /// Number of the pool in its process.
    #[serde(default)]
    pool: u64,
}

/// Counts of events. Older programs do not send those that may be missing.
#[derive(Deserialize)]
struct Events {
    probes: u64,
    marks: u64,
    wipes: u64,
    early_clears: Option<u64>,
    node_reclaim_no_scan: u64,
    node_reclaim_full: u64,
    node_reclaim_some: u64,
    node_reclaim_success: u64,
    background_wakes: u64,
    background_rounds: Option<u64>,
    background_reclaimed: u64,
    direct_stalls: u64,
    direct_reclaimed: u64,
    direct_ns: u64,
    retired: u64,
    poison_found: Option<u64>,
    failures: u64,
    bad_frames: Option<u64>,
    refills: u64,
    drains: u64,
    remote_drains: u64,
}

#[derive(Deserialize)]
struct WireNode {
    id: u64,
    allocated: Allocated,
    stalled: Option<Stalled>,
}

#[derive(Deserialize)]
struct Allocated {
    user: u64,
    cache: u64,
    kernel: u64,
}

/// In hundredths of a percent.
#[derive(Deserialize)]
struct Stalled {
    last_10s: u64,
}

#[derive(Deserialize)]
struct WireZone {
    id: u64,
    node: u64,
    kind: String,
    managed: u64,
    free: u64,
    in_pagesets: u64,
    retired: u64,
    watermarks: Watermarks,
    stat_threshold: u64,
    #[serde(deserialize_with = "first::<ORDERS_MAX, _, _>")]
    free_blocks: Vec<u64>,
    locality: WireLocality,
    #[serde(default, deserialize_with = "first::<{ KINDS.len() }, _, _>")]
    reserve: Vec<u64>,
}

#[derive(Deserialize)]
struct Watermarks {
    min: u64,
    low: u64,
    high: u64,
}

#[derive(Deserialize)]
struct WireLocality {
    hit: u64,
    miss: u64,
    foreign: u64,
    interleave_hit: u64,
    local: u64,
    other: u64,
}

#[derive(Deserialize)]
struct WirePageset {
    zone: u64,
    cpu: u64,
    count: u64,
    high: u64,
    batch: u64,
    refills: u64,
    drains: u64,
    remote_drains: u64,
}

impl Snapshot {
    /// Returns the sample, in order of node and zone, or what is wrong with the snapshot.
    pub(super) fn sample(mut self) -> Result<Sample, String> {
        self.check()?;
        self.nodes.sort_by_key(|node| node.id);
        self.zones.sort_by_key(|zone| (zone.node, KINDS.iter().position(|kind| *kind == zone.kind)));
        let places: HashMap<u64, usize> =
            self.zones.iter().enumerate().map(|(place, zone)| (zone.id, place)).collect();
        let pageset = |one: WirePageset| {
            Some(PagesetSample {
                zone: *places.get(&one.zone)?,
                cpu: one.cpu,
                count: one.count,
                high: one.high,
                batch: one.batch,
                refills: Some(one.refills),
                drains: Some(one.drains.saturating_add(one.remote_drains)),
            })
        };
        let mut pagesets: Vec<_> = self.pagesets.into_iter().filter_map(pageset).collect();
        pagesets.sort_by_key(|pageset| (pageset.zone, pageset.cpu));
        pagesets.dedup_by_key(|pageset| (pageset.zone, pageset.cpu));
        Ok(Sample {
            program: self
                .program
                .as_ref()
                .map(|program| format!("{} ({})", Excerpt::name(&program.name), program.pid)),
            life: self.program.map(|program| (program.pid, program.pool)),
            page_bytes: self.page_bytes,
            nodes: self.nodes.into_iter().map(WireNode::sample).collect(),
            zones: self.zones.into_iter().map(WireZone::sample).collect(),
            pagesets,
            owners: self.owners,
            totals: self.events.totals(),
            ..Sample::default()
        })
    }

    /// Checks what the parser does not, because any program may have created the socket.
    fn check(&self) -> Result<(), String> {
        if self.nodes.len() > NODES_MAX || self.zones.len() > NODES_MAX * KINDS.len() {
            return Err(format!("it has more than {NODES_MAX} nodes"));
        }
        if self.pagesets.len() > PAGESETS_MAX {
            return Err(format!("it has more than {PAGESETS_MAX} pagesets"));
        }
        let (mut nodes, mut ids, mut names) = (HashSet::new(), HashSet::new(), HashSet::new());
        if let Some(node) = self.nodes.iter().find(|node| !nodes.insert(node.id)) {
            return Err(format!("it has node {} twice", node.id));
        }
        for zone in &self.zones {
            if !KINDS.contains(&zone.kind.as_str()) {
                return Err(format!("it has a zone of the kind {}", Excerpt::name(&zone.kind)));
            }
            if !ids.insert(zone.id) || !names.insert((zone.node, &zone.kind)) {
                return Err(format!("it has the zone {} of node {} twice", zone.kind, zone.node));
            }
        }
        Ok(())
    }
}

impl Events {
    fn totals(&self) -> Totals {
        let mut totals = Totals::default();
        let attempts = self.node_reclaim_some.saturating_add(self.node_reclaim_success);
        let skipped = self.node_reclaim_no_scan.saturating_add(self.node_reclaim_full);
        let retired = [self.bad_frames, self.poison_found].into_iter().flatten();
        let retired = retired.fold(self.retired, u64::saturating_add);
        let values = [
            (Counter::Refills, Some(self.refills)),
            (Counter::Drains, Some(self.drains)),
            (Counter::RemoteDrains, Some(self.remote_drains)),
            (Counter::BackgroundWakes, Some(self.background_wakes)),
            (Counter::BackgroundRounds, self.background_rounds),
            (Counter::BackgroundReclaimed, Some(self.background_reclaimed)),
            (Counter::DirectStalls, Some(self.direct_stalls)),
            (Counter::DirectReclaimed, Some(self.direct_reclaimed)),
            (Counter::DirectNs, Some(self.direct_ns)),
            (Counter::NodeReclaims, Some(attempts)),
            (Counter::NodeReclaimSuccesses, Some(self.node_reclaim_success)),
            (Counter::NodeReclaimsSkipped, Some(skipped)),
            (Counter::Failures, Some(self.failures)),
            (Counter::Probes, Some(self.probes)),
            (Counter::Marks, Some(self.marks)),
            (Counter::Wipes, Some(self.wipes)),
            (Counter::EarlyClears, self.early_clears),
            (Counter::Retired, Some(retired)),
            (Counter::BadFrames, self.bad_frames),
            (Counter::PoisonFound, self.poison_found),
        ];
        for (counter, value) in values {
            value.into_iter().for_each(|value| totals.set(counter, value));
        }
        totals
    }
}

impl WireNode {
    fn sample(self) -> Node {
        let Allocated { user, cache, kernel } = self.allocated;
        Node {
            id: self.id,
            allocated: Some([user, cache, kernel]),
            stalled_percent: self.stalled.map(|stalled| stalled.last_10s as f64 / 100.0),
            ..Node::default()
        }
    }
}

impl WireZone {
    fn sample(self) -> ZoneSample {
        let WireLocality { hit, miss, foreign, interleave_hit, local, other } = self.locality;
        ZoneSample {
            node: self.node,
            kind: self.kind,
            managed: self.managed,
            free: self.free,
            in_pagesets: self.in_pagesets,
            min: self.watermarks.min,
            low: self.watermarks.low,
            high: self.watermarks.high,
            reserve: self.reserve,
            free_blocks: self.free_blocks,
            free_by_type: Vec::new(),
            locality: Some(Locality { hit, miss, foreign, interleave_hit, local, other }),
            stat_threshold: Some(self.stat_threshold),
            retired: Some(self.retired),
        }
    }
}

/// Reads the first `MAX` values of a list, and ignores the others.
fn first<'de, const MAX: usize, T: Deserialize<'de>, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Vec<T>, D::Error> {
    struct First<const MAX: usize, T>(PhantomData<T>);

    impl<'de, const MAX: usize, T: Deserialize<'de>> Visitor<'de> for First<MAX, T> {
        type Value = Vec<T>;

        fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
            formatter.write_str("a list")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vec<T>, A::Error> {
            let mut values = Vec::new();
            while values.len() < MAX {
                let Some(value) = list.next_element()? else { return Ok(values) };
                values.push(value);
            }
            while list.next_element::<IgnoredAny>()?.is_some() {}
            Ok(values)
        }
    }

    deserializer.deserialize_seq(First::<MAX, T>(PhantomData))
}

#[cfg(test)]
mod tests {
    use serde_json::Value;
    use zonal_linux::Pool;

    use super::*;

    #[test]
    fn processes_that_share_the_pool_are_known() {
        let pool =
            Pool::builder().size(64 << 20).shared_by_descriptor().process_name("server").build().unwrap();
        let page = pool.alloc(&zonal_linux::PoolRequest::page()).unwrap();
        let found: Snapshot = serde_json::from_str(&pool.snapshot_json()).unwrap();
        let owner = Owner {
            process: 1,
            pid: std::process::id().into(),
            name: Some("server".into()),
            is_alive: true,
            held: page.count().get(),
        };
        assert_eq!(found.sample().unwrap().owners, [owner]);
    }

    fn snapshot() -> Value {
        let pool = Pool::builder().size(64 << 20).fake_nodes(2).build().unwrap();
        serde_json::from_str(&pool.snapshot_json()).unwrap()
    }

    /// Returns what is wrong with the snapshot of a real pool after a change.
    fn wrong(change: impl Fn(&mut Value)) -> String {
        let mut snapshot = snapshot();
        change(&mut snapshot);
        let found: Snapshot = serde_json::from_value(snapshot).unwrap();
        found.sample().err().unwrap_or_default()
    }

    #[test]
    fn snapshots_that_no_pool_has_are_refused() {
        assert_eq!(wrong(|_| {}), "");
        assert!(wrong(|snapshot| snapshot["zones"][1]["node"] = 0.into()).contains("Normal of node 0 twice"));
        assert!(wrong(|snapshot| snapshot["zones"][1]["id"] = 0.into()).contains("twice"));
        assert!(wrong(|snapshot| snapshot["nodes"][1]["id"] = 0.into()).contains("node 0 twice"));
        let kind = wrong(|snapshot| snapshot["zones"][0]["kind"] = "N\u{1b}]0;x\u{7}".into());
        assert!(kind.contains("kind") && !kind.contains('\u{1b}'), "{kind:?}");
        let many = |snapshot: &mut Value| {
            let node = snapshot["nodes"][0].clone();
            snapshot["nodes"] = Value::Array(vec![node; NODES_MAX + 1]);
        };
        assert!(wrong(many).contains("more than 1024 nodes"));
        let many = |snapshot: &mut Value| {
            let pageset = snapshot["pagesets"][0].clone();
            snapshot["pagesets"] = Value::Array(vec![pageset; PAGESETS_MAX + 1]);
        };
        assert!(wrong(many).contains("more than 1048576 pagesets"));
    }

    /// Returns the totals of a real pool's snapshot with events that a test sets.
    fn totals(events: &Value) -> Totals {
        let mut snapshot = snapshot();
        snapshot["events"] = events.clone();
        serde_json::from_value::<Snapshot>(snapshot).unwrap().events.totals()
    }

    #[test]
    fn every_event_changes_what_is_shown() {
        let mut events = snapshot()["events"].take();
        let names: Vec<String> = events.as_object().unwrap().keys().cloned().collect();
        names.iter().for_each(|name| events[name] = 0.into());
        let before = totals(&events);
        for name in &names {
            events[name] = 1.into();
            assert_ne!(totals(&events), before, "{name} is not shown");
            events[name] = 0.into();
        }
    }

    #[test]
    fn totals_are_sums_of_what_they_name() {
        let mut events = snapshot()["events"].take();
        let values = [
            ("retired", 1),
            ("bad_frames", 10),
            ("poison_found", 100),
            ("node_reclaim_no_scan", 1),
            ("node_reclaim_full", 10),
            ("node_reclaim_some", 100),
            ("node_reclaim_success", 1000),
        ];
        values.iter().for_each(|&(name, value)| events[name] = value.into());
        let found = totals(&events);
        for (counter, value) in [
            (Counter::Retired, 111),
            (Counter::BadFrames, 10),
            (Counter::NodeReclaims, 1100),
            (Counter::NodeReclaimSuccesses, 1000),
            (Counter::NodeReclaimsSkipped, 11),
        ] {
            assert_eq!(found.get(counter), Some(value), "{counter:?}");
        }
        let members = events.as_object_mut().unwrap();
        members.retain(|name, _| name != "bad_frames" && name != "poison_found");
        let found = totals(&events);
        assert_eq!((found.get(Counter::Retired), found.get(Counter::BadFrames)), (Some(1), None));
    }

    #[test]
    fn lists_are_cut() {
        let mut snapshot = snapshot();
        for list in ["free_blocks", "reserve"] {
            snapshot["zones"][0][list] = Value::Array(vec![7.into(); 1000]);
        }
        let zones = serde_json::from_value::<Snapshot>(snapshot).unwrap().zones;
        assert_eq!((zones[0].free_blocks.len(), zones[0].reserve.len()), (ORDERS_MAX, KINDS.len()));
    }
}
