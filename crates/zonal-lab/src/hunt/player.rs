//! One thread's work in a bout: random steps, each a few allocations or frees.
//!
//! Every bout has a style of its own, so that single frames in bursts, large blocks, requests that are
//! picky and memory that others free all get their time. Neighbours: `tinker.rs` does what
//! administrators do, now and then.

use fastrand::Rng;
use zonal::request::{PageKind, Urgency};
use zonal::units::{NodeId, Order, ZoneKind};
use zonal::{NodeMask, Policy, Request};

use super::ground::one_of;
use super::yard::{Taken, Turns, Yard};
use crate::sim::Time;

/// How a thread works in one bout.
#[derive(Clone, Copy)]
struct Style {
    /// Of 256 requests, those for larger blocks.
    large: u8,
    /// Of 256 requests, those with terms.
    picky: u8,
    /// Of 256 steps, those that free what others left.
    sharing: u8,
    /// Most blocks of one step.
    burst: u32,
}

/// A thread.
pub(super) struct Player<'y, 'g, 'h, 's, 'm> {
    yard: &'y Yard<'g, 'h, 's, 'm>,
    turns: &'y Turns<'y>,
    random: Rng,
    held: Vec<Taken>,
    /// Frames it has, and how many it wants to have.
    pages: u64,
    target: u64,
}

impl<'y, 'g, 'h, 's, 'm> Player<'y, 'g, 'h, 's, 'm> {
    pub(super) fn new(yard: &'y Yard<'g, 'h, 's, 'm>, turns: &'y Turns<'y>, at: usize) -> Self {
        let random = Rng::with_seed(yard.world().seed() ^ ((at as u64 + 1) << 32));
        Self { yard, turns, random, held: Vec::new(), pages: 0, target: 0 }
    }

    /// One bout.
    pub(super) fn play(&mut self) {
        let style = Style {
            large: one_of(&mut self.random, &[0, 10, 120]),
            picky: one_of(&mut self.random, &[0, 10, 100]),
            sharing: one_of(&mut self.random, &[0, 30]),
            burst: one_of(&mut self.random, &[4, 40, 150]),
        };
        let share = self.yard.managed() as f64 * self.yard.ground.appetite / self.yard.cpus.len() as f64;
        self.target = (share * 2.0 * self.random.f64()) as u64;
        if self.random.u8(..3) == 0 {
            let cpu = one_of(&mut self.random, &self.yard.cpus);
            self.yard.world().move_to(cpu.id.index());
        }
        for _ in 0..self.yard.ground.steps {
            self.step(&style);
            self.yard.hands.checkpoint();
        }
    }

    /// Gives everything back.
    pub(super) fn give_all(&mut self) {
        while let Some(taken) = self.held.pop() {
            self.give(taken);
            self.yard.hands.checkpoint();
        }
    }

    fn step(&mut self, style: &Style) {
        self.yard.world().spend(Time::from_ns(self.random.f64() * 2000.0));
        if self.random.u8(..) < style.sharing {
            let taken = self.yard.left.borrow_mut().pop();
            return taken.into_iter().for_each(|taken| self.yard.give(taken));
        }
        if self.random.u16(..400) == 0 {
            return self.yard.tinker(&mut self.random);
        }
        let blocks = self.random.u32(1..=style.burst);
        let hungry = self.pages < self.target;
        // Mostly toward the target, at times the other way.
        if hungry == (self.random.u8(..5) != 0) {
            self.take_some(style, blocks);
        } else {
            self.give_some(style, blocks);
        }
    }

    fn take_some(&mut self, style: &Style, blocks: u32) {
        let kind = one_of(&mut self.random, &PageKind::ALL);
        let order = self.order(style);
        for _ in 0..blocks {
            let taken = if self.random.u8(..) < style.picky {
                self.take_picky(order, kind)
            } else {
                self.yard.take(&Request::new(order), kind)
            };
            let Some(taken) = taken else { return };
            if taken.kind == PageKind::Cache && self.random.u8(..2) == 0 {
                self.yard.keep(taken);
            } else {
                self.pages += taken.pages();
                self.held.push(taken);
            }
            if self.pages > 2 * self.target {
                return;
            }
        }
    }

    /// An order: mostly of single frames, among the others mostly those that pagesets keep, and large
    /// ones where much is wanted.
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
        Order::new(order).expect("10 is lawful")
    }

    /// A request with terms, which must be kept.
    fn take_picky(&mut self, order: Order, kind: PageKind) -> Option<Taken> {
        let (yard, random) = (self.yard, &mut self.random);
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
        let nodes = some_nodes(random, &yard.memory);
        let here = yard.allocator().node_of_cpu(zonal::units::CpuId::new(yard.world().cpu() as u32))?;
        let only = match random.u8(..6) {
            0 => return yard.take(&request.policy(&self.turns.interleave), kind),
            1 => return yard.take(&request.policy(&self.turns.weighted), kind),
            2 => return self.take_preferred(&request, nodes.nth(0)?, kind),
            3 => {
                let policy = Policy::bind(yard.allocator(), nodes).ok()?;
                let taken = yard.take(&request.policy(&policy), kind)?;
                return Some(yard.checked(taken, &nodes, limit));
            }
            // Atomic requests may go beyond a cpuset.
            4 => {
                return yard
                    .take(&request.urgency(Urgency::Normal).allowed(&nodes), kind)
                    .map(|taken| yard.checked(taken, &nodes, limit));
            }
            _ => NodeMask::from_iter([here]),
        };
        let taken = yard.take(&request.this_node(), kind)?;
        Some(yard.checked(taken, &only, limit))
    }

    fn take_preferred(&self, request: &Request<'_>, node: NodeId, kind: PageKind) -> Option<Taken> {
        let policy = Policy::preferred(self.yard.allocator(), node).ok()?;
        self.yard.take(&request.policy(&policy), kind)
    }

    fn give_some(&mut self, style: &Style, blocks: u32) {
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
            let taken = self.held.swap_remove(at);
            if style.sharing != 0 && self.random.u8(..3) == 0 {
                self.pages -= taken.pages();
                self.yard.left.borrow_mut().push(taken);
            } else {
                self.give(taken);
            }
        }
    }

    fn give(&mut self, taken: Taken) {
        self.pages -= taken.pages();
        self.yard.give(taken);
    }
}

/// Some of the nodes, one at least.
fn some_nodes(random: &mut Rng, all: &NodeMask) -> NodeMask {
    let first = random.usize(..all.len());
    let some = all.iter().enumerate().filter(|&(at, _)| at == first || random.bool());
    some.map(|(_, node)| node).collect()
}

impl Yard<'_, '_, '_, '_> {
    /// A block that must come from one of `nodes` and from a zone no higher than `limit`.
    fn checked(&self, taken: Taken, nodes: &NodeMask, limit: ZoneKind) -> Taken {
        let block = taken.block;
        let model = &self.ground.machine.model;
        let zone = model.zones.iter().find(|zone| {
            let span = zonal::machine::FrameRange { start: zone.start, count: zone.spanned };
            span.contains(&zonal::machine::FrameRange { start: block.first, count: block.order.pages() })
        });
        if !nodes.contains(block.node) || zone.is_none_or(|zone| zone.node != block.node || zone.kind > limit)
        {
            self.hands.fault(format!(
                "frame {} came from node {}, zone {:?}, which the request forbids",
                block.first,
                block.node,
                zone.map(|zone| zone.kind)
            ));
        }
        taken
    }
}
