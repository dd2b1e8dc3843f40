//! Tests what children made by `fork` may do with a pool of their parent, for each kind of memory. This file has only
//! one test, because a test that forks must be alone in its process.

use std::fs;
use std::io::{Read, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use zonal::platform::reclaimer::{ReclaimReason, ReclaimRequest, Reclaimer};
use zonal::units::{Order, PageCount};
use zonal_linux::{Frames, HugePages, Pool, PoolBuilder, PoolRequest, Prefault};
use zonal_testing::{eventually, skipped, within_patience};

#[path = "common/maps.rs"]
mod maps;
#[path = "common/of_shared_pools.rs"]
mod of_shared_pools;
#[path = "common/reserve.rs"]
mod reserve;

use maps::is_mapped;
use reserve::Reserve;

/// Number of seconds after which a child that hangs is killed.
const PATIENCE: u32 = 60;

/// Forks a child that runs `child`. The calling thread is the child's only thread.
fn start_child(child: impl FnOnce()) -> libc::pid_t {
    // SAFETY: the child runs only `child` and then `_exit`. The C library makes its heap usable in the child.
    let id = unsafe { libc::fork() };
    if id == 0 {
        // SAFETY: the call sets a timer that kills this process later, and accesses no memory.
        unsafe { libc::alarm(PATIENCE) };
        let failed = catch_unwind(AssertUnwindSafe(child)).is_err();
        // SAFETY: the call ends this process without running the parent's exit handlers.
        unsafe { libc::_exit(i32::from(failed)) };
    }
    assert!(id > 0, "no fork: {}", std::io::Error::last_os_error());
    id
}

/// Returns how a child ended: `Ok` if its closure returned, otherwise a description.
fn ended(id: libc::pid_t) -> Result<(), String> {
    let mut status = 0;
    // SAFETY: the call waits for a child of this process, and writes to `status`.
    assert_eq!(unsafe { libc::waitpid(id, &raw mut status, 0) }, id);
    match (libc::WIFSIGNALED(status), status) {
        (_, 0) => Ok(()),
        (true, _) => Err(format!("ended by signal {}", libc::WTERMSIG(status))),
        (false, _) => Err("panicked".into()),
    }
}

/// Pauses the pool's threads, runs `before`, and forks a child that runs `child`. Returns how the child ended.
fn in_a_child(pool: &Pool, before: impl FnOnce(), child: impl FnOnce()) -> Result<(), String> {
    ended(pool.with_threads_paused(|in_reclaimers| {
        assert_eq!(in_reclaimers, 0);
        before();
        start_child(child)
    }))
}

/// Waits until the tick thread has finished its sleep, which takes one second, and waits for the end of the pause. Its
/// system call is then a wait without a timeout. If the kernel does not show system calls, prints a message instead.
fn wait_for_the_tick() {
    let named =
        |task: &PathBuf| fs::read_to_string(task.join("comm")).is_ok_and(|name| name == "zonal-tick\n");
    let find = || fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap().path()).find(named);
    let mut tick = None;
    // A thread names itself shortly after its start. This process has only one pool at this time.
    eventually("the thread that ticks", || {
        tick = find();
        tick.is_some()
    });
    let call = tick.unwrap().join("syscall");
    if let Err(error) = fs::read_to_string(&call) {
        return skipped!("the fork does not wait for the tick: {}: {error}", call.display());
    }
    eventually("a tick that waits for the end of the rest", || {
        let call = fs::read_to_string(&call).unwrap();
        let mut fields = call.split_whitespace();
        let is_wait = fields.next() == Some(&libc::SYS_futex.to_string());
        // The arguments are the address, the operation, the value and the timeout, in this order.
        is_wait && fields.nth(3) == Some("0x0")
    });
}

fn stamp(frames: &mut [Frames], seed: u8) {
    frames.iter_mut().zip((0..=u8::MAX).cycle()).for_each(|(frame, at)| frame.fill(seed.wrapping_add(at)));
}

fn is_stamped(frames: &[Frames], seed: u8) -> bool {
    let is_full_of = |frame: &Frames, stamp| frame.iter().all(|&byte| byte == stamp);
    frames.iter().zip((0..=u8::MAX).cycle()).all(|(frame, at)| is_full_of(frame, seed.wrapping_add(at)))
}

fn pages(pool: &Pool, count: usize) -> Vec<Frames> {
    (0..count).map(|_| pool.alloc(&PoolRequest::page()).unwrap()).collect()
}

/// If no other thread is in the pool at the fork, the child has a copy of the whole pool and may continue to use it.
fn a_child_goes_on_with_a_quiet_pool() {
    let pool = Pool::builder().size(64 << 20).fake_nodes(2).build().unwrap();
    let mut held = pages(&pool, 100);
    stamp(&mut held, 1);
    let before = pool.verify().unwrap();
    in_a_child(&pool, wait_for_the_tick, || {
        assert!(pool.verify().unwrap().balance());
        let mut more = pages(&pool, 1000);
        stamp(&mut more, 77);
        assert!(is_stamped(&more, 77));
        more.push(pool.alloc(&PoolRequest::new(Order::new(9).unwrap())).unwrap());
        drop(more);
        assert_eq!(pool.verify().unwrap().allocated, PageCount::new(100));
        // The threads of a pool that the child builds run in the child.
        let own = Pool::builder().size(16 << 20).build().unwrap();
        drop(pages(&own, 10));
        assert!(own.verify().unwrap().balance());
    })
    .unwrap();
    assert!(is_stamped(&held, 1), "a child wrote into its parent's frames");
    assert_eq!(pool.verify().unwrap().allocated, before.allocated);
}

/// If other threads are in the pool at the fork, the child can read its frames, drop everything and exit.
fn a_child_reads_and_drops_its_frames_whatever_other_threads_did() {
    let pool = Pool::builder().size(64 << 20).build().unwrap();
    let mut held = pages(&pool, 50);
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        for order in [0, 3, 9] {
            let (pool, stop) = (&pool, &stop);
            scope.spawn(move || {
                let request = PoolRequest::new(Order::new(order).unwrap());
                while !stop.load(Ordering::Relaxed) {
                    drop(pool.alloc(&request).unwrap());
                }
            });
        }
        for round in 0..100_u8 {
            stamp(&mut held, round);
            let ended = in_a_child(
                &pool,
                || (),
                || {
                    assert!(is_stamped(&held, round));
                    stamp(&mut held, round.wrapping_add(1));
                    // SAFETY: a value that was moved out is not used again, because the child ends by `_exit`.
                    drop(unsafe { std::ptr::read(&raw const pool) });
                },
            );
            if ended.is_err() {
                stop.store(true, Ordering::Relaxed);
            }
            assert_eq!(ended, Ok(()));
            assert!(is_stamped(&held, round), "a child wrote into its parent's frames");
        }
        stop.store(true, Ordering::Relaxed);
    });
    drop(held);
    assert_eq!(pool.verify().unwrap().allocated, PageCount::ZERO);
}

/// Returns the size of this process's address space in kilobytes.
fn addresses() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmSize:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// Moves a value out of the child's copy of its parent's memory.
///
/// # Safety
/// This process must use only the result, not `copy`, and must end by `_exit`.
unsafe fn own<T>(copy: &T) -> T {
    // SAFETY: the caller guarantees that `copy` is not used again.
    unsafe { std::ptr::read(copy) }
}

/// Moves two values out, like [`own`].
///
/// # Safety
/// Those of [`own`], for both values.
unsafe fn own_both<A, B>(first: &A, second: &B) -> (A, B) {
    // SAFETY: the caller guarantees that `first` is not used again.
    let first = unsafe { own(first) };
    // SAFETY: the caller guarantees that `second` is not used again.
    (first, unsafe { own(second) })
}

/// A child's copies are unmapped once the child has dropped its handles and frames, even though threads of its parent
/// held the pool at the fork.
fn a_child_unmaps_its_copies(builder: impl Fn() -> PoolBuilder<'static>) {
    let pool = builder().build().unwrap();
    let mut held = pages(&pool, 100);
    stamp(&mut held, 3);
    let address = held[0].as_ptr() as usize;
    let drops_all = || {
        let before = addresses();
        // SAFETY: the child uses only the results, and ends by `_exit`.
        let (pool, held) = unsafe { own_both(&pool, &held) };
        drop(pool);
        assert!(is_mapped(address), "frames keep their memory");
        drop(held);
        assert!(!is_mapped(address), "the pool's memory stayed");
        let (now, of_pool) = (addresses(), 32 << 10);
        assert!(now + of_pool < before, "{before} kB before, {now} kB after: metadata goes, too");
    };
    in_a_child(&pool, || (), drops_all).unwrap();
    // A grandchild has copies of the same pool.
    in_a_child(&pool, || (), || in_a_child(&pool, || (), drops_all).unwrap()).unwrap();
    assert!(is_stamped(&held, 3) && is_mapped(address));
}

/// A cache whose closure runs when background reclaim first calls the cache.
struct Asked<F: Fn() + Send + Sync>(F, AtomicBool);

impl<F: Fn() + Send + Sync> Reclaimer for Asked<F> {
    fn count(&self, _request: &ReclaimRequest) -> PageCount {
        PageCount::new(1)
    }

    fn reclaim(&self, request: &ReclaimRequest) -> PageCount {
        if request.reason == ReclaimReason::Background && !self.1.swap(true, Ordering::AcqRel) {
            (self.0)();
        }
        PageCount::ZERO
    }
}

/// A reclaimer forks on a thread of the pool, which becomes the child's only thread. The reclaimer returns in both
/// processes.
fn a_reclaimer_makes_a_child() {
    let pool = Pool::builder().size(16 << 20).build().unwrap();
    let last = Arc::new(Mutex::new(Some(pool.clone())));
    let outcome = Arc::new(Mutex::new(None));
    let (of_cache, result) = (Arc::clone(&last), Arc::clone(&outcome));
    let forks = move || {
        // SAFETY: the child continues on the pool's thread, and ends when that thread ends.
        let id = unsafe { libc::fork() };
        if id == 0 {
            // SAFETY: the call sets a timer that kills this process later.
            unsafe { libc::alarm(PATIENCE) };
            drop(of_cache.lock().unwrap().take());
        } else {
            *result.lock().unwrap() = Some(ended(id));
        }
    };
    let cache = Arc::new(Asked(forks, AtomicBool::new(false)));
    let registration = pool.register_reclaimer(&cache);
    let held: Vec<_> = std::iter::from_fn(|| pool.alloc(&PoolRequest::page().no_wait()).ok()).collect();
    eventually("the end of the reclaimer's child", || outcome.lock().unwrap().is_some());
    assert_eq!(*outcome.lock().unwrap(), Some(Ok(())));
    drop((held, registration, last));
}

/// A child can drop registrations even if other threads of its parent were using the reclaimer list at the fork.
fn a_child_drops_a_registration() {
    let pool = Pool::builder().size(16 << 20).build().unwrap();
    let cache = || Arc::new(Asked(|| (), AtomicBool::new(false)));
    let registration = pool.register_reclaimer(&cache());
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    drop(pool.register_reclaimer(&cache()));
                    pool.shrink_caches(pool.ranges().next().unwrap().node, PageCount::new(1));
                }
            });
        }
        // SAFETY: the child uses only the result, and ends by `_exit`.
        let drops_it = || drop(unsafe { own(&registration) });
        let all: Vec<_> = (0..30).map(|_| ended(start_child(drops_it))).collect();
        stop.store(true, Ordering::Relaxed);
        assert!(all.iter().all(Result::is_ok), "{all:?}");
    });
}

/// A child may have the same process id as its parent, because each PID namespace numbers its processes separately.
/// In this test parent and child are both process 1.
fn a_child_of_the_same_number() {
    // SAFETY: the call changes the namespace of later children, and accesses no memory.
    let apart = || unsafe { libc::unshare(libc::CLONE_NEWPID) } == 0;
    let parent = || {
        assert_eq!(std::process::id(), 1);
        let pool = Pool::builder().size(16 << 20).fake_nodes(2).build().unwrap();
        let held = pages(&pool, 10);
        assert!(apart());
        let child = start_child(|| {
            assert_eq!(std::process::id(), 1);
            // SAFETY: the child uses only the results, and ends by `_exit`.
            drop(unsafe { own_both(&held, &pool) });
        });
        ended(child).unwrap();
        assert_eq!(pool.verify().unwrap().allocated, PageCount::new(10));
    };
    // After a process has created a PID namespace, all its children are in that namespace. A child therefore creates
    // it.
    if ended(start_child(|| assert!(apart()))).is_err() {
        return skipped!("this process may make no namespaces of process numbers");
    }
    let apart_and_on = || {
        assert!(apart());
        ended(start_child(parent)).unwrap();
    };
    ended(start_child(apart_and_on)).unwrap();
}

/// A child has its own copy of these memory kinds, which later stores of its parent do not change.
fn ordinary_memory_is_copied() {
    for huge_pages in [HugePages::Never, HugePages::Transparent] {
        for prefault in [Prefault::OnUse, Prefault::AtOnce] {
            let builder = || Pool::builder().size(32 << 20).huge_pages(huge_pages).prefault(prefault);
            let pool = builder().build().unwrap();
            let mut held = pages(&pool, 50);
            held.push(pool.alloc(&PoolRequest::new(Order::new(9).unwrap())).unwrap());
            stamp(&mut held, 5);
            let (mut of_parent, mut to_child) = std::io::pipe().unwrap();
            let child = pool.with_threads_paused(|_| {
                start_child(|| {
                    of_parent.read_exact(&mut [0]).unwrap();
                    assert!(is_stamped(&held, 5), "the parent's later stores are in the copy");
                    // SAFETY: the child uses only the result, and ends by `_exit`.
                    let mut held = unsafe { own(&held) };
                    stamp(&mut held, 6);
                    assert!(is_stamped(&held, 6));
                })
            });
            stamp(&mut held, 7);
            to_child.write_all(&[0]).unwrap();
            ended(child).unwrap();
            assert!(is_stamped(&held, 7), "a child wrote into its parent's frames");
            drop((held, pool));
            a_child_unmaps_its_copies(builder);
        }
    }
}

fn explicit_huge_pages_are_not_copied() {
    let reserve = match Reserve::with_free(17) {
        Ok(reserve) => reserve,
        Err(why) => return skipped!("children and explicit huge pages: {why}"),
    };
    memory_is_not_copied(Pool::builder().size(32 << 20).huge_pages(HugePages::Explicit));
    drop(reserve);
}

fn shared_memory_is_not_copied() {
    memory_is_not_copied(Pool::builder().size(32 << 20).huge_pages(HugePages::Never).shared_memory());
}

/// A child has no copy of the pool's memory, and can detect that. Its parent is unaffected, even if the reserve of huge
/// pages is used up.
fn memory_is_not_copied(builder: PoolBuilder<'static>) {
    let pool = builder.build().unwrap();
    assert_eq!(pool.warnings(), []);
    let mut held = pages(&pool, 7900);
    stamp(&mut held, 8);
    let (mut of_parent, mut to_child) = std::io::pipe().unwrap();
    let child = pool.with_threads_paused(|_| {
        start_child(|| {
            of_parent.read_exact(&mut [0]).unwrap();
            assert_eq!(pool.ptr_of(held[0].first()), None);
            // SAFETY: the child maps no file.
            assert_eq!(unsafe { pool.memory_files() }.count(), 0);
            // SAFETY: the child uses only the results, and ends by `_exit`.
            let (pool, held) = unsafe { own_both(&pool, &held) };
            let taken = catch_unwind(AssertUnwindSafe(|| pool.alloc(&PoolRequest::page()))).unwrap_err();
            let why = taken.downcast::<String>().unwrap();
            assert!(why.contains("a child made by fork has no copy of this pool's memory"), "{why}");
            pool.alloc_raw(&PoolRequest::page().zeroed()).unwrap();
            // The child's new mappings are not at the addresses of the parent's frames.
            let heap: Vec<Vec<u8>> = (0..64).map(|_| vec![1; 1 << 20]).collect();
            let place = held[0].as_ptr() as usize;
            assert!(heap.iter().all(|one| !one.as_ptr_range().contains(&held[0].as_ptr())));
            assert!(is_mapped(place));
            drop((held, pool));
            assert!(!is_mapped(place));
        })
    });
    // The parent writes to all frames while the child exists. If the pages were shared, each write would need a new
    // page from the reserve.
    stamp(&mut held, 9);
    to_child.write_all(&[0]).unwrap();
    ended(child).unwrap();
    let reads = in_a_child(&pool, || (), || assert_eq!(held[0][0], 9));
    assert_eq!(reads, Err(format!("ended by signal {}", libc::SIGSEGV)));
    assert!(is_stamped(&held, 9));
    drop((held, pool));
}

/// Pool that a child builds in a fork handler which was registered before the first pool was built.
static OF_EARLIER_HANDLER: Mutex<Option<Pool>> = Mutex::new(None);
/// Whether the fork handler builds a pool.
static IS_EARLIER_HANDLER_ON: AtomicBool = AtomicBool::new(false);

extern "C" fn build_in_child() {
    if IS_EARLIER_HANDLER_ON.load(Ordering::Relaxed) {
        *OF_EARLIER_HANDLER.lock().unwrap() = Some(Pool::builder().size(16 << 20).build().unwrap());
    }
}

/// Returns how many threads this process has besides the caller, and the number of threads that belong to pools,
/// judging by their names.
fn threads() -> (usize, usize) {
    let tasks = fs::read_dir("/proc/self/task").unwrap();
    let names = tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join("comm")).ok());
    let of_pools: Vec<bool> = names.map(|name| name.starts_with("zonal-")).collect();
    (of_pools.len() - 1, of_pools.iter().filter(|&&is| is).count())
}

/// A child's fork handler may build a pool before the fork handlers of pools run. That pool belongs to the child.
fn an_earlier_handler_builds_a_pool() {
    let pool = Pool::builder().size(16 << 20).build().unwrap();
    let held = pages(&pool, 10);
    IS_EARLIER_HANDLER_ON.store(true, Ordering::Relaxed);
    let ended = in_a_child(
        &pool,
        || (),
        || {
            let own = OF_EARLIER_HANDLER.lock().unwrap().take().unwrap();
            let frames = pages(&own, 10);
            let address = frames[0].as_ptr() as usize;
            // All threads have named themselves when both counts are equal.
            eventually(
                "the threads of the child's own pool",
                || matches!(threads(), (all @ 2.., named) if all == named),
            );
            drop((frames, own));
            // The kernel still lists a thread for a moment after it was joined.
            eventually("the end of the threads", || threads() == (0, 0));
            assert!(!is_mapped(address), "the memory of the child's own pool stayed");
            // SAFETY: the child uses only the results, and ends by `_exit`.
            drop(unsafe { own_both(&pool, &held) });
        },
    );
    IS_EARLIER_HANDLER_ON.store(false, Ordering::Relaxed);
    assert_eq!(ended, Ok(()));
    assert_eq!(pool.verify().unwrap().allocated, PageCount::new(10));
}

#[test]
fn forked_children_use_pools() {
    // SAFETY: the handler makes only calls that children of this test may make.
    assert_eq!(unsafe { libc::pthread_atfork(None, None, Some(build_in_child)) }, 0);
    an_earlier_handler_builds_a_pool();
    a_child_of_the_same_number();
    within_patience("a child of a reclaimer", a_reclaimer_makes_a_child);
    a_child_drops_a_registration();
    of_shared_pools::a_child_joins_a_shared_pool();
    of_shared_pools::children_of_one_parent_take_part_at_once();
    of_shared_pools::pools_take_no_standard_streams();
    of_shared_pools::a_child_has_no_part_in_the_pool_of_its_parent();
    of_shared_pools::a_child_does_not_keep_its_parent_alive();
    ordinary_memory_is_copied();
    explicit_huge_pages_are_not_copied();
    shared_memory_is_not_copied();
    a_child_goes_on_with_a_quiet_pool();
    a_child_reads_and_drops_its_frames_whatever_other_threads_did();
}
