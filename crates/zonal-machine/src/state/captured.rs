//! A file with a machine and its state: settings, zones, free blocks by order and migrate type, pagesets, and the limits
//! of the cgroup in which it was written.
//!
//! The file is JSON with the schema `zonal.capture.v1`. Its member `machine` is a machine file.

use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use zonal::units::{NodeId, PageCount};
use zonal_model::input::{self, Limit};
use zonal_model::{Capture, Excerpt, MachineError, MachineModel, capture_live};

use super::{
    CgroupLimits, NODES_MAX, ORDERS_MAX, PAGESETS_MAX, Sample, StateError, SystemState, ZoneSample, whole_gib,
};

/// A machine and its state.
#[derive(Clone, PartialEq, Debug)]
pub struct CapturedState {
    /// The machine.
    pub model: MachineModel,
    /// Its zones, pagesets and totals. Every zone is one of the machine.
    pub sample: Sample,
    /// The limits of the cgroup that captured it.
    pub cgroup: Option<CgroupLimits>,
    /// By node, how many aligned ranges of 1 GiB could be had in one piece; empty if unknown.
    pub whole_gib: Vec<(NodeId, u64)>,
}

/// Why a state cannot be captured, or read from a file.
#[derive(Debug, thiserror::Error)]
pub enum CaptureError {
    /// The file is not JSON, or not that of a capture.
    #[error("{}:{line}:{column}: {why}; it must be a file of zonal capture", Excerpt::name(.origin))]
    Shape {
        /// The file.
        origin: String,
        /// Line of the error, from 1.
        line: usize,
        /// Column of the error, from 1.
        column: usize,
        /// What is wrong there.
        why: String,
    },
    /// A value is impossible.
    #[error("{}: {field}: {why}", Excerpt::name(.origin))]
    Invalid {
        /// The file.
        origin: String,
        /// The member.
        field: String,
        /// What is wrong, and what would be right.
        why: String,
    },
    /// The machine cannot be read.
    #[error(transparent)]
    Machine(#[from] MachineError),
    /// Its state cannot be read.
    #[error(transparent)]
    State(#[from] StateError),
}

#[derive(Serialize)]
struct Written<'a> {
    schema: Schema,
    machine: &'a RawValue,
    state: &'a Sample,
    cgroup: &'a Option<CgroupLimits>,
    whole_gib: Vec<(u16, u64)>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Read<'a> {
    #[serde(rename = "schema")]
    _schema: Schema,
    #[serde(borrow)]
    machine: &'a RawValue,
    state: Sample,
    #[serde(default)]
    cgroup: Option<CgroupLimits>,
    #[serde(default)]
    whole_gib: Vec<(u16, u64)>,
}

#[derive(Serialize, Deserialize)]
enum Schema {
    #[serde(rename = "zonal.capture.v1")]
    V1,
}

impl CapturedState {
    /// Captures this machine, and returns it with notes about what could not be read.
    ///
    /// # Errors
    /// When the machine or its zones cannot be read.
    pub fn live() -> Result<(Self, Vec<String>), CaptureError> {
        let Capture { model, mut notes, has_positions } = capture_live()?;
        let mut sample = SystemState::live().read()?;
        notes.append(&mut sample.missing);
        let whole_gib = match has_positions {
            true => whole_gib(&model).map_err(|why| format!("cannot read /proc/kpageflags ({why})")),
            false => Err("the frames of each zone are unknown".to_owned()),
        };
        let whole_gib = whole_gib.unwrap_or_else(|why| {
            notes.push(format!("{why}: ranges of 1 GiB are unknown"));
            Vec::new()
        });
        // Zones that only the kernel itself uses, such as those of devices, are not in the model.
        let mut captured = Self { model, sample, cgroup: CgroupLimits::read(Path::new("/")), whole_gib };
        captured.keep_known_zones();
        Ok((captured, notes))
    }

    /// Removes zones that the machine does not have, with their pagesets.
    fn keep_known_zones(&mut self) {
        let is_known = |zone: &ZoneSample| zone_of(&self.model, zone).is_some();
        let known: Vec<bool> = self.sample.zones.iter().map(is_known).collect();
        let mut places = known.iter().scan(0, |next, &is_known| {
            *next += usize::from(is_known);
            Some(*next - usize::from(is_known))
        });
        let places: Vec<usize> = places.by_ref().collect();
        self.sample.pagesets.retain(|pageset| known[pageset.zone]);
        self.sample.pagesets.iter_mut().for_each(|pageset| pageset.zone = places[pageset.zone]);
        let mut at = known.iter();
        self.sample.zones.retain(|_| at.next() == Some(&true));
    }

    /// Reads a file.
    ///
    /// # Errors
    /// Names the file, the member and what would be right.
    pub fn read(path: &Path) -> Result<Self, CaptureError> {
        let text = input::read_text(path, Limit::ZoneInfo)
            .map_err(|source| MachineError::Read { path: path.to_owned(), source })?;
        Self::from_json(&text, &path.display().to_string())
    }

    /// Parses the text of a file, which errors name as `origin`.
    ///
    /// # Errors
    /// Names the file, the member and what would be right.
    pub fn from_json(text: &str, origin: &str) -> Result<Self, CaptureError> {
        let read: Read<'_> = serde_json::from_str(text).map_err(|error| CaptureError::Shape {
            origin: origin.to_owned(),
            line: error.line(),
            column: error.column(),
            why: Excerpt::line(error.to_string()).to_string(),
        })?;
        let model = MachineModel::from_json(read.machine.get(), &format!("{origin}, member machine"))?;
        let wrong = |field, why| CaptureError::Invalid { origin: origin.to_owned(), field, why };
        check(&read.state, &model).map_err(|(field, why)| wrong(field, why))?;
        let node = |(id, count): (u16, u64)| {
            let known = NodeId::new(id).filter(|&id| model.place(id).is_some());
            known
                .map(|id| (id, count))
                .ok_or_else(|| wrong("whole_gib".to_owned(), format!("node {id} is not in the machine")))
        };
        let whole_gib = read.whole_gib.into_iter().map(node).collect::<Result<_, _>>()?;
        Ok(Self { model, sample: read.state, cgroup: read.cgroup, whole_gib })
    }

    /// Returns the text of the file, with a line for each member.
    #[must_use]
    pub fn to_json(&self) -> String {
        let machine = self.model.to_json();
        let written = Written {
            schema: Schema::V1,
            machine: serde_json::from_str(machine.trim()).expect("a machine file is JSON"),
            state: &self.sample,
            cgroup: &self.cgroup,
            whole_gib: self.whole_gib.iter().map(|&(node, count)| (node.get(), count)).collect(),
        };
        // The first line is the mark by which zonal recognizes its files.
        let text = serde_json::to_string(&written).expect("numbers and names are always JSON");
        format!("{{\n  {}\n", &text[1..]).replacen(
            "{\n  \"schema\":\"zonal.capture.v1\",",
            "{\n  \"schema\": \"zonal.capture.v1\",\n  ",
            1,
        )
    }
}

fn zone_of(model: &MachineModel, zone: &ZoneSample) -> Option<PageCount> {
    let node = u16::try_from(zone.node).ok().and_then(NodeId::new)?;
    let mut zones = model.zones_of(node);
    zones.find(|known| known.kind.name() == zone.kind).map(|known| known.managed)
}

/// Checks what was read; returns the wrong member and what would be right.
fn check(state: &Sample, model: &MachineModel) -> Result<(), (String, String)> {
    let most = |field: &str, length: usize, most: usize| match length > most {
        true => Err((format!("state.{field}"), format!("it has {length} entries; the maximum is {most}"))),
        false => Ok(()),
    };
    most("nodes", state.nodes.len(), NODES_MAX)?;
    most("pagesets", state.pagesets.len(), PAGESETS_MAX)?;
    if state.page_bytes != u64::from(model.page_bytes) {
        let problem = format!("it is {}; the machine has {}", state.page_bytes, model.page_bytes);
        return Err(("state.page_bytes".to_owned(), problem));
    }
    for (at, zone) in state.zones.iter().enumerate() {
        let field = |name: &str| format!("state.zones[{at}].{name}");
        most(&format!("zones[{at}].free_blocks"), zone.free_blocks.len(), ORDERS_MAX)?;
        let Some(managed) = zone_of(model, zone) else {
            let problem = format!("zone {} of node {} is not in the machine", zone.kind, zone.node);
            return Err((field("kind"), problem));
        };
        if zone.free > managed.get() {
            let problem = format!("{} frames are free; the zone has {managed}", zone.free);
            return Err((field("free"), problem));
        }
        let frames = |(order, &count): (usize, &u64)| count.saturating_mul(1 << order);
        let in_blocks = zone.free_blocks.iter().enumerate().map(frames).fold(0, u64::saturating_add);
        if in_blocks > managed.get() {
            let problem = format!("the blocks have {in_blocks} frames; the zone has {managed}");
            return Err((field("free_blocks"), problem));
        }
        if state.zones[..at].iter().any(|other| (other.node, &other.kind) == (zone.node, &zone.kind)) {
            return Err((field("kind"), format!("zone {} of node {} is there twice", zone.kind, zone.node)));
        }
    }
    let zones = state.zones.len();
    match state.pagesets.iter().position(|pageset| pageset.zone >= zones) {
        Some(at) => Err((format!("state.pagesets[{at}].zone"), format!("there are only {zones} zones"))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_capture_reads_back_equal() {
        let (captured, _) = CapturedState::live().unwrap();
        let text = captured.to_json();
        assert!(text.starts_with("{\n  \"schema\": \"zonal.capture.v1\""), "{}", &text[..60]);
        let read = CapturedState::from_json(&text, "here").unwrap();
        assert_eq!(read, captured);
        for zone in &captured.model.zones {
            assert!(zone.managed == PageCount::ZERO || read.sample.zone(zone.node, zone.kind).is_some());
        }
    }

    #[test]
    fn errors_name_the_member() {
        let (captured, _) = CapturedState::live().unwrap();
        let error = |change: &dyn Fn(&mut CapturedState)| {
            let mut changed = captured.clone();
            change(&mut changed);
            CapturedState::from_json(&changed.to_json(), "a.json").unwrap_err().to_string()
        };
        let why = error(&|captured| captured.sample.zones[0].free = u64::MAX);
        assert!(why.contains("a.json") && why.contains("state.zones[0].free"), "{why}");
        let why = error(&|captured| captured.sample.zones[0].free_blocks = vec![u64::MAX; 11]);
        assert!(why.contains("free_blocks"), "{why}");
        let why = error(&|captured| captured.sample.zones[0].node = 77);
        assert!(why.contains("not in the machine"), "{why}");
        let why = error(&|captured| captured.sample.pagesets[0].zone = 99);
        assert!(why.contains("state.pagesets[0].zone"), "{why}");
        let why = error(&|captured| captured.sample.page_bytes = 1);
        assert!(why.contains("page_bytes"), "{why}");
        let twice = error(&|captured| captured.sample.zones.push(captured.sample.zones[0].clone()));
        assert!(twice.contains("twice"), "{twice}");
    }

    #[test]
    fn cut_and_foreign_texts_are_refused() {
        let text = CapturedState::live().unwrap().0.to_json();
        for end in (0..text.len() - 2).step_by(97) {
            assert!(CapturedState::from_json(text.get(..end).unwrap_or_default(), "cut").is_err(), "{end}");
        }
        assert!(CapturedState::from_json("{\"schema\": \"zonal.machine-file.v1\"}", "other").is_err());
    }
}
