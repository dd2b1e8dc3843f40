//! Measures the cost of each option against invalid frees and use after free. The unit is the time of a *pair*:
//! allocating and freeing one frame. The rounds of the options alternate, so that other load on the machine affects
//! all options equally.
//!
//! `cargo run --release -p zonal-linux --example hardening`

use std::time::Instant;

use clap::Parser;
use comfy_table::Table;
use zonal_linux::{
    Allocator, Config, Faults, Hardening, InvalidFree, LinuxPlatform, PageCount, Pool, PoolError,
    PoolRequest, ZeroOn,
};

/// Measures the costs of the options against invalid frees.
#[derive(Parser)]
struct Arguments {
    /// Number of rounds for each option.
    #[arg(long, default_value_t = 15)]
    rounds: usize,
    /// Number of pairs in a round.
    #[arg(long, default_value_t = 100_000)]
    pairs: u32,
    /// Runs a short version: two rounds of 1000 pairs.
    #[arg(long)]
    short: bool,
}

/// Returns the options, each alone. The first has none enabled and is the basis of comparison.
fn options() -> Vec<(&'static str, Config)> {
    let none = Hardening::default();
    let hardened = |hardening| Config { hardening, ..Config::default() };
    let zero = ZeroOn::EveryAllocation;
    let poison = Some(0xdead_beef);
    let never = Faults::EveryNth(std::num::NonZeroU64::MAX);
    vec![
        ("default", Config::default()),
        ("checked", Config { invalid_free: InvalidFree::Checked, ..Config::default() }),
        ("quarantine of 1024 frames", hardened(Hardening { quarantine: PageCount::new(1024), ..none })),
        ("zero on allocation", hardened(Hardening { zero, ..none })),
        ("poison and verify", hardened(Hardening { poison, ..none })),
        ("faults, none of which comes", Config { faults: never, ..Config::default() }),
    ]
}

fn ns_per_pair(allocator: &Allocator<'static, LinuxPlatform>, pairs: u32) -> f64 {
    let start = Instant::now();
    for _ in 0..pairs {
        let block = allocator.alloc(&PoolRequest::page()).expect("a frame given back is there again");
        allocator.free(std::hint::black_box(block).first, block.order).expect("it was out");
    }
    start.elapsed().as_secs_f64() * 1e9 / f64::from(pairs)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() -> Result<(), PoolError> {
    let mut arguments = Arguments::parse();
    if arguments.short {
        (arguments.rounds, arguments.pairs) = (2, 1000);
    }
    let options = options();
    let build = |(_, config): &(_, Config)| Pool::builder().size(64 << 20).config(*config).build();
    let pools: Vec<Pool> = options.iter().map(build).collect::<Result<_, _>>()?;
    // SAFETY: no other code owns frames of these pools, and no memory goes offline.
    let allocators: Vec<_> = pools.iter().map(|pool| unsafe { pool.allocator() }).collect();
    let mut times = Vec::new();
    // Round 0 is a warm-up.
    for round in 0..=arguments.rounds.max(1) {
        let of_round: Vec<f64> = allocators.iter().map(|one| ns_per_pair(one, arguments.pairs)).collect();
        if round > 0 {
            times.push(of_round);
        }
    }
    let mut table = Table::new();
    table.set_header(["option", "ns a pair", "times the default"]);
    for (at, (name, _)) in options.iter().enumerate() {
        let ns = median(times.iter().map(|of_round| of_round[at]).collect());
        let ratio = median(times.iter().map(|of_round| of_round[at] / of_round[0]).collect());
        table.add_row([name.to_string(), format!("{ns:.1}"), format!("{ratio:.2}")]);
    }
    println!("{table}");
    Ok(())
}
