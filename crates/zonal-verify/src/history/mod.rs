//! Histories of operations, executed by the allocator and by a naive model at once.
//!
//! An [`Operation`] is plain data, valid in any world: numbers in it are taken modulo what there is.
//! A [`Plan`] describes a machine; [`Plan::with_world`] builds an allocator over it in a [`World`] whose CPU and
//! clock are controlled; a [`Executor`] applies operations there, checks every answer by its [`Model`], and
//! compares all accounting on request. The [`generator`] reads machines and operations off bytes, for random
//! histories and for fuzzing.

mod answers;
mod executor;
pub mod generator;
mod model;
mod operation;
mod plan;
mod platform;
mod policies;
mod reclaimer;
mod recording;
mod search;

pub use executor::{Execution, Executor};
pub use model::{Held, Model};
pub use operation::{FrameSpec, Operation, RequestSpec, Scope, Setting, Wait};
pub use plan::{Plan, World, ZonePlan};
pub use platform::{Cells, ControlledPlatform, Controls, Plain};
pub use policies::Policies;
pub use reclaimer::ReclaimMode;
pub use recording::{RecordedCells, Recording, State};
pub use search::{Found, Move, Search, StateKey};
