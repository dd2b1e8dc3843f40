//! Checks of the allocator as a whole: all histories of small worlds, random histories against a naive model, random
//! programs on simulated machines, interleavings of threads, fuzzing, injected faults, a soak test, and
//! the machine code of restartable sequences.
//!
//! This crate is not part of the allocator and is not published. Tests of single files and mechanisms are next to the
//! code that they test, in `crates/zonal`.

mod choices;
pub mod deaths;
pub mod guest;
pub mod history;
pub mod lift;
pub mod mortal;
pub mod proof;
pub mod soak;
pub mod stress;
pub mod targets;

pub use choices::Choices;

use std::process::ExitCode;

/// Prints the last line of a run in which no check failed, and returns its exit code. A run that has checked nothing has
/// failed.
#[must_use]
pub fn nothing_found(line: &str, checked: u64) -> ExitCode {
    if checked == 0 {
        eprintln!("{line}; but nothing was checked: choose other operations, or more of them");
        return ExitCode::FAILURE;
    }
    println!("{line}");
    ExitCode::SUCCESS
}
