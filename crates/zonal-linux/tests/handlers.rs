//! Signal handlers that allocate and free frames at any point where they interrupt their thread, including inside the
//! pool. Requests that would have to wait for the interrupted thread are refused, frees are finished later, and no
//! reclaimer is called. This file has only one test, because signal handlers belong to the process.

mod common;

use std::cell::Cell;
use std::ffi::c_int;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, OnceLock, mpsc};

use common::{check_all_free, ledger_of, stress_rounds, thread_id, when_dropped, work_disturbed};
use zonal::config::NodeReclaim;
use zonal::error::{AllocError, FreeError};
use zonal::platform::reclaimer::{ReclaimRequest, Reclaimer};
use zonal::request::Block;
use zonal::units::{Order, PageCount};
use zonal_linux::{Pool, PoolRequest};
use zonal_testing::Ledger;
use zonal_testing::within_patience;

const THREADS: usize = 2;
/// Allocations of each thread in a round.
const TAKES: u32 = 60_000;
/// The most blocks that one thread's handlers hold.
const HELD_MOST: usize = 8;
/// Number of rounds after which the test fails if no request in a handler was refused, or no free was deferred.
const ROUNDS_MAX: u32 = 100;

/// Two pools: one that uses sequences where they are supported, and one that uses locks.
static POOLS: OnceLock<[(Pool, Ledger); 2]> = OnceLock::new();
/// Index of the pool in use.
static USED: AtomicUsize = AtomicUsize::new(0);

// Relaxed everywhere: these are counters.
static SERVED: AtomicU64 = AtomicU64::new(0);
static REFUSED: AtomicU64 = AtomicU64::new(0);
static DEFERRED: AtomicU64 = AtomicU64::new(0);
static NOT_FREED: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// Blocks that the handlers of this thread hold, and the number of handler calls.
    static HELD: Cell<([Option<Block>; HELD_MOST], u32)> = const { Cell::new(([None; HELD_MOST], 0)) };
    /// Name of this thread in the ledger. Its handlers use the next number.
    static NAME: Cell<u32> = const { Cell::new(0) };
}

fn order(order: u8) -> Order {
    Order::new(order).expect("it is small")
}

/// Whether the calling handler interrupted its thread while that held a lock of the pool or waited for one.
fn is_reentered(pool: &Pool) -> bool {
    // No pageset has blocks of this order.
    match pool.alloc_raw(&PoolRequest::new(order(10)).no_wait()) {
        // SAFETY: the block was allocated just now, and is freed once.
        Ok(block) => unsafe { pool.free_raw(block.first, block.order) }.map(|()| false).unwrap(),
        Err(error) => error == AllocError::Reentered,
    }
}

/// Alternately allocates a block and frees one.
extern "C" fn on_signal(_: c_int) {
    let Some((pool, owners)) = POOLS.get().map(|pools| &pools[USED.load(Relaxed)]) else { return };
    let (mut held, calls) = HELD.get();
    let name = NAME.get() + 1;
    let place = &mut held[calls as usize % HELD_MOST];
    match *place {
        None => match pool.alloc_raw(&PoolRequest::new(order([6, 0, 1, 3][calls as usize % 4])).no_wait()) {
            Ok(block) => {
                SERVED.fetch_add(1, Relaxed);
                owners.assign(block.first.get(), block.order.pages().get(), name);
                *place = Some(block);
            }
            Err(AllocError::Reentered) => _ = REFUSED.fetch_add(1, Relaxed),
            Err(error) => panic!("{error}"),
        },
        Some(block) => {
            owners.release(block.first.get(), block.order.pages().get(), name);
            // SAFETY: an earlier handler of this thread allocated the raw block, which is freed once.
            match unsafe { pool.free_raw(block.first, block.order) } {
                Ok(()) => {
                    *place = None;
                    DEFERRED.fetch_add(u64::from(is_reentered(pool)), Relaxed);
                }
                Err(FreeError::Reentered(first)) => {
                    assert_eq!(first, block.first);
                    NOT_FREED.fetch_add(1, Relaxed);
                    owners.assign(block.first.get(), block.order.pages().get(), name);
                }
                Err(error) => panic!("{error}"),
            }
        }
    }
    HELD.set((held, calls + 1));
}

/// Installs `handler` for `signal`.
fn handle(signal: c_int, handler: extern "C" fn(c_int)) {
    // SAFETY: zeros are a valid action.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler as libc::sighandler_t;
    action.sa_flags = libc::SA_RESTART;
    // SAFETY: the handlers make only pool calls that are allowed in handlers, and access atomics and thread locals.
    let failed = unsafe { libc::sigaction(signal, &action, std::ptr::null_mut()) };
    assert_eq!(failed, 0);
}

/// Allocates and frees blocks of several orders. Large blocks bypass the pagesets and use a lock.
fn work((pool, owners): &(Pool, Ledger), name: u32) {
    let (mut random, mut held) = (u64::from(name) | 1, Vec::new());
    for _ in 0..TAKES {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let request = PoolRequest::new(order([0, 0, 1, 2, 3, 5, 6, 9][(random >> 61) as usize])).no_wait();
        match pool.alloc_raw(&request) {
            Ok(block) => {
                owners.assign(block.first.get(), block.order.pages().get(), name);
                held.push(block);
            }
            Err(AllocError::Reentered) => panic!("this is no handler"),
            Err(_) => {}
        }
        if held.len() > 60 {
            let block: Block = held.swap_remove((random >> 20) as usize % held.len());
            owners.release(block.first.get(), block.order.pages().get(), name);
            // SAFETY: this thread owns the raw block, and frees it once.
            unsafe { pool.free_raw(block.first, block.order) }.unwrap();
        }
    }
    for block in held {
        owners.release(block.first.get(), block.order.pages().get(), name);
        // SAFETY: this thread owns the raw block, and frees it once.
        unsafe { pool.free_raw(block.first, block.order) }.unwrap();
    }
}

/// Uses the heap but no pool. A handler that interrupts this must not wait for the heap's lock.
fn use_the_heap(_: &(Pool, Ledger), _: u32) {
    for round in 0..100_000_usize {
        drop(std::hint::black_box(vec![1_u8; 3000 + round * 7919 % 11_000]));
    }
}

/// Frees the blocks that the handlers of this thread hold. The thread receives no more signals at this point.
fn empty((pool, owners): &(Pool, Ledger)) {
    let (held, _) = HELD.take();
    for block in held.into_iter().flatten() {
        owners.release(block.first.get(), block.order.pages().get(), NAME.get() + 1);
        // SAFETY: a handler of this thread allocated the raw block, which is freed once.
        unsafe { pool.free_raw(block.first, block.order) }.unwrap();
    }
}

fn round(used: usize, work: fn(&(Pool, Ledger), u32)) {
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
    check_all_free(&pool.1, &pool.0);
}

/// A pool with node reclaim. Its reclaimer must not be called in handlers.
static RECLAIMED: OnceLock<Pool> = OnceLock::new();
static TAKEN_IN_HANDLERS: AtomicU64 = AtomicU64::new(0);
static CALLS_IN_HANDLERS: AtomicU64 = AtomicU64::new(0);

thread_local! {
    static IS_HANDLER: Cell<bool> = const { Cell::new(false) };
}

/// A reclaimer that counts its calls in signal handlers.
struct NotInHandlers;

impl Reclaimer for NotInHandlers {
    fn count(&self, _request: &ReclaimRequest) -> PageCount {
        CALLS_IN_HANDLERS.fetch_add(u64::from(IS_HANDLER.get()), Relaxed);
        PageCount::new(1)
    }

    fn reclaim(&self, request: &ReclaimRequest) -> PageCount {
        self.count(request);
        PageCount::ZERO
    }
}

/// Allocates a page and never frees it.
extern "C" fn take_in_handler(_: c_int) {
    let Some(pool) = RECLAIMED.get() else { return };
    IS_HANDLER.set(true);
    if pool.alloc_raw(&PoolRequest::page().no_wait()).is_ok() {
        TAKEN_IN_HANDLERS.fetch_add(1, Relaxed);
    }
    IS_HANDLER.set(false);
}

/// Handlers allocate all memory of two nodes for which node reclaim is on.
fn handlers_call_no_reclaimer() {
    let pool = Pool::builder().size(16 << 20).fake_nodes(2).build().unwrap();
    pool.set_node_reclaim(NodeReclaim::ON);
    pool.set_reclaim_distance(u8::MAX);
    let _registration = pool.register_reclaimer(&Arc::new(NotInHandlers));
    let pages = pool.verify().unwrap().managed.get();
    assert!(RECLAIMED.set(pool).is_ok());
    handle(libc::SIGUSR2, take_in_handler);
    for _ in 0..pages {
        // SAFETY: the signal has a handler.
        assert_eq!(unsafe { libc::raise(libc::SIGUSR2) }, 0);
    }
    let taken = TAKEN_IN_HANDLERS.load(Relaxed);
    assert!(taken > pages / 10 * 9, "{taken} of {pages} pages");
    assert_eq!(
        CALLS_IN_HANDLERS.load(Relaxed),
        0,
        "calls of a reclaimer in handlers that took {taken} pages"
    );
}

#[test]
fn signal_handlers_never_wait() {
    within_patience("handlers beside a reclaimer", handlers_call_no_reclaimer);
    within_patience("handlers that take and give frames", || {
        let pool = |pool: Pool| {
            let owners = ledger_of(&pool);
            (pool, owners)
        };
        let locks = Pool::builder().size(64 << 20).without_sequences().build().unwrap();
        let pools = [Pool::builder().size(64 << 20).build().unwrap(), locks].map(pool);
        assert!(POOLS.set(pools).is_ok());
        handle(libc::SIGUSR1, on_signal);
        for _ in stress_rounds() {
            round(0, use_the_heap);
            round(0, work);
            round(1, work);
        }
        let counts = || [&SERVED, &REFUSED, &DEFERRED].map(|count| count.load(Relaxed));
        for _ in 0..ROUNDS_MAX {
            if counts().iter().all(|&count| count > 0) {
                break;
            }
            round(0, work);
        }
        let [served, refused, deferred] = counts();
        let not_freed = NOT_FREED.load(Relaxed);
        eprintln!(
            "handlers took {served} blocks; refused {refused} takes and {not_freed} gives; {deferred} gives were deferred"
        );
        assert!(counts().iter().all(|&count| count > 0), "{:?}", counts());
    });
}
