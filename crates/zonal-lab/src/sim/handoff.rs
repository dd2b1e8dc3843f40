//! Passes a value from one thread to a waiting thread.

use std::cell::{Cell, RefCell};

use super::thread_id::ThreadId;
use super::time::Time;
use super::world::World;

/// A single-value channel between two threads.
#[derive(Debug)]
pub struct Handoff<T> {
    thing: RefCell<Option<T>>,
    waiting: Cell<Option<ThreadId>>,
}

impl<T> Default for Handoff<T> {
    fn default() -> Self {
        Self { thing: RefCell::new(None), waiting: Cell::new(None) }
    }
}

impl<T> Handoff<T> {
    /// Stores a value. A thread that waits for the value wakes up `latency` later.
    ///
    /// # Panics
    /// Panics if the previous value has not been removed yet.
    pub fn put(&self, world: &World, thing: T, latency: Time) {
        world.sync();
        assert!(self.thing.replace(Some(thing)).is_none(), "the previous value has not been removed");
        if let Some(thread) = self.waiting.take() {
            world.wake(thread, world.now() + latency);
        }
    }

    /// Removes and returns the value. The running thread waits if there is no value yet.
    pub fn take(&self, world: &World) -> T {
        world.sync();
        loop {
            if let Some(thing) = self.thing.take() {
                return thing;
            }
            self.waiting.set(Some(world.thread()));
            world.idle();
        }
    }
}
