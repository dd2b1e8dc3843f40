//! Tests the presence of a pool's threads under loom. The tests compile the file `presence.rs` of `zonal-linux` with
//! loom's locks. loom reports threads that wait for ever.
//!
//! Run with `-- --nocapture` to see the number of interleavings. The tests explore up to four preemptions, or any
//! number with `ZONAL_INTERLEAVINGS=20`.

#[path = "../../zonal-linux/src/threads/presence.rs"]
mod presence;
#[path = "common/sync.rs"]
mod sync;

/// Replaces the module `memory` of `zonal-linux`, because a model has only one process.
mod memory {
    pub(crate) mod origin {
        #[derive(Clone, Copy, Debug)]
        pub(crate) struct Origin;

        impl Origin {
            pub(crate) fn here() -> Self {
                Self
            }

            pub(crate) fn is_here(self) -> bool {
                true
            }
        }
    }
}

use std::sync::Arc;

use loom::sync::Mutex;
use loom::sync::atomic::{AtomicU32, Ordering::Relaxed};
use loom::thread;

use crate::presence::Presence;
use crate::sync::{check, held};

/// A pool of one thread: its presence, the user's lock, and the number of threads in the pool's own code.
struct World {
    presence: Presence,
    users: Mutex<()>,
    /// Changed while threads are at work. Relaxed: only the presence orders it.
    at_work: AtomicU32,
}

impl World {
    fn new() -> Arc<Self> {
        let presence = Presence::new();
        presence.join();
        Arc::new(Self { presence, users: Mutex::new(()), at_work: AtomicU32::new(0) })
    }

    fn step(&self, by: u32) {
        self.at_work.store(self.at_work.load(Relaxed).wrapping_add(by), Relaxed);
    }

    /// Does one round of work with a reclaimer that takes the user's lock. Returns whether the reclaimer was called.
    fn work(&self) -> bool {
        let _at_work = self.presence.work();
        self.step(1);
        self.step(1_u32.wrapping_neg());
        let Some(in_reclaimer) = self.presence.enter_reclaimer() else { return false };
        drop(held(self.users.lock()));
        drop(in_reclaimer);
        self.step(1);
        self.step(1_u32.wrapping_neg());
        true
    }

    fn thread(self: &Arc<Self>) -> thread::JoinHandle<()> {
        let world = Arc::clone(self);
        thread::spawn(move || {
            world.work();
            world.presence.leave();
        })
    }

    /// Checks that no thread is at work, and that none begins during the check.
    fn assert_no_thread_works(&self) {
        assert_eq!(self.at_work.load(Relaxed), 0, "a thread is at work");
        self.step(100);
        assert_eq!(self.at_work.load(Relaxed), 100, "a thread began to work");
        self.step(100_u32.wrapping_neg());
    }
}

#[test]
fn exit_waits_for_work_but_not_for_reclaimers() {
    check("a thread, the end under its reclaimer's lock", || {
        let world = World::new();
        let locked = held(world.users.lock());
        let thread = world.thread();
        world.presence.wait_until_exited();
        drop(locked);
        thread.join().expect("no thread failed");
        world.assert_no_thread_works();
    });
}

#[test]
fn exit_comes_after_all_threads_outside_reclaimers() {
    check("a thread, the end", || {
        let world = World::new();
        let ends = Arc::clone(&world);
        let thread = thread::spawn(move || {
            {
                let _at_work = ends.presence.work();
                ends.step(1);
                ends.step(1_u32.wrapping_neg());
            }
            ends.at_work.store(7, Relaxed); // the last store before the thread exits
            ends.presence.leave();
        });
        world.presence.wait_until_exited();
        assert_eq!(world.at_work.load(Relaxed), 7, "a thread had not ended");
        thread.join().expect("no thread failed");
    });
}

#[test]
fn no_thread_works_during_a_pause_under_the_lock_of_a_reclaimer() {
    check("a thread, a rest under its reclaimer's lock", || {
        let world = World::new();
        let locked = held(world.users.lock());
        let thread = world.thread();
        let pause = world.presence.pause();
        world.assert_no_thread_works();
        assert!(pause.in_reclaimers <= 1);
        drop(pause);
        drop(locked);
        thread.join().expect("no thread failed");
    });
}

#[test]
fn a_thread_that_is_stopped_ends_even_during_a_pause() {
    check("a thread, a pause, a stop during it", || {
        let world = World::new();
        let is_stopped = Arc::new(AtomicU32::new(0));
        let (works, stop) = (Arc::clone(&world), Arc::clone(&is_stopped));
        let thread = thread::spawn(move || {
            // Relaxed: the presence orders it.
            if let Some(_at_work) = works.presence.work_unless(|| stop.load(Relaxed) == 1) {
                works.step(1);
                works.step(1_u32.wrapping_neg());
            }
            works.presence.leave();
        });
        let pause = world.presence.pause();
        world.assert_no_thread_works();
        is_stopped.store(1, Relaxed);
        world.presence.notify();
        thread.join().expect("the thread ends before the pause");
        world.assert_no_thread_works();
        drop(pause);
    });
}

#[test]
fn pauses_of_both_kinds_can_overlap() {
    check("a thread, a rest, one outside reclaimers", || {
        let world = World::new();
        let thread = world.thread();
        let other = Arc::clone(&world);
        let verifier = thread::spawn(move || {
            let pause = other.presence.pause_outside_reclaimers();
            assert_eq!(other.at_work.load(Relaxed), 0);
            assert_eq!(pause.in_reclaimers, 0);
        });
        {
            let _pause = world.presence.pause();
            assert_eq!(world.at_work.load(Relaxed), 0);
        }
        verifier.join().expect("no thread failed");
        thread.join().expect("no thread failed");
    });
}

#[test]
fn no_reclaimer_is_called_after_the_exit_began() {
    check("the end before the work", || {
        let world = World::new();
        world.presence.leave();
        world.presence.wait_until_exited();
        world.presence.join();
        assert!(!world.work());
        world.presence.leave();
    });
}
