//! Fuzz targets: functions that accept any bytes, and panic if the tested code violates a requirement.
//!
//! The folder `fuzz` of the repository runs the targets under libFuzzer. `tests/corpus.rs` replays the inputs that
//! libFuzzer found and that are stored in the corpus. A target returns no result: a panic is a failure, and everything
//! else is a success.
//!
//! Related files: `../choices.rs` reads decisions from bytes, and `../history` is the world of an allocator under test.

pub mod captured_tree;
mod errors;
pub mod experiment_file;
pub mod kernel_log;
pub mod machine_file;
pub mod operations;
pub mod trace_file;

/// A fuzz target.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Name of the target and its corpus.
    pub name: &'static str,
    /// The function that tests an input.
    pub run: fn(&[u8]),
}

/// All targets.
pub const ALL: [Target; 6] = [
    Target { name: "operations", run: operations::target },
    Target { name: "machine_file", run: machine_file::target },
    Target { name: "captured_tree", run: captured_tree::target },
    Target { name: "experiment_file", run: experiment_file::target },
    Target { name: "kernel_log", run: kernel_log::target },
    Target { name: "trace_file", run: trace_file::target },
];
