//! Fuzz target: bytes are a machine file, which is read, explained and written again, and used if it is small.
//!
//! The input must fail with an error of one line, or be a valid machine. A valid machine must read back as an equal
//! machine, be explained by the rules of every kernel, and be accepted by the allocator.
//!
//! Related files: `captured_tree.rs` makes the same checks.

use zonal::error::AllocError;
use zonal::units::{Order, PageCount};
use zonal::{Allocator, Machine, Platform, Request};
use zonal_machine::{KernelVersion, MachineModel, OwnedMachine, Rules, explain};

use super::errors::check_error;
use crate::history::{Plain, World};

/// The name of the file in errors.
const ORIGIN: &str = "fuzzed.json";

/// Limits of the machines for which an allocator is built.
const FRAMES_MAX: u64 = 1 << 14;
const CPUS_MAX: u32 = 64;
const NODES_MAX: usize = 8;

/// Reads `data` as a machine file.
pub fn target(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    match MachineModel::from_json(text, ORIGIN) {
        Ok(model) => check(&model),
        Err(error) => check_error(&error, ORIGIN),
    }
}

/// Checks a machine that was accepted.
pub(super) fn check(model: &MachineModel) {
    let again = MachineModel::from_json(&model.to_json(), "again").expect("what is written can be read");
    assert_eq!(again, *model);
    for version in [KernelVersion::new(5, 10), KernelVersion::new(6, 1), KernelVersion::NEWEST] {
        let report = explain(model, &Rules::of(version));
        assert_eq!(report.zones.len(), model.zones.len());
        assert!(report.zones.iter().all(|zone| zone.min <= zone.low && zone.low <= zone.high));
    }
    if !is_small(model) {
        return;
    }
    let managed = model.zones.iter().map(|zone| zone.managed).sum();
    OwnedMachine::from(model)
        .with(|machine| exercise(machine, model, managed))
        .unwrap_or_else(|error| panic!("the allocator refuses a machine that was accepted: {error}"));
}

fn is_small(model: &MachineModel) -> bool {
    let frames: u64 = model.zones.iter().map(|zone| zone.spanned.get()).sum();
    let mut cpus = model.nodes.iter().flat_map(|node| &node.cpus);
    frames <= FRAMES_MAX && model.nodes.len() <= NODES_MAX && cpus.all(|cpu| cpu.get() < CPUS_MAX)
}

/// Builds an allocator, allocates blocks of several orders until no memory is left, and frees them all.
fn exercise(machine: &Machine<'_>, model: &MachineModel, managed: PageCount) {
    let config = model.config();
    let built =
        World::build::<Plain, _>(machine, &config, |world| take_and_free_all(&world.allocator, managed));
    if let Err(error) = built {
        assert!(config.watermarks.min_free.is_some_and(|min_free| min_free > managed), "{error}");
    }
}

fn take_and_free_all(allocator: &Allocator<'_, impl Platform>, managed: PageCount) {
    let mut held = Vec::new();
    for order in [10, 9, 3, 0].map(|order| Order::new(order).expect("small orders there are")) {
        let accounting = loop {
            match allocator.alloc(&Request::new(order)) {
                Ok(block) => held.push(block),
                Err(AllocError::OutOfMemory(_) | AllocError::NoNodeInPolicy) => break allocator.accounting(),
                Err(other) => panic!("{other}"),
            }
        };
        assert!(accounting.balance() && accounting.managed == managed, "{accounting:?}");
    }
    for block in held {
        allocator.free(block.first, block.order).expect("what is held can be freed");
    }
    allocator.drain_pagesets();
    let accounting = allocator.verify().expect("the accounting is right");
    assert_eq!((accounting.managed, accounting.free), (managed, managed));
}
