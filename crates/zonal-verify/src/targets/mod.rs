//! Fuzz targets: functions that take any bytes, and panic when what they drive does what it must not.
//!
//! The folder `fuzz` of the repository runs them under libFuzzer, `tests/corpus.rs` replays what that
//! found worth keeping. A target never returns a verdict: a panic is a *finding*, all else is fine.
//! Neighbours: `../choices.rs` reads decisions off bytes, `../history` is the world of an allocator under test.

pub mod captured_tree;
mod errors;
pub mod experiment_file;
pub mod machine_file;
pub mod operations;

/// A fuzz target.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Its name, that of its corpus too.
    pub name: &'static str,
    /// What it does with bytes.
    pub run: fn(&[u8]),
}

/// All targets.
pub const ALL: [Target; 4] = [
    Target { name: "operations", run: operations::target },
    Target { name: "machine_file", run: machine_file::target },
    Target { name: "captured_tree", run: captured_tree::target },
    Target { name: "experiment_file", run: experiment_file::target },
];
