//! Runs allocation patterns on page allocators and measures the allocators.
//!
//! ```
//! use std::sync::atomic::AtomicBool;
//! use std::{num::NonZeroUsize, time::Duration};
//! use zonal::units::{Order, PageCount};
//! use zonal_workload::{Latencies, PageSource, Plan, Workload, run};
//!
//! /// Counts upwards, and never runs out.
//! struct Numbers(u64);
//!
//! impl PageSource for Numbers {
//!     type Page = u64;
//!
//!     fn alloc(&mut self, order: Order) -> Option<u64> {
//!         self.0 += order.pages().get();
//!         Some(self.0)
//!     }
//!
//!     fn free(&mut self, _page: u64, _order: Order) {}
//! }
//!
//! let plan = Plan {
//!     workload: Workload::Pair,
//!     threads: NonZeroUsize::MIN,
//!     duration: Duration::from_millis(1),
//!     warm_up: Duration::ZERO,
//!     seed: 1,
//!     pages: PageCount::new(1 << 14),
//!     latencies: Latencies::Sampled,
//! };
//! let measured = run(&plan, |_lane| Numbers(0), &AtomicBool::new(false), |_progress| ())?;
//! println!("{:.1} ns a pair", measured.cpu_ns_per_pair().expect("a run does one round at least"));
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! A *source* is the access of one thread to an allocator. An *operation* allocates or frees one block. A *pair* is two
//! operations, normally an allocation and its free. A *lane* is one working thread with its counts. A *routine* is the
//! work that a lane repeats. All code is generic over the source and compiled for it, so the measured path has no
//! dynamic calls.
//!
//! `run.rs` chooses the routine, and `driver.rs` starts and stops the lanes. `lane.rs` counts and times operations, and
//! `held.rs` allocates and frees frames in runs. The routines are in `batches.rs`, `random.rs`, `orders.rs`, `fill.rs`
//! and `handoff.rs`.

#![deny(unsafe_code)]

mod batches;
pub mod cpu_time;
mod driver;
mod fill;
mod handoff;
mod held;
mod lane;
mod orders;
mod plan;
mod random;
mod run;
mod source;
#[cfg(test)]
mod tests;

pub use batches::REPEAT;
pub use driver::{Measurement, Progress};
pub use lane::Latency;
pub use plan::{Latencies, Plan, Workload};
pub use run::run;
pub use source::PageSource;
