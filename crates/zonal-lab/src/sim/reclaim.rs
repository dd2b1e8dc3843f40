//! Reclaim on a simulated machine: directs reclaim requests to a program that frees frames, and wakes the reclaim
//! workers.
//!
//! Related files: `sim/platform.rs` forwards the allocator's requests, `sim/reclaimers.rs` defines the state.

use zonal::units::NodeId;

use super::reclaimers::ProgramReclaimer;
use super::world::World;

/// A guard. While it exists, reclaim requests are directed to a program.
#[must_use]
pub struct Asked<'a> {
    world: &'a World,
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        self.world.reclaim.program.replace(None);
    }
}

impl World {
    /// Directs reclaim requests to `program` until the returned guard is dropped.
    pub fn ask<'a>(&'a self, program: &'a (dyn ProgramReclaimer + 'a)) -> Asked<'a> {
        let program: *const (dyn ProgramReclaimer + 'a) = program;
        // SAFETY: the transmute changes only the lifetime. The pointer is used only until the `Asked` is dropped, and
        // the `Asked` borrows the program.
        #[allow(unsafe_code)]
        let program: *const (dyn ProgramReclaimer + 'static) = unsafe { std::mem::transmute(program) };
        self.reclaim.program.replace(Some(program));
        Asked { world: self }
    }

    /// Returns the program that handles reclaim requests.
    pub(super) fn reclaimer(&self) -> Option<&dyn ProgramReclaimer> {
        let program = *self.reclaim.program.borrow();
        // SAFETY: `ask` sets the pointer. Its guard outlives all threads of the run and resets the pointer when it is
        // dropped.
        #[allow(unsafe_code)]
        program.map(|program| unsafe { &*program } as &dyn ProgramReclaimer)
    }

    /// Wakes the reclaim worker of a node. If the worker is awake, it runs once more before it sleeps.
    pub(super) fn wake_reclaim_worker(&self, node: NodeId) {
        let mut workers = self.reclaim.workers.borrow_mut();
        let Some(worker) = self.geometry.place_of(node).and_then(|place| workers.get_mut(place)) else {
            return;
        };
        match worker.asleep.take() {
            Some(thread) => self.wake(thread, self.now()),
            None => worker.wanted = true,
        }
    }

    /// Blocks the running thread until it is woken. The thread must be the reclaim worker of the node with index
    /// `place`.
    pub fn wait_for_reclaim(&self, place: usize) {
        if self.take_wake_up(place) {
            return;
        }
        self.reclaim.workers.borrow_mut()[place].asleep = Some(self.thread());
        self.idle();
    }

    /// Takes the wake-up that a node's reclaim worker got while it was awake. Returns whether there was one.
    pub(super) fn take_wake_up(&self, place: usize) -> bool {
        std::mem::take(&mut self.reclaim.workers.borrow_mut()[place].wanted)
    }
}
