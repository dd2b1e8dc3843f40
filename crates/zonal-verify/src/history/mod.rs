//! Histories of operations, which the allocator executes and a naive model follows.
//!
//! An [`Operation`] is plain data and valid in any world, because each number in it is taken modulo the count of the
//! items that it selects from. A [`Plan`] describes a machine. [`Plan::with_world`] builds an allocator over it in a
//! [`World`], whose CPU and clock are controlled. An [`Executor`] applies operations there, checks every answer with
//! its [`Model`], and compares all accounting on request. The [`generator`] reads machines and operations from bytes,
//! for random histories and for fuzzing.

mod answers;
mod executor;
pub mod generator;
mod model;
mod operation;
mod plan;
mod platform;
mod policies;
mod preference;
mod reclaimer;
mod recording;
mod search;

pub use executor::{Execution, Executor};
pub use model::{Held, Model};
pub use operation::{FenceEnd, FrameSpec, Operation, RequestSpec, Scope, Setting, Wait};
pub use plan::{Plan, World, ZonePlan};
pub use platform::{Cells, ControlledPlatform, Controls, Plain};
pub use policies::Policies;
pub use reclaimer::ReclaimMode;
pub use recording::{RecordedCells, Recording, State};
pub use search::{Found, Move, Search, StateKey};
