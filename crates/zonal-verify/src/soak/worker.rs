//! A thread that allocates and frees blocks of all orders, holds some of them, and makes invalid frees now and then.

use std::sync::Arc;

use fastrand::Rng;
use zonal::error::FreeError;
use zonal::request::{Block, PageKind};
use zonal::rules::watermarks::Urgency;
use zonal::units::{NodeId, Order, PageCount, Pfn};
use zonal::{FrameRun, NodeMask};
use zonal_linux::{Pool, PoolPolicy, PoolRequest};

use super::owners::Owners;
use super::round::Round;
use super::shrinkers::Shrinkers;
use super::tally::Faults;
use crate::stress::round::one_of;

/// A frame number beyond the frames of any pool.
const NOWHERE: u64 = 1 << 40;

pub(super) struct Worker<'g> {
    round: &'g Round,
    owners: Arc<Owners>,
    shrinkers: &'g Shrinkers,
    /// Number that identifies the worker in `owners`.
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

    /// Does `steps` operations, on a CPU of the emulated machine if there is one.
    pub(super) fn phase(&mut self, steps: u32) {
        let cpu = (!self.round.cpus.is_empty()).then(|| one_of(&mut self.random, &self.round.cpus));
        let _acting = cpu.map(|cpu| self.pool().act_as(cpu).expect("the machine has this CPU"));
        // The shares of all threads together may exceed the memory that is online.
        let share = self.pool().accounting().managed.get() / self.round.threads as u64;
        let most = share * self.random.u64(20..=115) / 100;
        for _ in 0..steps {
            let wants = self.frames < most && self.random.u64(..most.max(1)) >= self.frames / 2;
            match self.random.u8(..64) {
                0 => self.free_wrongly(),
                1 => self.release(),
                2 if wants => self.take_run(),
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

    /// Returns the number of frames that the worker holds.
    pub(super) fn frames(&self) -> u64 {
        self.frames
    }

    pub(super) fn give_all(&mut self) {
        while !self.held.is_empty() {
            self.give();
        }
    }

    /// Removes a block from the worker and its owner from `owners`. The block is still allocated, and the caller must
    /// free it.
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
        let urgency = one_of(random, &[Urgency::Normal, Urgency::Normal, Urgency::High, Urgency::Atomic]);
        let kind = one_of(random, &[PageKind::User, PageKind::Cache, PageKind::Kernel]);
        let mut request = PoolRequest::new(order).urgency(urgency).kind(kind);
        if random.u8(..4) == 0 {
            request = request.no_wait();
        }
        if random.u8(..4) == 0 && !self.policies.is_empty() {
            request = request.policy(&self.policies[random.usize(..self.policies.len())]);
        }
        match self.round.pool.alloc_raw(&request) {
            Ok(block) => {
                assert_eq!(block.order, order, "a block of another order was requested");
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

    /// Allocates a run. Frees it at once, or splits it and keeps its single frames.
    fn take_run(&mut self) {
        let count = PageCount::new(self.random.u64(1..=300));
        let Ok(run) = self.pool().alloc_frames_raw(&PoolRequest::page(), count) else {
            self.faults.failed_requests += 1;
            return self.give();
        };
        let FrameRun { range, zone, node } = run;
        let blocks = (range.start.get()..range.end().get()).map(|frame| {
            let first = Pfn::new(frame);
            Block { first, order: Order::PAGE, zone, node }
        });
        let blocks: Vec<Block> = blocks.collect();
        blocks.iter().for_each(|block| self.owners.assign(block, self.owner));
        self.operations += 1;
        if self.random.bool() {
            // SAFETY: a soak creates no value that could own the frames.
            let split = unsafe { self.pool().split_frames_raw(range.start, count, Order::PAGE) };
            assert!(count.get() == 1 || split == Ok(()), "{} splits {range}: {split:?}", self.owner);
            self.frames += count.get();
            self.held.extend(blocks);
            return;
        }
        blocks.iter().for_each(|block| self.owners.release(block, self.owner));
        // SAFETY: a soak creates no value that could own the frames.
        let freed = unsafe { self.pool().free_frames_raw(range.start, count) };
        assert_eq!(freed, Ok(()), "{} frees {range}", self.owner);
        self.operations += 1;
    }

    fn give(&mut self) {
        let Some(block) = self.forget() else { return };
        self.owners.release(&block, self.owner);
        let freed = self.free(block.first, block.order);
        assert_eq!(freed, Ok(()), "{} gives {block:?} back", self.owner);
        self.operations += 1;
    }

    /// Moves a single frame from this worker to the cache.
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

    /// Makes a free that the pool must refuse: either of a block that this worker holds, with a wrong order or address,
    /// or of a frame that is in no pool.
    fn free_wrongly(&mut self) {
        let largest = self.round.config.max_order;
        let beyond = Pfn::new(NOWHERE + self.random.u64(..1000));
        let refused = match (self.random.u8(..3), self.held.last().copied()) {
            (0, Some(Block { first, order, .. })) => {
                let given = if order == largest { Order::PAGE } else { largest };
                let error = FreeError::WrongOrder { frame: first, allocated: order, given };
                // No block of order `given` can start at a frame that is not aligned to that order.
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
        assert!(refused, "an invalid free by {} was accepted, or refused with the wrong error", self.owner);
        self.faults.invalid_frees += 1;
    }

    fn free(&self, first: Pfn, order: Order) -> Result<(), FreeError> {
        // SAFETY: a soak creates no `Frames` that could own the block, and the pool refuses invalid frees.
        unsafe { self.round.pool.free_raw(first, order) }
    }
}

/// Returns one policy of each kind that the pool's nodes allow.
fn policies(pool: &Pool) -> Vec<PoolPolicy<'static>> {
    let nodes = pool.memory_nodes();
    let ids: Vec<NodeId> = nodes.iter().collect();
    let last: NodeMask = ids.last().copied().into_iter().collect();
    let each = [pool.preferred(ids[0]), pool.bind(last), pool.interleave(nodes)];
    each.into_iter().filter_map(Result::ok).collect()
}
