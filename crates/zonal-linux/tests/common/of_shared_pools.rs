//! What children made by `fork` may do with a shared pool of their parent; part of `fork.rs`.

use std::fs;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use zonal::units::PageCount;
use zonal_linux::{FrameRange, Pool, PoolRequest, SharedError};
use zonal_testing::eventually;

use crate::{ended, start_child};

/// A child can join a shared pool even if other threads of its parent were joining it at the fork, or beginning and ending.
pub(crate) fn a_child_joins_a_shared_pool() {
    let pool = Pool::builder().size(64 << 20).shared_by_descriptor().processes(8).build().unwrap();
    let join = || Pool::join_file(pool.shared_file().unwrap());
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                drop(join());
            }
        });
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                thread::spawn(|| ()).join().unwrap();
            }
        });
        let joins = || drop(join().unwrap().alloc(&PoolRequest::page()).unwrap());
        let all: Vec<_> = (0..100).map(|_| ended(start_child(joins))).collect();
        stop.store(true, Ordering::Relaxed);
        assert!(all.iter().all(Result::is_ok), "{all:?}");
    });
}

/// A child that is made while another thread joins must not keep its parent's locks, or the parent lives on with it.
pub(crate) fn a_child_does_not_keep_its_parent_alive() {
    const JOINS: usize = 50;
    let pool = Pool::builder().size(64 << 20).shared_by_descriptor().processes(64).build().unwrap();
    for _ in 0..3 {
        let (mut ready, mut is_ready) = std::io::pipe().unwrap();
        let parent = start_child(|| {
            // SAFETY: the calls access no memory.
            unsafe { libc::setpgid(0, 0) };
            let stop = AtomicBool::new(false);
            thread::scope(|scope| {
                scope.spawn(|| {
                    while !stop.load(Ordering::Relaxed) {
                        // SAFETY: the child makes only these calls.
                        if unsafe { libc::fork() } == 0 {
                            // SAFETY: as above.
                            unsafe { libc::sleep(1000) };
                            // SAFETY: as above.
                            unsafe { libc::_exit(0) };
                        }
                        thread::sleep(std::time::Duration::from_millis(1));
                    }
                });
                let joined = (0..JOINS).map(|_| Pool::join_file(pool.shared_file().unwrap()).unwrap());
                let joined: Vec<_> = joined.collect();
                stop.store(true, Ordering::Relaxed);
                is_ready.write_all(b"x").unwrap();
                thread::sleep(std::time::Duration::from_secs(1000));
                drop(joined);
            });
        });
        drop(is_ready);
        ready.read_exact(&mut [0]).unwrap();
        // SAFETY: the process is a child that has not been waited for.
        unsafe { libc::kill(parent, libc::SIGKILL) };
        assert!(ended(parent).is_err());
        // A child that has just been made closes its copies first.
        let is_alive = || pool.owners().iter().any(|owner| !owner.is_this && owner.is_alive);
        let all = catch_unwind(AssertUnwindSafe(|| eventually("children have its locks", || !is_alive())));
        // SAFETY: the group is that of the child, and has only its children now.
        unsafe { libc::kill(-parent, libc::SIGKILL) };
        assert!(all.is_ok());
        pool.recover_dead().unwrap();
    }
}

/// A child's numbers of descriptors may have another use, so that no request may use the closed one.
pub(crate) fn a_child_has_no_part_in_the_pool_of_its_parent() {
    let pool = Pool::builder().size(64 << 20).shared_by_descriptor().process_name("parent").build().unwrap();
    drop(Pool::join_file_as(pool.shared_file().unwrap(), "other").unwrap().alloc(&PoolRequest::page()));
    let frames = pool.alloc(&PoolRequest::page()).unwrap();
    let asks = || {
        // They take the number of the descriptor.
        let others: Vec<_> = (0..8).map(|_| fs::File::open("/proc/self/exe").unwrap()).collect();
        let block = Some(FrameRange { start: frames.first(), count: PageCount::new(1) });
        for refused in
            [pool.set_root("root", block), pool.root("root").map(|_| ()), pool.discard("other").map(|_| ())]
        {
            assert!(matches!(refused, Err(SharedError::Forked)), "{refused:?}");
        }
        assert_eq!(pool.recover_dead().unwrap(), PageCount::ZERO);
        assert_eq!((pool.owners(), pool.allocated_here()), (Vec::new(), None));
        // SAFETY: the child uses only the results, and ends by `_exit`.
        drop(unsafe { std::ptr::read(&raw const frames) });
        drop((others, pool.clone()));
    };
    assert_eq!(ended(start_child(asks)), Ok(()));
    assert_eq!(pool.allocated_here(), Some(PageCount::new(1)));
}

/// Children of one process take part at the same time.
pub(crate) fn children_of_one_parent_take_part_at_once() {
    const CHILDREN: usize = 3;
    let pool = Pool::builder().size(64 << 20).shared_by_descriptor().processes(8).build().unwrap();
    let (until, writer) = std::io::pipe().unwrap();
    let child = || {
        // SAFETY: the child does not use its copy.
        unsafe { libc::close(writer.as_raw_fd()) };
        let _joined = Pool::join_file(pool.shared_file().unwrap()).unwrap();
        assert_eq!((&until).read(&mut [0]).unwrap(), 0); // until the parent closes the pipe
    };
    let children: Vec<_> = (0..CHILDREN).map(|_| start_child(child)).collect();
    eventually("all children", || pool.owners().iter().filter(|owner| owner.is_alive).count() > CHILDREN);
    drop(writer);
    children.into_iter().for_each(|child| ended(child).unwrap());
}

/// Pools and publications keep no descriptor that the program's output may go to, in a program that has closed its streams.
pub(crate) fn pools_take_no_standard_streams() {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let (file, socket) = (folder.path().join("pool"), folder.path().join("socket"));
    let child = || {
        let is_open = |fd| {
            // SAFETY: the call accesses no memory.
            unsafe { libc::fcntl(fd, libc::F_GETFD) >= 0 }
        };
        for fd in 0..3 {
            // SAFETY: nothing in this process uses the stream any more.
            unsafe { libc::close(fd) };
        }
        let small = || Pool::builder().size(16 << 20);
        let by_path = small().shared(&file).processes(8).build().unwrap();
        let by_descriptor = small().shared_by_descriptor().processes(8).build().unwrap();
        let published = by_descriptor.publish(&socket).unwrap();
        let joined =
            [Pool::join(&file), Pool::join(&socket), Pool::join_file(by_path.shared_file().unwrap())];
        let of_files = small().shared_memory().build().unwrap();
        assert!(!(0..3).any(is_open));
        drop((by_path, published, joined.map(Result::unwrap), of_files));
    };
    ended(start_child(child)).unwrap();
}
