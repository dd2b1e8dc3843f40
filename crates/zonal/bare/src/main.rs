//! zonal with nothing underneath: no std, no heap, no C library, not even start files.
//!
//! What a kernel brings is here in its smallest form: an entry point, a panic handler, a platform.
//! The program describes a machine, and ends with 0 when everything came out as it should.
//! Neighbours: `memory.rs` has the copy routines the compiler calls, `exit.rs` how to start and end.
#![no_std]
#![no_main]
#![no_builtins]

mod exit;
mod memory;

use core::panic::PanicInfo;

use zonal::machine::{FrameRange, Machine, NodeDescription, TopologyError, ZoneDescription};
use zonal::platform::{RawLock, SpinLock};
use zonal::units::{CpuId, NodeId, PageCount, Pfn, ZoneKind};

const NODE: NodeId = match NodeId::new(0) {
    Some(node) => node,
    None => panic!("node 0 is always an id"),
};

fn run() -> Result<(), TopologyError> {
    let frames = FrameRange { start: Pfn::new(256), count: PageCount::new(4096) };
    let nodes = [NodeDescription { id: NODE, cpus: &[CpuId::new(0)], distances: &[10] }];
    let managed = [frames];
    let zones = [ZoneDescription { node: NODE, kind: ZoneKind::Normal, span: frames, managed: &managed }];
    let machine = Machine::new(&nodes, &zones)?;
    assert_eq!(machine.position(NODE), Some(0));
    let lock = SpinLock::new();
    assert!(lock.try_lock() && !lock.try_lock());
    lock.unlock();
    Ok(())
}

#[panic_handler]
fn panic(_: &PanicInfo<'_>) -> ! {
    exit::with(101)
}

/// Referred to by the tables of the ready-built `core`, which can unwind; nothing here does.
// SAFETY: the name is that of Rust's unwinding helper, which no code of an aborting program calls.
#[unsafe(no_mangle)]
extern "C" fn rust_eh_personality() {}
