//! The `zonal` command: parses arguments, calls the libraries and prints their results.
//!
//! Exit codes: 0 = success, 1 = the work failed, 2 = bad usage or bad input, 130 = interrupted by Ctrl-C. An error is
//! one line on standard error; standard output contains only results. Related files: `run.rs`, `bench.rs`, `explain.rs`,
//! `capture.rs`, `checkup.rs`, `machine.rs`, `lab.rs`, `mechanisms.rs`, `serve.rs`, `settings.rs`, `top.rs`, `trace.rs`,
//! `completions.rs` and `man.rs` are the
//! commands; `outcome.rs` contains the code for errors and output that all commands use.

mod bench;
mod capture;
mod changes;
mod checkup;
mod completions;
mod explain;
mod interrupt;
mod lab;
mod layout;
mod machine;
mod man;
mod mechanisms;
mod outcome;
mod progress;
mod run;
mod serve;
mod settings;
mod top;
mod trace;
mod values;

use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use layout::Width;
use outcome::{Failure, one_line};

/// A NUMA-aware page-frame allocator: run it on this machine's memory, and explain machines.
///
/// Without a command, `zonal` does a check-up of this machine.
#[derive(Parser)]
#[command(name = "zonal", version, args_conflicts_with_subcommands = true, after_help = checkup::examples())]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,

    #[command(flatten)]
    checkup: checkup::CheckupArgs,
}

#[derive(Subcommand)]
enum Command {
    Run(run::RunArgs),
    Bench(bench::BenchArgs),
    Machine(machine::MachineArgs),
    Explain(explain::ExplainArgs),
    Capture(capture::CaptureArgs),
    Lab(lab::LabArgs),
    Mechanisms(mechanisms::MechanismArgs),
    Serve(serve::ServeArgs),
    Settings(settings::SettingsArgs),
    Set(settings::SetArgs),
    Top(top::TopArgs),
    Trace(trace::TraceArgs),
    Completions(completions::CompletionsArgs),
    Man(man::ManArgs),
}

fn main() -> ExitCode {
    let command = Cli::command().term_width(Width::of_output().of_help());
    let parsed = command.try_get_matches().and_then(|matches| Cli::from_arg_matches(&matches));
    let cli = match parsed {
        Ok(cli) => cli,
        Err(error) => return usage(&error),
    };
    match cli.command {
        None => checkup::run(&cli.checkup),
        Some(Command::Run(args)) => run::run(&args),
        Some(Command::Bench(args)) => bench::run(&args),
        Some(Command::Machine(args)) => machine::run(&args),
        Some(Command::Explain(args)) => explain::run(&args),
        Some(Command::Capture(args)) => capture::run(&args),
        Some(Command::Lab(args)) => lab::run(&args),
        Some(Command::Mechanisms(args)) => mechanisms::run(&args),
        Some(Command::Serve(args)) => serve::run(&args),
        Some(Command::Settings(args)) => settings::run(&args),
        Some(Command::Set(args)) => settings::run_set(&args),
        Some(Command::Top(args)) => top::run(&args),
        Some(Command::Trace(args)) => trace::run(&args),
        Some(Command::Completions(args)) => completions::run(&args, Cli::command()),
        Some(Command::Man(args)) => man::run(&args, Cli::command),
    }
}

/// Prints help and version texts unchanged, and usage errors as one line.
fn usage(error: &clap::Error) -> ExitCode {
    if !error.use_stderr() {
        return outcome::print(&error.to_string()).map_or_else(Failure::report, |()| ExitCode::SUCCESS);
    }
    let text = error.to_string();
    let essence = text.split("\n\nUsage:").next().unwrap_or_default();
    let essence = essence.split("\n\nFor more information").next().unwrap_or_default();
    Failure::bad_input(one_line(essence.trim_start_matches("error: "))).report()
}

#[cfg(test)]
mod tests {
    use std::any::TypeId;
    use std::path::PathBuf;

    use super::*;

    /// Returns the command and name of every argument below `command` that names a path.
    fn paths(command: &clap::Command, before: &str) -> Vec<String> {
        let is_path = |arg: &&clap::Arg| {
            let names_path =
                |name: &str| ["FILE", "DIR", "PATH", "SOCKET"].iter().any(|word| name.contains(word));
            arg.get_value_parser().type_id() == TypeId::of::<PathBuf>()
                || arg.get_value_names().into_iter().flatten().any(|name| names_path(name))
        };
        let name = |arg: &clap::Arg| {
            arg.get_long().map_or_else(|| arg.get_id().to_string(), |long| format!("--{long}"))
        };
        let own = command.get_arguments().filter(is_path).map(|arg| format!("{before}{}", name(arg)));
        let mut found: Vec<String> = if before.is_empty() { Vec::new() } else { own.collect() };
        for sub in command.get_subcommands() {
            found.extend(paths(sub, &format!("{before}{} ", sub.get_name())));
        }
        found
    }

    /// Returns the options below `command` whose values are numbers and may not begin with a hyphen.
    fn without_hyphens(command: &clap::Command) -> Vec<String> {
        const NUMBERS: [&str; 10] =
            ["N", "S", "K", "KB", "SIZE", "NODE", "SECONDS", "VERSION", "LIST", "NODE=PERCENT"];
        let is_number = |arg: &&clap::Arg| {
            let mut names = arg.get_value_names().into_iter().flatten();
            arg.get_action().takes_values()
                && arg.get_long().is_some()
                && names.any(|name| NUMBERS.contains(&name.as_str()))
        };
        let strict =
            command.get_arguments().filter(|arg| is_number(arg) && !arg.is_allow_hyphen_values_set());
        let own =
            strict.map(|arg| format!("{} --{}", command.get_name(), arg.get_long().unwrap_or_default()));
        own.chain(command.get_subcommands().flat_map(without_hyphens)).collect()
    }

    #[test]
    fn negative_numbers_reach_the_parser_of_the_value() {
        assert_eq!(without_hyphens(&Cli::command()), Vec::<String>::new());
    }

    #[test]
    fn the_list_of_paths_is_complete() {
        let lines = include_str!("../tests/paths.txt").lines().filter(|line| !line.starts_with('#'));
        let mut listed: Vec<&str> = lines.map(|line| line.split_once(' ').unwrap().1).collect();
        listed.sort_unstable();
        let mut defined = paths(&Cli::command(), "");
        defined.sort();
        assert_eq!(listed, defined, "tests/paths.txt lists every argument that names a path");
    }
}
