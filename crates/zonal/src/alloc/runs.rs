//! Any number of frames: allocation and free of runs, and splits of allocated blocks and runs.
//!
//! A request for `n` frames uses the smallest block that holds them and frees the rest of it at once. What is allocated
//! is a *run* (`zone/runs.rs`), or a block if `n` is a power of two. Related files: `alloc/mod.rs` and `alloc/free.rs`
//! allocate and free blocks, `alloc/free_refusal.rs` explains refusals.

use crate::Allocator;
use crate::alloc::context::{AllocContext, Placement};
use crate::alloc::from_zone::block_at;
use crate::alloc::mempolicy::RequestPolicy;
use crate::alloc::request::{Block, Request, RequestFlags};
use crate::error::{AllocError, FreeError, SplitError};
use crate::machine::FrameRange;
use crate::node_mask::NodeMask;
use crate::pageset::state::MachineState;
use crate::platform::Platform;
use crate::units::{NodeId, Order, PageCount, PageKind, Pfn, ZoneId};
use crate::zone::Zone;
use crate::zone::counters::ZoneItem;
use crate::zone::frame_state::FrameState;
use crate::zone::runs::Run;

/// Any number of adjacent frames that were allocated together.
///
/// ```
/// # use core::mem::MaybeUninit;
/// # use zonal::machine::{FrameRange, NodeDescription, ZoneDescription};
/// # use zonal::platform::one_thread::OneThread;
/// # use zonal::request::PageKind;
/// # use zonal::units::{CpuId, NodeId, Order, PageCount, Pfn, ZoneKind};
/// # use zonal::{Allocator, Buffer, Config, FrameRun, Machine, Request};
/// # let id = NodeId::new(0).unwrap();
/// # let memory = FrameRange { start: Pfn::new(0x1000), count: PageCount::new(0x4000) };
/// # let nodes = [NodeDescription { id, cpus: &[CpuId::new(0)], distances: &[10] }];
/// # let zones = [ZoneDescription { node: id, kind: ZoneKind::Normal, span: memory, managed: &[memory] }];
/// # let machine = Machine::new(&nodes, &zones)?;
/// # let metadata = |bytes| Buffer::uninit(Box::leak(vec![MaybeUninit::uninit(); bytes].into_boxed_slice()));
/// # let allocator = Allocator::new(OneThread::new(), &machine, &Config::default(), |r| Some(metadata(r.bytes)))?;
/// // Three frames, aligned to four, below frame 0x3000.
/// let request = Request::new(Order::new(2).unwrap()).below(Pfn::new(0x3000));
/// let run: FrameRun = allocator.alloc_frames(&request, PageCount::new(3))?;
/// // Split, so that each frame can be freed on its own.
/// allocator.split_frames(run.range.start, run.range.count, Order::PAGE)?;
/// allocator.free(run.range.start, Order::PAGE)?;
/// // A given range, larger than the largest block, which is freed as a whole.
/// let given = FrameRange { start: Pfn::new(0x2345), count: PageCount::new(5000) };
/// allocator.alloc_range(given, PageKind::Kernel)?;
/// allocator.free_frames(given.start, given.count)?;
/// assert_eq!(allocator.accounting().allocated.get(), 2);
/// # Ok::<(), Box<dyn core::error::Error>>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FrameRun {
    /// The frames.
    pub range: FrameRange,
    /// Zone that served them.
    pub zone: ZoneId,
    /// Node that served them.
    pub node: NodeId,
}

impl<'m, P: Platform> Allocator<'m, P> {
    /// Allocates `count` adjacent frames, aligned to the order of `request`.
    ///
    /// `count` need not be a power of two: 3 frames cost 3 frames. A larger order of the request asks for alignment
    /// only. All else that the request says applies. Free the frames with [`Allocator::free_frames`] and the same
    /// count, or split them first ([`Allocator::split_frames`]).
    ///
    /// A count that is not a power of two, or less than its alignment, is served by the buddy and not by pagesets, so
    /// it takes longer.
    ///
    /// # Errors
    /// Returns [`AllocError::Count`] for no frames, and for more than a block of the largest order holds. Other errors
    /// are those of [`Allocator::alloc`].
    pub fn alloc_frames(&self, request: &Request<'_>, count: PageCount) -> Result<FrameRun, AllocError> {
        let order =
            Order::holding(count).filter(|&order| order <= self.max_order && count != PageCount::ZERO);
        let Some(order) = order else {
            return Err(AllocError::Count { count, max: self.max_order.pages() });
        };
        let request = request.with_order(order.max(request.flags.order));
        let block = if request.flags.order.pages() == count {
            self.alloc(&request)
        } else {
            self.alloc_run(&request, count)
        }?;
        Ok(FrameRun { range: FrameRange { start: block.first, count }, zone: block.zone, node: block.node })
    }

    /// Allocates a block below an address limit.
    #[cold]
    #[inline(never)]
    pub(super) fn alloc_below(
        &self,
        flags: RequestFlags,
        policy: Option<&dyn RequestPolicy>,
        allowed: Option<&NodeMask>,
        below: Pfn,
    ) -> Result<Block, AllocError> {
        self.alloc_run(&Request { flags, policy, allowed, near: None, below }, flags.order.pages())
    }

    /// Allocates at most as many frames as a block of the request's order has, without pagesets.
    fn alloc_run(&self, request: &Request<'_>, count: PageCount) -> Result<Block, AllocError> {
        self.may_begin(request)?;
        let mut context = self.resolve(request)?;
        context.placement = Some(Placement { count, below: request.address_limit() });
        self.serve(request, &context)
    }

    /// Frees frames that were allocated together: `count` frames from `first`.
    ///
    /// For a power of two that is naturally aligned this is [`Allocator::free`].
    ///
    /// # Errors
    /// Returns an error if exactly these frames are not allocated together. It names a frame and its state, and nothing
    /// has been freed.
    pub fn free_frames(&self, first: Pfn, count: PageCount) -> Result<(), FreeError> {
        let (zone, run) = self.run_of(first, count)?;
        if let Some(order) = run.as_block(self.max_order) {
            return self.free(first, order);
        }
        if self.state.platform.is_reentered() {
            return Err(FreeError::Reentered(first));
        }
        let begun = zone.free_areas.with_lock_of(run.first, || zone.frames.begin_free(run, self.max_order));
        let kind = begun.map_err(|state| self.run_refusal(zone, first, count, state))?;
        self.free_beside(zone, run, kind, &zone.bad_of_run(run));
        Ok(())
    }

    /// Splits an allocated block into blocks of the lower order `to`, each of which is then freed on its own.
    ///
    /// Nothing is allocated or freed, and no lock is waited for. Linux: `split_page`. If another thread frees the block at
    /// the same time, either the free or the split is refused. Only under
    /// [`InvalidFree::Checked`](crate::config::InvalidFree::Checked) may both succeed, as two frees of one block may; the
    /// parts are then free although the caller has them.
    ///
    /// # Errors
    /// Returns an error if `to` is not below `order`, or no block of `order` is allocated at `first`; the error names
    /// the frame and its state. Nothing has changed then.
    pub fn split(&self, first: Pfn, order: Order, to: Order) -> Result<(), SplitError> {
        if to >= order {
            return Err(SplitError::NotLower { frame: first, order, to });
        }
        let Some(zone) = self.zone_of(first) else {
            return Err(SplitError::NotAllocated(FreeError::NotManaged(first)));
        };
        let split = match zone.frames.split_block(zone.offset(first), order, to) {
            Err(_) if self.state.platform.is_reentered() => {
                return Err(SplitError::NotAllocated(FreeError::Reentered(first)));
            }
            Err(FrameState::Watched) => zone.split_watched(zone.offset(first), order, to),
            split => split,
        };
        split.map_err(|state| SplitError::NotAllocated(self.refusal(zone, first, order, state)))
    }

    /// Splits frames that were allocated together into blocks of at most order `to`: of `to` where alignment and
    /// length allow it, smaller ones at the ends. Each is then freed on its own.
    ///
    /// # Errors
    /// Returns an error if exactly these frames are not allocated together; it names a frame and its state. For frames
    /// that are one block, errors are those of [`Allocator::split`]. Nothing has changed then.
    pub fn split_frames(&self, first: Pfn, count: PageCount, to: Order) -> Result<(), SplitError> {
        let (zone, run) = self.run_of(first, count).map_err(SplitError::NotAllocated)?;
        if let Some(order) = run.as_block(self.max_order) {
            return self.split(first, order, to);
        }
        if self.state.platform.is_reentered() {
            return Err(SplitError::NotAllocated(FreeError::Reentered(first)));
        }
        let begun = zone.free_areas.with_lock_of(run.first, || zone.frames.begin_split(run, self.max_order));
        let kind =
            begun.map_err(|state| SplitError::NotAllocated(self.run_refusal(zone, first, count, state)))?;
        zone.mark_parts_of_run(run, to.min(self.max_order), kind);
        Ok(())
    }

    /// Returns a range of frames as a run.
    ///
    /// # Errors
    /// Returns an error if the count is zero or the range is not within one zone, because its frames are then not
    /// allocated together.
    fn run_of(&self, first: Pfn, count: PageCount) -> Result<(&Zone<'m, P>, Run), FreeError> {
        if count == PageCount::ZERO {
            return Err(FreeError::NoFrames(first));
        }
        let zone = self.zone_of(first).ok_or(FreeError::NotManaged(first))?;
        if zone.span.end().offset_from(first).is_none_or(|left| count > left) {
            return Err(self.run_refusal(zone, first, count, zone.frames.state(zone.offset(first))));
        }
        Ok((zone, Run { first: zone.offset(first), count: count.get() }))
    }

    /// Allocates from the buddy for a request with a placement: a run, or a block below an address limit.
    pub(super) fn alloc_placed(
        &self,
        zone: &Zone<'m, P>,
        context: &AllocContext<'_>,
        placement: Placement,
    ) -> Option<Block> {
        let (order, kind, max) = (context.order, context.kind, self.max_order);
        let pages = order.pages().get();
        loop {
            let leaving = || zone.counters().add_total(ZoneItem::Free, -(pages as i64));
            let frame = match placement.below {
                Some(limit) if limit < zone.span.end() => {
                    zone.free_areas.alloc_below(order, zone.frames_below(limit), leaving)?
                }
                _ => zone.free_areas.alloc(order, zone.preferred_area(context.cpu), leaving)?,
            };
            self.state.nodes[zone.node].counters.add_total(kind.item(), pages as i64);
            if !self.is_unused(zone, frame, order, kind) {
                continue;
            }
            let run = Run { first: frame, count: placement.count.get() };
            zone.frames.mark_run(run, max, kind);
            // Without a rest, the frame after the run may be beyond what 32 bits can number.
            if run.count < pages {
                let rest = Run { first: frame + run.count as u32, count: pages - run.count };
                self.state.free_unused(zone, rest, max, kind);
            }
            return Some(block_at(zone, frame, order));
        }
    }

    /// Whether a block that left the buddy can be allocated; retires it if not.
    ///
    /// Under [`InvalidFree::Checked`](crate::config::InvalidFree::Checked), racing frees may have listed an allocated
    /// block as free. With poisoning, the contents may have changed.
    pub(super) fn is_unused(&self, zone: &Zone<'m, P>, frame: u32, order: Order, kind: PageKind) -> bool {
        if zone.frames.state(frame) != FrameState::Free {
            self.state.note_invalid(zone, frame, order);
            return false;
        }
        self.has_poison(zone, frame, FrameState::Free, order, kind)
    }
}

impl<'m, P: Platform> MachineState<'m, P> {
    /// Frees frames that left the buddy, were counted as allocated, and are not needed.
    pub(super) fn free_unused(&self, zone: &Zone<'m, P>, run: Run, max: Order, kind: PageKind) {
        self.nodes[zone.node].counters.add_total(kind.item(), -(run.count as i64));
        for (frame, order) in run.blocks(max) {
            zone.frames.set(frame, FrameState::Cached(order));
            self.free_to_buddy(zone, frame, order);
        }
    }
}
