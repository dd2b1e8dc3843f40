//! Traces of the Linux page allocator: recording, a file format, import, export, and summaries.
//!
//! [`record`] enables the kernel's page-allocator tracepoints in its own tracefs instance and writes their
//! events to a file; [`import`] makes the same kind of file from a perf.data file. [`info`] says what a trace holds, and
//! [`export()`] writes it for other programs. `docs/trace-format.md` describes the file.
//!
//! # Reading a trace
//!
//! [`TraceReader`] is an iterator over the events of all CPUs, merged in the order of their moments. Before the first
//! event it has the [`Header`]: machine, kernel, names, `/proc/zoneinfo` at the start. After the last one it has the
//! [`Trailer`]: lost events by CPU, totals, and `/proc/zoneinfo` at the end. The events of each CPU are in the order
//! in which they happened there. A trace whose recorder was killed ends with [`TraceError::Cut`], after all events that
//! it holds. [`Action::Lost`] marks places where events are missing.
//!
//! A reader holds one unpacked block of each CPU, about 100 KiB, and the packed blocks that the last quarter second of
//! recording gave, at most 64 MiB. It reads the file once, from the beginning to the end. The same file gives the same
//! events in the same order.
//!
//! ```
//! use zonal_trace::{Action, TraceError, TraceReader};
//!
//! fn allocated_pages(path: &std::path::Path) -> Result<u64, TraceError> {
//!     let mut trace = TraceReader::open(path)?;
//!     let mut pages = 0;
//!     for event in &mut trace {
//!         let event = event?;
//!         if let Action::Alloc { page: Some(_), order, .. } = event.action {
//!             pages += order.pages().get();
//!         }
//!     }
//!     if let Some(trailer) = trace.trailer().filter(|trailer| trailer.lost() > 0) {
//!         eprintln!("{} events are missing", trailer.lost());
//!     }
//!     Ok(pages)
//! }
//! ```
//!
//! The recorder's own requests are in the trace, because they change the state of the allocator;
//! [`Header::is_recorder`] distinguishes them.
//!
//! [`Zones`] finds the zone of a frame, [`Threads`] the name of a thread, and [`Runs`] the refills and drains of
//! pagesets.
#![forbid(unsafe_code)]

mod block;
mod error;
mod event;
mod export;
mod file;
mod flags;
mod header;
mod import;
mod info;
mod numbers;
mod record;
mod ring;
mod runs;
mod threads;
mod tracepoint;
mod zones;

pub use block::{BlockEncoder, EVENTS_MAX, EncodedBlock};
pub use error::TraceError;
pub use event::{Action, Event, Gfp, Kind, Migratetype, Tid};
pub use export::{Format, export};
pub use file::{FIRST_LINE, TraceReader, TraceWriter};
pub use header::{CpuTotals, FormatText, Header, KernelTexts, Origin, Trailer};
pub use import::import;
pub use info::{
    CpuCount, FallbackCount, GfpCount, HotSpot, Info, Interval, KindCount, LifetimeClass, Lifetimes,
    MigratetypeCount, Moved, NameCount, OrderCount, Rates, Requests, ZoneCount, info,
};
pub use record::{RecordOptions, Recorded, default_buffer_kib, record};
pub use runs::{Noticed, Run, RunKind, Runs};
pub use threads::Threads;
pub use zones::{ZoneName, Zones};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
