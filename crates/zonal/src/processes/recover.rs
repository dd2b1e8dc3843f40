//! Recovery from the death of a process: frees what the process held, whatever it was doing, or keeps its blocks.
//!
//! A dead process changes nothing any more, and nothing that others share is half changed except under a lock that names it
//! as its holder. The process that takes such a lock next repairs what it guards: an area from the holders of its frames
//! (`zone/rebuilt_areas.rs`), a handover by finishing or dropping it (`processes/handover.rs`). What is left is the process's own:
//! the frames that it held, its pagesets, deferred frees and counts. A recovery that is itself interrupted by a death is
//! simply made again. Related files: `zone/processes.rs` explains holders.

use core::sync::atomic::Ordering::Relaxed;

use crate::Allocator;
use crate::machine::FrameRange;
use crate::pageset::state::MachineState;
use crate::platform::{Atomic, Platform};
use crate::units::{PageCount, PageKind};
use crate::zone::counters::{Item, ProcessTotals, ZoneItem};
use crate::zone::frame_state::FrameState;
use crate::zone::processes::{Holders, bit};
use crate::zone::{CpuInfo, Zone};

/// What becomes of the blocks that a process has allocated or taken over when it ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum OnDeath {
    /// They are freed.
    #[default]
    Free,
    /// They stay allocated, for a process that joins with the same number. A block that was being allocated, freed, split or
    /// trimmed when the process died may be freed, or stay although the process did not learn its address.
    Keep,
}

impl<P: Platform> Allocator<'_, P> {
    /// Sets what becomes of a process's blocks when it ends; by default [`OnDeath::Free`].
    ///
    /// # Panics
    /// Panics if processes do not share the allocator, or it has no such process.
    pub fn set_on_death(&self, process: u8, on_death: OnDeath) {
        let (bit, cell) = (self.state.bit_of(process), &self.state.shared.keeping);
        // Relaxed: read by a recovery, which follows the process's death.
        match on_death {
            OnDeath::Free => _ = cell.fetch_and(!bit, Relaxed),
            OnDeath::Keep => _ = cell.fetch_or(bit, Relaxed),
        }
    }

    /// Frees what `process` holds, except for blocks that outlive it ([`OnDeath::Keep`]), and makes its pagesets and counts as
    /// they were before it began; returns how many frames were freed, those in its pagesets included.
    ///
    /// The process must have died, or be this one, with no operation under way, about to end. Other processes may allocate
    /// and free meanwhile: they wait for the lock of one free area at a time; for a handover, if blocks stay, until a node's
    /// frames are counted. Frames that another process has taken over ([`Allocator::take_over`]) stay.
    ///
    /// # Panics
    /// Panics if processes do not share the allocator, or it has no such process.
    pub fn recover(&self, process: u8) -> PageCount {
        let state = &self.state;
        let keeps = state.shared.keeping.load(Relaxed) & state.bit_of(process) != 0; // relaxed: as in `set_on_death`
        // First, because this process may be in the place of one that died with a pageset locked, which a repair would wait for.
        // Until its frames are freed, their holder says whose they are.
        let cpus = state.cpus_of(process);
        for &cpu in cpus.clone() {
            for pagesets in state.pagesets {
                pagesets.of(cpu).reset(pagesets.stacks(cpu).1.capacity().get() as u32);
            }
            state.deferred[cpu.index as usize].take_all().for_each(drop);
        }
        let held = state.lock_changes();
        let freed = (0..state.nodes.len()).map(|place| state.recover_node(place, process, keeps)).sum();
        let set_offline = |cpu: &CpuInfo| state.cpus_online[cpu.id.index()].store(0, Relaxed); // relaxed: under the change lock
        cpus.for_each(set_offline);
        for node in state.nodes {
            node.forget_callers();
            node.cells.stalls.0.forget_callers(state.platform.now());
        }
        state.zones.iter().for_each(Zone::forget_reclaims);
        state.apply_settings(&held);
        PageCount::new(freed)
    }

    /// Calls `each` with each allocated block and run, ascending in each zone, and the process that holds it; none if
    /// processes do not share the allocator. Complete if no thread changes them meanwhile.
    pub fn for_each_held(&self, mut each: impl FnMut(u8, FrameRange)) {
        for zone in self.state.zones.iter().filter(|zone| zone.holders().are_kept()) {
            let (mut frames, holders) = (zone.offsets(), zone.holders());
            while let Some(frame) = frames.next() {
                let holder = holders.of(frame as u32); // a zone spans at most 2^32 frames
                if holder != Holders::<P>::NO_HOLDER
                    && let Some(run) = zone.frames.block_or_run_at(frame as u32)
                {
                    frames.start = run.end();
                    each(holder, zone.range_of(run));
                }
            }
        }
    }
}

impl<'m, P: Platform> MachineState<'m, P> {
    /// Returns the bit of a process that shares the allocator.
    fn bit_of(&self, process: u8) -> u64 {
        assert!((1..=self.config().processes).contains(&process), "there is no process {process}");
        bit(process)
    }

    /// Frees a node's frames that `process` holds, area by area, and makes its counts those of the blocks that stay;
    /// returns how many were freed.
    fn recover_node(&self, place: usize, process: u8, keeps: bool) -> u64 {
        let node = &self.nodes[place];
        // A free of another process must not take a block over that is being freed, nor move counts that are being made.
        let handover = || node.handover.map(|cells| self.handover(node, cells));
        let counted = keeps.then(handover);
        let (mut freed, mut kept) = (0, [0; PageKind::COUNT]); // frames, those that stay by kind
        for zone in self.node_zones(place) {
            let (before, mut run) = (kept, None);
            for at in 0..zone.free_areas.shape.count {
                let _handover = counted.is_none().then(handover);
                freed += zone.free_areas.add_held(at, process, |frame| {
                    let block = if keeps { zone.block_that_stays(frame, &mut run) } else { None };
                    if let Some((count, kind)) = block {
                        kept[kind as usize] += count;
                        return count;
                    }
                    if zone.frames.state(frame) != FrameState::Free {
                        zone.frames.set(frame, FrameState::Free);
                    }
                    0
                });
            }
            if !keeps {
                zone.holders().forget(process);
            }
            let staying = kept.iter().sum::<u64>() - before.iter().sum::<u64>();
            set_total(zone.by_process, process, ZoneItem::Free, staying.wrapping_neg());
        }
        for kind in PageKind::ALL {
            set_total(node.by_process, process, kind.item(), kept[kind as usize]);
        }
        freed
    }
}

impl<P: Platform> Zone<'_, P> {
    /// Returns frames and kind of the allocated block at `frame`. `run` has the end and the kind of the run that was found
    /// last: a later block of a run stays only with all before it.
    fn block_that_stays(&self, frame: u32, run: &mut Option<(u64, PageKind)>) -> Option<(u64, PageKind)> {
        let (order, kind) = match self.frames.state(frame) {
            FrameState::Allocated(order, kind) => return Some((order.pages().get(), kind)),
            FrameState::RunHead(order, kind) => (order, kind),
            FrameState::RunPart(order) => (order, run.filter(|&(end, _)| end == frame.into())?.1),
            _ => return None,
        };
        *run = Some((u64::from(frame) + order.pages().get(), kind));
        Some((order.pages().get(), kind))
    }
}

/// Sets what `process` has counted of an item, for a process that does not count meanwhile.
fn set_total<P: Platform>(totals: &[ProcessTotals<P>], process: u8, item: impl Item, count: u64) {
    let totals = &totals[usize::from(process) - 1];
    totals.counted.0[item.lane()].store(count, Relaxed); // relaxed: counts may be out of date
    totals.moved.0[item.lane()].store(0, Relaxed);
}
