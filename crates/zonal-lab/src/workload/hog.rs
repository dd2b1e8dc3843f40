//! A process whose threads each touch a share of its memory once, as measured by Jackson in 2006.
//!
//! Threads stay on their CPUs and may share one address space. If they do, each fault acquires and releases the read
//! lock of the memory map and counts the page. A fault thus makes three changes to lines that all threads share.
//! Pages come from the thread's own node first and then from more distant nodes, whose pages take longer to zero. At
//! the end, one thread frees all pages.

use std::cell::RefCell;
use std::sync::atomic::AtomicBool;

use serde::{Deserialize, Serialize};
use zonal::{Block, Request};

use super::held::{bytes_of_blocks, with_capacity};
use super::program::{Program, Unfit, check_figure, check_pinned, cpus, memory_bytes};
use crate::bounds::WORK_NS;
use crate::outcome::Outcome;
use crate::sim::{Join, ProgramLine, Role, RunError, SimulatedMachine, Threads, Time};
use crate::system::System;

/// A memory hog.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct Hog {
    /// Threads, each on its own CPU, from the lowest ID.
    pub threads: usize,
    /// Memory of all threads together, in GiB (2^30 bytes).
    pub mem_gb: f64,
    /// Repetitions, each with newly allocated memory.
    pub rounds: f64,
    /// 1 if all threads share one address space, so that each fault changes shared lines; otherwise 0.
    pub shared_map: u8,
    /// Kernel work per fault, in nanoseconds. Excludes allocation, zeroing and shared lines.
    pub fault_ns: f64,
    /// Distance between consecutive stores, in bytes.
    pub stride: u64,
    /// Time of one store, in nanoseconds.
    pub store_ns: f64,
    /// Kernel work to unmap a page, in nanoseconds. Excludes the free.
    pub unmap_ns: f64,
}

impl Program for Hog {
    fn check(&self, machine: &SimulatedMachine) -> Result<(), Unfit> {
        check_pinned("threads", self.threads, machine)?;
        check_figure("mem_gb", self.mem_gb, 0.0..=1e9)?;
        let figures = [("fault_ns", self.fault_ns), ("store_ns", self.store_ns), ("unmap_ns", self.unmap_ns)];
        figures.into_iter().try_for_each(|(field, value)| check_figure(field, value, WORK_NS))?;
        check_figure("rounds", self.rounds, 1.0..=1e9)?;
        check_figure("shared_map", f64::from(self.shared_map), 0.0..=1.0)?;
        check_figure("stride", self.stride as f64, 1.0..=1e9)?;
        let there = memory_bytes(machine);
        if self.mem_gb * f64::from(1 << 30) > there {
            let problem = format!(
                "is {} GB, but machine {} has {:.1} GB available",
                self.mem_gb,
                machine.model.name,
                there / f64::from(1 << 30)
            );
            return Err(Unfit { field: "mem_gb", problem });
        }
        Ok(())
    }

    fn operations(&self, machine: &SimulatedMachine) -> f64 {
        2.0 * self.mem_gb * f64::from(1 << 30) / f64::from(machine.model.page_bytes)
    }

    fn held_bytes(&self, machine: &SimulatedMachine) -> f64 {
        bytes_of_blocks(machine, self.operations(machine) / 2.0)
    }

    fn run(&self, system: &System<'_, '_>, stop: &AtomicBool) -> Result<Outcome, RunError> {
        let (world, machine) = (system.sim.world, system.sim.machine);
        let page_bytes = u64::from(machine.model.page_bytes);
        let share = (self.mem_gb * f64::from(1 << 30)) as u64 / page_bytes / self.threads as u64;
        let held: Vec<RefCell<Vec<Block>>> = (0..self.threads).map(|_| RefCell::default()).collect();
        let map = [ProgramLine::new(world, 0), ProgramLine::new(world, 0)];
        let done = Join::new(self.threads);
        let mut threads = Threads::new();
        for (at, &cpu) in cpus(machine).iter().take(self.threads).enumerate() {
            let (held, done) = (&held, &done);
            threads.add(cpu, Role::Foreground, Time::ZERO, move || {
                self.touch_share(system, share, map, &mut held[at].borrow_mut());
                done.arrive(world);
                if at == 0 {
                    done.wait(world);
                    self.unmap(system, held);
                }
            })?;
        }
        let ended = world.run(threads, stop)?;
        let ids: Vec<_> = world.thread_ids(ended.len()).collect();
        system.check_accounting();
        let last = ended.iter().copied().max().unwrap_or_default();
        let mut outcome = Outcome::after(system, last);
        let account = |id: &_| world.account_of(*id);
        let user: f64 = ids.iter().map(|id| account(id).user.seconds()).sum();
        let idle: f64 = ids.iter().map(|id| account(id).idle.seconds()).sum();
        let busy: f64 = ended.iter().map(|time| time.seconds()).sum::<f64>() - idle;
        let measured = |value: f64| (share > 0).then_some(value * self.rounds);
        outcome.sampled("sys", "s", measured(busy - user));
        outcome.sampled("user", "s", measured(user));
        outcome.sampled("real", "s", measured(last.seconds()));
        Ok(outcome)
    }
}

impl Hog {
    fn touch_share(&self, system: &System<'_, '_>, pages: u64, map: [ProgramLine; 2], held: &mut Vec<Block>) {
        let world = system.sim.world;
        let page_bytes = u64::from(system.sim.machine.model.page_bytes);
        let stores = page_bytes.div_ceil(self.stride);
        let fault = Time::from_ns(self.fault_ns);
        *held = with_capacity(system, pages as usize);
        for _ in 0..pages {
            if self.shared_map == 1 {
                map[0].modify(world);
            }
            let Ok(block) = system.alloc(&Request::page()) else {
                system.fault("the machine has too little memory for the hog".to_owned())
            };
            let place = system.place_of(block.node);
            world.spend(fault);
            world.stream(place, page_bytes);
            if self.shared_map == 1 {
                map.into_iter().for_each(|line| line.modify(world));
            }
            world.spend_user(Time::from_ns(stores as f64 * self.store_ns));
            held.push(block);
            system.checkpoint();
        }
    }

    fn unmap(&self, system: &System<'_, '_>, held: &[RefCell<Vec<Block>>]) {
        let unmap = Time::from_ns(self.unmap_ns);
        for block in held.iter().flat_map(RefCell::take) {
            system.sim.world.spend(unmap);
            system.free(&block);
            system.checkpoint();
        }
    }
}
