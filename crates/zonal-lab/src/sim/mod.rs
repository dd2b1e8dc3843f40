//! The simulated machine: virtual CPUs that run the allocator, and what their accesses cost.
//!
//! `hardware.rs` has the prices, `machine.rs` puts a machine together; `world.rs` is its state while
//! it runs, `engine.rs` runs its threads, `fiber.rs` gives them stacks. `cells.rs`, `locks.rs` and
//! `platform.rs` are what the allocator sees; `charge.rs` charges its accesses by the directory in
//! `coherence.rs` and `line_queue.rs`; `touch.rs` with `bandwidth.rs` those to the frames themselves, `disk.rs` what is read and
//! written.

mod access;
mod bandwidth;
mod cells;
mod charge;
mod coherence;
mod disk;
mod engine;
mod fiber;
mod geometry;
mod handoff;
mod hardware;
mod join;
mod line_queue;
mod lock_queues;
mod locks;
mod machine;
mod platform;
mod reclaim;
mod reclaimers;
#[cfg(test)]
mod tests;
mod thread_id;
mod time;
mod touch;
mod wait_list;
mod world;

pub use charge::ProgramLine;
pub use disk::{Disk, Transfer};
pub use engine::{Role, RunError, Threads};
pub use handoff::Handoff;
pub use hardware::{Arbitration, Hardware, LockKind};
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
