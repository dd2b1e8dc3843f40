//! A process that stores into a mapping of a large file, page after page from its start to its end:
//! Gorman 2011.
//!
//! Each page is a fault that takes a frame, and is dirty from then on. Pages stay mapped until reclaim
//! unmaps them, which node reclaim may not. Nothing is synced. Neighbours: `file_machine.rs`.

use std::cell::RefCell;
use std::sync::atomic::AtomicBool;

use serde::Deserialize;
use zonal::NodeMask;

use super::file_machine::{FileMachine, check_files};
use super::{Program, Unfit, check_figure};
use crate::hands::Hands;
use crate::outcome::Outcome;
use crate::page_cache::CacheSettings;
use crate::sim::{RunError, SimulatedMachine};

/// A writer of a mapping.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MappedWriter {
    /// Size of the mapping, in GiB.
    pub mapping_gib: f64,
    /// How much of it is simulated, in GiB. What the second half of that brings holds for all that comes
    /// after it; so memory must be full long before its half.
    pub simulated_gib: f64,
    /// Pages of files on the first node that others use all the time, in MiB: clean and not mapped.
    pub resident_mib: f64,
    /// The kernel's work for a page beside allocation and copying, in nanoseconds.
    pub page_ns: f64,
    /// Looking at a page on a list by use, in nanoseconds.
    pub scan_ns: f64,
}

impl Program for MappedWriter {
    fn check(&self, machine: &SimulatedMachine) -> Result<(), Unfit> {
        check_figure("mapping_gib", self.mapping_gib, 0.0)?;
        check_figure("simulated_gib", self.simulated_gib, 0.0)?;
        check_figure("resident_mib", self.resident_mib, 0.0)?;
        let first = machine.model.nodes.first().map(|node| machine.model.managed_of(node.id).get());
        let there = first.unwrap_or(0) as f64 * f64::from(machine.model.page_bytes) / f64::from(1 << 20);
        if self.resident_mib > there / 2.0 {
            let problem =
                format!("is {}, must be at most half of the first node's {there}", self.resident_mib);
            return Err(Unfit { field: "resident_mib", problem });
        }
        check_files(machine, &self.settings())
    }

    fn operations(&self, machine: &SimulatedMachine) -> f64 {
        2.0 * self.simulated_gib * f64::from(1 << 30) / f64::from(machine.model.page_bytes)
    }

    fn run(&self, hands: &Hands<'_, '_>, stop: &AtomicBool) -> Result<Outcome, RunError> {
        let machine = FileMachine::new(hands, &self.settings());
        let model = &hands.sim.machine.model;
        let page_bytes = f64::from(model.page_bytes);
        let first: NodeMask = model.nodes.iter().take(1).map(|node| node.id).collect();
        let pages = (self.mapping_gib * f64::from(1 << 30) / page_bytes) as u32;
        let simulated = pages.min((self.simulated_gib * f64::from(1 << 30) / page_bytes) as u32);
        let resident = (self.resident_mib * f64::from(1 << 20) / page_bytes) as u32;
        let half = RefCell::default();
        let program = || {
            machine.cache.add_resident(&first, resident);
            let file = machine.cache.create();
            (0..simulated / 2).for_each(|index| machine.cache.store(file, index));
            half.replace(Some((hands.sim.world.now(), machine.reclaim())));
            (simulated / 2..simulated).for_each(|index| machine.cache.store(file, index));
        };
        let mut outcome = machine.run(vec![Box::new(program)], stop)?;
        let (half_time, half) = half.take().unwrap_or_default();
        let more = f64::from(pages - simulated) / f64::from((simulated - simulated / 2).max(1));
        let whole = |half: f64, end: f64| end + (end - half) * more;
        outcome.metric("elapsed_s", "s", whole(half_time.seconds(), outcome.seconds));
        for (begin, end) in half.iter().zip(machine.reclaim()) {
            outcome.metric(end.name, end.unit, whole(begin.value, end.value));
        }
        Ok(outcome)
    }
}

impl MappedWriter {
    fn settings(&self) -> CacheSettings {
        CacheSettings { page_ns: self.page_ns, scan_ns: self.scan_ns, ..CacheSettings::default() }
    }
}
