//! Applies operations to an allocator.
//!
//! To *act* is to call the allocator, and nothing of it but what the operation means; to *judge* is to
//! hold the answer against the model, which may look at anything. Whoever saves the allocator's state does
//! it between the two. Neighbours: `verdict.rs` judges.

use zonal::error::{AllocError, ConfigError, FreeBulkError, FreeError, OnlineError, ZoneShortage};
use zonal::machine::FrameRange;
use zonal::request::Block;
use zonal::rules::stat_threshold::CounterRules;
use zonal::rules::watermarks::WatermarkSettings;
use zonal::units::{CpuId, Order, PageCount, Pfn, ZoneId};
use zonal::{Config, Request};

use super::cache::{Cache, Effects};
use super::model::Model;
use super::operation::{Ask, Operation, Scope, Setting, Stretch, Wait};
use super::plan::{Plan, World, mask_of, node_id, range};
use super::policies::{Known, Policies, Start};
use super::steered::Cells;

/// What was done, and what came of it.
pub struct Act {
    pub(super) operation: Operation,
    pub(super) answer: Answer,
    /// Zones in reach of a request before it, where they are known.
    pub(super) before: Vec<ZoneShortage>,
    /// Zones of which the CPU had frames in its pageset before.
    pub(super) stocked: Vec<ZoneId>,
    /// What the reclaimer did meanwhile.
    pub(super) effects: Effects,
}

/// What the allocator answered.
pub(super) enum Answer {
    Nothing,
    Block(Ask, Result<Block, AllocError>),
    Bulk(Ask, Result<Vec<Pfn>, AllocError>),
    Freed(u64, Order, Result<(), FreeError>),
    FreedBulk(Vec<u64>, Result<(), FreeBulkError>),
    CpuGone(u32, Result<(), OnlineError>),
    CpuCame(u32, Result<(), OnlineError>),
    MemoryGone(FrameRange, Result<(), OnlineError>),
    MemoryCame(FrameRange, Result<(), OnlineError>),
    Reclaimed(PageCount),
    Set(Result<(), ConfigError>),
}

/// A player in a world.
pub struct Player<'w, 'm, C: Cells> {
    /// The world.
    pub world: &'w World<'m, C>,
    /// What must be true of it.
    pub model: Model,
    pub(super) policies: &'w Policies<'w, 'm, C>,
    /// Most frames that quarantines hold.
    pub(super) quarantined_max: u64,
    /// How the allocator counts.
    pub(super) rules: CounterRules,
}

impl Plan {
    /// Builds an allocator over this machine, and has `play` play there.
    ///
    /// # Errors
    /// When the configuration does not fit the machine.
    ///
    /// # Panics
    /// When `play` does.
    pub fn played_by<C: Cells, R>(
        &self,
        config: &Config,
        play: impl FnOnce(Player<'_, '_, C>) -> R,
    ) -> Result<R, ConfigError> {
        self.play(config, |world| {
            let model = Model::new(self);
            let weights = zonal::mempolicy::WeightTable::new();
            let policies = Policies::new(&world.allocator, &model, &weights);
            let quarantined_max = config.hardening.quarantine.get() * self.zones.len() as u64;
            let rules = config.counters;
            play(Player { world, model, policies: &policies, quarantined_max, rules })
        })
    }
}

fn order_of(order: u8) -> Order {
    Order::new(order.min(zonal::units::MAX_ORDER_LIMIT)).expect("within the limit")
}

/// Calls `work` with the request that `ask` means.
fn with_request<'m, C: Cells, R>(
    ask: &Ask,
    known: &Known<'_, 'm, C>,
    work: impl FnOnce(&Request<'_>) -> R,
) -> R {
    let mut request =
        Request::new(order_of(ask.order)).kind(ask.kind).urgency(ask.urgency).zone_limit(ask.limit);
    if ask.policy != 0 {
        request = request.policy(&known.policy);
    }
    let mask = mask_of(ask.allowed.unwrap_or(0));
    if ask.allowed.is_some() {
        request = request.allowed(&mask);
    }
    if ask.scope == Scope::ThisNode {
        request = request.this_node();
    }
    match ask.wait {
        Wait::May => {}
        Wait::Once => request = request.no_retry(),
        Wait::Never => request = request.no_wait(),
    }
    work(&request)
}

impl<'m, C: Cells> Player<'_, 'm, C> {
    pub(super) fn cache(&self) -> &Cache<'m, C> {
        &self.world.allocator.platform().cache
    }

    /// Acts and judges.
    pub fn apply(&mut self, operation: Operation) {
        let act = self.act(operation);
        self.judge(&act);
    }

    /// Does it. The model does not know of it yet.
    pub fn act(&mut self, operation: Operation) -> Act {
        let (mut before, mut stocked) = (Vec::new(), Vec::new());
        if let Operation::Alloc(ask) = operation {
            (before, stocked) = self.look(&ask);
        }
        let answer = self.answer(operation);
        let effects = self.cache().take_effects();
        Act { operation, answer, before, stocked, effects }
    }

    fn answer(&mut self, operation: Operation) -> Answer {
        let (a, controls) = (&self.world.allocator, &self.world.controls);
        match operation {
            Operation::Alloc(ask) => Answer::Block(
                ask,
                with_request(&ask, self.policies.at(ask.policy), |request| a.alloc(request)),
            ),
            Operation::AllocBulk { ask, count } => self.alloc_bulk(Ask { order: 0, ..ask }, count),
            Operation::Free { nth } => match self.model.nth(nth) {
                Some((first, held)) => self.free(first, held.order),
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
                Some((first, order)) => self.free(first, order),
                None => Answer::Nothing,
            },
            Operation::FreeStrange { nth, offset, order } => {
                let zones = &self.model.plan().zones;
                let (near, own) = self.model.nth(nth).map_or_else(
                    || (zones[usize::from(nth) % zones.len()].start, Order::PAGE),
                    |(first, held)| (first, held.order),
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
                self.cache().promise(u64::from(pages));
                Answer::Nothing
            }
            Operation::Behave(manner) => {
                self.cache().behave(manner);
                Answer::Nothing
            }
            Operation::Check => Answer::Nothing,
            other => self.care(other),
        }
    }

    /// What an administrator or a timer does.
    fn care(&mut self, operation: Operation) -> Answer {
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
            Operation::MemoryOffline(stretch) => {
                let range = self.range_of(stretch);
                return Answer::MemoryGone(range, a.offline_memory(range));
            }
            Operation::MemoryOnline(stretch) => {
                let range = self.range_of(stretch);
                return Answer::MemoryCame(range, a.online_memory(range));
            }
            Operation::MemoryBack { nth } => {
                let there = self.range_of(Stretch::OfZone { zone: nth, first: 0, count: 1 });
                let offline = self.model.offline();
                let at = usize::from(nth).checked_rem(offline.len());
                let range = at.map_or(there, |at| offline[at]);
                return Answer::MemoryCame(range, a.online_memory(range));
            }
            Operation::Change(setting) => return Answer::Set(self.set(setting)),
            other => unreachable!("{other:?} is no care"),
        }
        Answer::Nothing
    }

    fn set(&self, setting: Setting) -> Result<(), ConfigError> {
        let a = &self.world.allocator;
        match setting {
            Setting::Tuning(tuning) => a.set_tuning(tuning).expect("it needs no more slots"),
            Setting::Cache(mode) => a.set_zonelist_cache(mode),
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

    fn alloc_bulk(&self, ask: Ask, count: u8) -> Answer {
        let mut frames = vec![Pfn::default(); usize::from(count)];
        let result = with_request(&ask, self.policies.at(ask.policy), |request| {
            self.world.allocator.alloc_bulk(request, &mut frames)
        });
        let result = result.map(|came| {
            frames.truncate(came);
            frames
        });
        Answer::Bulk(ask, result)
    }

    /// What a request will find. An interleaving policy is not asked: it would be another one's turn.
    fn look(&self, ask: &Ask) -> (Vec<ZoneShortage>, Vec<ZoneId>) {
        let (a, known) = (&self.world.allocator, self.policies.at(ask.policy));
        let mut zones = Vec::new();
        if known.start != Start::InTurn {
            // An error is one that the request will get as well.
            let _ = with_request(ask, known, |request| a.shortage(request, |zone| zones.push(zone)));
        }
        let here = CpuId::new(self.world.controls.cpu());
        let stocked = a.pagesets().filter(|pageset| pageset.cpu == here && pageset.count != PageCount::ZERO);
        (zones, stocked.map(|pageset| pageset.zone).collect())
    }

    fn cpu_of(&self, cpu: u8) -> u32 {
        u32::from(cpu) % self.model.cpu_ids()
    }

    fn range_of(&self, stretch: Stretch) -> FrameRange {
        let (zone, first, count) = match stretch {
            Stretch::OfZone { zone, first, count } => (zone, first, count),
            Stretch::Anywhere { first, count } => {
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
