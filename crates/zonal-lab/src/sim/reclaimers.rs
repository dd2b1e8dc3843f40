//! Programs of a simulated machine that can give frames back, and the workers that ask them: the state.
//!
//! Neighbours: `reclaim.rs` is what is done with it.

use std::cell::RefCell;

use zonal::platform::reclaimer::ReclaimRequest;
use zonal::units::PageCount;

use super::thread_id::ThreadId;

/// A program of the simulated machine that can give frames back; as `zonal::platform::reclaimer::Reclaimer`.
pub trait ProgramReclaimer {
    /// Frames that could be given up for `request`.
    fn count(&self, request: &ReclaimRequest) -> PageCount;
    /// Tries to free what `request` asks for; returns how many frames it freed.
    fn reclaim(&self, request: &ReclaimRequest) -> PageCount;
}

/// A node's worker.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Worker {
    pub(super) asleep: Option<ThreadId>,
    pub(super) wanted: bool,
}

/// Who reclaims.
#[derive(Default)]
pub(crate) struct Reclaim {
    pub(super) workers: RefCell<Vec<Worker>>,
    pub(super) program: RefCell<Option<*const (dyn ProgramReclaimer + 'static)>>,
}
