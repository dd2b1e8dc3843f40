//! Traces of the Linux page allocator: recording, a file format, import and export, and summaries.
#![forbid(unsafe_code)]

mod block;
mod error;
mod event;
mod file;
mod flags;
mod header;
mod numbers;
mod record;
mod ring;
mod tracepoint;

pub use block::{BlockEncoder, EVENTS_MAX, EncodedBlock};
pub use error::TraceError;
pub use event::{Action, Event, Gfp, Kind, Migratetype, Tid};
pub use file::{FIRST_LINE, TraceReader, TraceWriter};
pub use header::{CpuTotals, FormatText, Header, KernelTexts, Origin, Trailer};
pub use record::{RecordOptions, Recorded, default_buffer_kib, record};
