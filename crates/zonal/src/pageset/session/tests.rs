//! Checks which sessions a CPU needs, on an allocator of two nodes.

use super::*;
use crate::Request;
use crate::config::Config;
use crate::platform::pageset_word::POP_STEPS;
use crate::testing::small;
use crate::units::CpuId;

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
