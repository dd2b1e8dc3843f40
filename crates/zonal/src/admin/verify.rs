//! The full consistency check: compares all frames, blocks, pagesets and counters.
//!
//! No thread may allocate or free during the check.
//!
//! Related files: `buddy/verify.rs` checks the bitmaps of one buddy.

use core::fmt;
use core::mem::ManuallyDrop;
use core::ops::Range;

use crate::Allocator;
use crate::admin::snapshot::Accounting;
use crate::pageset::state::MachineState;
use crate::pageset::{CachedOrders, PagesetGuard};
use crate::platform::Platform;
use crate::units::{CpuId, NodeId, PageCount, Pfn, ZoneKind};
use crate::zone::counters::{NodeItem, ZoneItem};
use crate::zone::frame_state::FrameState;
use crate::zone::processes::Holders;
use crate::zone::runs::Run;
use crate::zone::{CpuInfo, Zone};

/// A violated invariant and its place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VerifyError {
    /// Node of the zone, or the node of the machine's first zone for machine-wide faults.
    pub node: NodeId,
    /// Kind of the zone, or of the machine's first zone for machine-wide faults.
    pub kind: ZoneKind,
    /// The fault.
    pub fault: Fault,
}

messages! {
    /// A violated invariant.
    pub enum Fault {
        /// The buddy's bitmaps, counts or indexes contradict each other.
        Buddy => "the buddy's bitmaps contradict each other",
        /// The blocks that CPUs own, their owners or their counts contradict each other.
        OwnedBlocks => "the blocks that CPUs own contradict each other",
        /// A frame is both free and in use, or is in use twice.
        FrameTwice(frame: Pfn) => "frame {frame} is both free and in use, or in use twice",
        /// A block in use starts inside another block or is misaligned.
        BlocksOverlap(frame: Pfn) => "allocated blocks overlap at frame {frame}",
        /// A block reaches beyond the last frame of its zone.
        BeyondZone(frame: Pfn) => "the block at frame {frame} extends past the end of the zone",
        /// A frame in a pageset is outside the zone, or a frame that is free in the buddy is not managed.
        NotManaged(frame: Pfn) => "frame {frame} is in a pageset or free, but outside the zone or not managed",
        /// The accounting of a zone does not balance. The values are the managed frames and the sum of the free, cached
        /// and allocated frames.
        Unbalanced(managed: PageCount, sum: PageCount) =>
            "{managed} frames are managed, but free, in pagesets and allocated add up to {sum}",
        /// A counter differs from the number of frames found.
        Counter {
            /// Frames that the counter counts.
            of: Counted,
            /// Value of the counter.
            counter: PageCount,
            /// Number of frames found.
            found: PageCount,
        } => "the counter of {of} is {counter}, but {found} were found",
        /// A machine-wide total differs from the sum over the nodes. The values are the total and the sum, in frames,
        /// without per-CPU differences.
        MachineTotal(total: i64, sum: i64) => "a total is {total}, but those of the nodes add up to {sum}",
    }

    /// The frames that a counter counts.
    pub enum Counted {
        /// Free frames of a zone.
        Free => "free frames",
        /// Frames in all pagesets of a zone.
        InPagesets => "frames in pagesets",
        /// Frames in the pageset of this CPU.
        InPagesetOf(cpu: CpuId) => "frames in the pageset of CPU {cpu}",
        /// Allocated frames of a node.
        Allocated => "allocated frames of the node",
        /// Frames of a zone that fences keep.
        Fenced => "fenced frames",
        /// Retired frames of a zone.
        Retired => "retired frames",
    }
}

impl fmt::Display for VerifyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { node, kind, fault } = self;
        match fault {
            Fault::MachineTotal(..) => write!(f, "the machine: {fault}"),
            _ => write!(f, "node {node} {kind}: {fault}"),
        }
    }
}

impl core::error::Error for VerifyError {}

impl<'m, P: Platform> Allocator<'m, P> {
    /// Checks all frames, blocks, pagesets and counters, and returns the accounting.
    ///
    /// No thread may allocate or free during the call.
    ///
    /// # Errors
    /// Returns the first invariant that does not hold.
    pub fn verify(&self) -> Result<Accounting, VerifyError> {
        self.state.finish_all_frees();
        let mut sum = Accounting::default();
        for place in 0..self.state.nodes.len() {
            let mut allocated = PageCount::ZERO;
            for zone in self.state.node_zones(place) {
                let accounting = self.state.verify_zone(zone).map_err(|fault| at(zone, fault))?;
                sum.managed = sum.managed.plus(accounting.managed);
                sum.free = sum.free.plus(accounting.free);
                sum.in_pagesets = sum.in_pagesets.plus(accounting.in_pagesets);
                sum.allocated = sum.allocated.plus(accounting.allocated);
                allocated = allocated.plus(accounting.allocated);
            }
            if let Some(zone) = self.state.node_zones(place).first() {
                let counter = self.state.node_allocated(place);
                compare(Counted::Allocated, counter, allocated).map_err(|fault| at(zone, fault))?;
            }
        }
        // The machine-wide totals, if they are maintained, are the sums over the nodes.
        for item in NodeItem::ALL {
            let of_nodes = self.state.nodes_total(item);
            if let Some(total) = self.state.machine_total(item).filter(|&total| total != of_nodes)
                && let Some(zone) = self.state.zones.first()
            {
                return Err(at(zone, Fault::MachineTotal(total, of_nodes)));
            }
        }
        Ok(sum)
    }
}

impl<'m, P: Platform> MachineState<'m, P> {
    fn verify_zone(&self, zone: &Zone<'m, P>) -> Result<Accounting, Fault> {
        zone.free_areas.verify().map_err(|_| Fault::Buddy)?;
        let managed = zone.managed();
        let free = PageCount::new(zone.free_areas.pages());
        if zone.holders().are_kept() {
            // Processes share the allocator. The frames without a holder are those in the buddy.
            for frame in zone.offsets().map(|frame| frame as u32) {
                let holder = zone.holders().of(frame);
                let is_held = !matches!(holder, Holders::<P>::NO_HOLDER | Holders::<P>::NOT_MANAGED);
                let is_free = zone.free_areas.count_free(frame, 1) != 0;
                let is_managed = zone.frames.state(frame) != FrameState::NotManaged;
                if is_held == is_free && is_managed || is_held && !zone.holders().is_touched(frame) {
                    return Err(Fault::FrameTwice(zone.pfn(frame)));
                }
            }
        }
        compare(Counted::Free, PageCount::new(self.zone_count(zone, ZoneItem::Free, 0)), free)?;
        let in_pagesets = self.verify_pagesets(zone)?;
        let mut twice = None;
        let in_blocks = zone.check_owned(|frame| {
            if zone.frames.state(frame) != FrameState::Free || zone.free_areas.count_free(frame, 1) != 0 {
                twice = Some(Fault::FrameTwice(zone.pfn(frame)));
            }
        });
        let in_blocks = twice.map_or(in_blocks.map(PageCount::new).ok_or(Fault::OwnedBlocks), Err)?;
        let (allocated, cached) = verify_frames(zone)?;
        compare(Counted::InPagesets, in_pagesets, cached)?;
        let in_pagesets = in_pagesets.plus(in_blocks);
        let sum = free.plus(in_pagesets).plus(allocated);
        if sum != managed {
            return Err(Fault::Unbalanced(managed, sum));
        }
        Ok(Accounting { managed, free, in_pagesets, allocated })
    }

    /// Verifies the zone's pagesets, and returns how many frames they hold.
    fn verify_pagesets(&self, zone: &Zone<'m, P>) -> Result<PageCount, Fault> {
        let mut total = PageCount::ZERO;
        let used = |cpu: &&CpuInfo| cpu.exists() && self.pagesets_of(zone).of(**cpu).was_used();
        for &cpu in self.cpus.iter().filter(used) {
            if self.ids_of(self.process).contains(&cpu.id.index()) {
                let session = self.pageset(zone, cpu);
                total = total.plus(self.verify_pageset(zone, cpu, &session)?);
                session.update_limits();
            } else {
                // No process locks the pagesets of another, which are at rest here.
                let pagesets = self.pagesets_of(zone);
                let guard = PagesetGuard::new(pagesets.of(cpu), pagesets.stacks(cpu));
                total = total.plus(self.verify_pageset(zone, cpu, &ManuallyDrop::new(guard))?);
            }
        }
        Ok(total)
    }

    /// Verifies a pageset, and returns how many frames it holds. Each block is within the zone, has the state `Cached`, and is
    /// not free in the buddy.
    fn verify_pageset(
        &self,
        zone: &Zone<'m, P>,
        cpu: CpuInfo,
        guard: &PagesetGuard<'_, P>,
    ) -> Result<PageCount, Fault> {
        let mut held = PageCount::ZERO;
        for stack in CachedOrders::stacks_downwards() {
            let order = self.cached.order(stack);
            for frame in guard.blocks(stack) {
                let first = zone.pfn(frame);
                if first < zone.span.start || first.plus(order.pages()) > zone.span.end() {
                    return Err(Fault::NotManaged(first));
                }
                let is_cached = zone.frames.state(frame) == FrameState::Cached(order);
                if !is_cached || zone.free_areas.count_free(frame, order.pages().get()) != 0 {
                    return Err(Fault::FrameTwice(first));
                }
                held = held.plus(order.pages());
            }
        }
        compare(Counted::InPagesetOf(cpu.id), guard.count(), held)?;
        Ok(held)
    }
}

fn at<P: Platform>(zone: &Zone<'_, P>, fault: Fault) -> VerifyError {
    VerifyError { node: zone.node_id, kind: zone.kind, fault }
}

/// Returns an error if a counter differs from what was found.
fn compare(of: Counted, counter: PageCount, found: PageCount) -> Result<(), Fault> {
    if counter == found { Ok(()) } else { Err(Fault::Counter { of, counter, found }) }
}

/// Returns the number of frames in allocated blocks and in cached blocks.
///
/// Checks that these blocks are aligned, disjoint and not free.
fn verify_frames<P: Platform>(zone: &Zone<'_, P>) -> Result<(PageCount, PageCount), Fault> {
    let (mut allocated, mut cached, mut fenced, mut retired) = (0, 0, 0, 0);
    let mut next = u64::from(zone.offset(zone.span.start));
    let end = next + zone.span.count.get();
    // Adjacent blocks that are not yet compared with the buddy.
    let mut run = 0..0;
    // The frame after the last block, if that is of a run: only there may a run continue.
    let mut after_run = None;
    while let Some(frame) = zone.frames.next_in_use(next).filter(|&frame| u64::from(frame) < end) {
        next = u64::from(frame) + 1;
        let first = zone.pfn(frame);
        match zone.unwatched(frame, zone.frames.state(frame)) {
            state @ (FrameState::Allocated(order, _)
            | FrameState::Quarantined(order, _)
            | FrameState::RunHead(order, _)
            | FrameState::RunPart(order)
            | FrameState::Cached(order)) => {
                let pages = order.pages().get();
                let start = u64::from(frame);
                if matches!(state, FrameState::RunPart(_)) && after_run != Some(start) {
                    return Err(Fault::BlocksOverlap(first));
                }
                let is_of_run = matches!(state, FrameState::RunHead(..) | FrameState::RunPart(_));
                after_run = is_of_run.then_some(start + pages);
                if start < run.end || !first.is_aligned_to(order) {
                    return Err(Fault::BlocksOverlap(first));
                }
                if end - start < pages {
                    return Err(Fault::BeyondZone(first));
                }
                if start != run.end {
                    check_none_free(zone, run)?;
                    run = start..start;
                }
                run.end += pages;
                *if matches!(state, FrameState::Cached(_)) { &mut cached } else { &mut allocated } += pages;
            }
            // Without a claim, no request would ever free the frame.
            FrameState::Claimed if !zone.overlaps_claim(Run { first: frame, count: 1 }) => {
                return Err(Fault::BlocksOverlap(first));
            }
            state @ (FrameState::Fenced | FrameState::Claimed | FrameState::Retired(_)) => {
                fenced += u64::from(state == FrameState::Fenced);
                retired += u64::from(matches!(state, FrameState::Retired(_)));
                if u64::from(frame) < run.end {
                    return Err(Fault::BlocksOverlap(first));
                }
                if zone.free_areas.count_free(frame, 1) != 0 {
                    return Err(Fault::FrameTwice(first));
                }
                allocated += 1;
            }
            FrameState::NotManaged if zone.free_areas.count_free(frame, 1) != 0 => {
                return Err(Fault::NotManaged(first));
            }
            // A split ends before its caller can be at rest.
            FrameState::Splitting(_) | FrameState::Watched => return Err(Fault::BlocksOverlap(first)),
            FrameState::NotManaged | FrameState::Free => {}
        }
    }
    check_none_free(zone, run)?;
    compare(Counted::Fenced, zone.fenced(), PageCount::new(fenced))?;
    compare(Counted::Retired, PageCount::new(zone.retired()), PageCount::new(retired))?;
    Ok((PageCount::new(allocated), PageCount::new(cached)))
}

/// Returns an error if a frame of `run` is free in the buddy.
fn check_none_free<P: Platform>(zone: &Zone<'_, P>, run: Range<u64>) -> Result<(), Fault> {
    let start = run.start as u32;
    if zone.free_areas.count_free(start, run.end - run.start) == 0 {
        return Ok(());
    }
    let first = run.map(|frame| frame as u32).find(|&frame| zone.free_areas.count_free(frame, 1) != 0);
    Err(Fault::FrameTwice(zone.pfn(first.unwrap_or(start))))
}

#[cfg(test)]
mod tests {
    use core::sync::atomic::Ordering::Relaxed;
    use std::format;
    use std::string::ToString as _;

    use super::*;
    use crate::rules::stat_threshold::{CounterRules, TotalsRule};
    use crate::testing::small;
    use crate::units::{Order, PageKind};
    use crate::zone::counters::Item;
    use crate::{Config, Request};

    #[test]
    fn a_block_beyond_the_zone_is_named() {
        let allocator = small(&Config::default(), |_| {});
        let zone = &allocator.state.zones[1];
        let last = zone.span.end().get() - 16;
        let frame = zone.offset(Pfn::new(last));
        zone.frames.overwrite(frame, FrameState::Allocated(Order::new(5).unwrap(), PageKind::User));
        let fault = allocator.verify().err().map(|error| error.fault);
        assert_eq!(fault, Some(Fault::BlocksOverlap(Pfn::new(last))), "it is not aligned either");
        zone.frames.overwrite(frame, FrameState::Free);
        let (frame, order) = (zone.offset(Pfn::new(0xc000)), Order::new(14).unwrap());
        zone.frames.overwrite(frame, FrameState::Allocated(order, PageKind::User));
        let fault = allocator.verify().err().map(|error| error.fault);
        assert_eq!(fault, Some(Fault::BeyondZone(Pfn::new(0xc000))));
    }

    #[test]
    fn a_counter_that_differs_is_named_with_both_numbers() {
        let allocator = small(&Config::default(), |_| {});
        let zone = &allocator.state.zones[0];
        let free = zone.free_areas.pages();
        zone.counters().add_total(ZoneItem::Free, -3);
        let error = allocator.verify().unwrap_err().to_string();
        let ending = format!(": the counter of free frames is {}, but {free} were found", free - 3);
        assert!(error.starts_with("node 0 ") && error.ends_with(&ending), "{error}");
    }

    #[test]
    fn a_machines_total_that_lost_a_fold_is_found() {
        for totals in [TotalsRule::PerNode, TotalsRule::AndMachine] {
            let counters = CounterRules { totals, ..CounterRules::default() };
            let allocator = small(&Config { counters, ..Config::default() }, |_| {});
            let block = allocator.alloc(&Request::new(Order::new(5).unwrap())).unwrap();
            allocator.verify().unwrap();
            let total = &allocator.state.shared.machine_totals.0[NodeItem::User.lane()];
            let there_is = totals == TotalsRule::AndMachine;
            assert_eq!(total.load(Relaxed), if there_is { 32 } else { 0 });
            total.fetch_sub(1, Relaxed);
            let fault = allocator.verify().err().map(|error| error.fault);
            assert_eq!(fault, there_is.then_some(Fault::MachineTotal(31, 32)));
            allocator.free(block.first, block.order).unwrap();
        }
    }

    #[test]
    fn a_free_frame_in_state_allocated_is_named() {
        let allocator = small(&Config::default(), |_| {});
        let block = allocator.alloc(&Request::new(Order::new(5).unwrap())).unwrap();
        let zone = &allocator.state.zones[block.zone.index()];
        let (first, end) = (zone.offset(block.first), zone.span.count.get() as u32);
        // One frame adjoins the allocated block, so both are in one run. The other frame is far from the block.
        let near = first ^ 32;
        let far = (0..end).rev().find(|&frame| zone.free_areas.count_free(frame, 1) == 1).unwrap();
        assert_eq!(zone.free_areas.count_free(near, 1), 1);
        for frame in [near, far] {
            zone.frames.overwrite(frame, FrameState::Allocated(Order::PAGE, PageKind::User));
            let fault = allocator.verify().err().map(|error| error.fault);
            assert_eq!(fault, Some(Fault::FrameTwice(zone.pfn(frame))));
            zone.frames.overwrite(frame, FrameState::Free);
        }
        // The third frame is within the block.
        zone.frames.overwrite(first + 3, FrameState::Allocated(Order::PAGE, PageKind::User));
        let fault = allocator.verify().err().map(|error| error.fault);
        assert_eq!(fault, Some(Fault::BlocksOverlap(zone.pfn(first + 3))));
        zone.frames.overwrite(first + 3, FrameState::Free);
        allocator.free(block.first, block.order).unwrap();
        allocator.verify().unwrap();
    }
}
