//! Applies operations to an allocator.
//!
//! `execute` calls the allocator and does nothing except the operation. `check_answer` compares the answer with the
//! model, and may read any state. A caller that saves the allocator's state does so between the two calls.
//!
//! Related files: `answers.rs` compares answers with the model.

use zonal::error::{
    AllocError, ConfigError, FenceError, FreeBulkError, FreeError, OnlineError, RangeError, RetireError,
    SplitError, UsedState, ZoneShortage,
};
use zonal::machine::FrameRange;
use zonal::request::{Block, PageKind};
use zonal::rules::stat_threshold::CounterRules;
use zonal::rules::watermarks::WatermarkSettings;
use zonal::units::{CpuId, Order, PageCount, Pfn, ZoneId};
use zonal::{Config, FrameRun, Request, Retirement};

use super::model::{Model, Shape};
use super::operation::{FenceEnd, FrameSpec, Operation, RequestSpec, Scope, Setting, Wait};
use super::plan::{Plan, World, mask_of, node_id, range};
use super::platform::Cells;
use super::policies::{Policies, PolicyCase, PolicyData, Start};
use super::reclaimer::{Effects, TestReclaimer};

/// An operation that was executed, and its answer.
pub struct Execution {
    pub(super) operation: Operation,
    pub(super) answer: Answer,
    /// State of the zones that a request may use, from before the request, if known.
    pub(super) before: Vec<ZoneShortage>,
    /// Zones for which the CPU's pageset had frames before the operation.
    pub(super) stocked: Vec<ZoneId>,
    /// Effects of the reclaimer during the operation.
    pub(super) effects: Effects,
}

/// The answer of the allocator.
pub(super) enum Answer {
    Nothing,
    Block(RequestSpec, Result<Block, AllocError>),
    Bulk(RequestSpec, Result<Vec<Pfn>, AllocError>),
    Frames(RequestSpec, PageCount, Result<FrameRun, AllocError>),
    Range(FrameRange, PageKind, Result<FrameRun, RangeError>),
    Freed(u64, Order, Result<(), FreeError>),
    FreedFrames(u64, u64, Result<(), FreeError>),
    Split(u64, Order, Result<(), SplitError>),
    FreedBulk(Vec<u64>, Result<(), FreeBulkError>),
    CpuGone(u32, Result<(), OnlineError>),
    CpuCame(u32, Result<(), OnlineError>),
    Retired(u64, Result<Retirement, RetireError>),
    Fenced(FrameRange, Result<Box<FenceRecord>, FenceError>),
    MemoryGone(FrameRange, Result<(), OnlineError>),
    /// Also the frames that were freed before.
    MemoryMoved(FrameRange, Vec<u64>, Result<(), OnlineError>),
    MemoryCame(FrameRange, Result<(), OnlineError>),
    Reclaimed(PageCount),
    Set(Result<(), ConfigError>),
}

/// What happened between the begin and the end of a fence.
pub(super) struct FenceRecord {
    /// Frames that it held at first, after the free, and after the request, which may empty the quarantine.
    pub(super) held: [PageCount; 3],
    pub(super) freed: Answer,
    /// Request for a page and its result, after the free.
    pub(super) page: (RequestSpec, Option<Block>),
    pub(super) end: FenceEnd,
    /// The run, if the fence ended as one.
    pub(super) run: Option<FrameRun>,
    /// Whether the range went offline.
    pub(super) is_offline: bool,
}

/// Executes operations in a world and checks their answers.
pub struct Executor<'w, 'm, C: Cells> {
    /// The world.
    pub world: &'w World<'m, C>,
    /// The expected state of the world.
    pub model: Model,
    pub(super) policies: &'w Policies<'w, 'm, C>,
    /// Maximum number of frames in all quarantines.
    pub(super) quarantined_max: u64,
    /// The rules of the allocator's counters.
    pub(super) rules: CounterRules,
}

impl Plan {
    /// Builds an allocator over this machine, and calls `work` with an executor for it.
    ///
    /// # Errors
    /// Returns an error if the configuration does not fit the machine.
    ///
    /// # Panics
    /// Panics if `work` does.
    pub fn with_executor<C: Cells, R>(
        &self,
        config: &Config,
        work: impl FnOnce(Executor<'_, '_, C>) -> R,
    ) -> Result<R, ConfigError> {
        self.with_world(config, |world| {
            let model = Model::new(self);
            let data = PolicyData::new(self);
            let policies = Policies::new(&world.allocator, &model, &data);
            let quarantined_max = config.hardening.quarantine.get() * self.zones.len() as u64;
            let rules = config.counters;
            work(Executor { world, model, policies: &policies, quarantined_max, rules })
        })
    }
}

fn order_of(order: u8) -> Order {
    Order::new(order.min(zonal::units::MAX_ORDER_LIMIT)).expect("within the limit")
}

/// Calls `work` with the request that `spec` describes.
fn with_request<'m, C: Cells, R>(
    spec: &RequestSpec,
    known: &PolicyCase<'_, 'm, C>,
    work: impl FnOnce(&Request<'_>) -> R,
) -> R {
    let mut request =
        Request::new(order_of(spec.order)).kind(spec.kind).urgency(spec.urgency).zone_limit(spec.limit);
    if spec.policy != 0 {
        request = request.policy(&known.policy);
    }
    let mask = mask_of(spec.allowed.unwrap_or(0));
    if spec.allowed.is_some() {
        request = request.allowed(&mask);
    }
    if spec.scope == Scope::ThisNode {
        request = request.this_node();
    }
    match spec.wait {
        Wait::May => {}
        Wait::Once => request = request.no_retry(),
        Wait::Never => request = request.no_wait(),
    }
    work(&request)
}

impl<'m, C: Cells> Executor<'_, 'm, C> {
    pub(super) fn reclaimer(&self) -> &TestReclaimer<'m, C> {
        &self.world.allocator.platform().reclaimer
    }

    /// Executes an operation and checks the answer.
    pub fn apply(&mut self, operation: Operation) {
        let execution = self.execute(operation);
        self.check_answer(&execution);
    }

    /// Executes an operation, without updating the model.
    pub fn execute(&mut self, operation: Operation) -> Execution {
        let (mut before, mut stocked) = (Vec::new(), Vec::new());
        if let Operation::Alloc(spec) = operation {
            (before, stocked) = self.zones_in_reach(&spec);
        }
        let answer = self.answer(operation);
        let effects = self.reclaimer().take_effects();
        Execution { operation, answer, before, stocked, effects }
    }

    fn answer(&mut self, operation: Operation) -> Answer {
        let (a, controls) = (&self.world.allocator, &self.world.controls);
        match operation {
            Operation::Alloc(spec) => Answer::Block(
                spec,
                with_request(&spec, self.policies.at(spec.policy), |request| a.alloc(request)),
            ),
            Operation::AllocBulk { spec, count } => self.alloc_bulk(RequestSpec { order: 0, ..spec }, count),
            Operation::Free { nth } => match self.model.nth(nth) {
                Some((first, held)) => self.free_held(first, held.shape),
                None => Answer::Nothing,
            },
            Operation::FreeBulk { nth, count, repeats_first } => {
                let firsts = self.model.singles(nth, usize::from(count));
                let repeated = firsts.first().filter(|_| repeats_first);
                let frames: Vec<Pfn> = firsts.iter().chain(repeated).map(|&first| Pfn::new(first)).collect();
                let result = a.free_bulk(&frames);
                Answer::FreedBulk(firsts, result)
            }
            Operation::FreeAgain => match self.model.freed_last {
                Some((first, shape)) => self.free_held(first, shape),
                None => Answer::Nothing,
            },
            Operation::FreeStrange { nth, offset, order } => {
                let zones = &self.model.plan().zones;
                let (near, own) = self.model.nth(nth).map_or_else(
                    || (zones[usize::from(nth) % zones.len()].start, Order::PAGE),
                    |(first, held)| match held.shape {
                        Shape::Block(order) => (first, order),
                        Shape::Run(_) => (first, Order::PAGE),
                    },
                );
                self.free((near + u64::from(offset)).saturating_sub(32), order.map_or(own, order_of))
            }
            Operation::FreeAny { frame, order } => {
                self.free(u64::from(frame) % (self.model.end() + 20), order_of(order))
            }
            Operation::RunOn { cpu } => {
                controls.run_on(self.cpu_of(cpu));
                Answer::Nothing
            }
            Operation::Advance { ms } => {
                controls.set_ms(controls.ms() + u64::from(ms));
                Answer::Nothing
            }
            Operation::SetClock { ms } => {
                controls.set_ms(u64::from(ms));
                Answer::Nothing
            }
            Operation::Promise { pages } => {
                self.reclaimer().promise(u64::from(pages));
                Answer::Nothing
            }
            Operation::SetReclaimMode(mode) => {
                self.reclaimer().set_mode(mode);
                Answer::Nothing
            }
            Operation::Check => Answer::Nothing,
            Operation::AllocFrames { .. }
            | Operation::AllocRange { .. }
            | Operation::FreeFrames { .. }
            | Operation::Split { .. }
            | Operation::Retire { .. }
            | Operation::Fence { .. } => self.answer_run(operation),
            other => self.administer(other),
        }
    }

    /// Executes an operation on any number of frames.
    fn answer_run(&self, operation: Operation) -> Answer {
        let a = &self.world.allocator;
        match operation {
            Operation::FreeFrames { nth, more } => match self.model.nth(nth) {
                Some((first, held)) => {
                    self.free_frames(first, held.shape.count().saturating_add_signed(more.into()))
                }
                None => Answer::Nothing,
            },
            Operation::Split { nth, to } => match self.model.nth(nth) {
                Some((first, held)) => self.split(first, held.shape, order_of(to)),
                None => Answer::Nothing,
            },
            Operation::AllocFrames { spec, count } => {
                let count = PageCount::new(count.into());
                let frames = with_request(&spec, self.policies.at(spec.policy), |r| a.alloc_frames(r, count));
                Answer::Frames(spec, count, frames)
            }
            Operation::AllocRange { span, kind } => {
                let range = self.range_of(span);
                Answer::Range(range, kind, a.alloc_range(range, kind))
            }
            Operation::Retire { nth, at } => {
                let zones = &self.model.plan().zones;
                let (first, count) = self.model.nth(nth).map_or_else(
                    || {
                        (
                            zones[usize::from(nth) % zones.len()].start,
                            zones[usize::from(nth) % zones.len()].spanned,
                        )
                    },
                    |(first, held)| (first, held.shape.count()),
                );
                let frame = first + u64::from(at) % (count + 4);
                Answer::Retired(frame, a.retire(Pfn::new(frame)))
            }
            Operation::Fence { span, nth, end } => self.fence(self.range_of(span), nth, end),
            other => unreachable!("{other:?} is not about several frames"),
        }
    }

    /// Executes an operation of an administrator or a timer.
    fn administer(&mut self, operation: Operation) -> Answer {
        let a = &self.world.allocator;
        match operation {
            Operation::Drain => a.drain_pagesets(),
            Operation::Tick => a.tick(),
            Operation::Background { node } => {
                let nodes = &self.model.plan().nodes;
                let id = node_id(nodes[usize::from(node) % nodes.len()].0);
                return Answer::Reclaimed(a.background_reclaim(id));
            }
            Operation::CpuOffline { cpu } => {
                let cpu = self.cpu_of(cpu);
                return Answer::CpuGone(cpu, a.offline_cpu(CpuId::new(cpu)));
            }
            Operation::CpuOnline { cpu } => {
                let cpu = self.cpu_of(cpu);
                return Answer::CpuCame(cpu, a.online_cpu(CpuId::new(cpu)));
            }
            Operation::MemoryOffline(span) => {
                let range = self.range_of(span);
                return Answer::MemoryGone(range, a.offline_memory(range));
            }
            Operation::MemoryMoved(span) => return self.move_memory(self.range_of(span)),
            Operation::MemoryOnline(span) => {
                let range = self.range_of(span);
                return Answer::MemoryCame(range, a.online_memory(range));
            }
            Operation::MemoryBack { nth } => {
                let there = self.range_of(FrameSpec::InZone { zone: nth, first: 0, count: 1 });
                let offline = self.model.offline();
                let at = usize::from(nth).checked_rem(offline.len());
                let range = at.map_or(there, |at| offline[at]);
                return Answer::MemoryCame(range, a.online_memory(range));
            }
            Operation::Change(setting) => return Answer::Set(self.set(setting)),
            other => unreachable!("{other:?} is no administration"),
        }
        Answer::Nothing
    }

    fn fence(&self, range: FrameRange, nth: u16, end: FenceEnd) -> Answer {
        let a = &self.world.allocator;
        let fence = match a.fence(range) {
            Ok(fence) => fence,
            Err(error) => return Answer::Fenced(range, Err(error)),
        };
        let before = fence.held();
        let freed =
            self.model.nth(nth).map_or(Answer::Nothing, |(first, held)| self.free_held(first, held.shape));
        let after_free = fence.held();
        let spec = RequestSpec { wait: Wait::Never, ..RequestSpec::plain(0) };
        let page = with_request(&spec, self.policies.at(0), |request| a.alloc(request)).ok();
        let held = [before, after_free, fence.held()];
        let (mut run, mut is_offline) = (None, false);
        match end {
            FenceEnd::Release => fence.release(),
            FenceEnd::Alloc(kind) => run = fence.alloc(kind).ok(),
            FenceEnd::Offline => is_offline = fence.offline().is_ok(),
        }
        let record = FenceRecord { held, freed, page: (spec, page), end, run, is_offline };
        Answer::Fenced(range, Ok(Box::new(record)))
    }

    fn move_memory(&self, range: FrameRange) -> Answer {
        let (a, mut moved) = (&self.world.allocator, Vec::new());
        let result = a.offline_memory_with(range, |used| {
            if let UsedState::Allocated(_) = used.state {
                let first = used.block.start.get();
                self.reclaimer().remove(first);
                a.free_frames(used.block.start, used.block.count).expect("the frames are in use together");
                moved.push(first);
            }
        });
        Answer::MemoryMoved(range, moved, result)
    }

    fn set(&self, setting: Setting) -> Result<(), ConfigError> {
        let a = &self.world.allocator;
        match setting {
            Setting::Tuning(tuning) => a.set_tuning(tuning).expect("it needs no more slots"),
            Setting::Cache(mode) => a.set_zonelist_cache(mode).expect("past forms are linked"),
            Setting::NodeReclaim(mode) => a.set_node_reclaim(mode),
            Setting::HighFraction(fraction) => a.set_high_fraction(fraction),
            Setting::Watermarks { min_free, scale_factor, lowmem_reserve_ratio } => {
                let min_free = min_free.map(|frames| PageCount::new(u64::from(frames)));
                let rest = WatermarkSettings::default();
                return a.set_watermarks(WatermarkSettings {
                    min_free,
                    scale_factor,
                    lowmem_reserve_ratio,
                    ..rest
                });
            }
        }
        Ok(())
    }

    fn free(&self, first: u64, order: Order) -> Answer {
        Answer::Freed(first, order, self.world.allocator.free(Pfn::new(first), order))
    }

    fn free_held(&self, first: u64, shape: Shape) -> Answer {
        match shape {
            Shape::Block(order) => self.free(first, order),
            Shape::Run(count) => self.free_frames(first, count),
        }
    }

    fn free_frames(&self, first: u64, count: u64) -> Answer {
        let result = self.world.allocator.free_frames(Pfn::new(first), PageCount::new(count));
        Answer::FreedFrames(first, count, result)
    }

    fn split(&self, first: u64, shape: Shape, to: Order) -> Answer {
        let (a, frame) = (&self.world.allocator, Pfn::new(first));
        Answer::Split(
            first,
            to,
            match shape {
                Shape::Block(order) => a.split(frame, order, to),
                Shape::Run(count) => a.split_frames(frame, PageCount::new(count), to),
            },
        )
    }

    fn alloc_bulk(&self, spec: RequestSpec, count: u8) -> Answer {
        let mut frames = vec![Pfn::default(); usize::from(count)];
        let result = with_request(&spec, self.policies.at(spec.policy), |request| {
            self.world.allocator.alloc_bulk(request, &mut frames)
        });
        let result = result.map(|came| {
            frames.truncate(came);
            frames
        });
        Answer::Bulk(spec, result)
    }

    /// Returns the state of the zones that a request may use, and the zones with frames in the CPU's pageset. The zones
    /// are not queried for an interleaving policy, because the query would advance the turn.
    fn zones_in_reach(&self, spec: &RequestSpec) -> (Vec<ZoneShortage>, Vec<ZoneId>) {
        let (a, known) = (&self.world.allocator, self.policies.at(spec.policy));
        let mut zones = Vec::new();
        if known.start != Start::InTurn {
            // An error is ignored here, because the request will fail with the same error.
            let _ = with_request(spec, known, |request| a.shortage(request, |zone| zones.push(zone)));
        }
        let here = CpuId::new(self.world.controls.cpu());
        let stocked = a.pagesets().filter(|pageset| pageset.cpu == here && pageset.count != PageCount::ZERO);
        (zones, stocked.map(|pageset| pageset.zone).collect())
    }

    fn cpu_of(&self, cpu: u8) -> u32 {
        u32::from(cpu) % self.model.cpu_ids()
    }

    fn range_of(&self, span: FrameSpec) -> FrameRange {
        let (zone, first, count) = match span {
            FrameSpec::InZone { zone, first, count } => (zone, first, count),
            FrameSpec::Anywhere { first, count } => {
                let first = u64::from(first) % (self.model.end() + 10);
                return range(first, u64::from(count) % (self.model.end() + 12 - first));
            }
        };
        let zones = &self.model.plan().zones;
        let zone = &zones[usize::from(zone) % zones.len()];
        let first = u64::from(first) % zone.spanned;
        if count == u16::MAX {
            let at = zone.start + first;
            let run = zone.managed.iter().find(|&&(start, count)| (start..start + count).contains(&at));
            return run.map_or(range(at, 0), |&(start, count)| range(at, start + count - at));
        }
        range(zone.start + first, u64::from(count) % (zone.spanned - first + 1))
    }
}
