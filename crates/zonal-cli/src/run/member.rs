//! The work of a process of `zonal run --shared`: it joins the pool and runs the workload until its standard input ends.
//!
//! It prints lines for the process that started it: `ready`, then `pairs N` about twenty times a second, and at its end `failed N`.
//! Related files: `run/shared.rs` starts these processes, and reads the lines.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use zonal::mempolicy::WeightTable;
use zonal::units::PageCount;
use zonal_bench::run_beside_others;
use zonal_linux::Pool;
use zonal_workload::{Latencies, Plan};

use super::{RunArgs, policy, refused, shared, threads};
use crate::interrupt;
use crate::outcome::Failure;

/// Longest run, in case the input does not end.
const DURATION_MAX: Duration = Duration::from_secs(2 * 366 * 24 * 3600);

/// Joins the pool whose file is at `link`, and does the work.
pub(super) fn work(args: &RunArgs, link: &str) -> Result<(), Failure> {
    // Ctrl-C reaches all processes of a terminal. The process that has started this one ends it.
    interrupt::flag_without_exit()
        .map_err(|error| Failure::failed(format!("cannot handle Ctrl-C: {error}")))?;
    let cannot = |error: io::Error| Failure::bad_input(format!("--member-of: cannot open {link}: {error}"));
    let file = File::options().read(true).write(true).open(link).map_err(cannot)?;
    let pool = Pool::join_file(file.as_fd()).map_err(refused)?;
    let threads = threads(args);
    // Every process that takes part, also one after another, makes other choices.
    let own =
        pool.owners().iter().find(|owner| owner.is_this).map(|own| 64 * own.epoch + u64::from(own.process));
    let plan = Plan {
        workload: args.workload,
        threads,
        duration: DURATION_MAX,
        warm_up: Duration::ZERO,
        seed: args.seed.wrapping_add(own.unwrap_or_default()),
        pages: PageCount::new(pool.frames().get() / u64::from(shared::processes(args))),
        latencies: Latencies::Off,
    };
    let weights = WeightTable::new();
    let policy = policy(&pool, &args.policy, &weights)?;
    let stop = stop_at_end_of_input();
    say("ready", 1)?;
    let measured = run_beside_others(&pool, &policy, &plan, &stop, &mut |now| drop(say("pairs", now.pairs)))
        .map_err(|error| Failure::failed(format!("cannot start {threads} threads: {error}")))?;
    say("pairs", measured.pairs)?;
    say("failed", measured.failed)
}

/// Returns a flag that becomes true when the standard input ends, also because the other process has died.
fn stop_at_end_of_input() -> Arc<AtomicBool> {
    let stop = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&stop);
    thread::spawn(move || {
        io::stdin().read_to_end(&mut Vec::new()).ok();
        flag.store(true, Ordering::Relaxed); // relaxed: no data is published with the flag
    });
    stop
}

fn say(what: &str, count: u64) -> Result<(), Failure> {
    writeln!(io::stdout(), "{what} {count}")
        .map_err(|error| Failure::failed(format!("cannot report: {error}")))
}
