//! The `zonal` command.

mod machine;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "zonal", version, about = "A NUMA-aware page-frame allocator")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Machine(machine::MachineArgs),
}

fn main() -> ExitCode {
    match Cli::parse().command {
        Command::Machine(args) => machine::run(&args),
    }
}
