//! Host memory for the lists of blocks that programs hold. An experiment file determines the size of these lists. If
//! the host cannot allocate a list, the run fails but the process continues.
//!
//! Related files: the programs that hold blocks use this module. `experiment/resolve.rs` adds up the memory that a
//! run needs.

use zonal::Block;

use crate::sim::SimulatedMachine;
use crate::system::System;

/// Returns the host memory for a list of `blocks` blocks that are held at once, in bytes. A machine has at most as
/// many blocks as frames.
pub(super) fn bytes_of_blocks(machine: &SimulatedMachine, blocks: f64) -> f64 {
    let frames: u64 = machine.model.zones.iter().map(|zone| zone.managed.get()).sum();
    blocks.min(frames as f64) * size_of::<Block>() as f64
}

/// Creates an empty list with capacity for `count` entries.
///
/// # Panics
/// Panics with a [`Fault`](crate::checks::Fault) if the host has too little memory for the list.
pub(super) fn with_capacity<T>(system: &System<'_, '_>, count: usize) -> Vec<T> {
    let mut list = Vec::new();
    if list.try_reserve_exact(count).is_err() {
        no_memory(system, count);
    }
    list
}

/// Appends to a list whose length is not known in advance.
///
/// # Panics
/// Panics with a [`Fault`](crate::checks::Fault) if the host has too little memory for the list.
pub(super) fn push<T>(system: &System<'_, '_>, list: &mut Vec<T>, thing: T) {
    if list.len() == list.capacity() && list.try_reserve(1).is_err() {
        no_memory(system, list.len() + 1);
    }
    list.push(thing);
}

#[cold]
fn no_memory(system: &System<'_, '_>, count: usize) -> ! {
    system.fault(format!("the host has too little memory for {count} blocks that a program holds"))
}
