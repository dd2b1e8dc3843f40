//! The slow path: the steps of a request that the current CPU's pageset cannot serve.
//!
//! The request first scans its zonelist at the watermark `low`. If the scan fails, the request wakes background reclaim
//! and scans at `min`. A request for a large block then reclaims a range (`reclaim/by_range.rs`). Next, the request
//! repeats direct reclaim and a scan as long as reclaim makes progress. Finally, it drains the pagesets of all allowed
//! zones and scans a last time. If this scan fails too, the request fails with an error that contains the zones'
//! figures. Every loop is bounded. Related files: `alloc/scan.rs` runs the scans, and `reclaim/mod.rs` reclaims.

use core::cell::{Cell, RefCell};

use crate::Allocator;
use crate::config::Faults;
use crate::error::{AllocError, Shortage, Verdict, VerdictCounts, ZoneShortage};
use crate::node_mask::NodeMask;
use crate::pageset::state::MachineState;
use crate::platform::Platform;
use crate::platform::pressure::PressureKind;
use crate::platform::steps::{Outcome, Step, ZoneName};
use crate::platform::tracepoint::Tracepoint;
use crate::reclaim::{IDLE_ROUNDS, TARGET_MIN};
use crate::request::context::AllocContext;
use crate::request::policy::Turn;
use crate::request::{Block, FrameRun, Request};
use crate::rules::watermarks::{Urgency, Watermark};
use crate::units::PageCount;
use crate::zone::Zone;
use crate::zone::events::Event;
use crate::zonelist::full_cache::BitsCopy;

/// Limit on rounds of direct reclaim when each round makes progress but other requests allocate the freed frames.
const ROUNDS: u32 = 1024;
/// Largest order for which direct reclaim continues as long as it makes progress, up to [`ROUNDS`] rounds. Larger blocks are reclaimed by range,
/// because frames that are freed anywhere rarely form such a block. Linux: `PAGE_ALLOC_COSTLY_ORDER`.
const COSTLY_ORDER: u8 = 3;
/// Frames that a request for a block above [`COSTLY_ORDER`] may evict before it fails: direct reclaim continues only if
/// reclaim by range evicted fewer, and for at most [`IDLE_ROUNDS`] rounds. So many rounds with the smallest target evict
/// as many.
const COSTLY_EVICTIONS: PageCount = PageCount::new(IDLE_ROUNDS as u64 * TARGET_MIN.get());

impl<'m, P: Platform> Allocator<'m, P> {
    /// Drains the quarantine and all CPUs' pagesets of every zone.
    pub fn drain_pagesets(&self) {
        self.state.zones.iter().for_each(|zone| self.state.drain_zone(zone));
    }

    /// Calls `sink` for every zone that may serve `request`, with an out-of-memory report's figures.
    ///
    /// The policy does not advance. Under an interleaving policy, the zones are those for the last turn that was used.
    ///
    /// # Errors
    /// Returns an error if no zone can be reported, for example because the request's order is too large or the nodes
    /// of its policy have no memory.
    pub fn shortage(
        &self,
        request: &Request<'_>,
        mut sink: impl FnMut(ZoneShortage),
    ) -> Result<(), AllocError> {
        let context = self.state.resolve(request, Turn::Last)?;
        let zones = self.state.zones.iter().filter(|zone| context.allows(zone));
        zones.for_each(|zone| sink(self.state.zone_shortage(zone, &context)));
        Ok(())
    }

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
        const { assert!(!P::ONLY_BLOCKS) };
        let mut context = self.state.resolve(request, Turn::Upcoming)?;
        if let Some(zone) = self.state.zone_without_scan(request) {
            each(Step::Near(ZoneName::of(zone)));
            return Ok(Some(ZoneName::of(zone)));
        }
        let each = RefCell::new(each);
        let observer = |step| (each.borrow_mut())(step);
        context.observer = Some(&observer);
        // The steps of `find` up to reclaim, by scans that change nothing.
        let (state, mut copy) = (&self.state, BitsCopy::new());
        let mut scan =
            |context: &AllocContext<'_>, watermark| state.explain_scan(context, watermark, &mut copy);
        let mut served = None;
        for watermark in [Watermark::Low, Watermark::Min] {
            let mut places = context.first.iter().filter_map(|&node| state.place_of(node));
            served = served.or_else(|| places.find_map(|target| scan(&context.only_from(target), watermark)));
        }
        let served = served.or_else(|| scan(&context, Watermark::Low)).or_else(|| {
            context.report(Step::BackgroundWoken);
            scan(&context, Watermark::Min)
        });
        if served.is_none() {
            if context.may_reclaim {
                context.report(Step::WouldReclaim { has_reclaimable: state.has_reclaimable(&context) });
            }
            context.report(Step::PagesetsDrained { frames: state.in_allowed_pagesets(&context) });
        }
        Ok(served.map(|zone| ZoneName::of(&state.zones[zone.index()])))
    }

    /// Allocates one block like [`Allocator::alloc`], and calls `each` for every step of the request.
    ///
    /// `each` runs while the request is in progress, so it must not use the allocator. It must not panic, because the caller
    /// then does not learn which block was allocated. A request that reclaims may report its scans many times.
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
    /// The errors of [`Allocator::alloc`]. A handler gets [`AllocError::Reentered`] more often, because requests whose steps are
    /// reported lock the pageset.
    pub fn alloc_explained(
        &self,
        request: &Request<'_>,
        mut each: impl FnMut(Step),
    ) -> Result<Block, AllocError> {
        const { assert!(!P::ONLY_BLOCKS) };
        let served = match self.state.pop_fast(request) {
            Some(Some(block)) => Some(block),
            _ => self.state.serve_locked(self.state.route_to_slot(request), request)?,
        };
        if let Some(block) = served {
            each(Step::Near(ZoneName::of(&self.state.zones[block.zone.index()])));
            return Ok(block);
        }
        let each = RefCell::new(each);
        let observer = |step| (each.borrow_mut())(step);
        let mut context = self.state.resolve(request, Turn::Next)?;
        context.observer = Some(&observer);
        self.state.serve(request, &context)
    }
}

impl<'m, P: Platform> MachineState<'m, P> {
    /// Serves a request that is resolved as `context`.
    pub(crate) fn serve(
        &self,
        request: &Request<'_>,
        context: &AllocContext<'_>,
    ) -> Result<Block, AllocError> {
        let find = |context: &AllocContext<'_>| self.find(context).map(|block| (block.zone, block));
        let block = self.recorded(context, find).ok_or_else(|| self.failure(context))?;
        self.zero_new(Some(request), block.first, context.count);
        Ok(block)
    }

    /// Whether a request that needs locks may begin.
    ///
    /// # Errors
    /// Returns an error if the caller is a handler that would have to wait for its own thread, or if fault injection
    /// refuses the request.
    #[inline]
    pub(crate) fn may_begin(&self, request: &Request<'_>) -> Result<(), AllocError> {
        if self.platform.is_reentered() {
            return Err(AllocError::Reentered);
        }
        self.finish_own_frees();
        if self.config().faults == Faults::None { Ok(()) } else { self.refuse(request) }
    }

    /// Fails a request as if no allowed zone could serve it, if fault injection refuses it.
    #[cold]
    fn refuse(&self, request: &Request<'_>) -> Result<(), AllocError> {
        let number = self.shared.next_request();
        let refuses = match self.config().faults {
            Faults::None => false,
            Faults::EveryNth(nth) => number.is_multiple_of(nth.get()),
            Faults::Random { seed, one_in } => mixed(seed ^ mixed(number)).is_multiple_of(one_in.get()),
        };
        if !refuses {
            return Ok(());
        }
        let context = self.resolve(request, Turn::Next)?;
        self.recorded(&context, |_| None).ok_or_else(|| self.failure(&context))
    }

    /// Finds a block. An explanation ([`Allocator::explain`]) follows the same steps up to reclaim.
    fn find(&self, context: &AllocContext<'_>) -> Option<Block> {
        // The nodes that the policy prefers, one after the other.
        let preferred = if P::RESTRICTS { context.first } else { &[] };
        for watermark in [Watermark::Low, Watermark::Min] {
            for target in preferred.iter().filter_map(|&node| self.place_of(node)) {
                let only = context.only_from(target);
                let found = self.scan(&only, watermark);
                if found.is_some() {
                    return found;
                }
                if watermark == Watermark::Low {
                    self.wake_background(&only);
                }
            }
        }
        let found = self.scan(context, Watermark::Low);
        if found.is_some() {
            return found;
        }
        context.report(Step::BackgroundWoken);
        self.wake_background(context);
        self.report_low(context);
        let found = self.scan(context, Watermark::Min).or_else(|| self.reclaim_for(context));
        if found.is_some() {
            return found;
        }
        self.drain_allowed(context);
        self.scan_last(context)
    }

    /// Reclaims for a request that may do so: first a range if its block is large, then any frames.
    fn reclaim_for(&self, context: &AllocContext<'_>) -> Option<Block> {
        if !P::RECLAIMS || !context.may_reclaim {
            return None;
        }
        if context.flags.order.get() <= COSTLY_ORDER {
            return self.reclaim_and_scan(context, PageCount::new(u64::MAX));
        }
        self.drain_allowed(context);
        let found = self.scan(context, Watermark::Min);
        if found.is_some() {
            return found;
        }
        match self.reclaim_run(context) {
            Ok(FrameRun { range, zone, node }) => {
                self.count_contiguous(context, zone);
                Some(Block { first: range.start, order: context.flags.order, zone, node })
            }
            Err(evicted) => {
                // Frames that were freed outside the range may form a block: a cache may consist of large blocks.
                let found =
                    (evicted != PageCount::ZERO).then(|| self.scan(context, Watermark::Min)).flatten();
                found.or_else(|| self.reclaim_and_scan(context, COSTLY_EVICTIONS.saturating_minus(evicted)))
            }
        }
    }

    /// Runs rounds of direct reclaim, each followed by a scan, until they have evicted about `most` frames.
    ///
    /// Direct reclaim clears the full bits of the zones that it reclaimed, so that the scan checks these zones
    /// (mechanism M3 of the README).
    fn reclaim_and_scan(&self, context: &AllocContext<'_>, most: PageCount) -> Option<Block> {
        let (mut idle, mut left) = (0, most);
        for round in 1..=ROUNDS {
            if left == PageCount::ZERO {
                break;
            }
            let freed = self.direct_reclaim(context, left);
            left = left.saturating_minus(freed);
            context.report(Step::DirectReclaim { freed });
            idle = if freed == PageCount::ZERO { idle + 1 } else { 0 };
            if let Some(block) = self.scan(context, Watermark::Min) {
                return Some(block);
            }
            let costly = context.flags.order.get() > COSTLY_ORDER && round >= IDLE_ROUNDS;
            let hopeless = idle > 0 && !self.has_reclaimable(context);
            if !context.flags.may_retry() || costly || hopeless || idle >= IDLE_ROUNDS {
                break;
            }
            if idle > 0 {
                self.platform.relax(idle); // other threads may free frames soon
            }
        }
        None
    }

    /// Counts and reports a failed request.
    pub(crate) fn note_refusal(&self, context: &AllocContext<'_>) {
        let (node, frames) = (&self.nodes[context.target], context.count);
        node.events.add(Event::Failures, 1);
        self.platform.trace(Tracepoint::Refusal { node: node.id, order: context.flags.order, frames });
        self.report_sometimes(context.target, PressureKind::Failing);
    }

    fn wake_background(&self, context: &AllocContext<'_>) {
        if !P::RECLAIMS {
            return;
        }
        let nodes = self.allowed_nodes(context);
        for node in self.nodes.iter().filter(|node| nodes.contains(node.id)) {
            let is_first = node.want_background(&self.platform);
            self.nodes[context.target].events.add(Event::BackgroundWakes, is_first.into());
            // What other processes can free does not depend on what this one does or has freed.
            if is_first || P::IS_SHARED && self.process != 0 {
                self.platform.wake_background_reclaim(node.id);
            }
        }
    }

    /// Drains the quarantine and all CPUs' pagesets of every allowed zone.
    pub(crate) fn drain_allowed(&self, context: &AllocContext<'_>) {
        if context.may_reclaim && P::IS_SHARED && self.process != 0 {
            self.platform.drain_others(); // waits a moment for them
        }
        if !P::ONLY_BLOCKS && context.observer.is_some() {
            context.report(Step::PagesetsDrained { frames: self.in_allowed_pagesets(context) });
        }
        for zone in self.zones.iter().filter(|zone| context.allows(zone)) {
            self.drain_zone(zone);
        }
    }

    /// Drains the quarantine and all CPUs' pagesets of a zone, after all deferred frees.
    pub(crate) fn drain_zone(&self, zone: &Zone<'m, P>) {
        self.finish_all_frees();
        self.flush_quarantine(zone);
        self.local_cpus().for_each(|&cpu| self.drain_cpu(zone, cpu));
        self.disown_all(zone); // a drain frees frames to the owners of their blocks
    }

    /// Returns the nodes that have an allowed zone with memory.
    pub(crate) fn allowed_nodes(&self, context: &AllocContext<'_>) -> NodeMask {
        let zones =
            self.zones.iter().filter(|zone| zone.managed() != PageCount::ZERO && context.allows(zone));
        zones.map(|zone| zone.node_id).collect()
    }

    /// Counts a failed request and returns an error with the sums of the zones that the request may use.
    fn failure(&self, context: &AllocContext<'_>) -> AllocError {
        self.note_refusal(context);
        let none = PageCount::ZERO;
        let mut sum = Shortage {
            order: context.flags.order,
            node: self.nodes[context.target].id,
            zones: 0,
            verdicts: VerdictCounts::default(),
            largest: None,
            free: none,
            min: none,
            low: none,
            high: none,
            in_pagesets: none,
            ranges_ignored: context.ranges_ignored.get(),
        };
        for zone in self.zones {
            if !context.allows(zone) {
                sum.verdicts.not_allowed += 1;
                continue;
            }
            let zone = self.zone_shortage(zone, context);
            sum.zones += 1;
            *match zone.verdict {
                Verdict::NoMemory => &mut sum.verdicts.no_memory,
                Verdict::BelowMin { .. } => &mut sum.verdicts.below_min,
                Verdict::Reserved { .. } => &mut sum.verdicts.reserved,
                Verdict::NoBlock => &mut sum.verdicts.no_block,
                Verdict::WouldServe => &mut sum.verdicts.would_serve,
            } += 1;
            sum.largest = sum.largest.max(zone.largest);
            sum.free = sum.free.plus(zone.free);
            sum.min = sum.min.plus(zone.min);
            sum.low = sum.low.plus(zone.low);
            sum.high = sum.high.plus(zone.high);
            sum.in_pagesets = sum.in_pagesets.plus(zone.in_pagesets);
        }
        AllocError::OutOfMemory(sum)
    }

    /// Returns the figures of a zone, and why it cannot serve the request at `min`.
    fn zone_shortage(&self, zone: &Zone<'m, P>, context: &AllocContext<'_>) -> ZoneShortage {
        let verdict = match why_failed(zone, context, Watermark::Min) {
            _ if zone.managed() == PageCount::ZERO => Verdict::NoMemory,
            Outcome::Below { short_by, is_reserved: false } => Verdict::BelowMin { short_by },
            Outcome::Below { short_by, is_reserved: true } => Verdict::Reserved { short_by },
            Outcome::NoBlock => Verdict::NoBlock,
            _ => Verdict::WouldServe,
        };
        let watermarks = zone.watermarks();
        ZoneShortage {
            node: zone.node_id,
            kind: zone.kind,
            verdict,
            largest: zone.free_areas.largest_order(),
            free: PageCount::new(zone.free_areas.pages()),
            min: watermarks.min,
            low: watermarks.low,
            high: watermarks.high,
            reserve: zone.reserve(context.flags.zone_limit),
            in_pagesets: self.in_pagesets(zone),
            managed: zone.managed(),
        }
    }

    /// Returns the number of frames in pagesets whose zones the request may use.
    fn in_allowed_pagesets(&self, context: &AllocContext<'_>) -> PageCount {
        let zones = self.zones.iter().filter(|zone| context.allows(zone));
        zones.map(|zone| self.in_pagesets(zone)).sum()
    }
}

impl AllocContext<'_> {
    /// Returns the context of a request that only the node with index `target` may serve, without reclaim.
    fn only_from(&self, target: usize) -> Self {
        Self { target, strict: true, may_reclaim: false, ranges_ignored: Cell::new(false), ..*self }
    }
}

/// Returns why a zone that was tried did not serve; [`Outcome::Lost`] if it seems to have a block.
///
/// Applies the rule of the watermark check ([`Watermarks::allow`](crate::rules::watermarks::Watermarks::allow)) to the
/// same count of free frames.
pub(super) fn why_failed<P: Platform>(
    zone: &Zone<'_, P>,
    context: &AllocContext<'_>,
    watermark: Watermark,
) -> Outcome {
    let free = zone.count_for_check(context.flags.order, context.flags.zone_limit);
    let mark = zone.watermarks().discounted(watermark, context.flags.urgency);
    // More than `mark` frames must remain free after all frames of the block except one have been allocated.
    let needed = mark.plus(context.flags.order.pages());
    let beside_reserve = needed.plus(zone.reserve(context.flags.zone_limit));
    if context.flags.urgency != Urgency::Reserve && free < beside_reserve {
        Outcome::Below { short_by: beside_reserve.saturating_minus(free), is_reserved: free >= needed }
    } else if zone.free_areas.largest_order() < Some(context.flags.order) || !context.has_block_in_reach(zone)
    {
        Outcome::NoBlock
    } else {
        Outcome::Lost
    }
}

/// Mixes `x` with the finaliser of splitmix64, so that each bit of the result depends on all bits of `x`.
const fn mixed(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}
