//! The STREAM benchmark on selected nodes. Its threads run on the CPUs of some nodes, and its memory comes from a
//! given set of nodes.
//!
//! Each thread allocates its own arrays, so the node order of its CPU determines the arrays' nodes. Then all threads
//! stream over their arrays and share the memory bandwidth of the nodes. Related files: `workload/fallback_list.rs`
//! reports the node order itself.

use std::cell::RefCell;
use std::sync::atomic::AtomicBool;

use serde::{Deserialize, Serialize};
use zonal::units::NodeId;
use zonal::{NodeMask, Request};

use super::held::{bytes_of_blocks, with_capacity};
use super::program::{Program, Unfit, check_figure, memory_mib};
use crate::outcome::Outcome;
use crate::sim::{Join, Role, RunError, SimulatedMachine, Threads, Time};
use crate::system::System;

/// Names of STREAM's kernels, and the number of arrays that each kernel accesses.
const KERNELS: [(&str, usize); 4] = [("copy", 2), ("scale", 2), ("add", 3), ("triad", 3)];
/// Arrays per thread.
const ARRAYS: usize = 3;

/// STREAM on selected nodes.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Stream {
    /// Nodes whose CPUs each run one thread.
    pub cpu_nodes: Vec<u16>,
    /// Nodes from which the arrays may be allocated.
    pub memory_nodes: Vec<u16>,
    /// Size of one array, in MiB. Each thread has three.
    pub array_mib: f64,
}

impl Stream {
    /// Returns an array's page count.
    fn pages(&self, machine: &SimulatedMachine) -> usize {
        let bytes = (self.array_mib * f64::from(1 << 20)) as u64;
        (bytes / u64::from(machine.model.page_bytes)).max(1) as usize
    }

    fn check_nodes(
        machine: &SimulatedMachine,
        field: &'static str,
        nodes: &[u16],
        what: &str,
        fits: impl Fn(NodeId) -> bool,
    ) -> Result<(), Unfit> {
        if nodes.is_empty() {
            return Err(Unfit { field, problem: "names no node; must name at least one".to_owned() });
        }
        let there = machine.model.nodes.len();
        if nodes.len() > there {
            let problem =
                format!("names {} nodes, but machine {} has {there}", nodes.len(), machine.model.name);
            return Err(Unfit { field, problem });
        }
        let unfit = nodes.iter().find(|&&node| !NodeId::new(node).is_some_and(&fits));
        match unfit {
            None => Ok(()),
            Some(node) => {
                let name = &machine.model.name;
                Err(Unfit {
                    field,
                    problem: format!("names node {node}, but machine {name} has no such node {what}"),
                })
            }
        }
    }
}

impl Program for Stream {
    fn check(&self, machine: &SimulatedMachine) -> Result<(), Unfit> {
        check_figure("array_mib", self.array_mib, 0.1..=memory_mib(machine))?;
        let model = &machine.model;
        let has_cpus = |id| model.online_nodes().any(|node| node.id == id && !node.cpus.is_empty());
        Self::check_nodes(machine, "cpu_nodes", &self.cpu_nodes, "with CPUs", has_cpus)?;
        let has_memory = |id| model.managed_of(id).get() > 0;
        Self::check_nodes(machine, "memory_nodes", &self.memory_nodes, "with memory", has_memory)
    }

    fn held_bytes(&self, machine: &SimulatedMachine) -> f64 {
        let nodes = machine.model.online_nodes().filter(|node| self.cpu_nodes.contains(&node.id.get()));
        let threads: usize = nodes.map(|node| node.cpus.len()).sum();
        bytes_of_blocks(machine, (threads * ARRAYS * self.pages(machine)) as f64)
    }

    fn run(&self, system: &System<'_, '_>, stop: &AtomicBool) -> Result<Outcome, RunError> {
        let (world, model) = (system.sim.world, &system.sim.machine.model);
        let allowed: NodeMask = self.memory_nodes.iter().filter_map(|&node| NodeId::new(node)).collect();
        let runs = |id: NodeId| self.cpu_nodes.contains(&id.get());
        let mine: Vec<usize> = model
            .online_nodes()
            .filter(|node| runs(node.id))
            .flat_map(|node| &node.cpus)
            .map(|cpu| cpu.index())
            .collect();
        let pages = self.pages(system.sim.machine);
        let barriers: Vec<Barrier> = (0..=KERNELS.len()).map(|_| Barrier::new(mine.len())).collect();
        let mut threads = Threads::new();
        for &cpu in &mine {
            let (barriers, allowed) = (&barriers, &allowed);
            threads.add(cpu, Role::Foreground, Time::ZERO, move || {
                let arrays = allocate(system, allowed, pages);
                barriers[0].pass(system);
                for (kernel, barrier) in KERNELS.iter().zip(&barriers[1..]) {
                    stream(system, &arrays[..kernel.1]);
                    barrier.pass(system);
                }
            })?;
        }
        let ended = world.run(threads, stop)?;
        system.check_accounting();
        let mut outcome = Outcome::after(system, ended.into_iter().max().unwrap_or_default());
        let page_bytes = f64::from(model.page_bytes);
        for ((name, arrays), both) in KERNELS.iter().zip(barriers.windows(2)) {
            let bytes = (pages * arrays * mine.len()) as f64 * page_bytes;
            let took = both[1].passed() - both[0].passed();
            outcome.metric(*name, "MB/s", bytes / took.seconds() / 1e6);
        }
        Ok(outcome)
    }
}

/// Allocates a thread's arrays and returns the node indices of their pages.
fn allocate(system: &System<'_, '_>, allowed: &NodeMask, pages: usize) -> Vec<Vec<usize>> {
    let page = || {
        let Ok(block) = system.alloc(&Request::page().allowed(allowed)) else {
            system.fault("the allowed nodes have too little memory for the arrays".to_owned())
        };
        system.checkpoint();
        system.place_of(block.node)
    };
    let array = |_| {
        let mut array = with_capacity(system, pages);
        array.extend((0..pages).map(|_| page()));
        array
    };
    (0..ARRAYS).map(array).collect()
}

fn stream(system: &System<'_, '_>, arrays: &[Vec<usize>]) {
    let bytes = u64::from(system.sim.machine.model.page_bytes);
    for page in 0..arrays[0].len() {
        for array in arrays {
            system.sim.world.stream(array[page], bytes);
        }
        system.checkpoint();
    }
}

/// A barrier for all threads of the benchmark.
struct Barrier {
    join: Join,
    passed: RefCell<Time>,
}

impl Barrier {
    fn new(threads: usize) -> Self {
        Self { join: Join::new(threads), passed: RefCell::default() }
    }

    fn pass(&self, system: &System<'_, '_>) {
        let world = system.sim.world;
        self.join.arrive(world);
        self.join.wait(world);
        *self.passed.borrow_mut() = world.now();
    }

    fn passed(&self) -> Time {
        *self.passed.borrow()
    }
}
