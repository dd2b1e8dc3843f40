//! zonal: a NUMA-aware page-frame allocator for kernels, hypervisors and user space.
//!
//! The allocator returns page frames by number and never accesses their contents directly. The *embedder*, the program
//! that uses this crate, describes the machine by its nodes, zones, CPUs and distances. The allocator serves requests
//! from the caller's node first, then from other nodes in fallback order. Per-CPU caches of frames, the *pagesets*,
//! serve most requests without a shared lock. Watermarks reserve frames for urgent requests. When free frames are
//! scarce, the allocator calls the embedder's reclaimers. The core has no heap, no dependencies and no global state.
//!
//! Comments in the source call the mechanisms M1 to M6; `ARCHITECTURE.md` lists them.
//!
//! This crate is for embedders that have their own frames to manage. Programs on Linux can instead use the crate
//! `zonal-linux`, which maps the memory and runs the maintenance threads.
//!
//! Start with [`Allocator`]. Describe the machine as a [`Machine`], choose a [`Config`], implement [`Platform`] for the
//! environment, and create [`Request`]s. The example uses the smallest platform,
//! [`OneThread`](platform::one_thread::OneThread). A kernel with several CPUs implements [`Platform`] in one of two
//! ways: with [`TryLock`](platform::cpu_local::TryLock), or with [`Pinned`](platform::cpu_local::Pinned) and a
//! [`Quiesce`](platform::cpu_local::Quiesce) that interrupts the other CPUs. `examples/embed` shows the second way.
//!
//! ```
//! # use core::mem::MaybeUninit;
//! use zonal::machine::{FrameRange, NodeDescription, ZoneDescription};
//! use zonal::units::{CpuId, NodeId, PageCount, Pfn, ZoneKind};
//! use zonal::platform::one_thread::OneThread;
//! use zonal::{Allocator, Buffer, Config, Machine, Request};
//!
//! let id = NodeId::new(0).unwrap();
//! let memory = FrameRange { start: Pfn::new(0x1000), count: PageCount::new(0x4000) };
//! let nodes = [NodeDescription { id, cpus: &[CpuId::new(0)], distances: &[10] }];
//! let zones = [ZoneDescription { node: id, kind: ZoneKind::Normal, span: memory, managed: &[memory] }];
//! let machine = Machine::new(&nodes, &zones)?;
//!
//! let metadata = |bytes| Buffer::uninit(Box::leak(vec![MaybeUninit::uninit(); bytes].into_boxed_slice()));
//! let allocator = Allocator::new(OneThread::new(), &machine, &Config::default(), |r| Some(metadata(r.bytes)))?;
//!
//! let block = allocator.alloc(&Request::page())?;
//! allocator.free(block.first, block.order)?;
//! assert!(allocator.verify()?.balance());
//! # Ok::<(), Box<dyn core::error::Error>>(())
//! ```
//!
//! # What an embedder must know
//! - A block of order `n` has `2^n` frames and begins at a multiple of `2^n`. [`Allocator::alloc_frames`]
//!   allocates any other number of adjacent frames, and [`Allocator::split`] divides a block.
//! - Ordinary requests leave `watermarks.min` frames of each zone free for urgent requests and for reclaimers.
//! - The embedder supplies buffers for metadata once ([`Layout`]). They need less than 1.5 bytes per spanned frame in
//!   zones of at least 2 GiB and 512 MiB for each CPU on the node, at most 1.65 from 512 MiB and 64 MiB for each CPU on, and
//!   more in smaller zones, because each CPU has some KiB for each zone.
//! - The thread that allocates calls the reclaimers, and it holds no lock of the allocator meanwhile. If it holds a
//!   lock of the embedder that a reclaimer also acquires, it deadlocks at the first shortage, and no error is reported.
//!   Under such a lock use [`Request::no_wait`] ([`Reclaimer`](platform::reclaimer::Reclaimer)).
//! - A free of frames that are not allocated is refused with a reason ([`error::FreeError`]) and changes nothing.
//! - The embedder calls [`Allocator::tick`] once a second, and calls [`Allocator::background_reclaim`] for a node when
//!   the allocator asks the platform to wake the node's background worker.
//! - The allocator never moves or compacts frames. It accesses their contents only if that is requested, through the
//!   platform.
//!
//! # Modules
//! Callers use the types of `config`, `machine`, `request`, `mempolicy`, `units` and `error`. Embedders also need
//! `platform` and `layout`. `settings` has the names and ranges of
//! settings. `explain` has the steps of requests. `snapshot` and `verify` report and check
//! the state. `rules` has the arithmetic behind the
//! settings, and can be used without an allocator. `metadata` is for tools that attribute memory accesses to parts of
//! the metadata.
#![no_std]
#![deny(unsafe_code)]

#[macro_use]
mod messages;

pub mod config;
pub mod error;
pub mod machine;
mod node_mask;
pub mod units;

pub mod platform;

pub mod rules;
pub mod settings;

mod buddy;
// For tools and tests that attribute memory accesses to parts of the metadata.
#[doc(hidden)]
pub mod metadata;
mod pageset;
mod zone;
mod zonelist;

pub mod layout;
pub mod request;

mod allocator;
mod reclaim;

mod alloc;
mod ranges;

mod processes;

mod admin;
pub mod explain;

pub use admin::{snapshot, verify};
pub use allocator::Allocator;
pub use config::Config;
pub use layout::Layout;
pub use machine::Machine;
pub use metadata::arena::Buffer;
pub use node_mask::NodeMask;
pub use platform::Platform;
pub use processes::OnDeath;
pub use ranges::{Fence, Retirement};
pub use request::policy as mempolicy;
pub use request::policy::Policy;
pub use request::{Block, FrameRun, Request};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

#[cfg(test)]
extern crate std;
#[cfg(test)]
mod testing;
