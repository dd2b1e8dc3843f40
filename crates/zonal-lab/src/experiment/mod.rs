//! Experiments as data: machine, workload, cases, variants, and what was published of it.
//!
//! An experiment is a TOML file. `document.rs` and `file.rs` read it, `layer.rs`, `cases.rs` and
//! `choices.rs` are what it consists of, `resolve.rs` makes a checked [`Plan`] of it with the help of
//! `parameters.rs`, `figures.rs` and `published.rs`, within `limits.rs`; [`run()`] runs a plan and gives [`results`],
//! which `json.rs` writes. A *part* is a machine with a workload; a *case* sets some of its settings; a *variant*
//! is a way to configure the allocator that every case is run with.

mod built_in;
mod case_values;
mod cases;
mod choices;
mod collect;
mod document;
mod figures;
mod file;
mod json;
pub(crate) mod keys;
mod layer;
mod limits;
mod parameters;
mod plan;
mod published;
mod queue;
mod resolve;
pub mod results;
mod run;
mod source;

pub use built_in::{BUILT_IN, BuiltIn, EXAMPLE, built_in};
pub use document::FileError;
pub(crate) use json::RESULT_FILE;
pub use json::{ResultDocument, write};
pub use plan::{Calibration, Plan, Run};
pub use published::{Baseline, BaselineRow, CaseFilter};
pub use resolve::load;
pub use run::{Failure, Options, Progress, run, silence_faults};
pub use source::Source;
