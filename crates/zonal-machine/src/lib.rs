//! Explains which values a kernel computes for a machine, and writes files and trees.
//!
//! The crate `zonal-model` reads and captures machines; this crate re-exports it and adds [presets](PRESETS). [`Rules`]
//! describe a kernel version, and [`predict`] applies them with the allocator's own code. [`explain`] produces a
//! [`Report`] that compares the prediction with the values that the machine's kernel reported. [`output`] writes files,
//! and [`write_tree`] the state of an allocator.
//!
//! Related files: the crate `zonal` has the arithmetic of the rules, and the command line prints the report.
#![forbid(unsafe_code)]

mod advice;
mod at_boot;
mod filling;
pub mod log;
mod old_tree;
pub mod output;
mod owned;
pub mod pagesets;
mod predict;
mod presets;
mod report;
pub mod state;
mod tree_writer;

pub use at_boot::{AtBoot, FewerFrames};
pub use filling::Filling;
pub use owned::OwnedMachine;
pub use predict::{Prediction, ZonePrediction, predict};
pub use presets::{PRESETS, Preset, preset};
pub use report::{
    Advice, Balance, Check, Measured, NodeReport, Report, Severity, Unchecked, ZoneReport, explain, ordinal,
    readable_size,
};
pub use tree_writer::{check_tree, write_tree};
pub use zonal_model::{
    Bytes, Capture, Escaped, Excerpt, KernelVersion, MachineError, MachineModel, NUMA_DEFAULT_DISTANCE,
    NodeModel, Observed, ObservedZone, Presence, Problem, Rules, Settings, VersionError, ZoneModel, capture,
    capture_live, ids, input, pageset_limits,
};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
