//! Frames from the page-frame allocator [`zonal`] behind the traits of other projects.
//!
//! Each adapter is a feature of this crate, and none is on by default:
//!
//! | feature | adapter | for |
//! |---|---|---|
//! | `x86_64` | `x86_64::TableFrames` | page tables of the crate `x86_64`: frames of 4 KiB, 2 MiB and 1 GiB |
//! | `allocator-api2` | `allocator_api2::PageAlloc` | containers with an allocator parameter, such as the maps of `hashbrown` |
//! | `linux` | | pools of `zonal-linux` as the source for a `PageAlloc`'s frames |
//! | `vm-memory` | `vm_memory::PoolRegion` | memory of virtual machines from a pool, on chosen nodes; includes `linux` |
//!
//! The crate is `no_std` unless `linux` or `vm-memory` is on. `docs/adapters.md` has full adapters for kernels whose traits
//! are not part of this crate.

// For contributors: `source.rs` is the interface to frames that have addresses, which `allocator_api2.rs` uses.
// `docs/unsafe.md` lists the conditions of the unsafe code.
#![no_std]
#[cfg(any(test, feature = "linux"))]
extern crate std;

#[cfg(feature = "allocator-api2")]
pub mod allocator_api2;
#[cfg(feature = "allocator-api2")]
pub mod source;
#[cfg(feature = "vm-memory")]
pub mod vm_memory;
#[cfg(feature = "x86_64")]
pub mod x86_64;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

#[cfg(doctest)]
#[doc = include_str!("../../../docs/adapters.md")]
struct Adapters;
