//! Containers in frames of a shared pool, in children made by `fork` and after other processes' frees. This file has only one
//! test, because a test that forks must be alone in its process.

use core::alloc::Layout;
use std::panic::{AssertUnwindSafe, catch_unwind};

use allocator_api2::alloc::Allocator as _;
use allocator_api2::vec::Vec as FrameVec;
use zonal::units::PageCount;
use zonal_adapters::allocator_api2::PageAlloc;
use zonal_adapters::source::FrameSource;
use zonal_linux::{Pool, PoolRequest};

/// Runs `child` in a child of this process, and returns the child's status.
fn in_a_child(child: impl FnOnce()) -> i32 {
    // SAFETY: the child runs only `child` and then `_exit`, on one thread.
    let id = unsafe { libc::fork() };
    if id == 0 {
        // SAFETY: the call accesses no memory.
        unsafe { libc::alarm(60) };
        let failed = catch_unwind(AssertUnwindSafe(child)).is_err();
        // SAFETY: the call ends this process without running the parent's exit handlers.
        unsafe { libc::_exit(i32::from(failed)) };
    }
    assert!(id > 0, "no fork: {}", std::io::Error::last_os_error());
    let mut status = 0;
    // SAFETY: the call waits for a child of this process, and writes to `status`.
    assert_eq!(unsafe { libc::waitpid(id, &raw mut status, 0) }, id);
    status
}

#[test]
fn containers_end_in_children_and_after_frees_by_other_processes() {
    let pool = Pool::builder().size(64 << 20).shared_by_descriptor().processes(2).build().unwrap();
    let frames = PageAlloc::new(pool.clone(), PoolRequest::page());
    let mut list = FrameVec::new_in(frames.clone());
    list.extend(0..5000_u32);

    let mut moved = Some(list);
    let status = in_a_child(|| {
        assert!(frames.allocate(Layout::new::<u32>()).is_err(), "a child has no part in its parent's pool");
        drop(moved.take());
    });
    assert_eq!(status, 0, "the child ended by a signal or panicked");
    let list = moved.take().unwrap();
    assert_eq!((pool.accounting().allocated.get(), list[4999]), (5, 4999), "the parent has its frames");

    let other = Pool::join_file(pool.shared_file().unwrap()).unwrap();
    let first = pool.pfn_of(list.as_ptr().cast()).unwrap();
    // SAFETY: the frames were allocated together, and `list` is only dropped after this.
    unsafe { FrameSource::free(&other, first, PageCount::new(5)) }.unwrap();
    drop(list);
    assert_eq!(pool.verify().unwrap().allocated.get(), 0);
}
