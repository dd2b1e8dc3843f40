//! Retirement of bad frames: a free frame leaves at once, a frame in use when its block is freed.
//!
//! Related files: `zone/bad_frames.rs` has the frames that wait for their blocks to be freed, `alloc/freed.rs` frees
//! blocks.

use crate::Allocator;
use crate::config::InvalidFree;
use crate::error::RetireError;
use crate::pageset::state::MachineState;
use crate::platform::Platform;
use crate::platform::tracepoint::RetireCause;
use crate::units::{Order, PageKind, Pfn};
use crate::zone::Zone;
use crate::zone::bad_frames::Watch;
use crate::zone::cells::PENDING_MAX;
use crate::zone::counters::NodeItem;
use crate::zone::frame_state::FrameState;
use crate::zone::runs::Run;

/// Maximum number of attempts to retire a frame that other threads allocate and free meanwhile.
const TRIES: u32 = 64;

/// When a frame is retired.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Retirement {
    /// The frame is retired now.
    Done,
    /// The frame is in use, and is retired when its block is freed.
    WhenFreed,
}

impl<'m, P: Platform> Allocator<'m, P> {
    /// Takes a bad frame out of use for good: at once if it is free, otherwise when its block is freed.
    ///
    /// The owner of a block with the frame frees the block as usual; all its other frames are then reused. A retired
    /// frame is never allocated again and counts as allocated. [`Allocator::for_each_used`] lists it, and
    /// [`ZoneSnapshot`](crate::snapshot::ZoneSnapshot) counts it. If its memory goes offline, the allocator forgets that
    /// the frame was retired, because other memory may come online in its place. Linux: `memory_failure`.
    ///
    /// Under [`InvalidFree::Checked`](crate::config::InvalidFree::Checked), a free of the frame that is under way
    /// during the call may use it once more, until the next tick retires it.
    ///
    /// ```
    /// # use zonal::machine::{FrameRange, NodeDescription, ZoneDescription};
    /// # use zonal::platform::one_thread::OneThread;
    /// # use zonal::units::{CpuId, NodeId, Order, PageCount, Pfn, ZoneKind};
    /// # use zonal::{Allocator, Buffer, Config, Machine, Request, Retirement};
    /// # let id = NodeId::new(0).unwrap();
    /// # let memory = FrameRange { start: Pfn::new(0x1000), count: PageCount::new(0x4000) };
    /// # let nodes = [NodeDescription { id, cpus: &[CpuId::new(0)], distances: &[10] }];
    /// # let zones = [ZoneDescription { node: id, kind: ZoneKind::Normal, span: memory, managed: &[memory] }];
    /// # let machine = Machine::new(&nodes, &zones)?;
    /// # let metadata = |bytes| Buffer::uninit(Box::leak(vec![std::mem::MaybeUninit::uninit(); bytes].into_boxed_slice()));
    /// # let allocator = Allocator::new(OneThread::new(), &machine, &Config::default(), |r| Some(metadata(r.bytes)))?;
    /// let order = Order::new(3).unwrap();
    /// let block = allocator.alloc(&Request::new(order))?;
    /// // The machine reports that the fifth frame of the block is bad.
    /// let bad = block.first.plus(PageCount::new(4));
    /// assert_eq!(allocator.retire(bad)?, Retirement::WhenFreed);
    /// allocator.free(block.first, order)?;
    /// assert_eq!(allocator.retire(bad)?, Retirement::Done);
    /// assert_eq!(allocator.accounting().allocated.get(), 1); // the bad frame
    /// # Ok::<(), Box<dyn core::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns an error if the frame is not managed, if it is in use and 64 frames of its zone already wait to be freed,
    /// if other threads allocate and free it at each attempt, or if processes share the allocator.
    pub fn retire(&self, frame: Pfn) -> Result<Retirement, RetireError> {
        const { assert!(!P::ONLY_BLOCKS) };
        self.state.retire_now(frame)
    }
}

impl<'m, P: Platform> MachineState<'m, P> {
    fn retire_now(&self, frame: Pfn) -> Result<Retirement, RetireError> {
        let zone = self.zone_of(frame).ok_or(RetireError::NotManaged(frame))?;
        self.check_unshared().map_err(|_| RetireError::Shared(frame))?;
        if self.platform.is_reentered() {
            return Err(RetireError::Reentered(frame));
        }
        let _held = self.lock_changes();
        for round in 0..TRIES {
            if let Some(done) = self.try_retire(zone, zone.offset(frame))? {
                return Ok(done);
            }
            self.platform.relax(round);
        }
        Err(RetireError::Changing(frame))
    }

    /// Retires frames whose blocks were freed without it, which frees under [`InvalidFree::Checked`] can cause.
    pub(crate) fn retire_lost(&self) {
        if self.config().invalid_free != InvalidFree::Checked {
            return;
        }
        for zone in self.zones.iter().filter(|zone| zone.pending() != 0) {
            for &frame in zone.lost().frames() {
                let retired = self.retire_now(zone.pfn(frame));
                // The next tick tries again after another error.
                if matches!(retired, Ok(Retirement::Done) | Err(RetireError::NotManaged(_))) {
                    zone.bad_of_run(Run { first: frame, count: 1 });
                }
            }
        }
    }

    /// Tries to retire a frame; returns `None` if its block changed meanwhile.
    fn try_retire(&self, zone: &Zone<'m, P>, frame: u32) -> Result<Option<Retirement>, RetireError> {
        if zone.frames.state(frame) == FrameState::NotManaged {
            return Err(RetireError::NotManaged(zone.pfn(frame)));
        }
        let Some((first, state)) = zone.block_around(frame, self.config().max_order) else {
            let is_retired = self.retire_free(zone, frame);
            if !is_retired && zone.owned_pages() != 0 {
                self.drain_zone(zone); // a CPU may own the frame's block
            }
            return Ok(is_retired.then_some(Retirement::Done));
        };
        let watch = match state {
            FrameState::Retired(_) => return Ok(Some(Retirement::Done)),
            FrameState::Fenced | FrameState::Claimed => {
                let is_retired = self.retire_kept(zone, frame, state, RetireCause::BadFrame);
                return Ok(is_retired.then_some(Retirement::Done));
            }
            FrameState::Allocated(..) | FrameState::Watched => zone.watch(frame, (first, state)),
            FrameState::RunHead(..) => zone.watch_run(frame, first),
            FrameState::RunPart(_) => match zone.frames.run_around(first, self.config().max_order) {
                Some(head) => zone.watch_run(frame, head),
                None => Watch::Changed,
            },
            FrameState::Cached(_) | FrameState::Quarantined(..) => {
                self.drain_zone(zone);
                Watch::Changed
            }
            FrameState::Free | FrameState::Splitting(_) | FrameState::NotManaged => Watch::Changed,
        };
        match watch {
            Watch::Pending => Ok(Some(Retirement::WhenFreed)),
            Watch::Changed => Ok(None),
            Watch::Full => Err(RetireError::TooMany { frame: zone.pfn(frame), max: PENDING_MAX }),
        }
    }

    /// Retires a frame that a fence or a claim holds in `state`; returns `false` if it has another state. A request that claims
    /// the frame then finds it retired.
    pub(super) fn retire_kept(
        &self,
        zone: &Zone<'m, P>,
        frame: u32,
        state: FrameState,
        cause: RetireCause,
    ) -> bool {
        let is_retired = zone.frames.exchange(frame, state, FrameState::Retired(PageKind::Kernel)).is_ok();
        if is_retired {
            if state == FrameState::Fenced {
                zone.leave_fence(frame);
            }
            self.count_bad(zone, frame, Order::PAGE, cause);
        }
        is_retired
    }

    /// Retires a frame that is free in the buddy; returns `false` if it is not.
    fn retire_free(&self, zone: &Zone<'m, P>, frame: u32) -> bool {
        if let Err(kept) = zone.take_exactly(Run { first: frame, count: 1 }) {
            self.count_fenced(zone, kept);
            return false;
        }
        zone.frames.set(frame, FrameState::Retired(PageKind::Kernel));
        self.nodes[zone.node].counters.add_total(NodeItem::Kernel, 1);
        self.count_bad(zone, frame, Order::PAGE, RetireCause::BadFrame);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;
    use crate::machine::FrameRange;
    use crate::testing::{Native, small};
    use crate::units::PageCount;

    /// Allocates a block of order 3 at `first`, retires `bad` in it, and frees the block as a free does that began before
    /// the block was watched, so that the frame is lost.
    fn lose(allocator: &Allocator<'_, Native>, first: Pfn, bad: Pfn) {
        let (zone, order) = (&allocator.state.zones[1], Order::new(3).unwrap());
        let block = FrameRange { start: first, count: order.pages() };
        allocator.alloc_range(block, PageKind::User).unwrap();
        assert_eq!(allocator.retire(bad), Ok(Retirement::WhenFreed));
        zone.frames.overwrite(zone.offset(first), FrameState::Allocated(order, PageKind::User));
        allocator.free(first, order).unwrap();
    }

    /// Loses a frame, and then retires another one in a block or run at the same place, which is freed as a whole or in parts.
    fn retires_both([lost, at, count, bad]: [u64; 4], splits: bool) {
        let (pages, order) = (PageCount::new, Order::PAGE);
        let allocator = small(&Config { invalid_free: InvalidFree::Checked, ..Config::default() }, |_| {});
        let zone = &allocator.state.zones[1];
        let frame = |number| zone.span.start.plus(pages(64 + number));
        lose(&allocator, frame(0), frame(lost));
        allocator.alloc_range(FrameRange { start: frame(at), count: pages(count) }, PageKind::User).unwrap();
        assert_eq!(allocator.retire(frame(bad)), Ok(Retirement::WhenFreed));
        if splits {
            allocator.split_frames(frame(at), pages(count), order).unwrap();
            allocator.tick();
            (at..at + count).for_each(|number| allocator.free(frame(number), order).unwrap());
        } else {
            allocator.tick();
            allocator.free_frames(frame(at), pages(count)).unwrap();
        }
        allocator.tick();
        assert_eq!((zone.retired(), zone.pending()), (if lost == bad { 1 } else { 2 }, 0));
        allocator.verify().unwrap();
    }

    #[test]
    fn a_lost_frame_does_not_confuse_later_blocks() {
        for (lost, at) in (0..8).flat_map(|lost| (0..8).map(move |at| (lost, at))) {
            for (count, bad) in (1..=8 - at).flat_map(|count| (at..at + count).map(move |bad| (count, bad))) {
                let case = [lost, at, count, bad];
                let splits = [false, true].into_iter().filter(|splits| !splits || count > 1);
                splits.for_each(|splits| retires_both(case, splits));
            }
        }
    }

    #[test]
    fn memory_that_went_offline_comes_back_without_its_lost_frames() {
        let config = Config { invalid_free: InvalidFree::Checked, ..Config::default() };
        let allocator = small(&config, |_| {});
        let zone = &allocator.state.zones[1];
        let gone = FrameRange { start: zone.span.start, count: PageCount::new(64) };
        lose(&allocator, gone.start, gone.start.plus(PageCount::new(5)));
        allocator.offline_memory(gone).unwrap();
        assert_eq!(zone.pending(), 0);
        allocator.online_memory(gone).unwrap();
        allocator.tick();
        assert_eq!((zone.retired(), zone.pending()), (0, 0));
        allocator.verify().unwrap();
    }

    #[test]
    fn a_lost_frame_that_went_offline_does_not_block_the_others() {
        let config = Config { invalid_free: InvalidFree::Checked, ..Config::default() };
        let allocator = small(&config, |_| {});
        let zone = &allocator.state.zones[1];
        let gone = FrameRange { start: zone.span.start, count: PageCount::new(64) };
        let order = Order::new(3).unwrap();
        // The states are overwritten as by frees that began before the blocks were watched.
        for frame in [gone.start, gone.start.plus(PageCount::new(128))] {
            let frames = FrameRange { start: frame, count: order.pages() };
            allocator.alloc_range(frames, PageKind::User).unwrap();
            assert_eq!(allocator.retire(frame), Ok(Retirement::WhenFreed));
            zone.frames.overwrite(zone.offset(frame), FrameState::Allocated(order, PageKind::User));
            allocator.free(frame, order).unwrap();
        }
        allocator.offline_memory(gone).unwrap();
        allocator.tick();
        assert_eq!((zone.retired(), zone.pending()), (1, 0));
        allocator.verify().unwrap();
    }
}
