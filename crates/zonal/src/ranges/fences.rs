//! Fences: a range's free frames are kept out of use until the whole range is free.
//!
//! A fence serves memory that is to leave, and ranges that a caller wants whole. It closes the pagesets of its zone,
//! because a pageset would allocate freed frames again. Related files: `zone/fences.rs` moves freed frames to fences,
//! `admin/hotplug.rs` brings memory online.

use crate::Allocator;
use crate::error::{FenceError, OnlineError, UsedFrames, UsedState};
use crate::machine::FrameRange;
use crate::pageset::state::MachineState;
use crate::platform::Platform;
use crate::platform::tracepoint::RetireCause;
use crate::request::FrameRun;
use crate::units::{Order, PageCount, PageKind};
use crate::zone::Zone;
use crate::zone::cells::FENCES_MAX;
use crate::zone::counters::{NodeItem, ZoneItem};
use crate::zone::frame_state::FrameState;
use crate::zone::runs::Run;

/// Rounds without progress after which [`Fence::vacate`] stops.
const IDLE_ROUNDS: u32 = 3;
/// Maximum number of calls to [`Platform::relax`] while [`Allocator::fence`] waits for requests that hold free frames.
const WAIT_ROUNDS: u32 = 1000;

/// A range whose free frames are kept out of use; see [`Allocator::fence`].
///
/// Dropping the fence frees the frames that it holds.
///
/// ```
/// # use zonal::machine::{FrameRange, NodeDescription, ZoneDescription};
/// # use zonal::platform::one_thread::OneThread;
/// # use zonal::request::PageKind;
/// # use zonal::units::{CpuId, NodeId, Order, PageCount, Pfn, ZoneKind};
/// # use zonal::{Allocator, Buffer, Config, Machine, Request};
/// # let id = NodeId::new(0).unwrap();
/// # let memory = FrameRange { start: Pfn::new(0x1000), count: PageCount::new(0x4000) };
/// # let nodes = [NodeDescription { id, cpus: &[CpuId::new(0)], distances: &[10] }];
/// # let zones = [ZoneDescription { node: id, kind: ZoneKind::Normal, span: memory, managed: &[memory] }];
/// # let machine = Machine::new(&nodes, &zones)?;
/// # let metadata = |bytes| Buffer::uninit(Box::leak(vec![std::mem::MaybeUninit::uninit(); bytes].into_boxed_slice()));
/// # let allocator = Allocator::new(OneThread::new(), &machine, &Config::default(), |r| Some(metadata(r.bytes)))?;
/// let page = allocator.alloc(&Request::page())?;
/// let range = FrameRange { start: page.first, count: PageCount::new(3) };
/// let fence = allocator.fence(range)?;
/// assert_eq!(fence.held(), PageCount::new(2)); // the page is in use
/// allocator.free(page.first, Order::PAGE)?;
/// assert!(fence.is_whole()); // the freed page stays out of use
/// let run = fence.alloc(PageKind::Kernel).expect("it is whole");
/// # allocator.free_frames(run.range.start, run.range.count)?;
/// # Ok::<(), Box<dyn core::error::Error>>(())
/// ```
#[must_use = "dropping a fence frees the frames that it holds"]
pub struct Fence<'a, 'm, P: Platform> {
    allocator: &'a Allocator<'m, P>,
    zone: &'m Zone<'m, P>,
    range: FrameRange,
    slot: usize,
}

impl<P: Platform> core::fmt::Debug for Fence<'_, '_, P> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Fence").field("range", &self.range).field("held", &self.held()).finish()
    }
}

impl<P: Platform> Drop for Fence<'_, '_, P> {
    fn drop(&mut self) {
        let state = &self.allocator.state;
        let _held = state.lock_changes();
        state.end_fence(self.zone, self.slot);
        state.give_back(self.zone, self.run(), FrameState::Fenced);
    }
}

impl<'m, P: Platform> Allocator<'m, P> {
    /// Fences a range: its free frames, and those that are freed later, stay out of use until the fence is dropped.
    ///
    /// The frames of the range that are in use can be freed as usual. While a zone has a fence, its pagesets are
    /// closed: each allocation and each free in the zone then acquires a lock. Fenced frames count as allocated. A free
    /// that another thread began before the call may still reach a pageset; its frame is then moved to the fence, too,
    /// unless it is allocated again before this method returns.
    ///
    /// A request for a large block or range may hold free frames of the range while it calls reclaimers. The method waits
    /// for the end of such a request, for at most 1000 calls of [`Platform::relax`]; if it ends later, the fence gets the
    /// frames then. The method does not wait if the caller is a reclaimer.
    ///
    /// # Errors
    /// Returns an error if the range is empty, is not within one zone, has frames that are not online, or overlaps
    /// another fence, if the zone has 8 fences already, or if processes share the allocator.
    pub fn fence(&self, range: FrameRange) -> Result<Fence<'_, 'm, P>, FenceError> {
        const { assert!(!P::ONLY_BLOCKS) };
        let zone = self.state.zone_around(&range).map_err(FenceError::NotInZone)?;
        self.state.check_unshared().map_err(FenceError::NotInZone)?;
        if self.state.platform.is_reentered() {
            return Err(FenceError::Reentered(range.start));
        }
        let run = zone.run_of(&range);
        let held = self.state.lock_changes();
        let is_offline = |&frame: &u32| zone.frames.state(frame) == FrameState::NotManaged;
        if let Some(frame) = run.frames().find(is_offline) {
            return Err(FenceError::NotOnline(zone.pfn(frame)));
        }
        if let Some(fenced) = zone.fence_over(run) {
            return Err(FenceError::Overlaps { range, fenced });
        }
        let slot = zone.add_fence(run).ok_or(FenceError::TooMany { range, max: FENCES_MAX })?;
        let cpus = self.state.cpus.iter().filter(|cpu| cpu.exists());
        cpus.for_each(|&cpu| self.state.close_pageset(zone, cpu));
        self.state.finish_all_frees();
        self.state.flush_quarantine(zone);
        zone.fence_free(slot, |kept| {
            zone.counters().add_total(ZoneItem::Free, -(kept as i64));
            self.state.count_fenced(zone, kept);
        });
        drop(held);
        let fence = Fence { allocator: self, zone, range, slot };
        let mut round = 0;
        while round < WAIT_ROUNDS && zone.overlaps_claim(run) && !self.state.platform.is_reclaiming() {
            self.state.platform.relax(round);
            round += 1;
        }
        Ok(fence)
    }
}

impl<'a, 'm, P: Platform> Fence<'a, 'm, P> {
    /// Returns the range.
    #[must_use]
    pub fn range(&self) -> FrameRange {
        self.range
    }

    /// Returns the number of frames that the fence holds.
    #[must_use]
    pub fn held(&self) -> PageCount {
        self.zone.fence_held(self.slot)
    }

    /// Whether the fence holds all frames of its range.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.held() == self.range.count
    }

    /// Returns the number of frames in the range that the fence does not hold, without retired frames.
    #[must_use]
    pub fn in_use(&self) -> PageCount {
        let not_held = self.range.count.saturating_minus(self.held());
        if self.zone.retired() == 0 {
            return not_held;
        }
        let is_retired = |&frame: &u32| matches!(self.zone.frames.state(frame), FrameState::Retired(_));
        not_held.saturating_minus(PageCount::new(self.run().frames().filter(is_retired).count() as u64))
    }

    /// Calls `each` for every block and every run in the range that is in use, in ascending order.
    ///
    /// The states are those of one moment for each block, not for all. A run is passed as a whole, with the kind as
    /// which it was allocated.
    pub fn for_each_in_use(&self, mut each: impl FnMut(UsedFrames)) {
        let (zone, max) = (self.zone, self.allocator.state.config().max_order);
        let mut passed = self.range.start;
        self.allocator.for_each_used(self.range, |used| {
            let first = zone.offset(used.block.start);
            let head = match used.state {
                _ if used.block.end() <= passed => return,
                UsedState::Fenced | UsedState::Retired | UsedState::NotManaged => return,
                UsedState::InRun => zone.frames.run_around(first, max),
                _ => Some(first),
            };
            let run = head.and_then(|head| zone.frames.run_at(head));
            let used = match (run, head.map(|head| zone.frames.state(head))) {
                (Some(run), Some(FrameState::RunHead(_, kind))) => {
                    UsedFrames { block: zone.range_of(run), state: UsedState::Allocated(kind) }
                }
                _ => used,
            };
            passed = used.block.end();
            each(used);
        });
    }

    /// Empties the range: calls the reclaimers for it as long as they free frames, and `mover` for each block or run that
    /// is then still in use.
    ///
    /// `mover` moves the contents elsewhere and frees the frames, or leaves them, for example if their state is not
    /// [`UsedState::Allocated`]. It may allocate; no lock is held while it runs. The method repeats both until no frame is in use, or until three rounds in succession freed no frame.
    /// Returns whether no frame is in use. The fence may be incomplete even so, because it does not hold retired frames.
    pub fn vacate(&self, mut mover: impl FnMut(UsedFrames)) -> bool {
        let mut idle = 0;
        while self.in_use() != PageCount::ZERO {
            let before = self.held();
            // The range is within one zone, so the call has no error.
            let _ = self.allocator.reclaim_range(self.range);
            if self.held() == before {
                self.for_each_in_use(&mut mover);
            }
            idle = if self.held() > before { 0 } else { idle + 1 };
            if idle == IDLE_ROUNDS {
                return self.in_use() == PageCount::ZERO;
            }
            if idle > 0 {
                self.allocator.state.platform.relax(idle); // other threads may be freeing frames
            }
        }
        true
    }

    /// Allocates the whole range, like [`Allocator::alloc_range`].
    ///
    /// # Errors
    /// Returns the fence if it is not whole.
    pub fn alloc(self, kind: PageKind) -> Result<FrameRun, Self> {
        let (allocator, zone, run) = (self.allocator, self.zone, self.run());
        let held = allocator.state.lock_changes();
        allocator.state.finish_all_frees();
        if let Some(poison) = allocator.state.config().hardening.poison {
            // Frames whose poison has changed are retired.
            for frame in run.frames().filter(|&frame| zone.frames.state(frame) == FrameState::Fenced) {
                if !allocator.state.is_poisoned(zone, frame, Order::PAGE, poison) {
                    allocator.state.retire_kept(zone, frame, FrameState::Fenced, RetireCause::Poison);
                }
            }
        }
        if !self.is_whole() {
            drop(held);
            return Err(self);
        }
        let range = self.range;
        self.remove();
        // No other CPU can reach the frames. They are free now, so that they can be inside a block.
        run.frames().for_each(|frame| zone.frames.set(frame, FrameState::Free));
        let counters = &allocator.state.nodes[zone.node].counters;
        counters.add_total(NodeItem::Kernel, -(run.count as i64));
        counters.add_total(kind.item(), run.count as i64);
        zone.frames.mark_run(run, allocator.state.config().max_order, kind);
        drop(held);
        allocator.state.zero_new(None, range.start, range.count);
        Ok(FrameRun { range, zone: zone.id, node: zone.node_id })
    }

    /// Frees the frames that the fence holds, as dropping it does.
    pub fn release(self) {}

    /// Takes the range offline.
    ///
    /// # Errors
    /// Returns the fence if a frame of the range is neither held nor retired.
    pub fn offline(self) -> Result<(), Self> {
        let (allocator, zone, run) = (self.allocator, self.zone, self.run());
        let held = allocator.state.lock_changes();
        allocator.state.finish_all_frees();
        if self.in_use() != PageCount::ZERO {
            drop(held);
            return Err(self);
        }
        self.remove();
        // Frames that were to be retired are forgotten too, because other memory may come online in their place.
        zone.bad_of_run(run);
        let counters = &allocator.state.nodes[zone.node].counters;
        for frame in run.frames() {
            if let FrameState::Retired(kind) = zone.frames.state(frame) {
                zone.count_retired(-1);
                counters.add_total(kind.item(), -1);
                counters.add_total(NodeItem::Kernel, 1);
            }
        }
        counters.add_total(NodeItem::Kernel, -(run.count as i64));
        run.frames().for_each(|frame| zone.frames.set(frame, FrameState::Free));
        zone.remove_managed(run);
        allocator.state.apply_settings(&held);
        if zone.managed() == PageCount::ZERO {
            allocator.state.rebuild_lists(&held);
        }
        Ok(())
    }

    /// Takes the range offline, or releases the fence.
    ///
    /// # Errors
    /// Returns [`OnlineError::InUse`] if frames are in use. All frames of the range are then online, and those that the
    /// fence held are free.
    pub fn leave(self) -> Result<(), OnlineError> {
        let mut fence = self;
        loop {
            let Err(returned) = fence.offline() else { return Ok(()) };
            fence = returned;
            let in_use = fence.in_use();
            if in_use == PageCount::ZERO {
                continue; // other threads freed the last frames meanwhile, and the fence holds them
            }
            let mut first = None;
            fence.for_each_in_use(|used| {
                first.get_or_insert(used);
            });
            return Err(OnlineError::InUse { start: fence.range().start, in_use, first });
        }
    }

    /// Removes the fence without freeing its frames. The caller holds the lock for run-time changes.
    fn remove(self) {
        self.allocator.state.end_fence(self.zone, self.slot);
        core::mem::forget(self);
    }

    fn run(&self) -> Run {
        self.zone.run_of(&self.range)
    }
}

impl<'m, P: Platform> MachineState<'m, P> {
    /// Counts frames that moved from the buddy to a fence as allocated.
    pub(crate) fn count_fenced(&self, zone: &Zone<'m, P>, kept: u64) {
        if kept != 0 {
            self.nodes[zone.node].counters.add_total(NodeItem::Kernel, kept as i64);
        }
    }

    /// Frees the frames of a range that a fence or a claim held in state `from`.
    pub(crate) fn give_back(&self, zone: &Zone<'m, P>, run: Run, from: FrameState) {
        let returned = zone.give_back(run, from);
        self.nodes[zone.node].counters.add_total(NodeItem::Kernel, -(returned as i64));
        self.clear_full_bits_early(zone);
    }

    /// Removes a fence from its zone, and opens the zone's pagesets if it was the last one.
    fn end_fence(&self, zone: &Zone<'m, P>, slot: usize) {
        if zone.remove_fence(slot) {
            for &cpu in self.cpus.iter().filter(|cpu| cpu.exists() && self.is_online(**cpu)) {
                self.open_pageset(zone, cpu);
            }
        }
    }
}
