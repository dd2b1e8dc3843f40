//! Measures how many page operations per second of host time the lab simulates, on a machine with 64 CPUs:
//! `speed [--short]`.

use std::sync::atomic::AtomicBool;
use std::time::Instant;

use zonal::{Config, Request};
use zonal_lab::hands::Hands;
use zonal_lab::sim::{Hardware, Role, SimulatedMachine, Threads, Time};

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
            let hands = Hands::new(sim);
            let mut threads = Threads::new();
            for cpu in 0..64 {
                let hands = &hands;
                threads
                    .add(cpu, Role::Foreground, Time::ZERO, move || work(hands, pages, held))
                    .expect("stacks");
            }
            let ended = sim.world.run(threads, &AtomicBool::new(false)).expect("nobody waits");
            hands.check_accounting();
            (hands.operations(), *ended.iter().max().expect("there are threads"))
        })?;
        let seconds = begin.elapsed().as_secs_f64();
        println!(
            "{name}: {:.2} million operations a second, {virtual_time} of virtual time",
            operations as f64 / seconds / 1e6
        );
    }
    Ok(())
}

fn work(hands: &Hands<'_, '_>, pages: usize, held: usize) {
    let mut blocks = Vec::with_capacity(held);
    for _ in 0..pages / held {
        while blocks.len() < held {
            blocks.push(hands.alloc(&Request::page()).expect("memory"));
            hands.checkpoint();
        }
        while let Some(block) = blocks.pop() {
            hands.free(&block);
            hands.checkpoint();
        }
    }
}
