//! Measures how many page operations the lab simulates per second of host time, on a machine with 64 CPUs. Usage:
//! `speed [--short]`.

use std::sync::atomic::AtomicBool;
use std::time::Instant;

use zonal::{Config, Request};
use zonal_lab::sim::{Hardware, Role, SimulatedMachine, Threads, Time};
use zonal_lab::system::System;

/// Number of pages that each CPU allocates and frees.
const PAGES: usize = 1 << 18;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let pages = if std::env::args().any(|argument| argument == "--short") { PAGES / 8 } else { PAGES };
    let model = zonal_machine::preset("epyc8-nps4")?;
    let machine = SimulatedMachine { model, hardware: Hardware::default() };
    for (name, held) in [("pair", 1), ("repeat", 32_768)] {
        let begin = Instant::now();
        let config = Config::default();
        let (operations, virtual_time) = machine.simulate(&config, 1, |sim| {
            let system = System::new(sim);
            let mut threads = Threads::new();
            for cpu in 0..64 {
                let system = &system;
                threads
                    .add(cpu, Role::Foreground, Time::ZERO, move || work(system, pages, held))
                    .expect("stacks");
            }
            let ended = sim.world.run(threads, &AtomicBool::new(false)).expect("nobody waits");
            system.check_accounting();
            (system.operations(), *ended.iter().max().expect("there are threads"))
        })?;
        let seconds = begin.elapsed().as_secs_f64();
        println!(
            "{name}: {:.2} million operations a second, {virtual_time} of virtual time",
            operations as f64 / seconds / 1e6
        );
    }
    Ok(())
}

fn work(system: &System<'_, '_>, pages: usize, held: usize) {
    let mut blocks = Vec::with_capacity(held);
    for _ in 0..pages / held {
        while blocks.len() < held {
            blocks.push(system.alloc(&Request::page()).expect("memory"));
            system.checkpoint();
        }
        while let Some(block) = blocks.pop() {
            system.free(&block);
            system.checkpoint();
        }
    }
}
