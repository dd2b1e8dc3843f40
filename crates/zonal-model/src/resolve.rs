//! Checks the description of a machine and converts it to a model. Every error names its field and the allowed values.
//!
//! Files and captures are both converted by [`MachineModel::resolve`].
//!
//! Related files: `file.rs` defines the input, and `model.rs` the result.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use zonal::machine::LOCAL_DISTANCE;
use zonal::rules::fallback_order::CpuPenalty;
use zonal::units::{CpuId, MAX_NODES, NodeId, PageCount, Pfn, ZoneKind};

use crate::error::{FALLBACK_ORDER, MachineError, Problem};
use crate::file::{FileMachine, FileNode, FileObserved, FileObservedZone, FileSettings, FileZone};
use crate::kernel::KernelVersion;
use crate::model::{
    MOST, MachineModel, NUMA_DEFAULT_DISTANCE, NodeModel, Observed, ObservedZone, Presence, Settings,
    ZoneModel,
};

/// A result whose error is a field's name and its value's problem.
type Found<T> = Result<T, (String, Problem)>;

/// Largest memory in bytes, including holes. This is also the largest `min_free_kbytes`.
const BYTES_MAX: u64 = MOST << 10;

/// Exclusive upper bound of CPU ids, and so the largest number of CPUs. It is more than any kernel supports.
pub(crate) const CPUS_MAX: u32 = 1 << 20;

impl MachineModel {
    pub(crate) fn resolve(file: FileMachine, origin: &str) -> Result<Self, MachineError> {
        resolve(file).map_err(|(field, problem)| MachineError::Invalid {
            origin: origin.to_owned(),
            field,
            problem,
        })
    }
}

fn resolve(file: FileMachine) -> Found<MachineModel> {
    let fits = file.page_bytes.is_power_of_two() && (4096..=1 << 30).contains(&file.page_bytes);
    if !fits {
        return Err(("page_bytes".to_owned(), Problem::PageBytes(file.page_bytes)));
    }
    let nodes = nodes(&file.nodes, &file.possible_offline)?;
    let online: BTreeSet<NodeId> =
        nodes.iter().filter(|n| n.presence == Presence::Online).map(|n| n.id).collect();
    let zones = zones(&file.zones, &online, MOST.min(BYTES_MAX / file.page_bytes))?;
    let settings = settings(&file.settings)?;
    let observed = file.observed.as_ref().map(|found| observed(found, &nodes, &zones)).transpose()?;
    Ok(MachineModel { name: file.name, page_bytes: file.page_bytes as u32, nodes, zones, settings, observed })
}

fn nodes(files: &[FileNode], possible: &[u64]) -> Found<Vec<NodeModel>> {
    let ids = node_ids(files, possible)?;
    let mut owner = HashMap::new();
    let mut rows = BTreeMap::new();
    for (at, file) in files.iter().enumerate() {
        let id = node_id(file.id, || format!("nodes[{at}].id"))?;
        let cpus = cpus(file, id, &mut owner).map_err(|problem| (format!("nodes[{at}].cpus"), problem))?;
        let row = row(file, id, &ids).map_err(|problem| (format!("nodes[{at}].distances"), problem))?;
        rows.insert(id, (cpus, row));
    }
    // The file has no distances from an offline node. They are assumed to equal the distances to it.
    let offline_row = |column: usize| -> Vec<u8> {
        let back = |(place, id)| match rows.get(id) {
            _ if place == column => LOCAL_DISTANCE,
            Some((_, row)) => row[column],
            None => NUMA_DEFAULT_DISTANCE,
        };
        ids.keys().enumerate().map(back).collect()
    };
    let node = |(place, (&id, &presence))| match rows.get(&id) {
        Some((cpus, row)) => NodeModel { id, presence, cpus: cpus.clone(), distances: row.clone() },
        None => NodeModel { id, presence, cpus: Vec::new(), distances: offline_row(place) },
    };
    Ok(ids.iter().enumerate().map(node).collect())
}

fn node_id(id: u64, field: impl Fn() -> String) -> Found<NodeId> {
    let narrow = u16::try_from(id).ok().and_then(NodeId::new);
    narrow.ok_or_else(|| (field(), Problem::NodeId(id)))
}

fn node_ids(files: &[FileNode], possible: &[u64]) -> Found<BTreeMap<NodeId, Presence>> {
    if files.is_empty() {
        return Err(("nodes".to_owned(), Problem::NoNodes));
    }
    let count = files.len() + possible.len();
    if count > MAX_NODES {
        return Err(("nodes".to_owned(), Problem::TooManyNodes(count)));
    }
    let mut ids = BTreeMap::new();
    for (at, file) in files.iter().enumerate() {
        let field = || format!("nodes[{at}].id");
        if ids.insert(node_id(file.id, field)?, Presence::Online).is_some() {
            return Err((field(), Problem::NodeTwice(file.id)));
        }
    }
    for (at, &id) in possible.iter().enumerate() {
        let field = || format!("possible_offline[{at}]");
        match ids.insert(node_id(id, field)?, Presence::PossibleOffline) {
            None => {}
            Some(Presence::Online) => return Err((field(), Problem::OnlineAndOffline(id))),
            Some(Presence::PossibleOffline) => return Err((field(), Problem::NodeTwice(id))),
        }
    }
    Ok(ids)
}

fn cpus(file: &FileNode, node: NodeId, owner: &mut HashMap<CpuId, NodeId>) -> Result<Vec<CpuId>, Problem> {
    let mut cpus = Vec::with_capacity(file.cpus.len());
    for &id in &file.cpus {
        let narrow = u32::try_from(id).ok().filter(|&id| id < CPUS_MAX);
        let cpu = CpuId::new(narrow.ok_or(Problem::CpuId(id))?);
        if let Some(first) = owner.insert(cpu, node) {
            return Err(Problem::CpuTwice { cpu: cpu.get(), first: first.get(), second: node.get() });
        }
        cpus.push(cpu);
    }
    cpus.sort_unstable();
    Ok(cpus)
}

/// Returns the distances from one node, in the order of `ids`. Distances to offline nodes may be missing in the file.
fn row(file: &FileNode, node: NodeId, ids: &BTreeMap<NodeId, Presence>) -> Result<Vec<u8>, Problem> {
    let from = node.get();
    let mut given = HashMap::with_capacity(ids.len());
    for &(to, distance) in &file.distances.0 {
        let id = u16::try_from(to).ok().and_then(NodeId::new).filter(|id| ids.contains_key(id));
        let id = id.ok_or(Problem::DistanceToNowhere { from, to })?;
        if id == node && distance != i64::from(LOCAL_DISTANCE) {
            return Err(Problem::Diagonal { node: from, distance });
        }
        let narrow = u8::try_from(distance).ok().filter(|&distance| distance >= LOCAL_DISTANCE);
        let narrow = narrow.ok_or(Problem::Distance { from, to: id.get(), distance })?;
        if given.insert(id, narrow).is_some() {
            return Err(Problem::DistanceTwice { from, to });
        }
    }
    ids.iter()
        .map(|(&to, &presence)| match (given.get(&to), presence) {
            (Some(&distance), _) => Ok(distance),
            (None, Presence::PossibleOffline) => Ok(NUMA_DEFAULT_DISTANCE),
            (None, Presence::Online) => Err(Problem::DistanceMissing { from, to: to.get() }),
        })
        .collect()
}

fn zones(files: &[FileZone], online: &BTreeSet<NodeId>, frames_max: u64) -> Found<Vec<ZoneModel>> {
    if files.is_empty() {
        return Err(("zones".to_owned(), Problem::NoZones));
    }
    let mut zones = Vec::with_capacity(files.len());
    for (at, file) in files.iter().enumerate() {
        let zone = zone(file, online, frames_max)
            .map_err(|(field, problem)| (format!("zones[{at}]{field}"), problem))?;
        zones.push((zone, at));
    }
    let mut spans: Vec<_> = zones.iter().collect();
    spans.sort_unstable_by_key(|(zone, _)| zone.start);
    for pair in spans.windows(2) {
        let ((lower, _), (upper, at)) = (pair[0], pair[1]);
        if lower.start.plus(lower.spanned) > upper.start {
            let problem = Problem::ZonesOverlap {
                node: upper.node.get(),
                kind: upper.kind,
                other_node: lower.node.get(),
                other_kind: lower.kind,
                frame: upper.start.get(),
            };
            return Err((format!("zones[{at}].start"), problem));
        }
    }
    zones.sort_unstable_by_key(|(zone, _)| (zone.node, zone.kind));
    for pair in zones.windows(2) {
        let ((first, _), (second, at)) = (pair[0], pair[1]);
        if (first.node, first.kind) == (second.node, second.kind) {
            let problem = Problem::ZoneTwice { node: second.node.get(), kind: second.kind };
            return Err((format!("zones[{at}]"), problem));
        }
    }
    Ok(zones.into_iter().map(|(zone, _)| zone).collect())
}

fn zone(file: &FileZone, online: &BTreeSet<NodeId>, frames_max: u64) -> Found<ZoneModel> {
    let (kind, node) = (ZoneKind::from(file.kind), u16::try_from(file.node).ok().and_then(NodeId::new));
    let node = node.filter(|node| online.contains(node));
    let node = node.ok_or_else(|| (".node".to_owned(), Problem::UnknownNode(file.node)))?;
    let FileZone { start, spanned, present, managed, .. } = *file;
    if spanned < present || present < managed {
        let problem = Problem::Counts { node: node.get(), kind, spanned, present, managed };
        return Err((String::new(), problem));
    }
    if spanned == 0 {
        return Err((".spanned".to_owned(), Problem::ZoneEmpty { node: node.get(), kind }));
    }
    if start.checked_add(spanned).is_none_or(|end| end > frames_max) {
        let most = frames_max;
        let problem = Problem::ZoneTooLarge { node: node.get(), kind, start, spanned, most };
        return Err((".spanned".to_owned(), problem));
    }
    Ok(ZoneModel {
        node,
        kind,
        start: Pfn::new(start),
        spanned: PageCount::new(spanned),
        present: PageCount::new(present),
        managed: PageCount::new(managed),
    })
}

fn settings(file: &FileSettings) -> Found<Settings> {
    let mut settings = Settings::default();
    for (setting, numbers) in &file.0 {
        settings.set(*setting, numbers).map_err(|problem| (format!("settings.{setting}"), problem))?;
    }
    Ok(settings)
}

fn observed(file: &FileObserved, nodes: &[NodeModel], zones: &[ZoneModel]) -> Found<Observed> {
    let version = |text: &String| text.parse().and_then(KernelVersion::not_too_old);
    let kernel = file.kernel.as_ref().map(version).transpose();
    let kernel = kernel.map_err(|error| ("observed.kernel".to_owned(), Problem::Kernel(error)))?;
    let known = |id: u64, field: String| {
        let place = nodes.binary_search_by_key(&id, |node| u64::from(node.id.get()));
        place.map(|place| nodes[place].id).map_err(|_| (field, Problem::UnknownNode(id)))
    };
    let mut fallback_order = BTreeMap::new();
    for (&from, order) in &file.fallback_order {
        let field = format!("{FALLBACK_ORDER}.{from}");
        let mut seen = BTreeSet::new();
        if let Some(&twice) = order.iter().find(|&&to| !seen.insert(to)) {
            return Err((field, Problem::OrderTwice(twice)));
        }
        let order: Vec<NodeId> = order.iter().map(|&to| known(to, field.clone())).collect::<Found<_>>()?;
        fallback_order.insert(known(from, field)?, order);
    }
    let penalty = |on| if on { CpuPenalty::On } else { CpuPenalty::Off };
    let mut seen = BTreeSet::new();
    let mut found = Vec::with_capacity(file.zones.len());
    for (at, zone) in file.zones.iter().enumerate() {
        let field = format!("observed.zones[{at}]");
        let node = known(zone.node, format!("{field}.node"))?;
        let mut zone = observed_zone(zone, node).map_err(|problem| (field.clone(), problem))?;
        if kernel.is_some_and(|kernel| KernelVersion::ZERO_COLUMNS.contains(&kernel)) {
            fill_zero_columns(&mut zone, zones);
        }
        let (node, kind) = (zone.node.get(), zone.kind);
        if zones.binary_search_by_key(&(zone.node, kind), |known| (known.node, known.kind)).is_err() {
            return Err((field, Problem::UnknownZone { node, kind }));
        }
        if !seen.insert((node, kind)) {
            return Err((field, Problem::ZoneTwice { node, kind }));
        }
        found.push(zone);
    }
    Ok(Observed { kernel, cpu_penalty: file.cpu_penalty.map(penalty), fallback_order, zones: found })
}

/// Replaces the zeros that some kernels report for kinds of which the node has no frames by the reserve for the kind before.
fn fill_zero_columns(observed: &mut ObservedZone, zones: &[ZoneModel]) {
    let managed = |kind: ZoneKind| {
        let at = zones.binary_search_by_key(&(observed.node, kind), |zone| (zone.node, zone.kind));
        at.map_or(PageCount::ZERO, |at| zones[at].managed)
    };
    // The model has no device memory.
    let [_, dma32, normal, movable] = ZoneKind::ALL.map(managed);
    let Some(columns) = &mut observed.protection else { return };
    for (column, frames) in (1..).zip([dma32, normal, movable, PageCount::ZERO]) {
        if frames == PageCount::ZERO && columns[column] == PageCount::ZERO {
            columns[column] = columns[column - 1];
        }
    }
}

fn observed_zone(file: &FileObservedZone, node: NodeId) -> Result<ObservedZone, Problem> {
    let kind = ZoneKind::from(file.kind);
    let columns = |given: &Vec<u64>| {
        let pages: Vec<PageCount> = given.iter().map(|&pages| PageCount::new(pages)).collect();
        let count = pages.len();
        <[PageCount; 5]>::try_from(pages).map_err(|_| Problem::Protection {
            node: node.get(),
            kind,
            columns: count,
        })
    };
    Ok(ObservedZone {
        node,
        kind,
        min: file.min.map(PageCount::new),
        low: file.low.map(PageCount::new),
        high: file.high.map(PageCount::new),
        protection: file.protection.as_ref().map(columns).transpose()?,
        batch: file.batch.map(PageCount::new),
        pageset_high: file.pageset_high.map(PageCount::new),
        pageset_high_min: file.pageset_high_min.map(PageCount::new),
        pageset_high_max: file.pageset_high_max.map(PageCount::new),
        stat_threshold: file.stat_threshold,
    })
}
