//! A thread: takes and gives blocks of all orders, holds some, and frees wrongly now and then.

use std::sync::Arc;

use fastrand::Rng;
use zonal::NodeMask;
use zonal::error::FreeError;
use zonal::request::{Block, PageKind};
use zonal::rules::watermarks::Urgency;
use zonal::units::{NodeId, Order, Pfn};
use zonal_linux::{Pool, PoolPolicy, PoolRequest};

use super::owners::Owners;
use super::round::{Round, pick};
use super::shrinkers::Shrinkers;
use super::tally::Faults;

/// Frames beyond any pool.
const NOWHERE: u64 = 1 << 40;

pub(super) struct Worker<'g> {
    round: &'g Round,
    owners: Arc<Owners>,
    shrinkers: &'g Shrinkers,
    /// Its name among owners.
    owner: u32,
    held: Vec<Block>,
    /// Frames of all blocks in `held`.
    frames: u64,
    policies: Vec<PoolPolicy<'static>>,
    random: Rng,
    operations: u64,
    faults: Faults,
}

impl<'g> Worker<'g> {
    pub(super) fn new(
        round: &'g Round,
        owners: &Arc<Owners>,
        shrinkers: &'g Shrinkers,
        seed: u64,
        at: usize,
    ) -> Self {
        Self {
            round,
            owners: Arc::clone(owners),
            shrinkers,
            owner: at as u32 + 1,
            held: Vec::new(),
            frames: 0,
            policies: policies(&round.pool),
            random: Rng::with_seed(seed.wrapping_mul(31) ^ at as u64),
            operations: 0,
            faults: Faults::default(),
        }
    }

    /// Does so many operations, on a CPU of the emulated machine if there is one.
    pub(super) fn phase(&mut self, steps: u32) {
        let cpu = (!self.round.cpus.is_empty()).then(|| pick(&mut self.random, &self.round.cpus));
        let _acting = cpu.map(|cpu| self.pool().act_as(cpu).expect("the machine has this CPU"));
        // All threads together want a little more than there is, at times.
        let share = self.pool().frames().get() / self.round.threads as u64;
        let most = share * self.random.u64(20..=115) / 100;
        for _ in 0..steps {
            let wants = self.frames < most && self.random.u64(..most.max(1)) >= self.frames / 2;
            match self.random.u8(..64) {
                0 => self.free_wrongly(),
                1 => self.release(),
                _ if wants => self.take(),
                _ => self.give(),
            }
        }
    }

    pub(super) fn operations(&self) -> u64 {
        self.operations
    }

    pub(super) fn faults(&self) -> &Faults {
        &self.faults
    }

    /// Returns the number of frames that it has.
    pub(super) fn frames(&self) -> u64 {
        self.frames
    }

    pub(super) fn give_all(&mut self) {
        while !self.held.is_empty() {
            self.give();
        }
    }

    /// Returns a block that it had, which has no owner now and is still allocated: the caller frees it.
    pub(super) fn hand_over(&mut self) -> Option<Block> {
        let block = self.forget()?;
        self.owners.release(&block, self.owner);
        Some(block)
    }

    fn pool(&self) -> &'g Pool {
        &self.round.pool
    }

    fn take(&mut self) {
        let random = &mut self.random;
        let largest = self.round.config.max_order.get();
        let order = if random.u8(..4) == 0 { random.u8(..=largest) } else { random.u8(..2) * random.u8(..4) };
        let order = Order::new(order).expect("it is at most the largest");
        let urgency = pick(random, &[Urgency::Normal, Urgency::Normal, Urgency::High, Urgency::Atomic]);
        let kind = pick(random, &[PageKind::User, PageKind::Cache, PageKind::Kernel]);
        let mut request = PoolRequest::new(order).urgency(urgency).kind(kind);
        if random.u8(..4) == 0 {
            request = request.no_wait();
        }
        if random.u8(..4) == 0 && !self.policies.is_empty() {
            request = request.policy(&self.policies[random.usize(..self.policies.len())]);
        }
        match self.round.pool.alloc_raw(&request) {
            Ok(block) => {
                assert_eq!(block.order, order, "another order was asked for");
                self.owners.assign(&block, self.owner);
                self.frames += order.pages().get();
                self.held.push(block);
            }
            Err(_) => {
                self.faults.failed_requests += 1;
                self.give();
            }
        }
        self.operations += 1;
    }

    fn give(&mut self) {
        let Some(block) = self.forget() else { return };
        self.owners.release(&block, self.owner);
        let freed = self.free(block.first, block.order);
        assert_eq!(freed, Ok(()), "{} gives {block:?} back", self.owner);
        self.operations += 1;
    }

    /// Leaves a single frame to the cache.
    fn release(&mut self) {
        let Some(at) = self.held.iter().position(|block| block.order == Order::PAGE) else { return };
        let block = self.held.swap_remove(at);
        self.frames -= 1;
        self.owners.release(&block, self.owner);
        self.shrinkers.keep(block);
    }

    fn forget(&mut self) -> Option<Block> {
        let at = (!self.held.is_empty()).then(|| self.random.usize(..self.held.len()))?;
        let block = self.held.swap_remove(at);
        self.frames -= block.order.pages().get();
        Some(block)
    }

    /// Frees something that must be refused: only of what it holds itself, or of nothing there is.
    fn free_wrongly(&mut self) {
        let largest = self.round.config.max_order;
        let beyond = Pfn::new(NOWHERE + self.random.u64(..1000));
        let refused = match (self.random.u8(..3), self.held.last().copied()) {
            (0, Some(Block { first, order, .. })) => {
                let given = if order == largest { Order::PAGE } else { largest };
                let error = FreeError::WrongOrder { frame: first, allocated: order, given };
                // What is not aligned to the order given starts no block of it.
                let misaligned = !first.get().is_multiple_of(given.pages().get());
                let found = self.free(first, given);
                misaligned && found == Err(FreeError::NotAllocated(first)) || found == Err(error)
            }
            (1, Some(Block { first, order, .. })) if order != Order::PAGE => {
                let inner = Pfn::new(first.get() + self.random.u64(1..order.pages().get()));
                let error = FreeError::InsideBlock { frame: inner, block: first, order };
                self.free(inner, Order::PAGE) == Err(error)
            }
            _ => self.free(beyond, Order::PAGE) == Err(FreeError::NotManaged(beyond)),
        };
        assert!(refused, "a wrong free by {} was taken, or for something else", self.owner);
        self.faults.wrong_frees += 1;
    }

    fn free(&self, first: Pfn, order: Order) -> Result<(), FreeError> {
        // SAFETY: a soak has no `Frames`, and what is wrong on purpose must be refused.
        unsafe { self.round.pool.free_raw(first, order) }
    }
}

/// Returns each kind of policy that the pool's nodes allow.
fn policies(pool: &Pool) -> Vec<PoolPolicy<'static>> {
    let nodes = pool.memory_nodes();
    let ids: Vec<NodeId> = nodes.iter().collect();
    let last: NodeMask = ids.last().copied().into_iter().collect();
    let each = [pool.preferred(ids[0]), pool.bind(last), pool.interleave(nodes)];
    each.into_iter().filter_map(Result::ok).collect()
}
