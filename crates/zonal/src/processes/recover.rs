//! Recovery from the death of a process: frees what the process held, whatever it was doing.
//!
//! A dead process changes nothing any more, and nothing that others share is half changed except under a lock that names it
//! as its holder. The process that takes such a lock next repairs what it guards: an area from the holders of its frames
//! (`zone/rebuilt_areas.rs`), a handover by finishing or dropping it (`processes/handover.rs`). What is left is the process's own:
//! the frames that it held, its pagesets, deferred frees and counts. A recovery that is itself interrupted by a death is
//! simply made again. Related files: `zone/processes.rs` explains holders.

use core::sync::atomic::Ordering::Relaxed;

use crate::Allocator;
use crate::pageset::state::MachineState;
use crate::platform::Atomic;
use crate::platform::Platform;
use crate::units::{PageCount, PageKind};
use crate::zone::counters::{Item, ProcessTotals, ZoneItem};
use crate::zone::frame_state::FrameState;
use crate::zone::{CpuInfo, Zone};

impl<P: Platform> Allocator<'_, P> {
    /// Frees every frame that `process` holds, and makes its pagesets and counts as they were before it began; returns
    /// how many frames were freed, those in its pagesets included.
    ///
    /// The process must have died, or be this one, with no operation under way, about to end. Other processes may allocate
    /// and free meanwhile: they wait for the lock of one free area at a time. Frames that another process has taken over
    /// ([`Allocator::take_over`]) stay.
    ///
    /// # Panics
    /// Panics if processes do not share the allocator, or it has no such process.
    pub fn recover(&self, process: u8) -> PageCount {
        let state = &self.state;
        assert!((1..=state.config.processes).contains(&process), "there is no process {process} to recover");
        let held = state.lock_changes();
        let freed = state.zones.iter().map(|zone| state.recover_zone(zone, process)).sum();
        for &cpu in state.cpus_of(process) {
            state.reset_cpu(cpu);
            state.cpus_online[cpu.id.index()].store(0, Relaxed); // relaxed: the change lock serialises these
        }
        for node in state.nodes {
            node.forget_callers();
            node.cells.stalls.0.forget_callers(state.platform.now());
            drop_totals(node.process_totals, process, &PageKind::ALL.map(|kind| kind.item().lane()));
        }
        for zone in state.zones {
            zone.forget_reclaims();
            drop_totals(zone.process_totals, process, &[ZoneItem::Free.lane()]);
        }
        state.apply_settings(&held);
        freed
    }

    /// Calls `each` with the number of frames that each process holds in the buddy's stead: allocated, in its pagesets, or
    /// on their way; the numbers may be out of date.
    pub fn for_each_process(&self, mut each: impl FnMut(u8, PageCount)) {
        let mut held = [0_u64; 256];
        for zone in self.state.zones {
            let (start, count) = (zone.offset(zone.span.start), zone.span.count.get());
            for frame in u64::from(start)..u64::from(start) + count {
                held[usize::from(zone.holders().of(frame as u32))] += 1;
            }
        }
        (1..=self.state.config.processes)
            .for_each(|process| each(process, PageCount::new(held[usize::from(process)])));
    }
}

impl<'m, P: Platform> MachineState<'m, P> {
    /// Frees the frames in a zone that `process` holds, area by area; returns how many.
    fn recover_zone(&self, zone: &Zone<'m, P>, process: u8) -> PageCount {
        let node = &self.nodes[zone.node];
        let areas = 0..zone.free_areas.shape.count();
        let freed = areas.map(|at| {
            // A free of another process must not take a block over that is being freed.
            let _handover = node.handover.map(|cells| self.handover(node, cells));
            zone.return_held(at, process)
        });
        PageCount::new(freed.sum())
    }

    /// Makes the pagesets and the deferred frees of a CPU as they were at first. Their frames are in the buddy.
    fn reset_cpu(&self, cpu: CpuInfo) {
        for zone in self.zones {
            let pagesets = self.pagesets_of(zone);
            let slots = pagesets.stacks(cpu).1.capacity().get();
            pagesets.of(cpu).reset(slots as u32);
        }
        self.deferred[cpu.index as usize].take_all().for_each(drop);
    }
}

impl<P: Platform> Zone<'_, P> {
    /// Frees the frames in an area that `process` holds; returns how many.
    fn return_held(&self, at: usize, process: u8) -> u64 {
        let mut freed = 0;
        self.free_areas.add_held(at, process, |run| {
            for frame in run.frames() {
                if self.frames.state(frame) != FrameState::Free {
                    self.frames.set(frame, FrameState::Free);
                }
            }
            freed += run.count;
        });
        freed
    }
}

/// Drops what `process` has counted in these lanes, which count frames that it held.
fn drop_totals<P: Platform>(totals: &[ProcessTotals<P>], process: u8, lanes: &[usize]) {
    let totals = &totals[usize::from(process) - 1];
    for &lane in lanes {
        totals.counted.0[lane].store(0, Relaxed); // relaxed: counts may be out of date
        totals.moved.0[lane].store(0, Relaxed);
    }
}
