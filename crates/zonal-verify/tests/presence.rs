//! Where a pool's threads are, under loom: the file itself, `presence.rs` of `zonal-linux`, over loom's locks. Who
//! waits for ever is reported by loom.
//!
//! Run with `-- --nocapture` to see how many interleavings there were. Up to four preemptions are tried;
//! `ZONAL_INTERLEAVINGS=20` tries any number.

#[path = "../../zonal-linux/src/threads/presence.rs"]
mod presence;
#[path = "common/sync.rs"]
mod sync;

/// Models have one process.
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

/// A pool of one thread: where it is, the user's lock, and who is in the pool's own code, as a test sees it.
struct World {
    presence: Presence,
    users: Mutex<()>,
    /// Changed while threads are at work, relaxed: only the presence orders it.
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

    /// One round of work with a reclaimer that takes the user's lock; whether it was asked.
    fn work(&self) -> bool {
        let _at_work = self.presence.work();
        self.step(1);
        self.step(1_u32.wrapping_neg());
        let Some(away) = self.presence.go_into_reclaimer() else { return false };
        drop(held(self.users.lock()));
        drop(away);
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

    /// Nobody is at work, or begins meanwhile.
    fn assert_nobody_works(&self) {
        assert_eq!(self.at_work.load(Relaxed), 0, "a thread is at work");
        self.step(100);
        assert_eq!(self.at_work.load(Relaxed), 100, "a thread began to work");
        self.step(100_u32.wrapping_neg());
    }
}

#[test]
fn the_end_waits_for_work_but_for_no_reclaimer() {
    check("a thread, the end under its reclaimer's lock", || {
        let world = World::new();
        let locked = held(world.users.lock());
        let thread = world.thread();
        world.presence.wait_for_the_end();
        drop(locked);
        thread.join().expect("no thread failed");
        world.assert_nobody_works();
    });
}

#[test]
fn the_end_comes_after_all_threads_outside_reclaimers() {
    check("a thread, the end", || {
        let world = World::new();
        let ends = Arc::clone(&world);
        let thread = thread::spawn(move || {
            {
                let _at_work = ends.presence.work();
                ends.step(1);
                ends.step(1_u32.wrapping_neg());
            }
            ends.at_work.store(7, Relaxed); // its last words
            ends.presence.leave();
        });
        world.presence.wait_for_the_end();
        assert_eq!(world.at_work.load(Relaxed), 7, "a thread had not ended");
        thread.join().expect("no thread failed");
    });
}

#[test]
fn nobody_works_during_a_rest_under_the_reclaimers_lock() {
    check("a thread, a rest under its reclaimer's lock", || {
        let world = World::new();
        let locked = held(world.users.lock());
        let thread = world.thread();
        let rest = world.presence.rest();
        world.assert_nobody_works();
        assert!(rest.in_reclaimers <= 1);
        drop(rest);
        drop(locked);
        thread.join().expect("no thread failed");
    });
}

#[test]
fn rests_of_both_kinds_get_along() {
    check("a thread, a rest, one outside reclaimers", || {
        let world = World::new();
        let thread = world.thread();
        let other = Arc::clone(&world);
        let verifier = thread::spawn(move || {
            let rest = other.presence.rest_outside_reclaimers();
            assert_eq!(other.at_work.load(Relaxed), 0);
            assert_eq!(rest.in_reclaimers, 0);
        });
        {
            let _rest = world.presence.rest();
            assert_eq!(world.at_work.load(Relaxed), 0);
        }
        verifier.join().expect("no thread failed");
        thread.join().expect("no thread failed");
    });
}

#[test]
fn no_reclaimer_is_asked_once_the_end_has_begun() {
    check("the end before the work", || {
        let world = World::new();
        world.presence.leave();
        world.presence.wait_for_the_end();
        world.presence.join();
        assert!(!world.work());
        world.presence.leave();
    });
}
