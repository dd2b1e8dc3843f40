//! Compares the zonal page-frame allocator with other allocators, and with the fastest possible access on the
//! machine.
//!
//! ```
//! use std::sync::atomic::AtomicBool;
//! use std::{num::NonZeroUsize, time::Duration};
//! use zonal::units::PageCount;
//! use zonal_bench::{Bench, Workload, floors, zonal};
//!
//! let bench = Bench {
//!     workloads: vec![Workload::Pair],
//!     threads: vec![NonZeroUsize::MIN],
//!     rounds: NonZeroUsize::MIN,
//!     round_time: Duration::from_millis(1),
//!     warm_up: Duration::ZERO,
//!     frames: PageCount::new(1 << 14),
//!     seed: 1,
//! };
//! let entries: Vec<_> = [zonal()].into_iter().chain(floors()).collect();
//! let report = bench.run(&entries, &AtomicBool::new(false), |_| ())?;
//! for row in report.rows {
//!     println!("{}: {:.1} ns a pair", row.contender, row.cpu_ns.median);
//! }
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! Other allocators can be added as an [`Entry`] with their own [`Contender`]. Start reading at `bench.rs`.
//! `contender.rs` defines what is measured. `peers/` and `floor/` contain the allocators to compare with, `kernel_pages/`
//! has pages without an allocator, and `llfree/` calls a library that the user names.
//! `figures/` measures figures other than the time of a pair. [`mechanisms`] measures each of the five mechanisms off
//! and on. [`run_on_pool`] runs one workload on the caller's pool and checks the accounting.

mod bench;
mod chart;
#[cfg(test)]
mod checks;
mod contender;
mod counting;
mod described;
mod figures;
mod floor;
mod forms;
mod harness;
mod kernel_pages;
mod llfree;
pub mod mechanisms;
mod ours;
mod peers;
mod pool_run;
mod report;
mod spread;

pub use bench::{Bench, Progress};
pub use chart::chart;
pub use contender::{Contender, Entry, Once, Reason};
pub use counting::Counting;
pub use described::{Described, DescribedError, with_described};
pub use figures::{Figure, Figures, Goal, Part, Sizes, figures};
pub use floor::floors;
pub use forms::{FormRow, form_entries, form_names, forms, forms_in_simulator};
pub use harness::{exchange, harness};
pub use kernel_pages::{KERNEL_PAGES, PageCost, kernel_pages, page_cost};
pub use llfree::{LlfreeError, llfree};
pub use ours::{pool, zonal, zonal_in_simulator, zonal_locked};
pub use peers::{PEERS, peers};
pub use pool_run::{PoolReport, run_beside_others, run_on_pool};
pub use report::{Report, Row, Skipped};
pub use spread::Spread;
pub use zonal_workload::{Latencies, PageSource, Plan, Workload};

/// Pages are 4 KiB in this crate, regardless of the machine's page size, because the measured code never accesses
/// their memory.
pub(crate) const PAGE_SHIFT: u32 = 12;
