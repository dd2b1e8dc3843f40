//! Histories of operations, played against the allocator and a naive model at once.
//!
//! An [`Operation`] is plain data, lawful in any world: numbers in it are taken modulo what there is.
//! A [`Plan`] describes a machine; [`Plan::play`] builds an allocator over it in a [`World`] whose CPU and
//! clock are steered; a [`Player`] applies operations there, judges every answer by its [`Model`], and
//! compares all books when asked to. The [`generator`] reads machines and operations off bytes, for random
//! histories and for fuzzing.

mod cache;
pub mod generator;
mod kept;
mod model;
mod operation;
mod plan;
mod player;
mod policies;
mod search;
mod steered;
mod verdict;

pub use cache::Manner;
pub use kept::{Kept, Recording, State};
pub use model::{Held, Model};
pub use operation::{Ask, Operation, Scope, Setting, Stretch, Wait};
pub use plan::{Plan, World, ZonePlan};
pub use player::{Act, Player};
pub use policies::Policies;
pub use search::{Found, Move, Search, Telling};
pub use steered::{Cells, Controls, Plain, Steered};
