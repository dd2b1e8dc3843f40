//! Reads, writes and captures descriptions of machines, and explains which values a kernel computes for them.
//!
//! All sources are processed alike. A file, a live or captured `/proc` and `/sys`, or a preset becomes an unchecked
//! description (`file.rs`), which `resolve.rs` checks and converts to a [`MachineModel`]. A [`MachineModel`] needs no
//! further checks. [`Rules`] describe a kernel version, and [`predict`] applies them with the allocator's own code.
//! [`explain`] produces a [`Report`] that compares the prediction with the values that the machine's kernel reported.
//!
//! Related files: the crate `zonal` has the arithmetic of the rules, and the command line prints the report.
#![forbid(unsafe_code)]

mod advice;
mod at_boot;
mod bytes;
mod capture;
mod error;
mod escape;
mod export;
mod file;
pub mod ids;
pub mod input;
mod kernel;
mod model;
mod old_tree;
pub mod output;
mod owned;
mod predict;
mod presets;
mod report;
mod resolve;
mod tree_writer;

pub use at_boot::{AtBoot, FewerFrames};
pub use bytes::Bytes;
pub use capture::{Capture, capture, capture_live};
pub use error::{MachineError, Problem};
pub use escape::{Escaped, Excerpt};
pub use kernel::{KernelVersion, Rules, VersionError};
pub use model::{
    MachineModel, NUMA_DEFAULT_DISTANCE, NodeModel, Observed, ObservedZone, Presence, Settings, ZoneModel,
};
pub use owned::OwnedMachine;
pub use predict::{Prediction, ZonePrediction, predict};
pub use presets::{PRESETS, Preset, preset};
pub use report::{
    Advice, Balance, Check, Measured, NodeReport, Report, Severity, ZoneReport, explain, ordinal,
    readable_size,
};
pub use tree_writer::{check_tree, write_tree};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
