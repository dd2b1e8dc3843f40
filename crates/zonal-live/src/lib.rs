//! The live state of a page allocator: of this system's kernel, or of a program's pool that publishes itself.
//!
//! A [`Source`] reads a [`Sample`]. A [`Watch`] reads one per interval, computes [`Rates`], and keeps a history of
//! 60 seconds. Everything else renders that: the terminal, the web page and the metrics.
//!
//! Related crates: `zonal-linux` publishes pools, and `zonal-cli` has the commands.
#![forbid(unsafe_code)]

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

pub mod sample;
pub mod serve;
pub mod source;
pub mod top;
mod watch;

pub use sample::{Counter, Locality, Node, PagesetSample, Rates, Sample, Totals, ZoneSample};
pub use source::{PoolSource, SimulatedSource, Source, SourceError, SystemSource, ask};
pub use watch::{HISTORY_SECONDS, Moment, Watch};
