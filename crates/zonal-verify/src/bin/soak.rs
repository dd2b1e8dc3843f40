//! `soak [--minutes N] [--seed N] [--processes N]` uses pools with all operations and faults at once, and verifies them in pauses.
//! With `--processes`, so many processes share one pool, and some are killed. If a check fails, the program prints one line and exits
//! with code 1. Related files: `soak/` has the test, `deaths/soak.rs` that of processes.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use clap::Parser;
use signal_hook::consts::{SIGINT, SIGTERM};
use zonal_lab::experiment;
use zonal_verify::soak::{Pace, Tally, soak};
use zonal_verify::{deaths, nothing_found};

/// Time between two progress lines.
const REPORT_EVERY: Duration = Duration::from_secs(20);

/// Runs a soak test of the allocator on this machine's memory and on simulated machines.
#[derive(Parser)]
struct Options {
    /// Duration of the run, in minutes.
    #[arg(long, default_value_t = 1.0)]
    minutes: f64,
    /// Seed of the first round. Each later round uses the next number.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Number of processes that share one pool, of which one is killed about every 200 ms.
    #[arg(long, value_parser = clap::value_parser!(u8).range(2..=16))]
    processes: Option<u8>,
    #[arg(long, hide = true)]
    worker: Option<PathBuf>,
}

fn main() -> ExitCode {
    let Options { minutes, seed, processes, worker } = Options::parse();
    if let Some(path) = worker {
        let file = File::options().read(true).write(true).open(path).expect("the parent's file");
        deaths::work(file.as_fd(), seed);
        return ExitCode::SUCCESS;
    }
    let Ok(time) = Duration::try_from_secs_f64(minutes * 60.0) else {
        eprintln!("soak: --minutes {minutes}: must be a number of at least 0");
        return ExitCode::from(2);
    };
    if let Some(count) = processes {
        return with_deaths(count, time, seed);
    }
    experiment::silence_faults();
    let (stop, begin) = (Arc::new(AtomicBool::new(false)), Instant::now());
    let at_end = Arc::clone(&stop);
    thread::spawn(move || {
        thread::sleep(time);
        at_end.store(true, Relaxed); // relaxed: it only ends a loop
    });
    for signal in [SIGINT, SIGTERM] {
        if let Err(error) = signal_hook::flag::register(signal, Arc::clone(&stop)) {
            eprintln!("soak: signal {signal} will not end it cleanly: {error}");
        }
    }
    let mut reported = begin;
    let ended = soak(seed, Pace::LONG, &stop, |tally| {
        if reported.elapsed() >= REPORT_EVERY {
            reported = Instant::now();
            report(begin.elapsed(), tally);
        }
    });
    match ended {
        Ok(tally) => {
            report(begin.elapsed(), &tally);
            println!("{:#?}", tally.faults);
            let minutes = begin.elapsed().as_secs_f64() / 60.0;
            nothing_found(&format!("soak: nothing found in {minutes:.1} minutes"), tally.verified)
        }
        Err(found) => {
            println!("{found}");
            ExitCode::FAILURE
        }
    }
}

/// Runs processes that share a pool, and kills some.
fn with_deaths(count: u8, time: Duration, seed: u64) -> ExitCode {
    println!("soak: {count} processes, seed {seed}");
    let mut reported = Instant::now();
    let ended = deaths::soak(count, time, seed, |tally| {
        if reported.elapsed() >= REPORT_EVERY {
            reported = Instant::now();
            println!("{tally:?}");
        }
    });
    match ended {
        Ok(tally) => {
            println!("{tally:#?}");
            nothing_found(&format!("soak: nothing found after {} deaths", tally.deaths), tally.deaths)
        }
        Err(found) => {
            println!("soak: seed {seed}: {found}");
            ExitCode::FAILURE
        }
    }
}

fn report(time: Duration, tally: &Tally) {
    let Tally { rounds, operations, verified, held_max, visits, faults, shared_rounds, simulated } = tally;
    println!(
        "{:5.1} min: {rounds} rounds ({shared_rounds} with shared memory), {operations} operations, {simulated} simulated, {verified} walks, at most {held_max} \
         frames held, {visits} visits to pagesets, {} faults survived, {} MiB resident",
        time.as_secs_f64() / 60.0,
        faults.sum(),
        resident_mib()
    );
}

/// Returns the resident memory of the process, in MiB.
fn resident_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) / 1024
}
