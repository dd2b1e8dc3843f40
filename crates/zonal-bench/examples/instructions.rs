//! Counts the instructions of a pair on one thread, for `cargo xtask bench-guard`.
//!
//! `instructions WORKLOAD` uses the processor's instruction counter. `instructions WORKLOAD --simulated` is for
//! callgrind, which counts instructions itself but does not implement restartable sequences; the example then
//! provides a substitute for their area. The output is `pairs N`, followed by `instructions N.N` if the processor
//! counts them. `instructions --list` prints the workloads. The forms of requests (`zonal bench --forms`) are workloads
//! of this example, with pairs of one block.

use std::num::NonZeroUsize;
use std::process::ExitCode;
use std::time::Duration;

use zonal::units::PageCount;
use zonal_bench::{
    Entry, Latencies, Plan, Workload, form_entries, form_names, forms_in_simulator, zonal, zonal_in_simulator,
};

/// Number of frames: 4 GiB, as in `zonal bench`.
const FRAMES: PageCount = PageCount::new(1 << 20);
/// Long enough for pagesets to adapt: once a second they move by half of the remaining distance.
const WARM_UP: Duration = Duration::from_secs(5);
/// Duration of the measured part. A simulator is about fifty times slower than the real machine.
const DURATION: Duration = Duration::from_secs(2);

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let workloads = Workload::ALL.into_iter().filter(|workload| *workload != Workload::Touch);
    if arguments == ["--list"] {
        workloads.for_each(|workload| println!("{}", workload.name()));
        form_names().iter().for_each(|form| println!("{form}"));
        return ExitCode::SUCCESS;
    }
    let (name, simulated, warm_up) = match arguments[..] {
        [name, "--simulated"] => (name, true, WARM_UP),
        ["--short"] => ("pair", false, Duration::ZERO),
        [name] => (name, false, WARM_UP),
        _ => return fail("usage: instructions WORKLOAD [--simulated] | --list"),
    };
    let workload = workloads.into_iter().find(|workload| workload.name() == name);
    let entry = match workload {
        // SAFETY: the plan has one thread, and `--simulated` must be used only in simulators. If the kernel does maintain
        // the area, building the pool fails.
        Some(_) if simulated => Some(unsafe { zonal_in_simulator() }),
        Some(_) => Some(zonal()),
        None => form(name, simulated),
    };
    let Some(entry) = entry else { return fail("there is no such workload; see --list") };
    let workload = workload.unwrap_or(Workload::Pair);
    let plan = Plan {
        workload,
        threads: NonZeroUsize::MIN,
        duration: DURATION,
        warm_up,
        seed: 1,
        pages: FRAMES,
        latencies: Latencies::Off,
    };
    match entry.run_once(&plan) {
        Ok(once) => {
            println!("pairs {}", once.pairs);
            once.instructions.iter().for_each(|count| println!("instructions {count:.1}"));
            ExitCode::SUCCESS
        }
        Err(reason) => fail(&reason),
    }
}

/// Returns a request form's entry.
fn form(name: &str, simulated: bool) -> Option<Entry> {
    // SAFETY: as in `main`.
    let forms = if simulated { unsafe { forms_in_simulator() } } else { form_entries() };
    forms.into_iter().find(|entry| entry.name() == name)
}

fn fail(why: &str) -> ExitCode {
    eprintln!("instructions: {why}");
    ExitCode::FAILURE
}
