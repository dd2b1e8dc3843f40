//! Signal handlers that take and give back frames wherever they interrupt their thread, inside the pool too. What
//! would have to wait for that thread is refused. One test, since it handles a signal.

mod common;

use std::cell::Cell;
use std::ffi::c_int;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc;

use common::{Owners, stress_rounds, thread_id, when_dropped, work_disturbed};
use zonal::error::{AllocError, FreeError};
use zonal::request::Block;
use zonal::units::Order;
use zonal_linux::{Pool, PoolRequest};
use zonal_testing::within_patience;

const THREADS: usize = 2;
/// Takes of each thread in a round.
const TAKES: u32 = 60_000;
/// Blocks that the handlers of a thread hold at most.
const HELD_MOST: usize = 8;
/// Rounds after which handlers that were never refused are taken not to look.
const ROUNDS_MAX: u32 = 100;

/// One with sequences where there are any, and one with locks.
static POOLS: OnceLock<[(Pool, Owners); 2]> = OnceLock::new();
/// Which of them is in use.
static USED: AtomicUsize = AtomicUsize::new(0);

// Relaxed everywhere: counts.
static SERVED: AtomicU64 = AtomicU64::new(0);
static REFUSED: AtomicU64 = AtomicU64::new(0);
static NOT_FREED: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// What the handlers of this thread hold, and how many there were.
    static HELD: Cell<([Option<Block>; HELD_MOST], u32)> = const { Cell::new(([None; HELD_MOST], 0)) };
    /// Name of this thread; its handlers have the next one.
    static NAME: Cell<u32> = const { Cell::new(0) };
}

fn order(order: u8) -> Order {
    Order::new(order).expect("it is small")
}

/// Takes a block or gives one back, in turn.
extern "C" fn on_signal(_: c_int) {
    let Some((pool, owners)) = POOLS.get().map(|pools| &pools[USED.load(Relaxed)]) else { return };
    let (mut held, calls) = HELD.get();
    let name = NAME.get() + 1;
    let place = &mut held[calls as usize % HELD_MOST];
    match *place {
        None => match pool.alloc_raw(&PoolRequest::new(order([6, 0, 1, 3][calls as usize % 4])).no_wait()) {
            Ok(block) => {
                SERVED.fetch_add(1, Relaxed);
                owners.change(block.first, block.order.pages().get(), 0, name);
                *place = Some(block);
            }
            Err(AllocError::Reentered) => _ = REFUSED.fetch_add(1, Relaxed),
            Err(error) => panic!("{error}"),
        },
        Some(block) => {
            owners.change(block.first, block.order.pages().get(), name, 0);
            // SAFETY: a raw block of an earlier handler of this thread.
            match unsafe { pool.free_raw(block.first, block.order) } {
                Ok(()) => *place = None,
                Err(FreeError::Reentered(first)) => {
                    assert_eq!(first, block.first);
                    NOT_FREED.fetch_add(1, Relaxed);
                    owners.change(block.first, block.order.pages().get(), 0, name);
                }
                Err(error) => panic!("{error}"),
            }
        }
    }
    HELD.set((held, calls + 1));
}

fn handle_signals() {
    // SAFETY: all-zero is a valid action.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    let handler: extern "C" fn(c_int) = on_signal;
    action.sa_sigaction = handler as libc::sighandler_t;
    action.sa_flags = libc::SA_RESTART;
    // SAFETY: the handler does what the pool allows handlers to do, and touches atomics and thread locals.
    let failed = unsafe { libc::sigaction(libc::SIGUSR1, &action, std::ptr::null_mut()) };
    assert_eq!(failed, 0);
}

/// Takes and gives blocks of several orders: large ones go past the pagesets, by a lock.
fn work((pool, owners): &(Pool, Owners), name: u32) {
    let (mut random, mut held) = (u64::from(name) | 1, Vec::new());
    for _ in 0..TAKES {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let request = PoolRequest::new(order([0, 0, 1, 2, 3, 5, 6, 9][(random >> 61) as usize])).no_wait();
        match pool.alloc_raw(&request) {
            Ok(block) => {
                owners.change(block.first, block.order.pages().get(), 0, name);
                held.push(block);
            }
            Err(AllocError::Reentered) => panic!("this is no handler"),
            Err(_) => {}
        }
        if held.len() > 60 {
            let block: Block = held.swap_remove((random >> 20) as usize % held.len());
            owners.change(block.first, block.order.pages().get(), name, 0);
            // SAFETY: a raw block of this thread, given back once.
            unsafe { pool.free_raw(block.first, block.order) }.unwrap();
        }
    }
    for block in held {
        owners.change(block.first, block.order.pages().get(), name, 0);
        // SAFETY: as above.
        unsafe { pool.free_raw(block.first, block.order) }.unwrap();
    }
}

/// Uses the heap and no pool: handlers must not wait for the heap.
fn use_the_heap(_: &(Pool, Owners), _: u32) {
    for round in 0..100_000_usize {
        drop(std::hint::black_box(vec![1_u8; 3000 + round * 7919 % 11_000]));
    }
}

/// Gives back what the handlers of this thread hold; no signals come any more.
fn empty((pool, owners): &(Pool, Owners)) {
    let (held, _) = HELD.take();
    for block in held.into_iter().flatten() {
        owners.change(block.first, block.order.pages().get(), NAME.get() + 1, 0);
        // SAFETY: a raw block of a handler of this thread, given back once.
        unsafe { pool.free_raw(block.first, block.order) }.unwrap();
    }
}

fn round(used: usize, work: fn(&(Pool, Owners), u32)) {
    USED.store(used, Relaxed);
    let pool = &POOLS.get().unwrap()[used];
    let threads = [const { AtomicI32::new(0) }; THREADS];
    let at_work = AtomicU32::new(THREADS as u32);
    std::thread::scope(|scope| {
        let (disturber, disturbers): (Vec<_>, Vec<_>) = threads.iter().map(|_| mpsc::channel()).unzip();
        for (at, disturbers) in disturbers.into_iter().enumerate() {
            let (threads, at_work) = (&threads, &at_work);
            scope.spawn(move || {
                work_disturbed(&disturbers, || {
                    let _ends = when_dropped(|| _ = at_work.fetch_sub(1, Relaxed));
                    let name = 10 * (at as u32 + 1);
                    NAME.set(name); // before the first signal
                    threads[at].store(thread_id(), Relaxed);
                    work(pool, name);
                });
                empty(pool);
            });
        }
        while at_work.load(Relaxed) != 0 {
            for thread in threads.iter().map(|thread| thread.load(Relaxed)).filter(|&thread| thread != 0) {
                // SAFETY: the thread has not ended (`work_disturbed`), and the signal has a handler.
                unsafe { libc::syscall(libc::SYS_tgkill, std::process::id(), thread, libc::SIGUSR1) };
            }
            (0..2000).for_each(|step| _ = std::hint::black_box(step));
        }
        drop(disturber);
    });
    pool.1.check_nobody(&pool.0);
}

#[test]
fn handlers_wait_for_nobody() {
    within_patience("handlers that take and give frames", || {
        let pool = |pool: Pool| {
            let owners = Owners::new(&pool);
            (pool, owners)
        };
        let locks = Pool::builder().size(64 << 20).without_sequences().build().unwrap();
        let pools = [Pool::builder().size(64 << 20).build().unwrap(), locks].map(pool);
        assert!(POOLS.set(pools).is_ok());
        handle_signals();
        for _ in stress_rounds() {
            round(0, use_the_heap);
            round(0, work);
            round(1, work);
        }
        let counts = || [&SERVED, &REFUSED, &NOT_FREED].map(|count| count.load(Relaxed));
        for _ in 0..ROUNDS_MAX {
            if counts().iter().all(|&count| count > 0) {
                break;
            }
            round(0, work);
        }
        let [served, refused, not_freed] = counts();
        eprintln!("handlers took {served} blocks; refused {refused} takes and {not_freed} gives");
        assert!(served > 0 && refused > 0 && not_freed > 0, "{:?}", counts());
    });
}
