//! zonal: a NUMA-aware page-frame allocator for kernels, hypervisors and user space.
//!
//! The allocator hands out page frames by number and never accesses their contents. The embedder describes the
//! machine by its nodes, zones, CPUs and distances. Requests are served from the caller's node first, then from
//! other nodes in fallback order. Per-CPU pagesets serve most requests without a shared lock, watermarks keep
//! reserves, and reclaimers are called for frames under pressure. The core has no heap, no dependencies and no
//! global state.
//!
//! Start with [`Allocator`]. Describe the machine as a [`Machine`], choose a [`Config`], implement [`Platform`]
//! for the environment, and make [`Request`]s. The machine below has one CPU. With several CPUs, choose
//! [`TryLock`](platform::cpu_local::TryLock), or [`Pinned`](platform::cpu_local::Pinned) with a [`Quiesce`](platform::cpu_local::Quiesce) that interrupts the other CPUs,
//! as `examples/embed` does.
//!
//! ```
//! # use core::mem::MaybeUninit;
//! # use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64};
//! use zonal::platform::cpu_local::{OneCpu, Pinned};
//! use zonal::machine::{FrameRange, NodeDescription, ZoneDescription};
//! use zonal::units::{CpuId, Moment, NodeId, PageCount, Pfn, ZoneKind};
//! use zonal::{Allocator, Buffer, Config, Machine, Platform, Request};
//!
//! struct Kernel;
//! impl Platform for Kernel {
//!     type U8 = AtomicU8;
//!     type U32 = AtomicU32;
//!     type U64 = AtomicU64;
//!     type Lock = zonal::platform::SpinLock;
//!     type CpuLocal = Pinned;
//!     fn cpu_local(&self) -> &Pinned { &Pinned(OneCpu) }
//!     fn current_cpu(&self) -> CpuId { CpuId::new(0) }
//!     fn now(&self) -> Moment { Moment::from_ns(0) }
//! }
//!
//! let id = NodeId::new(0).unwrap();
//! let memory = FrameRange { start: Pfn::new(0x1000), count: PageCount::new(0x4000) };
//! let nodes = [NodeDescription { id, cpus: &[CpuId::new(0)], distances: &[10] }];
//! let zones = [ZoneDescription { node: id, kind: ZoneKind::Normal, span: memory, managed: &[memory] }];
//! let machine = Machine::new(&nodes, &zones)?;
//!
//! let metadata = |bytes| Buffer::uninit(Box::leak(vec![MaybeUninit::uninit(); bytes].into_boxed_slice()));
//! let allocator = Allocator::new(Kernel, &machine, &Config::default(), |r| Some(metadata(r.bytes)))?;
//!
//! let block = allocator.alloc(&Request::page())?;
//! allocator.free(block.first, block.order)?;
//! assert!(allocator.verify()?.balance());
//! # Ok::<(), Box<dyn core::error::Error>>(())
//! ```
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
