//! Reclaim on a simulated machine: the program that is asked to free frames, and the wake-up of reclaim workers.
//!
//! Neighbours: `sim/platform.rs` forwards the allocator's requests, `sim/reclaimers.rs` has the state.

use zonal::units::NodeId;

use super::reclaimers::{ProgramReclaimer, Worker};
use super::world::World;

/// A guard: reclaim requests go to a program until it is dropped.
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
        // SAFETY: only the lifetime changes; the pointer is used until `Asked`, which borrows the program, is
        // dropped.
        #[allow(unsafe_code)]
        let program: *const (dyn ProgramReclaimer + 'static) = unsafe { std::mem::transmute(program) };
        self.reclaim.program.replace(Some(program));
        Asked { world: self }
    }

    /// Returns the program that handles reclaim requests.
    pub(super) fn reclaimer(&self) -> Option<&dyn ProgramReclaimer> {
        let program = *self.reclaim.program.borrow();
        // SAFETY: set by `ask`, whose guard outlives all threads of the run and resets the pointer.
        #[allow(unsafe_code)]
        program.map(|program| unsafe { &*program } as &dyn ProgramReclaimer)
    }

    /// Wakes the reclaim worker of a node, or makes it run again if it is awake.
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

    /// Blocks the running thread, the reclaim worker of the node with index `place`, until it is woken.
    pub fn wait_for_reclaim(&self, place: usize) {
        {
            let mut workers = self.reclaim.workers.borrow_mut();
            if workers.len() <= place {
                workers.resize(self.geometry.nodes, Worker::default());
            }
            let worker = &mut workers[place];
            if std::mem::take(&mut worker.wanted) {
                return;
            }
            worker.asleep = Some(self.thread());
        }
        self.idle();
    }
}
