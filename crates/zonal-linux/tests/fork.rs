//! Children made by `fork`: what they may do with a pool of their parent. One test, since it forks.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use zonal::units::{Order, PageCount};
use zonal_linux::{Frames, Pool, PoolRequest};
use zonal_testing::{eventually, skipped};

/// Seconds after which a child that hangs is ended.
const PATIENCE: u32 = 60;

/// What a child made by `fork` comes to: `Ok` when `child` returns. The child has this thread only; `before` is
/// done while the pool's own threads rest, right before the fork.
fn in_a_child(pool: &Pool, before: impl FnOnce(), child: impl FnOnce()) -> Result<(), String> {
    let id = pool.while_still(|| {
        before();
        // SAFETY: in the child only `child` runs and then `_exit`; the C library makes its heap usable there.
        unsafe { libc::fork() }
    });
    if id == 0 {
        // SAFETY: ends this process later, and touches no memory.
        unsafe { libc::alarm(PATIENCE) };
        let failed = catch_unwind(AssertUnwindSafe(child)).is_err();
        // SAFETY: ends this process, without the parent's handlers for its own exit.
        unsafe { libc::_exit(i32::from(failed)) };
    }
    assert!(id > 0, "no fork: {}", std::io::Error::last_os_error());
    let mut status = 0;
    // SAFETY: waits for a child of this process, and writes to `status`.
    assert_eq!(unsafe { libc::waitpid(id, &raw mut status, 0) }, id);
    match (libc::WIFSIGNALED(status), status) {
        (_, 0) => Ok(()),
        (true, _) => Err(format!("ended by signal {}", libc::WTERMSIG(status))),
        (false, _) => Err("panicked".into()),
    }
}

/// Waits until the thread that ticks each second has slept its second and waits for the end of the rest: its
/// system call is then a wait without a time limit. Where the kernel does not show that, it is said.
fn wait_for_the_tick() {
    let named =
        |task: &PathBuf| fs::read_to_string(task.join("comm")).is_ok_and(|name| name == "zonal-tick\n");
    let find = || fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap().path()).find(named);
    let mut tick = None;
    // A thread gives itself its name, a little after its start. There is one pool.
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
        // The arguments are the word, the operation, its value, and where the time limit stands.
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

/// Nobody else is in the pool: the child has a copy of all of it, and may go on with it.
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
        // A pool of the child's own has its threads.
        let own = Pool::builder().size(16 << 20).build().unwrap();
        drop(pages(&own, 10));
        assert!(own.verify().unwrap().balance());
    })
    .unwrap();
    assert!(is_stamped(&held, 1), "a child wrote into its parent's frames");
    assert_eq!(pool.verify().unwrap().allocated, before.allocated);
}

/// Threads are in the pool at the fork: the child reads what is its own, lets go of all, and ends.
fn a_child_reads_and_lets_go_whatever_others_did() {
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
                    // SAFETY: nobody uses what was moved out; the child ends by `_exit`.
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

#[test]
fn children() {
    a_child_goes_on_with_a_quiet_pool();
    a_child_reads_and_lets_go_whatever_others_did();
}
