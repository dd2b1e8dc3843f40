//! Formats machine files that read back as the same machine.
//!
//! A file has one line for each top-level key, node and zone, so that people can read and compare files.

use std::io::{self, Write};

use serde::Serialize;
use serde_json::Serializer;
use serde_json::ser::Formatter;
use zonal::rules::fallback_order::CpuPenalty;
use zonal::units::PageCount;

use crate::file::{
    Exported, FileMachine, FileNode, FileObserved, FileObservedZone, FileRow, FileSchema, FileSettings,
    FileZone,
};
use crate::model::{MachineModel, NodeModel, Observed, ObservedZone, Presence, Settings, ZoneModel};

impl MachineModel {
    /// Returns the machine as the text of a machine file.
    #[must_use]
    pub fn to_json(&self) -> String {
        let mut text = Vec::new();
        let mut serializer = Serializer::with_formatter(&mut text, LineFormatter::default());
        self.exported().serialize(&mut serializer).expect("numbers and names are always JSON");
        text.push(b'\n');
        String::from_utf8(text).expect("JSON is UTF-8")
    }

    fn exported(&self) -> Exported {
        let machine = self.to_file();
        Exported { schema: machine.schema, machine }
    }

    fn to_file(&self) -> FileMachine {
        let offline = self.nodes.iter().filter(|node| node.presence == Presence::PossibleOffline);
        FileMachine {
            name: self.name.clone(),
            page_bytes: u64::from(self.page_bytes),
            nodes: self.online_nodes().map(|node| self.file_node(node)).collect(),
            possible_offline: offline.map(|node| u64::from(node.id.get())).collect(),
            zones: self.zones.iter().map(file_zone).collect(),
            settings: file_settings(&self.settings),
            observed: self.observed.as_ref().map(file_observed),
            schema: FileSchema::V1,
        }
    }

    fn file_node(&self, node: &NodeModel) -> FileNode {
        let row = self.nodes.iter().zip(&node.distances);
        FileNode {
            id: u64::from(node.id.get()),
            cpus: node.cpus.iter().map(|cpu| u64::from(cpu.get())).collect(),
            distances: FileRow(row.map(|(to, &d)| (u64::from(to.id.get()), i64::from(d))).collect()),
        }
    }
}

/// Formats JSON with a line for each key of the outermost object and for each object in an array.
#[derive(Default)]
struct LineFormatter {
    /// Number of arrays and objects that are open.
    depth: usize,
    /// Whether the value that follows is an element of an array.
    is_element: bool,
}

impl LineFormatter {
    fn line<W: ?Sized + Write>(&self, to: &mut W) -> io::Result<()> {
        write!(to, "\n{:indent$}", "", indent = 2 * self.depth)
    }
}

impl Formatter for LineFormatter {
    fn begin_array<W: ?Sized + Write>(&mut self, to: &mut W) -> io::Result<()> {
        self.depth += 1;
        to.write_all(b"[")
    }

    fn end_array<W: ?Sized + Write>(&mut self, to: &mut W) -> io::Result<()> {
        self.depth -= 1;
        to.write_all(b"]")
    }

    fn begin_array_value<W: ?Sized + Write>(&mut self, to: &mut W, first: bool) -> io::Result<()> {
        self.is_element = true;
        if first { Ok(()) } else { to.write_all(b",") }
    }

    fn begin_object<W: ?Sized + Write>(&mut self, to: &mut W) -> io::Result<()> {
        if std::mem::take(&mut self.is_element) {
            self.line(to)?;
        }
        self.depth += 1;
        to.write_all(b"{")
    }

    fn end_object<W: ?Sized + Write>(&mut self, to: &mut W) -> io::Result<()> {
        self.depth -= 1;
        if self.depth == 0 {
            self.line(to)?;
        }
        to.write_all(b"}")
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, to: &mut W, first: bool) -> io::Result<()> {
        if !first {
            to.write_all(b",")?;
        }
        match self.depth {
            1 => self.line(to),
            _ if first => Ok(()),
            _ => to.write_all(b" "),
        }
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, to: &mut W) -> io::Result<()> {
        self.is_element = false;
        to.write_all(b": ")
    }
}

fn file_zone(zone: &ZoneModel) -> FileZone {
    FileZone {
        node: u64::from(zone.node.get()),
        kind: zone.kind.into(),
        start: zone.start.get(),
        spanned: zone.spanned.get(),
        present: zone.present.get(),
        managed: zone.managed.get(),
    }
}

fn file_settings(settings: &Settings) -> FileSettings {
    let all = Settings::ALL.into_iter().map(|setting| (setting, settings.numbers(setting)));
    FileSettings(all.filter(|(_, numbers)| !numbers.is_empty()).collect())
}

fn file_observed(observed: &Observed) -> FileObserved {
    let orders = observed.fallback_order.iter();
    FileObserved {
        kernel: observed.kernel.map(|version| version.to_string()),
        cpu_penalty: observed.cpu_penalty.map(|penalty| penalty == CpuPenalty::On),
        fallback_order: orders
            .map(|(node, order)| {
                (u64::from(node.get()), order.iter().map(|to| u64::from(to.get())).collect())
            })
            .collect(),
        zones: observed.zones.iter().map(file_observed_zone).collect(),
    }
}

fn file_observed_zone(zone: &ObservedZone) -> FileObservedZone {
    let count = |pages: Option<PageCount>| pages.map(PageCount::get);
    FileObservedZone {
        node: u64::from(zone.node.get()),
        kind: zone.kind.into(),
        min: count(zone.min),
        low: count(zone.low),
        high: count(zone.high),
        protection: zone.protection.map(|columns| columns.map(PageCount::get).to_vec()),
        batch: count(zone.batch),
        pageset_high: count(zone.pageset_high),
        pageset_high_min: count(zone.pageset_high_min),
        pageset_high_max: count(zone.pageset_high_max),
        stat_threshold: zone.stat_threshold,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"{
  "schema": "zonal.machine-file.v1",
  "name": "duo",
  "page_bytes": 4096,
  "nodes": [
    {"id": 0, "cpus": [0,1], "distances": {"0": 10, "1": 20, "3": 20}},
    {"id": 1, "cpus": [], "distances": {"0": 20, "1": 10, "3": 20}}],
  "possible_offline": [3],
  "zones": [
    {"node": 0, "kind": "DMA32", "start": 1, "spanned": 4095, "present": 4000, "managed": 3900}],
  "settings": {"watermark_scale_factor": 20, "lowmem_reserve_ratio": [256,256,32,0,0], "zone_reclaim_mode": 0, "percpu_pagelist_high_fraction": 0, "min_unmapped_ratio": 1},
  "observed": {"kernel": "6.12", "cpu_penalty": true, "fallback_order": {"0": [0,1]}, "zones": [
      {"node": 0, "kind": "DMA32", "min": 10, "protection": [0,0,0,0,0], "stat_threshold": 8}]}
}
"#;

    #[test]
    fn a_machine_file_has_a_line_for_each_key_node_and_zone() {
        let model = MachineModel::from_json(TEXT, "duo").unwrap();
        assert_eq!(model.to_json(), TEXT);
    }
}
