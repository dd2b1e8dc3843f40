//! Watches requests: reports the steps of a real request, or those that a request would take.
//!
//! The slow path is generic over a [`Watch`]. Ordinary requests use `()`, which compiles to nothing. A [`Record`]
//! reports the steps of a real request. With [`Dry`], the same code walks the same lists, but it allocates nothing and
//! changes no mark or counter. Related files: `alloc/explain.rs` defines the steps, `alloc/scan.rs` and
//! `alloc/slow_path.rs` report them.

use core::cell::RefCell;

use crate::Allocator;
use crate::alloc::context::AllocContext;
use crate::alloc::explain::{Exclusion, Outcome, Step, ZoneName};
use crate::alloc::mempolicy::Turn;
use crate::alloc::request::{Block, Request};
use crate::config::ZeroOn;
use crate::error::AllocError;
use crate::pageset::state::MachineState;
use crate::platform::Platform;
use crate::platform::pageset_word::POP_STEPS;
use crate::rules::watermarks::{Urgency, Watermark};
use crate::units::{Order, PageCount};
use crate::zone::Zone;

/// An observer of a request's steps.
pub(super) trait Watch: Copy {
    /// Whether steps are reported.
    const WATCHES: bool;
    /// Whether nothing may change.
    const IS_DRY: bool;

    /// Receives a step.
    fn step(self, step: Step);

    /// Receives the outcome for a zone.
    fn zone<P: Platform>(self, zone: &Zone<'_, P>, watermark: Watermark, outcome: Outcome) {
        if Self::WATCHES {
            self.step(Step::Zone { zone: name(zone), watermark, outcome });
        }
    }
}

impl Watch for () {
    const WATCHES: bool = false;
    const IS_DRY: bool = false;

    fn step(self, _step: Step) {}
}

/// Reports the steps of a real request.
#[derive(Clone, Copy)]
struct Record<'a, 'f>(&'a RefCell<&'f mut dyn FnMut(Step)>);

impl Watch for Record<'_, '_> {
    const WATCHES: bool = true;
    const IS_DRY: bool = false;

    fn step(self, step: Step) {
        (self.0.borrow_mut())(step);
    }
}

/// Reports the steps that a request would take.
#[derive(Clone, Copy)]
struct Dry<'a, 'f>(&'a RefCell<&'f mut dyn FnMut(Step)>);

impl Watch for Dry<'_, '_> {
    const WATCHES: bool = true;
    const IS_DRY: bool = true;

    fn step(self, step: Step) {
        (self.0.borrow_mut())(step);
    }
}

impl<'m, P: Platform> Allocator<'m, P> {
    /// Calls `each` for every step that `request` would take now on the current CPU, and returns the zone that would
    /// serve it, or `None` if no zone would without reclaim.
    ///
    /// Nothing is allocated, reclaimed or counted, and the turn of an interleaving policy does not advance. Reclaimers
    /// are asked how much they could free, if the request may wait. What they would free is not known, so an
    /// explanation continues as if they freed nothing. Other threads can allocate and free between the explanation and
    /// the request.
    ///
    /// ```
    /// # use zonal::machine::{FrameRange, NodeDescription, ZoneDescription};
    /// # use zonal::platform::one_thread::OneThread;
    /// # use zonal::units::{CpuId, NodeId, PageCount, Pfn, ZoneKind};
    /// # use zonal::{Allocator, Buffer, Config, Machine, Request};
    /// # let id = NodeId::new(0).unwrap();
    /// # let memory = FrameRange { start: Pfn::new(0x1000), count: PageCount::new(0x4000) };
    /// # let nodes = [NodeDescription { id, cpus: &[CpuId::new(0)], distances: &[10] }];
    /// # let zones = [ZoneDescription { node: id, kind: ZoneKind::Normal, span: memory, managed: &[memory] }];
    /// # let machine = Machine::new(&nodes, &zones)?;
    /// # let metadata = |bytes| Buffer::uninit(Box::leak(vec![std::mem::MaybeUninit::uninit(); bytes].into_boxed_slice()));
    /// # let allocator = Allocator::new(OneThread::new(), &machine, &Config::default(), |r| Some(metadata(r.bytes)))?;
    /// let request = Request::page();
    /// let served = allocator.explain(&request, |step| println!("{step}"))?;
    /// // zone Normal of node 0: serves, above `low`
    /// assert_eq!(served.map(|zone| zone.node), Some(id));
    /// assert_eq!(allocator.alloc(&request)?.node, id);
    /// # Ok::<(), Box<dyn core::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`Allocator::alloc`] for a request that no zone may serve.
    pub fn explain(
        &self,
        request: &Request<'_>,
        mut each: impl FnMut(Step),
    ) -> Result<Option<ZoneName>, AllocError> {
        let context = self.resolve_in_turn(request, Turn::Upcoming)?;
        let near = self.near_zone(request);
        if let Some(zone) = near {
            each(Step::Near(name(zone)));
            return Ok(Some(name(zone)));
        }
        let sink: RefCell<&mut dyn FnMut(Step)> = RefCell::new(&mut each);
        let found = self.find(&context, Dry(&sink));
        Ok(found.map(|block| name(&self.state.zones[block.zone.index()])))
    }

    /// Allocates one block like [`Allocator::alloc`], and calls `each` for every step of the request.
    ///
    /// `each` runs while the request is in progress, so it must not use the allocator. A request that reclaims may report
    /// its scans many times.
    ///
    /// ```
    /// # use zonal::machine::{FrameRange, NodeDescription, ZoneDescription};
    /// # use zonal::platform::one_thread::OneThread;
    /// # use zonal::units::{CpuId, NodeId, PageCount, Pfn, ZoneKind};
    /// # use zonal::{Allocator, Buffer, Config, Machine, Request};
    /// # let id = NodeId::new(0).unwrap();
    /// # let memory = FrameRange { start: Pfn::new(0x1000), count: PageCount::new(0x4000) };
    /// # let nodes = [NodeDescription { id, cpus: &[CpuId::new(0)], distances: &[10] }];
    /// # let zones = [ZoneDescription { node: id, kind: ZoneKind::Normal, span: memory, managed: &[memory] }];
    /// # let machine = Machine::new(&nodes, &zones)?;
    /// # let metadata = |bytes| Buffer::uninit(Box::leak(vec![std::mem::MaybeUninit::uninit(); bytes].into_boxed_slice()));
    /// # let allocator = Allocator::new(OneThread::new(), &machine, &Config::default(), |r| Some(metadata(r.bytes)))?;
    /// let mut steps = Vec::new();
    /// let block = allocator.alloc_explained(&Request::page(), |step| steps.push(step))?;
    /// assert_eq!(steps.len(), 1); // the pageset of the CPU was refilled
    /// allocator.free(block.first, block.order)?;
    /// # Ok::<(), Box<dyn core::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`Allocator::alloc`].
    pub fn alloc_explained(
        &self,
        request: &Request<'_>,
        mut each: impl FnMut(Step),
    ) -> Result<Block, AllocError> {
        if let Some(block) = self.alloc_without_scan(request)? {
            each(Step::Near(name(&self.state.zones[block.zone.index()])));
            return Ok(block);
        }
        let sink: RefCell<&mut dyn FnMut(Step)> = RefCell::new(&mut each);
        self.serve_watched(request, &self.resolve(request)?, Record(&sink))
    }

    /// Serves a request without a scan, in the order of [`Allocator::alloc`]. Returns `None` if it needs one.
    #[cold]
    fn alloc_without_scan(&self, request: &Request<'_>) -> Result<Option<Block>, AllocError> {
        if let Some(block) = self.pop_fast(request) {
            return Ok(Some(block));
        }
        if request.is_confined()
            && let Some(block) = self.pop_nearest(request)
        {
            return Ok(Some(block));
        }
        self.may_begin(request)?;
        let near = request.may_pop().then(|| self.alloc_near(request)).flatten();
        if let Some(block) = near
            && self.state.hardening.zero == ZeroOn::EveryAllocation
        {
            self.state.zero(block.first, block.order.pages());
        }
        Ok(near)
    }

    /// Returns the zone whose pageset has a block for the request on the current CPU.
    fn near_zone(&self, request: &Request<'_>) -> Option<&Zone<'m, P>> {
        let order = request.flags.order;
        if !request.may_pop() {
            return None;
        }
        if request.is_in_turn() {
            return self.zone_in_turn(request);
        }
        let cpu = self.state.current_cpu_info()?;
        if order == Order::PAGE
            && let Some(slot) = self.state.slots.of(cpu.id)
            && (request.is_plain() || request.accepts_slot(slot))
            && slot.allows_pop(POP_STEPS[request.flags.kind as usize])
        {
            return Some(&self.state.zones[slot.zone.index()]);
        }
        let preferred = &self.state.zones[self.state.nodes[usize::from(cpu.node)].preferred_zone()?];
        if !request.accepts_zone(preferred, cpu) {
            return self.nearest_zone(request, cpu);
        }
        let stack = self.state.cached.stack(order)?;
        let has = |zone: &Zone<'m, P>| self.state.pagesets_of(zone).of(cpu).has(stack);
        if has(preferred) {
            return Some(preferred);
        }
        let instead =
            request.may_pass(stack).then(|| self.state.first_not_full(request, preferred, cpu)).flatten();
        instead.filter(|zone| has(zone))
    }
}

impl<'m, P: Platform> MachineState<'m, P> {
    /// Reports why a scan does not come to the zone: it is not allowed, or it is marked as full.
    pub(super) fn why_skipped(&self, zone: &Zone<'m, P>, context: &AllocContext<'_>) -> Outcome {
        if zone.kind > context.limit {
            Outcome::NotAllowed(Exclusion::ZoneLimit)
        } else if !context.allows_node(zone.node_id) {
            Outcome::NotAllowed(Exclusion::Node)
        } else {
            let wiped_at = self.lists.full(context.target).wiped_at();
            Outcome::MarkedFull { within_ns: self.platform.now().ns_since(wiped_at) }
        }
    }

    /// Returns why a zone that was tried did not serve.
    pub(super) fn why_failed(
        &self,
        zone: &Zone<'m, P>,
        context: &AllocContext<'_>,
        watermark: Watermark,
    ) -> Outcome {
        let free = zone.free_beside(context.order, context.limit);
        let mark = zone.watermarks().discounted(watermark, context.urgency);
        let needed = mark.plus(context.order.pages());
        let beside_reserve = needed.plus(zone.reserve(context.limit));
        let is_short = context.urgency != Urgency::Reserve && free < beside_reserve;
        if is_short {
            Outcome::Below { short_by: beside_reserve.saturating_minus(free), is_reserved: free >= needed }
        } else if zone.free_areas.largest_order().is_none_or(|largest| largest < context.order)
            || !context.has_block_in_reach(zone)
        {
            Outcome::NoBlock
        } else {
            Outcome::Lost
        }
    }

    /// Returns the number of frames in the pagesets of the zones that the request may use.
    pub(super) fn in_allowed_pagesets(&self, context: &AllocContext<'_>) -> PageCount {
        let zones = self.zones.iter().filter(|zone| context.allows(zone));
        zones.map(|zone| self.pagesets_of(zone).frames()).sum()
    }
}

fn name<P: Platform>(zone: &Zone<'_, P>) -> ZoneName {
    ZoneName { id: zone.id, node: zone.node_id, kind: zone.kind }
}
