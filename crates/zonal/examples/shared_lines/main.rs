//! Counts the cache lines for which CPUs of a large machine would contend, by running the code of the allocator itself.
//!
//! Every allocator cell reports each access to a model of the caches. One thread acts as all CPUs alternately, so the
//! same seed yields the same counts on any machine. `docs/performance.md` has the conclusions.
//!
//! Run it with `cargo run --release -p zonal --example shared_lines -- --machine 1x128 --workload handoff`.
//!
//! Related files: `watched.rs` reports accesses, and `coherence.rs` models the caches. `world.rs` has the machine and
//! `work.rs` its workloads. `measure.rs` executes a run, and `report.rs` prints the tables.

mod coherence;
mod measure;
mod report;
mod watched;
mod work;
mod world;

use std::error::Error;
use std::str::FromStr;

use clap::{Parser, ValueEnum};
use zonal::Config;

use measure::{Outcome, Size, measure};
use work::Workload;
use world::Shape;

const MACHINES: [&str; 5] = ["1x1", "1x2", "1x16", "1x128", "4x32"];
const SHORT_MACHINES: [&str; 2] = ["1x4", "2x2"];

/// Counts the cache lines that CPUs share in the allocator.
#[derive(Parser)]
struct Options {
    /// Machines to model, as nodes x CPUs per node; may be given several times [default: 1x1, 1x2, 1x16, 1x128,
    /// 4x32].
    #[arg(long = "machine")]
    machines: Vec<Shape>,
    /// Workloads to run; may be given several times [default: all].
    #[arg(long = "workload")]
    workloads: Vec<Workload>,
    /// Seed that decides how many steps each CPU does in its turn.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Settings of the allocator that differ from the defaults, as NAME=VALUE, such as owned_blocks=on; may be given several
    /// times.
    #[arg(long = "set", value_name = "NAME=VALUE")]
    settings: Vec<String>,
    /// Memory of each CPU in MiB, at least 1 [default: 64, and at least 2048 for a node].
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    cpu_mib: Option<u64>,
    /// Prints one JSON document.
    #[arg(long)]
    json: bool,
    /// A short run: small machines, few steps.
    #[arg(long)]
    short: bool,
}

impl Options {
    fn machines(&self) -> Result<Vec<Shape>, String> {
        let defaults = if self.short { &SHORT_MACHINES[..] } else { &MACHINES };
        if self.machines.is_empty() {
            return defaults.iter().map(|machine| Shape::from_str(machine)).collect();
        }
        Ok(self.machines.clone())
    }

    fn workloads(&self) -> Vec<Workload> {
        if self.workloads.is_empty() { Workload::value_variants().to_vec() } else { self.workloads.clone() }
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let options = Options::parse();
    let mut size = if options.short { Size::SHORT } else { Size::FULL };
    if let Some(mib) = options.cpu_mib {
        (size.node_frames, size.cpu_frames) = (0, mib << 8);
    }
    let mut config = Config::default();
    for setting in &options.settings {
        let (name, value) = setting.split_once('=').ok_or_else(|| format!("{setting} is not NAME=VALUE"))?;
        config.set(name, value)?;
    }
    let mut all: Vec<Outcome> = Vec::new();
    for shape in options.machines()? {
        let workloads = options.workloads().into_iter();
        // A machine with one node has no other node to allocate from.
        let workloads = workloads.filter(|&workload| shape.nodes > 1 || workload != Workload::Elsewhere);
        let run = |workload| measure(shape, workload, &size, &config, options.seed);
        let outcomes: Vec<Outcome> = workloads.map(run).collect::<Result<_, _>>()?;
        if !options.json {
            report::print(shape, &outcomes);
        }
        all.extend(outcomes);
    }
    if options.json {
        println!("{}", serde_json::to_string_pretty(&all)?);
    }
    Ok(())
}
