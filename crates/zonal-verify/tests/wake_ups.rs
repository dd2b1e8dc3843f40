//! Tests wake-ups of a pool's workers under loom. The tests compile the file `wake.rs` of `zonal-linux` with loom's
//! locks and cells. A lost wake-up makes a thread wait for ever, which loom reports.
//!
//! Run with `-- --nocapture` to see the number of interleavings. The tests explore up to four preemptions, or any
//! number with `ZONAL_INTERLEAVINGS=20`.

#[path = "common/sync.rs"]
mod sync;
#[path = "../../zonal-linux/src/threads/wake.rs"]
mod wake;

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use loom::sync::atomic::AtomicU64;
use loom::thread;
use zonal::units::NodeId;

use crate::sync::check;
use crate::wake::WakeBoard;

fn node(id: u16) -> NodeId {
    NodeId::new(id).expect("it is small")
}

/// Creates a board for nodes 0 and 1, each with a worker.
fn board() -> Arc<WakeBoard> {
    Arc::new(WakeBoard::new((0..2).map(node)))
}

/// Starts a worker of node 0 that runs until the end.
fn worker(board: &Arc<WakeBoard>) -> thread::JoinHandle<()> {
    let board = Arc::clone(board);
    thread::spawn(move || while board.take(0).is_some() {})
}

/// Joins threads at the end of a model.
fn join(threads: impl IntoIterator<Item = thread::JoinHandle<()>>) {
    threads.into_iter().for_each(|thread| thread.join().expect("no thread failed"));
}

#[test]
fn a_worker_sees_writes_before_each_wake_up() {
    check("two wakers, one worker", || {
        let (board, work) = (board(), Arc::new(AtomicU64::new(0)));
        let wakers = [(); 2].map(|()| {
            let (board, work) = (Arc::clone(&board), Arc::clone(&work));
            thread::spawn(move || {
                work.fetch_add(1, Relaxed); // relaxed: the wake-up orders it
                board.wake(node(1));
            })
        });
        // The loop ends after the worker has seen all work. If a wake-up were lost, the worker would wait for ever.
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
        let (worker, sleeper) = (worker(&board), Arc::clone(&board));
        let sleeper = thread::spawn(move || assert!(sleeper.sleep(Duration::from_secs(1))));
        board.stop();
        join([worker, sleeper]);
        assert_eq!(board.take(1), None);
    });
}

#[test]
fn a_wake_up_during_the_end_blocks_no_thread() {
    check("a worker, a waker, the end", || {
        let board = board();
        let (worker, waker) = (worker(&board), Arc::clone(&board));
        let waker = thread::spawn(move || waker.wake(node(0)));
        board.stop();
        join([worker, waker]);
    });
}

#[test]
fn workers_are_woken_separately() {
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
