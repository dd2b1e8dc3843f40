//! The work of one thread in a phase: random steps, each of which allocates or frees a few blocks.
//!
//! Each phase has a random style. Over many phases, the styles cover bursts of single frames, large blocks, requests
//! with constraints, and memory that another thread frees.
//!
//! Related files: `mutator.rs` makes the changes of an administrator, which a step makes now and then.

use fastrand::Rng;
use zonal::request::{PageKind, Urgency};
use zonal::units::{NodeId, Order, ZoneKind};
use zonal::{NodeMask, Policy, Request};
use zonal_lab::sim::Time;

use super::round::one_of;
use super::world::{Held, Policies, World};

/// How a thread works in one phase.
#[derive(Clone, Copy)]
struct Style {
    /// Number of requests in 256 that are for larger blocks.
    large: u8,
    /// Number of requests in 256 that have constraints, such as a policy or a zone limit.
    constrained: u8,
    /// Number of steps in 256 that free a block that another thread left.
    sharing: u8,
    /// Maximum number of blocks in one step.
    burst: u32,
}

/// A thread.
pub(super) struct Worker<'y, 'g, 'h, 's, 'm> {
    world: &'y World<'g, 'h, 's, 'm>,
    policies: &'y Policies<'y>,
    random: Rng,
    held: Vec<Held>,
    /// Number of frames that the thread holds, and the number that it aims for.
    pages: u64,
    target: u64,
}

impl<'y, 'g, 'h, 's, 'm> Worker<'y, 'g, 'h, 's, 'm> {
    pub(super) fn new(world: &'y World<'g, 'h, 's, 'm>, policies: &'y Policies<'y>, at: usize) -> Self {
        let random = Rng::with_seed(world.machine().seed() ^ ((at as u64 + 1) << 32));
        Self { world, policies, random, held: Vec::new(), pages: 0, target: 0 }
    }

    /// Runs one phase.
    pub(super) fn run_phase(&mut self) {
        let style = Style {
            large: one_of(&mut self.random, &[0, 10, 120]),
            constrained: one_of(&mut self.random, &[0, 10, 100]),
            sharing: one_of(&mut self.random, &[0, 30]),
            burst: one_of(&mut self.random, &[4, 40, 150]),
        };
        let share = self.world.managed() as f64 * self.world.round.demand / self.world.cpus.len() as f64;
        self.target = (share * 2.0 * self.random.f64()) as u64;
        if self.random.u8(..3) == 0 {
            let cpu = one_of(&mut self.random, &self.world.cpus);
            self.world.machine().move_to(cpu.id.index());
        }
        for _ in 0..self.world.round.steps {
            self.step(&style);
            self.world.system.checkpoint();
        }
    }

    /// Frees everything.
    pub(super) fn free_all(&mut self) {
        while let Some(held) = self.held.pop() {
            self.free(held);
            self.world.system.checkpoint();
        }
    }

    fn step(&mut self, style: &Style) {
        self.world.machine().spend(Time::from_ns(self.random.f64() * 2000.0));
        if self.random.u8(..) < style.sharing {
            let held = self.world.left.borrow_mut().pop();
            return held.into_iter().for_each(|held| self.world.free(held));
        }
        if self.random.u16(..400) == 0 {
            return self.world.mutate(&mut self.random);
        }
        if self.random.u16(..100) == 0 {
            return self.world.change_frames(&mut self.random);
        }
        if self.random.u16(..64) == 0 {
            self.split_one();
        }
        let blocks = self.random.u32(1..=style.burst);
        let is_below_target = self.pages < self.target;
        // Four steps in five move toward the target, and the others away from it.
        if is_below_target == (self.random.u8(..5) != 0) {
            self.alloc_some(style, blocks);
        } else {
            self.free_some(style, blocks);
        }
    }

    fn alloc_some(&mut self, style: &Style, blocks: u32) {
        let kind = one_of(&mut self.random, &PageKind::ALL);
        let order = self.order(style);
        if self.random.u8(..) < style.large / 4 {
            let (count, align) =
                (self.random.u64(1..=300), Order::new(self.random.u8(..4)).expect("3 is valid"));
            for held in self.world.alloc_in_parts(&Request::new(align), count, kind, order) {
                self.pages += held.pages();
                self.held.push(held);
            }
        }
        for _ in 0..blocks {
            let held = if self.random.u8(..) < style.constrained {
                self.alloc_constrained(order, kind)
            } else {
                self.world.alloc(&Request::new(order), kind)
            };
            let Some(held) = held else { return };
            if held.kind == PageKind::Cache && self.random.u8(..2) == 0 {
                self.world.keep(held);
            } else {
                self.pages += held.pages();
                self.held.push(held);
            }
            if self.pages > 2 * self.target {
                return;
            }
        }
    }

    /// Returns a random order. Most are 0, for single frames. Most of the others are orders that pagesets cache. Large
    /// orders are more likely while the thread is far below its target.
    fn order(&mut self, style: &Style) -> Order {
        let missing = self.target.saturating_sub(self.pages);
        let large = self.random.u8(..) < style.large || missing > 20_000;
        let order = match self.random.u8(..8) {
            _ if !large => 0,
            _ if missing > 2000 && self.random.u8(..4) != 0 => one_of(&mut self.random, &[9, 9, 10, 8]),
            0..5 => self.random.u8(1..=3),
            5 => 9,
            _ => self.random.u8(1..=10),
        };
        Order::new(order).expect("10 is valid")
    }

    /// Allocates with random constraints, and checks that the block meets them.
    fn alloc_constrained(&mut self, order: Order, kind: PageKind) -> Option<Held> {
        let (world, random) = (self.world, &mut self.random);
        let mut request = Request::new(order);
        let mut limit = ZoneKind::Movable;
        if random.u8(..4) == 0 {
            limit = one_of(random, &[ZoneKind::Dma32, ZoneKind::Normal]);
            request = request.zone_limit(limit);
        }
        request = match random.u8(..8) {
            0 => request.urgency(Urgency::High),
            1 => request.urgency(Urgency::Atomic).no_wait(),
            2 | 3 => request.no_wait(),
            4 => request.no_retry(),
            _ => request,
        };
        let nodes = some_nodes(random, &world.memory);
        let here = world.allocator().node_of_cpu(zonal::units::CpuId::new(world.machine().cpu() as u32))?;
        let only = match random.u8(..7) {
            0 => return world.alloc(&request.policy(&self.policies.interleave), kind),
            1 => return world.alloc(&request.policy(&self.policies.weighted), kind),
            2 => return self.alloc_preferred(&request, nodes.nth(0)?, kind),
            3 => {
                let policy = Policy::bind(world.allocator(), nodes).ok()?;
                let held = world.alloc(&request.policy(&policy), kind)?;
                return Some(world.checked(held, &nodes, limit));
            }
            // Atomic requests may use nodes outside a cpuset, so this request has normal urgency.
            4 => {
                return world
                    .alloc(&request.urgency(Urgency::Normal).allowed(&nodes), kind)
                    .map(|held| world.checked(held, &nodes, limit));
            }
            5 => {
                let mut order: Vec<NodeId> = nodes.iter().collect();
                random.shuffle(&mut order);
                let policy = Policy::preferred_many(world.allocator(), &order).ok()?;
                return world.alloc(&request.policy(&policy), kind);
            }
            _ => NodeMask::from_iter([here]),
        };
        let held = world.alloc(&request.this_node(), kind)?;
        Some(world.checked(held, &only, limit))
    }

    fn alloc_preferred(&self, request: &Request<'_>, node: NodeId, kind: PageKind) -> Option<Held> {
        let policy = Policy::preferred(self.world.allocator(), node).ok()?;
        self.world.alloc(&request.policy(&policy), kind)
    }

    fn free_some(&mut self, style: &Style, blocks: u32) {
        let from = self.random.u8(..4);
        for _ in 0..blocks {
            if self.held.is_empty() {
                return;
            }
            let at = match from {
                0 => self.random.usize(..self.held.len()),
                1 => 0,
                _ => self.held.len() - 1,
            };
            let held = self.held.swap_remove(at);
            if style.sharing != 0 && self.random.u8(..3) == 0 {
                self.pages -= held.pages();
                self.world.left.borrow_mut().push(held);
            } else {
                self.free(held);
            }
        }
    }

    /// Splits one of the larger blocks.
    fn split_one(&mut self) {
        let Some(at) = self.held.iter().rposition(|held| held.block.order > Order::PAGE) else { return };
        let held = self.held.swap_remove(at);
        let lowest = held.block.order.get().saturating_sub(6);
        let to = Order::new(self.random.u8(lowest..held.block.order.get())).expect("it is lower");
        self.held.extend(self.world.split(held, to));
    }

    fn free(&mut self, held: Held) {
        self.pages -= held.pages();
        self.world.free(held);
    }
}

/// Returns a random subset of the nodes with at least one node.
fn some_nodes(random: &mut Rng, all: &NodeMask) -> NodeMask {
    let first = random.usize(..all.len());
    let some = all.iter().enumerate().filter(|&(at, _)| at == first || random.bool());
    some.map(|(_, node)| node).collect()
}

impl World<'_, '_, '_, '_> {
    /// Checks that a block comes from one of `nodes` and from a zone no higher than `limit`, and returns it.
    fn checked(&self, held: Held, nodes: &NodeMask, limit: ZoneKind) -> Held {
        let block = held.block;
        let model = &self.round.machine.model;
        let zone = model.zones.iter().find(|zone| {
            let span = zonal::machine::FrameRange { start: zone.start, count: zone.spanned };
            span.contains(&zonal::machine::FrameRange { start: block.first, count: block.order.pages() })
        });
        if !nodes.contains(block.node) || zone.is_none_or(|zone| zone.node != block.node || zone.kind > limit)
        {
            self.system.fault(format!(
                "frame {} came from node {}, zone {:?}, which the request forbids",
                block.first,
                block.node,
                zone.map(|zone| zone.kind)
            ));
        }
        held
    }
}
