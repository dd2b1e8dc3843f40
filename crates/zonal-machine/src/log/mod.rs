//! Explains reports of failed requests in kernel logs: OOM kills and page allocation failures.
//!
//! [`LogReader`] reads the reports. [`explain_report`] decides each request again by the rules of its kernel, and
//! compares every rule's outcome with what the log shows. Related files: `lines.rs`, `parse.rs` and `words.rs` read;
//! `rules.rs` has the rules by kernel version, `decide.rs` applies them.

mod figures;
mod gfp;
mod lines;
mod parse;
mod reader;
mod report;
mod words;

pub use figures::{BlockList, Figure, Figures, FreeBlocks, Kib, MigrateTypes};
pub use gfp::{Gfp, GfpFlag};
pub use lines::Seen;
pub use reader::LogReader;
pub use report::{
    CgroupCounter, Constraint, Kill, LogReport, LoggedKind, LoggedNode, LoggedRequest, LoggedZone, NodeList,
    PageTotals, ReportKind, Swap, Task, TaskTable,
};
