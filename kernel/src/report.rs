//! What the kernel prints about its memory, in the formats of Linux.

use core::convert::Infallible;

use crate::console::println;
use crate::platform::pinned;
use crate::{race, tasks};

/// Prints the files of `/proc` and `/sys` that describe the memory. Each follows a line `file PATH`, and the last a line
/// `end of files`.
pub(crate) fn print_files() {
    let written: Result<(), Infallible> = pinned(|allocator| {
        allocator.snapshot().files(|path, text| {
            println!("file {path}\n{text}");
            Ok(())
        })
    });
    let Ok(()) = written;
    println!("end of files");
}

/// Prints what the tasks have counted.
pub(crate) fn print_counts() {
    let [preempted, migrated] = tasks::switches();
    println!("count {preempted} tasks preempted by the timer");
    println!("count {migrated} tasks that went on on another CPU");
    for (name, count) in race::counts() {
        println!("count {count} {name}");
    }
    let [low, high, stalling, failing] = pinned(|allocator| allocator.platform().pressure_events());
    println!("pressure below low {low}, above high {high}, stalling {stalling}, failing {failing}");
}
