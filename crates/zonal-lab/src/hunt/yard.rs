//! What all threads of a round share, and the round's course.
//!
//! Threads meet at the end of each bout; the first of them, the *leader*, then looks at everything
//! while the others wait. Frames that programs keep as *cache* can be reclaimed. Neighbours:
//! `player.rs` is a thread's work, `pause.rs` the leader's.

use std::cell::{Cell, RefCell};
use std::sync::atomic::AtomicBool;

use fastrand::Rng;
use zonal::error::AllocError;
use zonal::machine::FrameRange;
use zonal::policy::WeightTable;
use zonal::reclaim::ReclaimRequest;
use zonal::request::PageKind;
use zonal::units::{CpuId, NodeId, PageCount};
use zonal::{Allocator, Block, NodeMask, Policy, Request};

use super::ground::Ground;
use super::ledger::Ledger;
use super::player::Player;
use crate::hands::Hands;
use crate::sim::{Join, Lab, ProgramReclaimer, Role, RunError, Threads, Time, World};

/// A block that a program has.
#[derive(Clone, Copy, Debug)]
pub(super) struct Taken {
    pub(super) block: Block,
    pub(super) kind: PageKind,
}

impl Taken {
    pub(super) fn pages(&self) -> u64 {
        self.block.order.pages().get()
    }
}

/// A CPU of the machine.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cpu {
    pub(super) id: CpuId,
    pub(super) node: NodeId,
}

/// What threads share.
pub(super) struct Yard<'g, 'h, 's, 'm> {
    pub(super) ground: &'g Ground,
    pub(super) hands: &'h Hands<'s, 'm>,
    pub(super) ledger: Ledger,
    pub(super) cpus: Vec<Cpu>,
    /// Nodes that had memory at the start.
    pub(super) memory: NodeMask,
    /// Blocks left for others to free.
    pub(super) left: RefCell<Vec<Taken>>,
    /// By place of the node: what can be reclaimed.
    caches: RefCell<Vec<Vec<Taken>>>,
    /// Frames that are offline.
    pub(super) offline: RefCell<Vec<FrameRange>>,
    pub(super) cpus_offline: RefCell<Vec<CpuId>>,
    /// Background workers at work.
    pub(super) awake: Cell<usize>,
    random: RefCell<Rng>,
}

/// Policies that have a state of their own.
pub(super) struct Turns<'w> {
    pub(super) interleave: Policy<'w, Lab>,
    pub(super) weighted: Policy<'w, Lab>,
}

impl<'w> Turns<'w> {
    fn new(yard: &Yard<'_, '_, '_, '_>, weights: &'w WeightTable<Lab>) -> Self {
        yard.memory.iter().for_each(|node| weights.set(node, yard.random.borrow_mut().u8(1..4)));
        let has_memory = "the first node has memory";
        Self {
            interleave: Policy::interleave(yard.allocator(), yard.memory).expect(has_memory),
            weighted: Policy::weighted_interleave(yard.allocator(), yard.memory, weights).expect(has_memory),
        }
    }
}

impl<'g, 'h, 's, 'm> Yard<'g, 'h, 's, 'm> {
    pub(super) fn new(ground: &'g Ground, hands: &'h Hands<'s, 'm>) -> Self {
        let model = &ground.machine.model;
        let cpus = model.nodes.iter().flat_map(|node| node.cpus.iter().map(|&id| Cpu { id, node: node.id }));
        Self {
            ground,
            hands,
            ledger: Ledger::new(hands.sim),
            cpus: cpus.collect(),
            memory: model.zones.iter().map(|zone| zone.node).collect(),
            left: RefCell::default(),
            caches: RefCell::new(vec![Vec::new(); model.nodes.len()]),
            offline: RefCell::default(),
            cpus_offline: RefCell::default(),
            awake: Cell::new(0),
            random: RefCell::new(Rng::with_seed(hands.sim.world.seed() ^ 0x5eed)),
        }
    }

    pub(super) fn world(&self) -> &'s World {
        self.hands.sim.world
    }

    pub(super) fn allocator(&self) -> &'s Allocator<'m, Lab> {
        self.hands.sim.allocator
    }

    /// Frames of the machine.
    pub(super) fn managed(&self) -> u64 {
        self.ground.machine.model.zones.iter().map(|zone| zone.managed.get()).sum()
    }

    /// Plays the round; gives its virtual time.
    pub(super) fn play(&self, stop: &AtomicBool) -> Result<Time, RunError> {
        let world = self.world();
        let weights = WeightTable::new();
        let turns = &Turns::new(self, &weights);
        let gates: Vec<[Join; 2]> =
            (0..self.ground.bouts).map(|_| [Join::new(self.cpus.len()), Join::new(1)]).collect();
        let mut threads = Threads::new();
        for (at, &cpu) in self.cpus.iter().enumerate() {
            let gates = &gates;
            threads.add(cpu.id.index(), Role::Foreground, Time::ZERO, move || {
                self.take_part(at, turns, gates);
            })?;
        }
        for (place, node) in self.ground.machine.model.nodes.iter().enumerate() {
            let cpu = node.cpus.first().map_or(self.cpus[0].id, |&cpu| cpu);
            threads
                .add(cpu.index(), Role::Background, Time::ZERO, move || self.reclaim_for(place, node.id))?;
        }
        let _asked = world.ask(self);
        let ended = world.run(threads, stop)?;
        let last = ended.iter().filter(|&&time| time != Time::NEVER).max();
        Ok(last.copied().unwrap_or_default())
    }

    /// The life of a thread.
    fn take_part(&self, at: usize, turns: &Turns<'_>, gates: &[[Join; 2]]) {
        let world = self.world();
        let mut player = Player::new(self, turns, at);
        for (bout, [end, begin]) in gates.iter().enumerate() {
            let rests = bout % 2 == 1;
            player.play();
            if rests {
                player.give_all();
            }
            end.arrive(world);
            if at == 0 {
                end.wait(world);
                self.pause(rests);
                begin.arrive(world);
            } else {
                begin.wait(world);
            }
        }
    }

    /// The work of a node's background worker.
    fn reclaim_for(&self, place: usize, node: NodeId) {
        loop {
            self.world().wait_for_reclaim(place);
            self.awake.set(self.awake.get() + 1);
            self.allocator().background_reclaim(node);
            self.awake.set(self.awake.get() - 1);
        }
    }

    /// Takes a block on the running CPU, if there is one.
    pub(super) fn take(&self, request: &Request<'_>, kind: PageKind) -> Option<Taken> {
        match self.hands.alloc(&request.kind(kind)) {
            Ok(block) => {
                let place = self.hands.place_of(block.node);
                self.ledger.take(&block, kind, place, self.node_of(self.world().cpu()));
                if !block.first.is_aligned_to(block.order) {
                    self.hands.fault(format!("a block of order {} begins at {}", block.order, block.first));
                }
                Some(Taken { block, kind })
            }
            Err(AllocError::OutOfMemory(_) | AllocError::NoNodeInPolicy) => None,
            Err(error) => self.hands.fault(error.to_string()),
        }
    }

    /// Gives a block back on the running CPU.
    pub(super) fn give(&self, taken: Taken) {
        self.ledger.give(&taken.block, taken.kind, self.hands.place_of(taken.block.node));
        self.hands.free(&taken.block);
    }

    fn node_of(&self, cpu: usize) -> NodeId {
        let there = self.cpus.iter().find(|there| there.id.index() == cpu);
        there.expect("threads run on CPUs of the machine").node
    }

    /// Keeps a block as cache.
    pub(super) fn keep(&self, taken: Taken) {
        self.caches.borrow_mut()[self.hands.place_of(taken.block.node)].push(taken);
    }

    /// Gives back what is cache and what was left.
    pub(super) fn give_shared(&self) {
        let caches = || self.caches.borrow_mut().iter_mut().find_map(Vec::pop);
        while let Some(taken) = self.left.borrow_mut().pop().or_else(caches) {
            self.give(taken);
            self.hands.checkpoint();
        }
    }

    /// Cache of the node at a place, taken out.
    fn pop_cache(&self, place: usize) -> Option<Taken> {
        self.caches.borrow_mut()[place].pop()
    }
}

impl ProgramReclaimer for Yard<'_, '_, '_, '_> {
    fn count(&self, _world: &World, request: &ReclaimRequest) -> PageCount {
        let caches = self.caches.borrow();
        caches[self.hands.place_of(request.node)].iter().map(|taken| taken.block.order.pages()).sum()
    }

    fn reclaim(&self, _world: &World, request: &ReclaimRequest) -> PageCount {
        let place = self.hands.place_of(request.node);
        // Those who reclaim can need a little themselves.
        let needs = self.random.borrow_mut().u8(..8) == 0;
        let own = if needs { self.take(&Request::page(), PageKind::Kernel) } else { None };
        let mut freed = PageCount::ZERO;
        while freed < request.target
            && let Some(taken) = self.pop_cache(place)
        {
            freed = freed.plus(taken.block.order.pages());
            self.give(taken);
        }
        if let Some(own) = own {
            self.give(own);
        }
        freed
    }
}
