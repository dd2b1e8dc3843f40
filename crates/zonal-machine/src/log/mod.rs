//! Explains reports of failed requests in kernel logs: OOM kills and page allocation failures.
//!
//! [`LogReader`] reads the reports. [`explain_report`] decides each request again by the rules of its kernel, and
//! compares every rule's outcome with what the log shows. Related files: `lines.rs`, `parse.rs` and `words.rs` read;
//! `rules.rs` has the rules by kernel version, `decide.rs` applies them.

mod answer;
mod cgroup;
mod check;
mod decide;
mod explanation;
mod figures;
mod gfp;
mod inputs;
mod lines;
mod parse;
mod reader;
mod remedy;
mod report;
mod rules;
mod state;
mod steps;
mod summary;
mod words;

pub use check::{Check, Input, Origin, Outcome, Place, Unit, Value, Verdict};
pub use decide::tally;
pub use explanation::{Change, Explanation, NodeAnswer, Refusal, Remedy, explain_report};
pub use figures::{BlockList, Figure, Figures, FreeBlocks, Kib, MigrateTypes};
pub use gfp::{Gfp, GfpFlag};
pub use lines::Seen;
pub use reader::LogReader;
pub use report::{
    CgroupCounter, Constraint, Kill, LogReport, LoggedKind, LoggedNode, LoggedRequest, LoggedZone, NodeList,
    PageTotals, ReportKind, Swap, Task, TaskTable,
};
pub use rules::{Access, MarkShare, PathRules, Rule};
pub use summary::Summary;
