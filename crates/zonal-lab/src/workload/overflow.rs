//! A process that needs more memory than its node has while the nearest nodes are full. A zonelist cache is designed
//! for this case.
//!
//! The nodes that take part are those nearest to the first node. All of them except the last are filled down to their
//! `low` watermark. The process runs on the last CPU of the first node. It repeatedly allocates a burst of pages,
//! zeroes them, frees them and pauses. A CPU of each full node can *churn*, that is, periodically free some pages
//! and allocate as many again later, which changes the number of free pages in zones that would otherwise stay full.

use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::sync::atomic::AtomicBool;

use serde::{Deserialize, Serialize};
use zonal::config::ZonelistCache;
use zonal::units::Order;
use zonal::{Block, Request};
use zonal_machine::NodeModel;

use super::held::{bytes_of_blocks, push, with_capacity};
use super::page_faults::check_span;
use super::program::{Program, Unfit, check_figure, memory_bytes};
use crate::bounds::{COUNT, PAUSE_MS, STEP_NS};
use crate::outcome::Outcome;
use crate::sim::{Join, Role, RunError, SimulatedMachine, Threads, Time};
use crate::system::System;

/// A process that needs more memory than its node has.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Overflow {
    /// Nodes that take part, at least 2.
    pub nodes: usize,
    /// Pages allocated and freed in one burst.
    pub burst_pages: usize,
    /// Pause between two bursts, in milliseconds.
    pub pause_ms: f64,
    /// Kernel work per fault, in nanoseconds. Excludes allocation and zeroing.
    pub fault_ns: f64,
    /// Pages that a CPU on each full node frees and reallocates in each period. 0 = full nodes stay unchanged.
    pub churn_pages: usize,
    /// Period of `churn_pages`, in milliseconds.
    pub churn_ms: f64,
    /// Simulated seconds.
    pub seconds: f64,
    /// Unmeasured part of `seconds`, at the start.
    pub warm_up: f64,
}

impl Program for Overflow {
    fn check(&self, machine: &SimulatedMachine) -> Result<(), Unfit> {
        let model = &machine.model;
        let usable = |(place, node): (usize, &NodeModel)| {
            let cpus = if place == 0 { 2 } else { 1 };
            node.cpus.len() >= cpus && model.managed_of(node.id).get() > 0
        };
        let refused = |problem| Err(Unfit { field: "nodes", problem });
        if !model.nodes.iter().enumerate().all(usable) {
            return refused(format!(
                "of machine {} must have memory and a CPU each, the first one two",
                model.name
            ));
        }
        let all = model.nodes.len();
        if !(2..=all).contains(&self.nodes) {
            return refused(format!(
                "is {}, must be from 2 to {all}, the nodes of {}",
                self.nodes, model.name
            ));
        }
        check_figure("burst_pages", self.burst_pages as f64, COUNT)?;
        check_figure("pause_ms", self.pause_ms, PAUSE_MS)?;
        check_figure("fault_ns", self.fault_ns, STEP_NS)?;
        check_figure("churn_pages", self.churn_pages as f64, 0.0..=1e9)?;
        check_figure("churn_ms", self.churn_ms, 0.001..=*PAUSE_MS.end())?;
        check_span(self.seconds, self.warm_up)
    }

    fn operations(&self, _machine: &SimulatedMachine) -> f64 {
        let bursts = self.seconds / (self.pause_ms / 1e3 + self.burst_pages as f64 * 1e-6);
        let churns = (self.nodes - 1) as f64 * self.seconds * 1e3 / self.churn_ms;
        // Filling a node takes about a thousand blocks.
        1e3 * self.nodes as f64 + 2.0 * (self.burst_pages as f64 * bursts + self.churn_pages as f64 * churns)
    }

    fn held_bytes(&self, machine: &SimulatedMachine) -> f64 {
        // The single pages used for churn, and the blocks that fill the nodes, most of which are larger.
        let churns = self.nodes as f64 * self.churn_pages as f64;
        let frames = memory_bytes(machine) / f64::from(machine.model.page_bytes);
        bytes_of_blocks(machine, self.burst_pages as f64 + churns + frames / 256.0)
    }

    fn run(&self, system: &System<'_, '_>, stop: &AtomicBool) -> Result<Outcome, RunError> {
        let (world, model) = (system.sim.world, &system.sim.machine.model);
        let span = Time::from_seconds(self.warm_up)..Time::from_seconds(self.seconds);
        let nodes = self.near_nodes(system);
        let cpus_of = |place: usize| model.nodes[place].cpus.iter().map(|cpu| cpu.index());
        let firsts: Vec<usize> =
            nodes[..self.nodes - 1].iter().filter_map(|&place| cpus_of(place).next()).collect();
        let held: Vec<RefCell<Vec<Block>>> = firsts.iter().map(|_| RefCell::default()).collect();
        let shared = SharedState {
            system,
            filled: Join::new(1),
            process: AllocationStats::within(&span),
            full_node: AllocationStats::within(&span),
        };
        let mut threads = Threads::new();
        threads.add(firsts[0], Role::Foreground, Time::ZERO, || {
            system.set_up(|| {
                without_zonelist_cache(system, || {
                    for (&cpu, held) in firsts.iter().zip(&held) {
                        world.move_to(cpu);
                        self.fill(system, &mut held.borrow_mut());
                    }
                });
            });
            shared.filled.arrive(world);
        })?;
        let process = cpus_of(nodes[0]).next_back().unwrap_or(firsts[0]);
        threads
            .add(process, Role::Foreground, Time::ZERO, || self.process(&shared, nodes[self.nodes - 1]))?;
        let mut random = fastrand::Rng::with_seed(world.seed());
        for (&cpu, held) in firsts.iter().zip(&held).filter(|_| self.churn_pages != 0) {
            let (shared, first) = (&shared, Time::from_ns(random.f64() * self.churn_ms * 1e6));
            threads.add(cpu, Role::Foreground, Time::ZERO, move || {
                let mut held = held.borrow_mut();
                let pages = held.iter().take_while(|block| block.order == Order::PAGE).count();
                self.churn(shared, first, &mut held[..pages.min(self.churn_pages)]);
            })?;
        }
        let ended = world.run(threads, stop)?;
        system.check_accounting();
        let mut outcome = Outcome::after(system, ended.into_iter().max().unwrap_or_default());
        outcome.sampled("alloc", "ns/page", shared.process.mean_ns());
        outcome.sampled("nearer", "% of pages", shared.process.percent().map(|percent| 100.0 - percent));
        if self.churn_pages != 0 {
            outcome.sampled("churn_alloc", "ns/page", shared.full_node.mean_ns());
            outcome.sampled("churn_local", "% of pages", shared.full_node.percent());
        }
        Ok(outcome)
    }
}

/// Runs `work` with the zonelist cache off. Full bits of published forms hold for all orders, so a request for a large block
/// would make later requests skip a zone that has smaller ones.
fn without_zonelist_cache(system: &System<'_, '_>, work: impl FnOnce()) {
    let allocator = system.sim.allocator;
    let set = |mode| {
        if let Err(error) = allocator.set_zonelist_cache(mode) {
            system.fault(error.to_string());
        }
    };
    let mode = allocator.settings().zonelist_cache;
    set(ZonelistCache::Off);
    work();
    set(mode);
}

/// State shared by all threads.
struct SharedState<'h, 's, 'm> {
    system: &'h System<'s, 'm>,
    /// Completes when all nodes that must be filled are full.
    filled: Join,
    /// Allocations by the process, which should come from the node that is not full.
    process: AllocationStats,
    /// Allocations by the churning CPUs, which should come from the CPUs' own nodes.
    full_node: AllocationStats,
}

impl Overflow {
    /// Returns the indices of the nodes that take part, in the order of the first node's fallback list.
    fn near_nodes(&self, system: &System<'_, '_>) -> Vec<usize> {
        let mut nodes = Vec::new();
        let first = system.sim.machine.model.nodes[0].id;
        system.sim.allocator.fallback_order(first, |node| nodes.push(system.place_of(node)));
        nodes.truncate(self.nodes);
        nodes
    }

    /// Allocates the frames of the current node down to its watermark. The single pages for churn come first,
    /// then blocks of each order until another node serves the request.
    fn fill(&self, system: &System<'_, '_>, held: &mut Vec<Block>) {
        let place = system.sim.world.node();
        let take = |order| {
            let block = system.alloc(&Request::new(order).no_wait()).ok()?;
            if system.place_of(block.node) == place {
                return Some(block);
            }
            system.free(&block);
            None
        };
        let singles = (0..self.churn_pages).map_while(|_| take(Order::PAGE));
        singles.for_each(|block| push(system, held, block));
        let orders = (0..=Order::DEFAULT_MAX.get()).rev().filter_map(Order::new);
        let blocks = orders.flat_map(|order| std::iter::from_fn(move || take(order)));
        blocks.for_each(|block| push(system, held, block));
    }

    /// Runs the process; `far` is the index of the node that is not full.
    fn process(&self, shared: &SharedState<'_, '_, '_>, far: usize) {
        let (system, world) = (shared.system, shared.system.sim.world);
        let page_bytes = u64::from(system.sim.machine.model.page_bytes);
        shared.filled.wait(world);
        let mut burst = with_capacity(system, self.burst_pages);
        while world.now() < shared.process.span.end {
            for _ in 0..self.burst_pages {
                world.spend(Time::from_ns(self.fault_ns));
                let block = shared.process.note(system, far);
                world.stream(system.place_of(block.node), page_bytes);
                burst.push(block);
                system.checkpoint();
            }
            for block in burst.drain(..) {
                system.free(&block);
                system.checkpoint();
            }
            world.sleep_until(world.now() + Time::from_ns(self.pause_ms * 1e6));
        }
    }

    /// Frees pages and allocates the same number again half a period later, repeatedly.
    fn churn(&self, shared: &SharedState<'_, '_, '_>, first: Time, pages: &mut [Block]) {
        let (system, world) = (shared.system, shared.system.sim.world);
        let half = Time::from_ns(self.churn_ms * 1e6 / 2.0);
        shared.filled.wait(world);
        let mut next = world.now() + first;
        while next < shared.full_node.span.end {
            world.sleep_until(next);
            for block in &*pages {
                system.free(block);
                system.checkpoint();
            }
            world.sleep_until(next + half);
            for block in &mut *pages {
                *block = shared.full_node.note(system, world.node());
                system.checkpoint();
            }
            next += half + half;
        }
    }
}

/// Statistics of the pages allocated within a span: the time taken, and the number of pages from the expected node.
struct AllocationStats {
    span: Range<Time>,
    time: Cell<Time>,
    pages: Cell<u64>,
    expected: Cell<u64>,
}

impl AllocationStats {
    fn within(span: &Range<Time>) -> Self {
        Self { span: span.clone(), time: Cell::default(), pages: Cell::new(0), expected: Cell::new(0) }
    }

    /// Allocates a page and records the allocation.
    fn note(&self, system: &System<'_, '_>, expected: usize) -> Block {
        let world = system.sim.world;
        let before = world.now();
        let Ok(block) = system.alloc(&Request::page()) else {
            system.fault("no participating node has a free page".to_owned())
        };
        if self.span.contains(&before) {
            self.time.set(self.time.get() + (world.now() - before));
            self.pages.set(self.pages.get() + 1);
            self.expected.set(self.expected.get() + u64::from(system.place_of(block.node) == expected));
        }
        block
    }

    /// Returns the mean time of an allocation, if there was one.
    fn mean_ns(&self) -> Option<f64> {
        self.per_page(1e9 * self.time.get().seconds())
    }

    /// Returns the percentage of pages from the expected node, if there were pages.
    fn percent(&self) -> Option<f64> {
        self.per_page(100.0 * self.expected.get() as f64)
    }

    fn per_page(&self, sum: f64) -> Option<f64> {
        (self.pages.get() > 0).then(|| sum / self.pages.get() as f64)
    }
}
