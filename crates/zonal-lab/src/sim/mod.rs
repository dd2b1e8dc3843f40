//! The simulated machine: virtual CPUs that run the allocator, and what their accesses cost.
//!
//! `hardware.rs` has the prices, `machine.rs` puts a machine together; `world.rs` is its state while
//! it runs, `engine.rs` runs its threads, `fiber.rs` gives them stacks. `cells.rs`, `locks.rs` and
//! `platform.rs` are what the allocator sees; `coherence.rs` with `line_queue.rs` charges its
//! accesses; `touch.rs` with `bandwidth.rs` those to the frames themselves, `disk.rs` what is read and
//! written.

mod bandwidth;
mod cells;
mod coherence;
mod disk;
mod engine;
mod fiber;
mod handoff;
mod hardware;
mod join;
mod line_queue;
mod locks;
mod machine;
mod platform;
mod reclaim;
#[cfg(test)]
mod tests;
mod time;
mod touch;
mod wait_list;
mod world;

pub use coherence::ProgramLine;
pub use disk::{Disk, Transfer};
pub use engine::{Role, RunError, Threads};
pub use handoff::Handoff;
pub use hardware::{Arbitration, Hardware, LockKind};
pub use join::Join;
pub use locks::{ProgramLock, Waits};
pub use machine::{SimulateError, SimulatedMachine, Simulation};
pub use platform::Lab;
pub use reclaim::ProgramReclaimer;
pub use time::Time;
pub use wait_list::WaitList;
pub use world::{Account, ThreadId, World};
