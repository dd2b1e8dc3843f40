//! What programs hold, in the host's memory: an experiment decides how much that is, so nothing here ends the process.
//!
//! Neighbours: programs that hold blocks; `experiment/resolve.rs` adds up what a run needs.

use zonal::Block;

use crate::hands::Hands;
use crate::sim::SimulatedMachine;

/// The host's bytes for so many blocks held at once; a machine has no more of them than frames.
pub(super) fn bytes_of_blocks(machine: &SimulatedMachine, blocks: f64) -> f64 {
    let frames: u64 = machine.model.zones.iter().map(|zone| zone.managed.get()).sum();
    blocks.min(frames as f64) * size_of::<Block>() as f64
}

/// An empty list that never grows beyond the room for so many.
///
/// # Panics
/// With a [`Fault`](crate::checks::Fault) when the host has no memory for it.
pub(super) fn room<T>(hands: &Hands<'_, '_>, count: usize) -> Vec<T> {
    let mut list = Vec::new();
    if list.try_reserve_exact(count).is_err() {
        no_memory(hands, count);
    }
    list
}

/// Adds to a list whose length nobody knows beforehand.
///
/// # Panics
/// With a [`Fault`](crate::checks::Fault) when the host has no memory for it.
pub(super) fn push<T>(hands: &Hands<'_, '_>, list: &mut Vec<T>, thing: T) {
    if list.len() == list.capacity() && list.try_reserve(1).is_err() {
        no_memory(hands, list.len() + 1);
    }
    list.push(thing);
}

#[cold]
fn no_memory(hands: &Hands<'_, '_>, count: usize) -> ! {
    hands.fault(format!("the host has no memory for {count} blocks that a program holds"))
}
