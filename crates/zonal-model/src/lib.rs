//! The model of a machine, read from machine files or captured from `/proc` and `/sys`.
//!
//! All sources are processed alike. A file, or a live or captured `/proc` and `/sys`, becomes an unchecked description
//! (`file.rs`), which `resolve.rs` checks and converts to a [`MachineModel`]. A [`MachineModel`] needs no further checks.
//! [`MachineModel::to_json`] returns the text of a machine file that describes the same machine.
//!
//! Related crates: `zonal-linux` builds pools from a model, and `zonal-machine` explains one.
#![forbid(unsafe_code)]

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
pub mod pageset_limits;
mod resolve;

pub use bytes::Bytes;
pub use capture::{Capture, capture, capture_live};
pub use error::{MachineError, Problem};
pub use escape::{Escaped, Excerpt};
pub use kernel::{KernelVersion, OfflineLists, OwnPlace, Rules, VersionError};
pub use model::{
    MachineModel, NUMA_DEFAULT_DISTANCE, NodeModel, Observed, ObservedZone, Presence, Settings, ZoneModel,
};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
