//! Memory for virtual machines and for the key/value cache of a language model. The example uses large blocks and
//! chosen nodes, and shows the effect of a full node.
//!
//! `cargo run --release -p zonal-linux --example guest_memory`
//!
//! On a machine with one node, the example emulates several. `--huge-pages explicit` uses the kernel's reserve of
//! huge pages, and prints a note if there is none. Related files: `guests.rs` allocates the memory of virtual
//! machines under each policy, and `kv_cache.rs` is a block table that frees blocks by itself.

mod guests;
mod kv_cache;

use std::error::Error;
use std::process::ExitCode;

use clap::{Parser, ValueEnum};
use zonal_linux::{HugePages, PageCount, Pool, Topology};

use kv_cache::Serving;

const MIB: u64 = 1 << 20;

/// Allocates memory for virtual machines and for a key/value cache. Exits with 1 if contents were wrong, memory was on
/// a wrong node, or the accounting does not balance.
#[derive(Parser)]
struct Options {
    /// Memory of the pool in MiB.
    #[arg(long, default_value_t = 256)]
    pool_mib: u64,
    /// Number of nodes to emulate [default: the machine's own nodes, or 4 if it has only one].
    #[arg(long, value_parser = clap::value_parser!(u16).range(2..=64))]
    fake_nodes: Option<u16>,
    /// Huge pages to request.
    #[arg(long, value_enum, default_value_t = Backing::Transparent)]
    huge_pages: Backing,
    /// Amount of data that the key/value cache computes, as a multiple of its memory.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(4..))]
    fills: u64,
    /// Runs a short version: 64 MiB, filled 4 times.
    #[arg(long)]
    short: bool,
}

/// See [`HugePages`].
#[derive(Clone, Copy, ValueEnum)]
enum Backing {
    Never,
    Transparent,
    Explicit,
}

/// A description of a condition that must hold, and whether it holds.
type Check = (&'static str, bool);

fn main() -> ExitCode {
    let mut options = Options::parse();
    if options.short {
        (options.pool_mib, options.fills) = (64, 4);
    }
    let checks = run(&options).unwrap_or_else(|error| {
        eprintln!("guest_memory: {error}");
        vec![("ran to its end", false)]
    });
    println!();
    for (what, holds) in &checks {
        println!("{:<6} {what}", if *holds { "ok" } else { "WRONG" });
    }
    if checks.iter().all(|(_, holds)| *holds) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn run(options: &Options) -> Result<Vec<Check>, Box<dyn Error>> {
    let pool = build_pool(options)?;
    let before = largest_free(&pool);
    let mut checks = guests::run(&pool)?;
    checks.extend(kv_cache::run(&pool, &Serving { fills: options.fills, ..Serving::default() })?);

    pool.drain_pagesets();
    let accounting = pool.verify()?;
    println!("\naccounting: {accounting}");
    checks.push((
        "all frames are back and the accounting balances",
        accounting.balance() && accounting.allocated == PageCount::ZERO,
    ));
    checks.push(("the largest blocks are whole again", largest_free(&pool) == before));
    Ok(checks)
}

fn build_pool(options: &Options) -> Result<Pool, Box<dyn Error>> {
    let live = Topology::live();
    let with_memory = live.nodes().iter().filter(|node| !node.zones.is_empty()).count();
    let topology = match options.fake_nodes {
        Some(count) => Topology::fake(count.into())?,
        None if with_memory < 2 => Topology::fake(4)?,
        None => live,
    };
    let huge_pages = match options.huge_pages {
        Backing::Never => HugePages::Never,
        Backing::Transparent => HugePages::Transparent,
        Backing::Explicit => HugePages::Explicit,
    };
    let builder = Pool::builder().size(options.pool_mib * MIB).topology(topology).huge_pages(huge_pages);
    let pool = builder.build()?;
    println!(
        "pool of {} MiB, {} nodes ({})",
        pool.frames().get() * pool.page_bytes() as u64 / MIB,
        pool.topology().nodes().len(),
        pool.placement()
    );
    // Every request of the builder that the pool could not satisfy is printed.
    pool.warnings().iter().for_each(|warning| println!("note: {warning}"));
    Ok(pool)
}

/// Returns each zone's number of free largest-order blocks.
fn largest_free(pool: &Pool) -> Vec<u64> {
    pool.zones().map(|zone| zone.free_blocks[10]).collect()
}
