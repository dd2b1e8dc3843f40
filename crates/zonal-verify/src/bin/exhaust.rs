//! `exhaust ACTION...` uses up the memory of a machine, one action after the other.
//!
//! It is for virtual machines: `cargo xtask numa --oom` drives a guest's kernel out of memory with it.
//!
//! Related files: `guest/exhaust.rs` has the actions.

use std::process::ExitCode;

use clap::Parser;
use zonal_verify::guest::{Action, exhaust};

/// Uses up memory, and holds it until the last action has ended.
#[derive(Parser)]
struct Options {
    /// score=N, policy=NAME:NODES, touch=MIB, request=COMMAND, or hold
    #[arg(required = true, value_name = "ACTION")]
    actions: Vec<Action>,
}

fn main() -> ExitCode {
    match exhaust(&Options::parse().actions) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("exhaust: {why}");
            ExitCode::FAILURE
        }
    }
}
