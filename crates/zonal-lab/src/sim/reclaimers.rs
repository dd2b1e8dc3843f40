//! Programs of a simulated machine that can free frames on request, and the state of the reclaim workers.
//!
//! Related files: `sim/reclaim.rs` uses this state.

use std::cell::RefCell;

use zonal::platform::reclaimer::ReclaimRequest;
use zonal::units::PageCount;

use super::thread_id::ThreadId;

/// A program that can free frames on request. It is the simulated counterpart of
/// `zonal::platform::reclaimer::Reclaimer`.
pub trait ProgramReclaimer {
    /// Returns the number of frames that could be freed for `request`.
    fn count(&self, request: &ReclaimRequest) -> PageCount;
    /// Tries to free the frames that `request` requires, and returns the number of frames freed.
    fn reclaim(&self, request: &ReclaimRequest) -> PageCount;
}

/// The state of a node's reclaim worker.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Worker {
    pub(super) asleep: Option<ThreadId>,
    pub(super) wanted: bool,
}

/// The reclaiming program of a world, and the reclaim worker of each node, indexed by node.
pub(crate) struct Reclaim {
    pub(super) workers: RefCell<Vec<Worker>>,
    pub(super) program: RefCell<Option<*const (dyn ProgramReclaimer + 'static)>>,
}

impl Reclaim {
    /// Creates the state of a machine with `nodes` nodes. All workers are awake.
    pub(super) fn new(nodes: usize) -> Self {
        Self { workers: RefCell::new(vec![Worker::default(); nodes]), program: RefCell::default() }
    }
}
