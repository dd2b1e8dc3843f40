//! Checks which sessions a CPU needs, on an allocator of two nodes.

use std::vec::Vec;

use super::*;
use crate::Request;
use crate::config::Config;
use crate::platform::pageset_word::POP_STEPS;
use crate::testing::small;
use crate::units::{CpuId, ZoneId};

/// Returns how many of 1000 allocations CPU 0 pops without the lock, after `frames` pops that no push followed.
fn pops_without_the_lock_after(frames: i64) -> usize {
    let a = small(&Config::default(), |_| {});
    let zone = &a.state.zones[a.state.nodes[0].preferred_zone().unwrap()];
    let slot = a.state.slots.at(0, zone.id).unwrap();
    let session = a.state.pageset(zone, a.state.cpu_info(CpuId::new(0)).unwrap());
    session.account(frames);
    session.update_limits();
    drop(session);
    let is_fast = |_: &usize| {
        let is_fast = slot.allows_pop(POP_STEPS[0]);
        assert_eq!(a.alloc(&Request::page()).unwrap().zone, zone.id);
        is_fast
    };
    (0..1000).filter(is_fast).count()
}

#[test]
fn a_cpu_that_only_allocates_keeps_its_fast_path() {
    let usual = pops_without_the_lock_after(1000);
    for frames in [i64::from(u32::MAX) - 500, i64::from(u32::MAX)] {
        let fast = pops_without_the_lock_after(frames);
        assert!(usual > 800 && fast > usual - 10, "{fast} of 1000 after {frames}, {usual} after 1000");
    }
}

/// A pageset that served for a zone of its node is as fast as before once the CPU has left it.
#[test]
fn serving_within_a_node_leaves_no_trace() {
    let a = small(&Config::default(), |_| {});
    let [lower, preferred] = [0, 1].map(|at| &a.state.zones[at]);
    let cpu = a.state.cpu_info(CpuId::new(0)).unwrap();
    let slot = a.state.slots.at(0, lower.id).unwrap();
    let mut held = Vec::new();
    while a.state.slots.of(cpu.id).unwrap().zone != lower.id {
        held.push(a.alloc(&Request::page()).unwrap().first);
    }
    assert!(!slot.is_preferred());
    held.iter().for_each(|&first| a.free(first, Order::PAGE).unwrap());
    assert_eq!(a.state.slots.of(cpu.id).unwrap().zone, preferred.id);
    a.state.pageset(lower, cpu).update_limits();
    assert!(slot.is_preferred(), "the CPU uses the pageset of another zone");
}

/// A mark that a rebuild of the zonelists has missed ends with the next session.
#[test]
fn a_preferred_zone_serves_for_no_other() {
    let a = small(&Config::default(), |_| {});
    let [other, preferred] = [3, 1].map(|at| &a.state.zones[at]);
    let session = a.state.pageset(preferred, a.state.cpu_info(CpuId::new(0)).unwrap());
    session.serve_instead_of(other);
    assert!(session.serves_for_another());
    session.update_limits();
    assert!(!session.serves_for_another());
    drop(session);
    assert!(a.state.slots.at(0, ZoneId::from_index(1)).unwrap().is_preferred());
}
