//! Tests the board of wake-ups with real threads. `zonal-verify` explores all interleavings.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use zonal::units::NodeId;

use super::wake::{WORKERS_MAX, WakeBoard};

fn node(id: usize) -> NodeId {
    NodeId::new(id as u16).unwrap()
}

#[test]
fn no_wake_is_lost() {
    const ROUNDS: u64 = if cfg!(miri) { 60 } else { 60_000 };
    let board = WakeBoard::new([2, 5].map(node).into_iter());
    let (work, seen) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|s| {
        s.spawn(|| {
            while let Some(nodes) = board.take(1) {
                assert_eq!(nodes, [node(5)]);
                // Relaxed: the flag orders the load. The release pairs with the acquire of the thread that waits for
                // `seen`.
                seen.store(work.load(Ordering::Relaxed), Ordering::Release);
            }
        });
        for round in 1..=ROUNDS {
            work.store(round, Ordering::Relaxed); // relaxed: the flag orders the store
            board.wake(node(5));
            // Acquire pairs with the worker's release. The loop never ends if a wake-up is lost.
            while round % 2 == 0 && seen.load(Ordering::Acquire) < round {
                std::hint::spin_loop();
            }
        }
        board.stop();
    });
}

#[test]
fn wake_before_a_worker_waits_is_kept_and_unknown_nodes_are_ignored() {
    let board = WakeBoard::new([0, 1].map(node).into_iter());
    board.wake(node(7));
    board.wake(node(1));
    board.wake(node(1));
    assert_eq!(board.take(1), Some(vec![node(1)]));
    board.stop();
    assert_eq!(board.take(1), None);
    assert!(board.sleep(Duration::from_secs(3600)));
}

#[test]
fn many_nodes_share_workers() {
    let board = WakeBoard::new((0..1000).map(node));
    assert_eq!(board.workers(), WORKERS_MAX);
    let served: usize = (0..board.workers()).map(|worker| board.nodes_of(worker).count()).sum();
    assert_eq!(served, 1000);
    board.wake(node(999));
    board.wake(node(999 - WORKERS_MAX));
    assert_eq!(board.take(999 % WORKERS_MAX), Some(vec![node(999 - WORKERS_MAX), node(999)]));
}
