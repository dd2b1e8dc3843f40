//! The simulated machine: virtual CPUs that run the allocator, and the cost of their memory accesses.
//!
//! - Setup: `sim/hardware.rs` defines the costs, `sim/machine.rs` assembles a machine.
//! - Execution: `sim/world.rs` is the state of a running machine, `sim/engine.rs` schedules its threads,
//!   `sim/agenda.rs` orders events, and `sim/fiber.rs` provides the threads' stacks.
//! - The allocator's platform: `sim/cells.rs`, `sim/locks.rs` and `sim/platform.rs`. `sim/conformance.rs` runs the scenarios
//!   of `zonal-conformance` on it. `sim/kernel_drains.rs` makes pagesets drain like those of some kernels.
//! - Costs: `sim/charge.rs` charges accesses to metadata. It uses the cache-line directory in `sim/coherence.rs`, the
//!   caches in `sim/caches.rs`, and the queues in `sim/line_queue.rs`. `sim/touch.rs`, `sim/bandwidth.rs` and
//!   `sim/demand.rs` charge accesses to the contents of frames; `sim/disk.rs` charges disk requests.

mod access;
mod agenda;
mod bandwidth;
mod caches;
mod cells;
mod charge;
mod coherence;
#[cfg(test)]
mod conformance;
mod demand;
mod disk;
mod doublings;
mod engine;
mod fiber;
mod geometry;
mod handoff;
mod hardware;
mod join;
mod kernel_drains;
mod line_map;
mod line_queue;
mod lock_queues;
mod locks;
mod machine;
mod platform;
mod programs;
mod reclaim;
mod reclaimers;
#[cfg(test)]
mod tests;
mod thread_id;
mod time;
mod together;
mod touch;
mod wait_list;
mod world;

pub use charge::ProgramLine;
pub use disk::{Disk, Transfer};
pub use engine::{Role, RunError, Threads};
pub use handoff::Handoff;
pub use hardware::{Arbitration, Drains, Generation, Hardware, LockHold, LockKind};
pub use join::Join;
pub use line_queue::Waits;
pub use locks::ProgramLock;
pub use machine::{SimulateError, SimulatedMachine, Simulation};
pub use platform::Lab;
pub use reclaimers::ProgramReclaimer;
pub use thread_id::ThreadId;
pub use time::Time;
pub use wait_list::WaitList;
pub use world::{Account, World};
