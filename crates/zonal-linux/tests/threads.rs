//! Checks that the threads of a pool have default attributes, whatever the attributes of the thread that builds the
//! pool. This file has only one test, because it inspects the threads of its process.

use std::collections::BTreeMap;
use std::fs;
use std::ptr::null_mut;

use zonal_linux::Pool;
use zonal_testing::{allowed_cpus, eventually, pin_to, skipped, within_patience};

/// Returns the names and thread ids of the threads that belong to pools.
fn pool_threads() -> BTreeMap<String, libc::pid_t> {
    let tasks = fs::read_dir("/proc/self/task").unwrap().map(|task| task.unwrap());
    let named = tasks.filter_map(|task| {
        let name = fs::read_to_string(task.path().join("comm")).ok()?;
        Some((name.trim().to_owned(), task.file_name().to_str()?.parse().ok()?))
    });
    named.filter(|(name, _)| name.starts_with("zonal-")).collect()
}

/// Builds a pool, and returns it with its four threads once they have named themselves.
fn pool() -> (Pool, BTreeMap<String, libc::pid_t>) {
    eventually("the end of earlier threads", || pool_threads().is_empty());
    let pool = Pool::builder().size(16 << 20).fake_nodes(2).build().unwrap();
    eventually("four named threads", || pool_threads().len() == 4);
    (pool, pool_threads())
}

/// Returns the signals that a thread blocks, as one bit each.
fn blocked(thread: libc::pid_t) -> u64 {
    let status = fs::read_to_string(format!("/proc/self/task/{thread}/status")).unwrap();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).unwrap();
    u64::from_str_radix(mask.trim(), 16).unwrap()
}

fn bit(signal: i32) -> u64 {
    1 << (signal - 1)
}

fn cpus_of(thread: libc::pid_t) -> u32 {
    let mut set = [0_u64; 128];
    // SAFETY: the call writes at most as many bytes as its second argument says.
    let failed = unsafe { libc::sched_getaffinity(thread, size_of_val(&set), set.as_mut_ptr().cast()) };
    assert_eq!(failed, 0);
    set.iter().map(|word| word.count_ones()).sum()
}

fn no_signal_of_the_program_is_taken() {
    let of_this_thread = || {
        // SAFETY: the function has no preconditions.
        blocked(unsafe { libc::gettid() })
    };
    // SAFETY: a signal set is an array of bits, for which zeros are valid.
    let mut own: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: the call changes only the set, and the signal exists.
    assert_eq!(unsafe { libc::sigaddset(&raw mut own, libc::SIGBUS) }, 0);
    // SAFETY: the call reads the set. This thread keeps the mask until it ends.
    assert_eq!(unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const own, null_mut()) }, 0);
    let before = of_this_thread();
    assert!(before & bit(libc::SIGBUS) != 0);
    let (_pool, threads) = pool();
    assert_eq!(of_this_thread(), before, "the builder's own mask is as it was");
    for (name, thread) in threads {
        let mask = blocked(thread);
        for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGALRM, libc::SIGCHLD, libc::SIGUSR1]
        {
            assert!(mask & bit(signal) != 0, "{name} takes signal {signal}");
        }
        for signal in [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP] {
            // The thread starts with the builder's mask.
            eventually(&format!("{name} that takes its own signal {signal}"), || {
                blocked(thread) & bit(signal) == 0
            });
        }
    }
}

/// Signals that the builder has blocked in order to wait for them stay pending while it builds a pool.
fn pending_signals_of_the_builder_stay_so() {
    for signal in [libc::SIGTRAP, libc::SIGSYS, libc::SIGFPE, libc::SIGBUS, libc::SIGSEGV, libc::SIGILL] {
        // SAFETY: a signal set is an array of bits, for which zeros are valid.
        let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
        // SAFETY: the call changes only the set, and the signal exists.
        assert_eq!(unsafe { libc::sigaddset(&raw mut set, signal) }, 0);
        // SAFETY: the call reads the set. The child that runs this test keeps the mask until it ends.
        assert_eq!(unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, null_mut()) }, 0);
        // SAFETY: the signal is sent to this thread, which blocks it.
        assert_eq!(unsafe { libc::raise(signal) }, 0);
        let (pool, threads) = pool();
        for (name, thread) in threads {
            eventually("threads that take their own signals", || blocked(thread) & bit(signal) == 0);
            assert!(blocked(thread) & bit(libc::SIGTERM) != 0, "{name} takes signals of the program");
        }
        let mut which = 0;
        // SAFETY: the call reads the set and writes the number.
        assert_eq!(unsafe { libc::sigwait(&raw const set, &raw mut which) }, 0);
        assert_eq!(which, signal);
        drop(pool);
    }
}

/// After a program has built a pool, it may block a signal in order to wait for it, as daemons do.
fn a_signal_that_the_program_blocks_stays_pending() {
    let (pool, _threads) = pool();
    // SAFETY: a signal set is an array of bits, for which zeros are valid.
    let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: the call changes only the set, and the signal exists.
    assert_eq!(unsafe { libc::sigaddset(&raw mut set, libc::SIGTERM) }, 0);
    // SAFETY: the call reads the set. The child that runs this test keeps the mask until it ends.
    assert_eq!(unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, null_mut()) }, 0);
    let this = std::process::id() as libc::pid_t;
    // SAFETY: the signal is sent to this child process only, and all of the child's own threads block it now.
    assert_eq!(unsafe { libc::kill(this, libc::SIGTERM) }, 0);
    let mut which = 0;
    // SAFETY: the call reads the set and writes the number.
    assert_eq!(unsafe { libc::sigwait(&raw const set, &raw mut which) }, 0);
    assert_eq!(which, libc::SIGTERM);
    drop(pool);
}

fn threads_of_a_real_time_builder_are_ordinary() {
    let low = libc::sched_param { sched_priority: 1 };
    // SAFETY: the call only reads the parameters.
    if unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const low) } != 0 {
        return skipped!("no real-time builder: {}", std::io::Error::last_os_error());
    }
    let (_pool, threads) = pool();
    let policy = |thread| {
        // SAFETY: the call accesses no memory.
        unsafe { libc::sched_getscheduler(thread) }
    };
    for (name, thread) in threads {
        eventually("an ordinary thread", || policy(thread) == libc::SCHED_OTHER);
        assert_eq!(policy(thread), libc::SCHED_OTHER, "{name}");
    }
    assert_eq!(policy(0), libc::SCHED_FIFO, "the builder's own policy is as it was");
}

fn threads_of_a_builder_on_one_cpu_run_anywhere() {
    let all = cpus_of(0);
    if all < 2 {
        return skipped!("this process has one CPU");
    }
    pin_to(allowed_cpus()[0]);
    let (_pool, threads) = pool();
    for (_, thread) in threads {
        eventually("a thread that may run anywhere", || cpus_of(thread) >= all);
    }
    assert_eq!(cpus_of(0), 1, "the builder stays where it was");
}

#[test]
fn threads_of_a_pool() {
    // Each test runs on a thread of its own, so that its changes to the thread's attributes end with the thread.
    within_patience("signals", no_signal_of_the_program_is_taken);
    within_patience("real time", threads_of_a_real_time_builder_are_ordinary);
    within_patience("affinity", threads_of_a_builder_on_one_cpu_run_anywhere);
    in_a_child("a program that blocks SIGTERM died of it", a_signal_that_the_program_blocks_stays_pending);
    in_a_child("a builder with signals pending died of one", pending_signals_of_the_builder_stay_so);
}

/// Runs `work` in a child with one thread. In this process, the threads of the test harness would receive signals.
fn in_a_child(what: &str, work: fn()) {
    // SAFETY: the child runs only `work` and then `_exit`. The C library makes its heap usable in the child.
    let id = unsafe { libc::fork() };
    if id == 0 {
        // SAFETY: the call sets a timer that kills this process later.
        unsafe { libc::alarm(60) };
        let failed = std::panic::catch_unwind(work).is_err();
        // SAFETY: the call ends this process without running the parent's exit handlers.
        unsafe { libc::_exit(i32::from(failed)) };
    }
    let mut status = -1;
    // SAFETY: the call waits for a child of this process, and writes to `status`.
    assert_eq!(unsafe { libc::waitpid(id, &raw mut status, 0) }, id);
    assert_eq!(status, 0, "{what}");
}
