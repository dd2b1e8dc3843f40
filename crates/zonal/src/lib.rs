//! zonal: a NUMA-aware page-frame allocator for kernels, hypervisors and user space.
//!
//! The allocator hands out page frames by number and never accesses their contents. The embedder describes the
//! machine by its nodes, zones, CPUs and distances. Requests are served from the caller's node first, then from
//! other nodes in fallback order. Per-CPU pagesets serve most requests without a shared lock, watermarks keep
//! reserves, and reclaimers are called for frames under pressure. The core has no heap, no dependencies and no
//! global state.
//!
//! This crate is for embedders, who have frames and want them managed. Programs that want memory on Linux use the crate
//! `zonal-linux`, which maps the memory and runs the threads.
//!
//! Start with [`Allocator`]. Describe the machine as a [`Machine`], choose a [`Config`], implement [`Platform`]
//! for the environment, and make [`Request`]s. The example uses the smallest platform,
//! [`OneThread`](platform::one_thread::OneThread). A kernel with several CPUs implements [`Platform`] with
//! [`TryLock`](platform::cpu_local::TryLock), or [`Pinned`](platform::cpu_local::Pinned) with a [`Quiesce`](platform::cpu_local::Quiesce) that interrupts the other CPUs,
//! as `examples/embed` does.
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
//! - A block of order `n` has `2^n` frames and begins at a multiple of `2^n`. Three frames need a block of four
//!   ([`Order::holding`](units::Order::holding)).
//! - Ordinary requests leave `watermarks.min` frames of each zone for urgent requests and for reclaimers.
//! - Metadata is in buffers that the embedder supplies once ([`Layout`]): about 1.5 bytes per frame spanned.
//! - Reclaimers are called with no lock of the allocator held, by the thread that allocates. A thread that allocates
//!   while holding a lock of its own that the reclaimer takes waits for itself, without a message, at the first
//!   shortage; under such a lock use [`Request::no_wait`] ([`Reclaimer`](platform::reclaimer::Reclaimer)).
//! - Frees of frames that are not allocated are refused with a reason ([`error::FreeError`]) and change nothing.
//! - The embedder calls [`Allocator::tick`] once a second, and [`Allocator::background_reclaim`] for each node that
//!   the platform must wake.
//! - Frames are never moved or compacted, and their contents are accessed only through the platform.
//!
//! # Modules
//! `config`, `machine`, `request`, `mempolicy`, `units` and `error` are what callers name; `platform` and `layout` are
//! for embedders; `snapshot` and `verify` show and check the state; `rules` has the arithmetic behind the settings,
//! usable on its own. `metadata` is for tools that attribute memory accesses to parts of the metadata.
#![no_std]
#![deny(unsafe_code)]
#[cfg(test)]
extern crate std;

pub mod config;
pub mod error;
pub mod machine;
mod node_mask;
pub mod units;

pub mod platform;

pub mod rules;

mod buddy;
// For tools and tests that attribute memory accesses to parts of the metadata.
#[doc(hidden)]
pub mod metadata;
mod pageset;
mod zone;
mod zonelist;

mod admin;
mod alloc;

#[cfg(test)]
pub(crate) mod testing;

pub use admin::{snapshot, verify};
pub use alloc::allocator::Allocator;
pub use alloc::{layout, mempolicy, request};
pub use config::Config;
pub use layout::Layout;
pub use machine::Machine;
pub use mempolicy::Policy;
pub use metadata::arena::Buffer;
pub use node_mask::NodeMask;
pub use platform::Platform;
pub use request::{Block, Request};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
