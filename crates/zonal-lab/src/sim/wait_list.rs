//! Threads that wait for a condition.

use std::cell::RefCell;
use std::collections::VecDeque;

use super::thread_id::ThreadId;
use super::world::World;

/// A list of waiting threads, which are woken in the order of arrival. A woken thread must check its condition again.
#[derive(Default, Debug)]
pub struct WaitList {
    waiting: RefCell<VecDeque<ThreadId>>,
}

impl WaitList {
    /// Blocks the running thread until it is woken.
    pub fn wait(&self, world: &World) {
        self.waiting.borrow_mut().push_back(world.thread());
        world.idle();
    }

    /// Wakes up to `most` of the waiting threads.
    pub fn wake(&self, world: &World, most: usize) {
        if !self.waiting.borrow().is_empty() {
            world.sync();
            let count = most.min(self.waiting.borrow().len());
            let woken: Vec<ThreadId> = self.waiting.borrow_mut().drain(..count).collect();
            woken.into_iter().for_each(|thread| world.wake(thread, world.now()));
        }
    }
}
