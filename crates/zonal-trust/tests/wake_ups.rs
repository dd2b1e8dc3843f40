//! Wake-ups of a pool's workers under loom: the room itself, `wake.rs` of `zonal-linux`, over loom's locks and
//! cells. A wake-up that is lost leaves a thread waiting for ever, which loom reports.
//!
//! Run with `-- --nocapture` to see how many interleavings there were. Up to four preemptions are tried;
//! `ZONAL_INTERLEAVINGS=20` tries any number.

#[path = "../../zonal-linux/src/wake.rs"]
mod wake;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use loom::sync::atomic::AtomicU64;
use loom::thread;
use zonal::units::NodeId;

use crate::wake::WakeBoard;

/// Stands for the room of this name in `zonal-linux`: loom's parts, in the manner of `parking_lot`.
mod sync {
    use std::ops::{Deref, DerefMut};
    use std::time::Duration;

    pub(crate) use loom::sync::atomic::{AtomicBool, Ordering};

    #[derive(Debug, Default)]
    pub(crate) struct Mutex<T>(loom::sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(loom::sync::Mutex::new(value))
        }

        pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
            MutexGuard(Some(self.0.lock().expect("no thread failed")))
        }
    }

    /// Empty only while its holder waits.
    pub(crate) struct MutexGuard<'m, T>(Option<loom::sync::MutexGuard<'m, T>>);

    impl<T> Deref for MutexGuard<'_, T> {
        type Target = T;

        fn deref(&self) -> &T {
            self.0.as_ref().expect("nobody waits")
        }
    }

    impl<T> DerefMut for MutexGuard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            self.0.as_mut().expect("nobody waits")
        }
    }

    #[derive(Debug)]
    pub(crate) struct Condvar(loom::sync::Condvar);

    impl Default for Condvar {
        fn default() -> Self {
            Self::new()
        }
    }

    impl Condvar {
        pub(crate) fn new() -> Self {
            Self(loom::sync::Condvar::new())
        }

        pub(crate) fn notify_all(&self) {
            self.0.notify_all();
        }

        pub(crate) fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
            let held = guard.0.take().expect("nobody waits");
            guard.0 = Some(self.0.wait(held).expect("no thread failed"));
        }

        /// Time does not pass in a model: who is not notified waits for ever.
        pub(crate) fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, _: Duration) {
            self.wait(guard);
        }
    }
}

fn node(id: u16) -> NodeId {
    NodeId::new(id).expect("it is small")
}

/// A board for nodes 0 and 1, each with a worker.
fn board() -> Arc<WakeBoard> {
    Arc::new(WakeBoard::new((0..2).map(node)))
}

/// Tries the interleavings of `scenario`.
fn check(name: &str, scenario: fn()) {
    let is_bounded = std::env::var_os("ZONAL_INTERLEAVINGS").is_none();
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = is_bounded.then_some(4);
    let tried = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&tried);
    builder.check(move || {
        count.fetch_add(1, Relaxed); // one thread at a time
        scenario();
    });
    let extent = if is_bounded { "up to four preemptions" } else { "all" };
    println!("{name}: {} interleavings, {extent}", tried.load(Relaxed));
}

/// Threads of a model wait for each other at its end.
fn join(threads: impl IntoIterator<Item = thread::JoinHandle<()>>) {
    threads.into_iter().for_each(|thread| thread.join().expect("no thread failed"));
}

#[test]
fn a_worker_sees_what_was_done_before_each_wake_up() {
    check("two wakers, one worker", || {
        let (board, work) = (board(), Arc::new(AtomicU64::new(0)));
        let wakers = [(); 2].map(|()| {
            let (board, work) = (Arc::clone(&board), Arc::clone(&work));
            thread::spawn(move || {
                work.fetch_add(1, Relaxed); // the wake-up orders
                board.wake(node(1));
            })
        });
        // Not before all is seen: without its last wake-up the worker waits for ever.
        while work.load(Relaxed) < 2 {
            assert_eq!(board.take(1), Some(vec![node(1)]));
        }
        join(wakers);
    });
}

#[test]
fn the_end_reaches_workers_and_sleepers() {
    check("a worker, a sleeper, the end", || {
        let board = board();
        let [worker, sleeper] = [Arc::clone(&board), Arc::clone(&board)];
        let worker = thread::spawn(move || while worker.take(0).is_some() {});
        let sleeper = thread::spawn(move || assert!(sleeper.sleep(Duration::from_secs(1))));
        board.stop();
        join([worker, sleeper]);
        assert_eq!(board.take(1), None);
    });
}

#[test]
fn a_wake_up_beside_the_end_keeps_nobody() {
    check("a worker, a waker, the end", || {
        let board = board();
        let [worker, waker] = [Arc::clone(&board), Arc::clone(&board)];
        let worker = thread::spawn(move || while worker.take(0).is_some() {});
        let waker = thread::spawn(move || waker.wake(node(0)));
        board.stop();
        join([worker, waker]);
    });
}

#[test]
fn who_was_held_is_woken_later() {
    check("a worker, a waker, both held", || {
        let board = board();
        let [worker, waker] = [Arc::clone(&board), Arc::clone(&board)];
        let worker = thread::spawn(move || assert_eq!(worker.take(0), Some(vec![node(0)])));
        let waker = thread::spawn(move || waker.wake(node(0)));
        drop(board.hold());
        join([worker, waker]);
    });
}

#[test]
fn workers_are_woken_apart() {
    check("two workers", || {
        let board = board();
        let workers = [0, 1].map(|at| {
            let board = Arc::clone(&board);
            thread::spawn(move || {
                assert_eq!(board.take(at), Some(vec![node(at as u16)]));
            })
        });
        board.wake(node(1));
        board.wake(node(0));
        join(workers);
        assert_eq!(board.workers(), board.nodes_of(0).chain(board.nodes_of(1)).count());
    });
}
