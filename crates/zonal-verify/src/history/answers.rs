//! Compares the allocator's answers and accounting with the model.
//!
//! When memory is short, both kinds of answer are checked: a block may come only from a zone whose watermark allows it,
//! and a request may fail only if no zone that it may use could serve it.

use zonal::config::ZonelistCache;
use zonal::error::{
    AllocError, ConfigError, FenceError, FreeError, OnlineError, RangeError, RetireError, SplitError,
    ZoneShortage,
};
use zonal::machine::FrameRange;
use zonal::request::{Block, PageKind, Urgency};
use zonal::rules::stat_threshold::drift_mark;
use zonal::rules::watermarks::{Watermark, Watermarks};
use zonal::snapshot::ZoneSnapshot;
use zonal::units::{NodeId, Order, PageCount, Pfn};
use zonal::{FrameRun, NodeMask};

use super::executor::{Answer, Execution, Executor, FenceRecord};
use super::model::{Held, Model, Shape};
use super::operation::{FenceEnd, Operation, RequestSpec, Scope, Setting};
use super::plan::{mask_of, node_id};
use super::platform::Cells;
use super::policies::Start;
use super::reclaimer::{Effects, ReclaimMode};

impl<C: Cells> Executor<'_, '_, C> {
    /// Compares an answer with the model, and updates the model.
    ///
    /// # Panics
    /// Panics if the answer is wrong.
    pub fn check_answer(&mut self, execution: &Execution) {
        self.follow(&execution.effects);
        match &execution.answer {
            Answer::Nothing => {}
            Answer::Block(spec, Ok(block)) => self.check_block(spec, block, execution),
            Answer::Block(spec, Err(error)) => self.check_failure(spec, error, execution),
            Answer::Bulk(spec, result) => self.check_bulk(spec, result.as_deref(), execution),
            Answer::Frames(spec, count, result) => self.check_frames(spec, *count, result, execution),
            Answer::Range(range, kind, result) => self.check_range(*range, *kind, *result),
            Answer::Freed(first, order, result) => {
                self.check_free(*first, self.model.refusal(*first, *order), *result);
            }
            Answer::FreedFrames(first, count, result) => {
                let max = self.world.allocator.max_order();
                self.check_free(*first, self.model.refusal_of_frames(*first, *count, max), *result);
            }
            Answer::Split(first, to, result) => self.check_split(*first, *to, *result),
            Answer::FreedBulk(firsts, result) => {
                let is_wrong = matches!(execution.operation, Operation::FreeBulk { repeats_first: true, .. })
                    && !firsts.is_empty();
                let freed = result.as_ref().map_or_else(|error| error.freed, |()| firsts.len());
                assert_eq!((result.is_err(), freed), (is_wrong, firsts.len()), "{result:?}");
                firsts.iter().for_each(|&first| self.release(first));
            }
            Answer::CpuGone(cpu, result) => assert_eq!(*result, self.model.offline_cpu(*cpu)),
            Answer::CpuCame(cpu, result) => assert_eq!(*result, self.model.online_cpu(*cpu)),
            Answer::Retired(frame, result) => assert_eq!(*result, self.model.retire(*frame), "frame {frame}"),
            Answer::Fenced(range, Ok(record)) => self.check_fence(range, record, execution),
            Answer::Fenced(range, Err(error)) => self.check_fence_error(range, *error),
            Answer::MemoryMoved(range, moved, result) => {
                moved.iter().for_each(|&first| self.release(first));
                self.check_memory(*range, *result, Model::offline_memory);
            }
            Answer::MemoryGone(range, result) => self.check_memory(*range, *result, Model::offline_memory),
            Answer::MemoryCame(range, result) => self.check_memory(*range, *result, Model::online_memory),
            Answer::Reclaimed(reported) => {
                let freed = execution.effects.freed.iter().map(|(_, order)| order.pages()).sum::<PageCount>();
                // Background reclaim counts at most the managed frames of each zone, so it may report less than was
                // freed.
                assert!(
                    *reported <= freed || self.reclaimer().mode() == ReclaimMode::Overreporting,
                    "{reported} frames reported, {freed} freed"
                );
            }
            Answer::Set(result) => self.check_setting(execution.operation, *result),
        }
        match execution.operation {
            Operation::Drain => assert_eq!(self.world.allocator.accounting().in_pagesets, PageCount::ZERO),
            Operation::Check => self.check(),
            _ => {}
        }
    }

    /// Updates the model with the frees and allocations of the reclaimer during a call.
    fn follow(&mut self, effects: &Effects) {
        effects.freed.iter().for_each(|&(first, _)| self.model.release(first));
        self.model.served += effects.own.len() as u64;
        self.model.local += effects.own.iter().filter(|&&node| node == self.here()).count() as u64;
    }

    fn release(&mut self, first: u64) {
        self.model.release(first);
        self.reclaimer().remove(first);
    }

    fn check_block(&mut self, spec: &RequestSpec, block: &Block, execution: &Execution) {
        assert_eq!(block.order.get(), spec.order);
        let zone = self.take(spec, block.first, Shape::Block(block.order));
        let planned = &self.model.plan().zones[zone];
        assert_eq!((block.zone.index(), block.node.get()), (zone, planned.node));
        if !execution.effects.are_none() {
            return; // the reclaimer freed frames, so more were free than before
        }
        self.check_preference(spec, block, execution);
        if let Some(found) =
            execution.before.iter().find(|found| found.node == block.node && found.kind == planned.kind)
            && !execution.stocked.contains(&block.zone)
            && self.quarantined_max == 0
        {
            let marks = marks_of(found);
            let free = found.free.plus(found.in_pagesets).plus(self.error_max(found.managed, &marks));
            let allowed = marks.allow(free, block.order, Watermark::Min, spec.urgency, found.reserve);
            assert!(
                allowed || self.trusts_untrue_reclaim(),
                "{block:?} came from below the watermark: {found:?}"
            );
        } else {
            assert!(
                execution.before.is_empty() || !execution.stocked.is_empty() || self.quarantined_max > 0,
                "{block:?}"
            );
        }
    }

    /// Whether a zone below its watermark may serve although nothing was freed: the scan of 2006 does not check the
    /// watermark again after node reclaim that reports enough freed frames.
    fn trusts_untrue_reclaim(&self) -> bool {
        self.world.allocator.settings().zonelist_cache == ZonelistCache::Jackson2006
            && self.reclaimer().mode() == ReclaimMode::Overreporting
    }

    /// Returns the maximum error of the free count in a watermark check. If the error of the approximate count could
    /// hide that a zone crosses `min`, the allocator counts exactly, and the error is 0, or one frame if `high` equals
    /// `min`.
    pub(super) fn error_max(&self, managed: PageCount, marks: &Watermarks) -> PageCount {
        let online = self.model.cpus_online() as u32;
        let page_bytes = self.world.allocator.page_bytes();
        let threshold = self.rules.threshold(online, managed, page_bytes);
        PageCount::new(match drift_mark(online, threshold, marks) {
            Some(_) => u64::from(marks.high == marks.min),
            // Per-CPU differences may be from a time when more CPUs were online.
            None => {
                let cpus = self.model.cpus() as u32;
                u64::from(cpus) * u64::from(self.rules.threshold(cpus, managed, page_bytes))
            }
        })
    }

    /// Records that a block was allocated. Returns the index of its zone.
    fn take(&mut self, spec: &RequestSpec, first: Pfn, shape: Shape) -> usize {
        let zone = self.model.take(first.get(), Held { shape, kind: spec.kind });
        let planned = &self.model.plan().zones[zone];
        let node = node_id(planned.node);
        assert!(
            planned.kind <= spec.limit,
            "frame {first} is {} memory, beyond {}",
            planned.kind,
            spec.limit
        );
        assert!(self.may_serve(spec, node), "node {node} served {spec:?}");
        if spec.kind == PageKind::Cache
            && let Shape::Block(order) = shape
        {
            self.reclaimer().add(first.get(), order, node);
        }
        self.model.served += 1;
        self.model.local += u64::from(self.here() == node);
        zone
    }

    /// Returns the node of the current CPU, or the first node if the machine does not have this CPU.
    fn here(&self) -> NodeId {
        let first = || node_id(self.model.plan().nodes[0].0);
        self.model.node_of(self.world.controls.cpu()).unwrap_or_else(first)
    }

    /// Whether a request allows a node to serve it.
    fn may_serve(&self, spec: &RequestSpec, node: NodeId) -> bool {
        let known = self.policies.at(spec.policy);
        let bound = known.nodes.is_none_or(|nodes| !known.binds || nodes.contains(node));
        let in_cpuset = self.cpuset(spec).is_none_or(|mask| mask.contains(node));
        let started_here = spec.scope == Scope::AnyNode
            || match known.start {
                Start::Here => node == self.here(),
                Start::At(start) => node == start,
                Start::InTurn => {
                    // If no node can have the next turn, the search starts at the node of the CPU.
                    let turns = |id: &NodeId| {
                        known.turns.contains(*id) && self.cpuset(spec).is_none_or(|mask| mask.contains(*id))
                    };
                    let memory = self.model.memory_nodes();
                    if memory.iter().any(turns) { turns(&node) } else { node == self.here() }
                }
            };
        bound && in_cpuset && started_here
    }

    /// Returns the cpuset of a request, unless its urgency ignores cpusets.
    fn cpuset(&self, spec: &RequestSpec) -> Option<NodeMask> {
        spec.allowed.filter(|_| spec.urgency != Urgency::Atomic).map(mask_of)
    }

    fn check_failure(&self, spec: &RequestSpec, error: &AllocError, execution: &Execution) {
        let max = self.world.allocator.max_order();
        match *error {
            AllocError::OrderTooLarge { order, max: reported } => {
                assert_eq!((order.get(), reported), (spec.order, max));
                assert!(order > max);
            }
            AllocError::NoNodeInPolicy => assert!(self.has_no_node(spec), "{spec:?} has nodes"),
            AllocError::OutOfMemory(shortage) => {
                assert!(!self.has_no_node(spec) && spec.order <= max.get());
                assert_eq!(shortage.order.get(), spec.order);
                let reported = shortage.verdicts;
                let asked = reported.below_min
                    + reported.reserved
                    + reported.no_block
                    + reported.no_memory
                    + reported.would_serve;
                assert_eq!(asked, shortage.zones, "each zone in reach has a verdict");
                assert_eq!((asked + reported.not_allowed) as usize, self.world.allocator.zones().count());
                self.check_shortage(spec, shortage.free, execution);
            }
            other => panic!("{spec:?}: {other}"),
        }
    }

    /// Whether a request allows no node that has memory.
    fn has_no_node(&self, spec: &RequestSpec) -> bool {
        let known = self.policies.at(spec.policy);
        let memory = self.model.memory_nodes();
        let usable = |node: &&NodeId| self.cpuset(spec).is_none_or(|mask| mask.contains(**node));
        let named = |node: &&NodeId| known.nodes.is_none_or(|nodes| nodes.contains(**node));
        match (known.nodes, self.cpuset(spec)) {
            (None, None) => false,
            _ => {
                !memory.iter().any(|node| usable(&node))
                    || !memory.iter().any(|node| named(&node))
                    || (known.binds && !memory.iter().filter(usable).any(|node| named(&node)))
            }
        }
    }

    /// Checks that no zone that the request may use could have served it: the pagesets of each zone are empty, and each
    /// zone is below the watermark or has no block of the requested size.
    fn check_shortage(&self, spec: &RequestSpec, free_reported: PageCount, execution: &Execution) {
        let order = Order::new(spec.order).expect("checked");
        let in_turn = self.policies.at(spec.policy).start == Start::InTurn && spec.scope == Scope::ThisNode;
        let in_reach = |zone: &ZoneSnapshot| zone.kind <= spec.limit && self.may_serve(spec, zone.node);
        let mut free = PageCount::ZERO;
        // The node that had the turn is unknown, and other nodes may have free frames, so such requests are not
        // checked.
        for zone in self.world.allocator.zones().filter(in_reach).filter(|_| !in_turn) {
            free = free.plus(zone.free);
            // Node reclaim in the last scan may have freed frames to zones that the scan had already checked, and to
            // their pagesets.
            if !execution.effects.are_none() {
                continue;
            }
            let has_block = zone.free_blocks[usize::from(spec.order)..].iter().any(|&blocks| blocks > 0);
            let reserve = zone.reserve[spec.limit.index()];
            let seen = zone.free.saturating_minus(self.error_max(zone.managed, &zone.watermarks));
            let allowed = zone.watermarks.allow(seen, order, Watermark::Min, spec.urgency, reserve);
            assert!(!(allowed && has_block), "{spec:?} failed beside {zone:?}");
            assert_eq!(zone.in_pagesets, PageCount::ZERO, "{spec:?} failed beside full pagesets: {zone:?}");
        }
        assert!(in_turn || free == free_reported, "reported of {free_reported} frames, {free} are free");
    }

    fn check_bulk(&mut self, spec: &RequestSpec, result: Result<&[Pfn], &AllocError>, execution: &Execution) {
        match result {
            Ok(frames) => frames.iter().for_each(|&frame| {
                self.take(spec, frame, Shape::Block(Order::PAGE));
            }),
            Err(error) => self.check_failure(spec, error, execution),
        }
    }

    /// Checks several adjacent frames, and which request fails.
    fn check_frames(
        &mut self,
        spec: &RequestSpec,
        count: PageCount,
        result: &Result<FrameRun, AllocError>,
        execution: &Execution,
    ) {
        let max = self.world.allocator.max_order();
        let holding = Order::holding(count).filter(|&order| order <= max && count != PageCount::ZERO);
        let Some(holding) = holding else {
            assert_eq!(*result, Err(AllocError::Count { count, max: max.pages() }));
            return;
        };
        let spec = RequestSpec { order: spec.order.max(holding.get()), ..*spec };
        match result {
            Ok(frames) => {
                let first = frames.range.start;
                assert_eq!(frames.range.count, count);
                assert!(first.is_aligned_to(Order::new(spec.order).expect("it is at most 18")));
                self.take(&spec, first, Shape::of(first.get(), count.get(), max));
            }
            Err(error) => self.check_failure(&spec, error, execution),
        }
    }

    /// Checks that a range was allocated if and only if all its frames were free.
    fn check_range(&mut self, range: FrameRange, kind: PageKind, result: Result<FrameRun, RangeError>) {
        let used = || PageCount::new(self.model.used(&range));
        match result {
            Ok(frames) => {
                assert_eq!(frames.range, range);
                let shape = Shape::of(range.start.get(), range.count.get(), self.world.allocator.max_order());
                let zone = self.model.take(range.start.get(), Held { shape, kind });
                assert_eq!(zone, frames.zone.index());
            }
            Err(RangeError::InUse { range: named, used: counted, first }) => {
                assert!(
                    named == range && counted == used() && counted > PageCount::ZERO,
                    "{counted} {range}"
                );
                assert!(first.block.intersection(&range).is_some(), "{first:?} is not in {range}");
            }
            Err(RangeError::NotInZone(_)) => {
                let outside = self.model.zone_of(&range).is_none() || range.count == PageCount::ZERO;
                assert!(outside, "{range} is within a zone");
            }
            Err(error) => panic!("{error}"),
        }
    }

    fn check_split(&mut self, first: u64, to: Order, result: Result<(), SplitError>) {
        let held = self.model.held_at(first).expect("the operation splits held frames");
        match held.shape {
            Shape::Block(order) if to >= order => {
                assert_eq!(result, Err(SplitError::NotLower { frame: Pfn::new(first), order, to }));
            }
            _ => {
                assert_eq!(result, Ok(()));
                self.model.split(first, to);
                // The reclaimer frees whole blocks only.
                self.reclaimer().remove(first);
            }
        }
    }

    fn check_free(&mut self, first: u64, expected: Option<FreeError>, result: Result<(), FreeError>) {
        match (expected, result) {
            (None, Ok(())) => return self.release(first),
            (Some(FreeError::NotAllocated(frame)), Err(FreeError::Quarantined(reported))) => {
                assert!(
                    frame == reported && self.quarantined_max > 0,
                    "frame {reported} is not in quarantine"
                );
            }
            (expected, reported) => assert_eq!(reported.err(), expected),
        }
        self.model.refused += 1;
    }

    /// Checks what a fence held, that no page was allocated from it, and how it ended.
    fn check_fence(&mut self, range: &FrameRange, record: &FenceRecord, execution: &Execution) {
        let free = |model: &Model| PageCount::new(model.free_in(range));
        assert_eq!(record.held[0], free(&self.model), "{range}");
        match &record.freed {
            Answer::Freed(first, order, result) => {
                self.check_free(*first, self.model.refusal(*first, *order), *result);
            }
            Answer::FreedFrames(first, count, result) => {
                let max = self.world.allocator.max_order();
                self.check_free(*first, self.model.refusal_of_frames(*first, *count, max), *result);
            }
            _ => {}
        }
        let quarantined_max = self.quarantined_max;
        let may_hold = |held, free| held == free || (held < free && quarantined_max > 0);
        let held = record.held[1];
        assert!(may_hold(held, free(&self.model)), "{held}");
        if let (spec, Some(block)) = &record.page {
            self.take(spec, block.first, Shape::Block(block.order));
        }
        let last = record.held[2];
        assert!(last >= held && may_hold(last, free(&self.model)), "{last} after {held}");
        let is_whole = last == range.count;
        assert!(execution.effects.are_none(), "a fence calls no reclaimer");
        match record.end {
            FenceEnd::Release => {}
            FenceEnd::Alloc(kind) => {
                assert_eq!(record.run.map(|run| run.range), is_whole.then_some(*range));
                if is_whole {
                    self.check_range(*range, kind, Ok(record.run.expect("compared")));
                }
            }
            FenceEnd::Offline => {
                let zone = self.model.zone_of(range).expect("it was fenced");
                let expected = self.model.clone().offline_memory(range, zone).is_ok();
                assert!(record.is_offline == expected || self.quarantined_max > 0, "{range}");
                if record.is_offline {
                    self.model.offline_memory(range, zone).expect("no frame is in use");
                }
            }
        }
    }

    fn check_fence_error(&self, range: &FrameRange, error: FenceError) {
        match error {
            FenceError::NotInZone(_) => {
                assert!(range.count == PageCount::ZERO || self.model.zone_of(range).is_none(), "{range}");
            }
            FenceError::NotOnline(frame) => {
                assert_eq!(self.model.clone().retire(frame.get()), Err(RetireError::NotManaged(frame)));
            }
            error => panic!("{error}"),
        }
    }

    /// Checks that memory went offline or online as `follow` records in the model, or that the error is the one that
    /// the model requires.
    fn check_memory(
        &mut self,
        range: FrameRange,
        result: Result<(), OnlineError>,
        follow: fn(&mut Model, &FrameRange, usize) -> Result<(), OnlineError>,
    ) {
        match (self.model.zone_of(&range), result) {
            _ if range.count == PageCount::ZERO => {
                assert_eq!(result, Err(OnlineError::EmptyRange(range.start)));
            }
            (Some(zone), Err(OnlineError::InUse { start, in_use, .. })) => {
                let counted = Err(OnlineError::InUse { start, in_use, first: None });
                assert_eq!(counted, follow(&mut self.model, &range, zone));
            }
            (Some(zone), _) => assert_eq!(result, follow(&mut self.model, &range, zone)),
            (None, Err(OnlineError::NotInOneZone { range: reported, .. })) => assert_eq!(reported, range),
            (None, other) => panic!("{range:?} is not within one zone: {other:?}"),
        }
    }

    fn check_setting(&self, operation: Operation, result: Result<(), ConfigError>) {
        let managed = PageCount::new(self.model.managed());
        let expected = match operation {
            Operation::Change(Setting::Watermarks { min_free: Some(frames), .. })
                if u64::from(frames) > managed.get() =>
            {
                Err(ConfigError::MinFree { min_free: PageCount::new(u64::from(frames)), managed })
            }
            _ => Ok(()),
        };
        assert_eq!(result, expected);
    }

    /// Verifies the allocator, and compares all accounting with the model.
    ///
    /// # Panics
    /// Panics if anything is wrong.
    pub fn check(&self) {
        let (a, model) = (&self.world.allocator, &self.model);
        let accounting = a.verify().unwrap_or_else(|error| panic!("{error}"));
        assert!(accounting.balance());
        assert_eq!((accounting.managed.get(), a.accounting()), (model.managed(), accounting));
        let allocated: PageCount = model.allocated(|_, _| true).into_iter().sum();
        let quarantined = accounting.allocated.get() - allocated.get();
        assert!(quarantined <= self.quarantined_max, "{quarantined} frames are neither allocated nor free");
        for node in a.nodes().filter(|_| self.quarantined_max == 0) {
            assert_eq!(node.allocated, model.allocated(|id, _| id == node.id), "on node {}", node.id);
        }
        for zone in a.zones() {
            let at = zone.id.index();
            assert_eq!(zone.managed.get(), model.managed_of(at));
            let bad = [zone.retired, zone.retiring].map(|count| count.get() as usize);
            assert_eq!((bad, zone.fenced), ([model.retired(at), model.retiring(at)], PageCount::ZERO));
        }
        for pageset in a.pagesets().filter(|pageset| model.is_gone(pageset.cpu.get())) {
            assert_eq!(pageset.count, PageCount::ZERO, "CPU {} is offline", pageset.cpu);
        }
        self.check_figures();
    }

    fn check_figures(&self) {
        let (a, served) = (&self.world.allocator, self.model.served);
        let (locality, events) = (a.locality(), a.events());
        assert_eq!(locality.hit + locality.miss, served);
        assert_eq!((locality.local, locality.local + locality.other), (self.model.local, served));
        assert_eq!(locality.miss, locality.foreign);
        assert!(locality.interleave_hit <= served);
        assert_eq!((events.retired, events.poison_found), (0, 0));
    }

    /// Frees all blocks and brings all memory back online. All frames must then be free.
    ///
    /// # Panics
    /// Panics if any frame is not free.
    pub fn finish(&mut self) {
        while self.model.blocks() > 0 {
            self.apply(Operation::Free { nth: 0 });
        }
        for nth in (0..self.model.offline().len()).rev() {
            self.apply(Operation::MemoryBack { nth: nth as u8 });
        }
        self.apply(Operation::Drain);
        self.check();
        let accounting = self.world.allocator.accounting();
        let retired = self.world.allocator.zones().map(|zone| zone.retired).sum();
        assert_eq!(accounting.free.plus(retired), accounting.managed);
    }
}

pub(super) fn marks_of(found: &ZoneShortage) -> Watermarks {
    Watermarks { min: found.min, low: found.low, high: found.high }
}
