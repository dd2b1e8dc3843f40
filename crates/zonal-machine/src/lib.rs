//! Machines as data: reads, writes and captures them, and explains what values a kernel computes for them.
//!
//! All sources take the same path: a file, a live or captured `/proc` and `/sys`, or a preset becomes a
//! machine as written (`file.rs`), is checked (`resolve.rs`), and is then a [`MachineModel`] that needs no
//! further checks. [`Rules`] describe a kernel version; [`predict`] applies them with the allocator's own
//! code; [`explain`] makes a [`Report`] that compares the prediction with what the machine's kernel reported.
//! Neighbours: `zonal` has the arithmetic of the rules, the command line prints the report.
#![forbid(unsafe_code)]

mod advice;
mod at_boot;
mod capture;
mod error;
mod escape;
mod export;
mod file;
pub mod input;
mod kernel;
mod model;
mod old_tree;
pub mod output;
mod owned;
mod places;
mod predict;
mod presets;
mod report;
mod resolve;
mod tree_writer;

pub use at_boot::{AtBoot, FewerFrames};
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
