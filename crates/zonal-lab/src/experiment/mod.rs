//! Experiments as data: machines, workloads, cases, variants, and published figures.
//!
//! An experiment is a TOML file. `experiment/document.rs` and `experiment/file.rs` read the file;
//! `experiment/layer.rs`, `experiment/cases.rs` and `experiment/choices.rs` define its contents.
//! `experiment/resolve.rs` turns it into a checked [`Plan`], with the help of `experiment/parameters.rs`,
//! `experiment/figures.rs` and `experiment/published.rs`. `experiment/limits.rs` limits its size, and
//! `experiment/gather.rs` makes it independent of files. [`run()`] executes
//! a plan and returns [`results`], which `experiment/json.rs` writes. `experiment/answer.rs` and
//! `experiment/against_published.rs` say in sentences what the results mean.
//!
//! A *part* is a machine with a workload. A *case* sets some of the part's settings. A *variant* is a configuration
//! of the allocator. Every case runs once with each variant.

mod against_published;
mod answer;
mod built_in;
mod case_values;
mod cases;
mod change;
mod choices;
mod collect;
mod document;
mod effective;
mod figures;
mod file;
mod gather;
mod guide;
mod idle;
mod json;
pub(crate) mod keys;
mod layer;
mod limits;
mod parameters;
mod plan;
mod published;
mod question;
mod queue;
mod resolve;
pub mod results;
mod run;
mod source;
mod texts;
mod trials;

pub use answer::Answer;
pub use built_in::{BUILT_IN, BuiltIn, EXAMPLE, built_in};
pub use document::FileError;
pub use guide::{PROGRAMS, example, example_kinds, keys_text, standalone};
pub(crate) use json::RESULT_FILE;
pub use json::{ResultDocument, write};
pub use plan::{Calibration, Plan, Run};
pub use published::{Baseline, BaselineRow, CaseFilter};
pub use resolve::{load, load_on};
pub use run::{Failure, Options, Progress, run, silence_faults};
pub use source::Source;
pub use texts::Texts;
