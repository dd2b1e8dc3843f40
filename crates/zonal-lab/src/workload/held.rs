//! Host memory for the blocks that programs hold. An experiment file decides how much that is, so a failed host
//! allocation ends the run, not the process.
//!
//! Neighbours: programs that hold blocks; `experiment/resolve.rs` adds up the memory that a run needs.

use zonal::Block;

use crate::hands::Hands;
use crate::sim::SimulatedMachine;

/// Returns the host memory, in bytes, for `blocks` blocks held at once; a machine has at most as many blocks as
/// frames.
pub(super) fn bytes_of_blocks(machine: &SimulatedMachine, blocks: f64) -> f64 {
    let frames: u64 = machine.model.zones.iter().map(|zone| zone.managed.get()).sum();
    blocks.min(frames as f64) * size_of::<Block>() as f64
}

/// Creates an empty list with capacity for `count` entries.
///
/// # Panics
/// With a [`Fault`](crate::checks::Fault) when the host has too little memory for it.
pub(super) fn with_capacity<T>(hands: &Hands<'_, '_>, count: usize) -> Vec<T> {
    let mut list = Vec::new();
    if list.try_reserve_exact(count).is_err() {
        no_memory(hands, count);
    }
    list
}

/// Appends to a list whose length is not known in advance.
///
/// # Panics
/// With a [`Fault`](crate::checks::Fault) when the host has too little memory for it.
pub(super) fn push<T>(hands: &Hands<'_, '_>, list: &mut Vec<T>, thing: T) {
    if list.len() == list.capacity() && list.try_reserve(1).is_err() {
        no_memory(hands, list.len() + 1);
    }
    list.push(thing);
}

#[cold]
fn no_memory(hands: &Hands<'_, '_>, count: usize) -> ! {
    hands.fault(format!("the host has too little memory for {count} blocks that a program holds"))
}
