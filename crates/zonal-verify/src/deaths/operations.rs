//! The operations in which children die.

use std::os::fd::BorrowedFd;

use zonal_linux::{Order, PageCount, Pfn, Pool, PoolRequest};

/// An operation of a child.
#[derive(Debug)]
pub struct Operation {
    /// Its name.
    pub name: &'static str,
    /// Orders of the blocks that the parent gives the child.
    pub(super) foreign: &'static [u8],
    /// Whether the child frees these.
    pub(super) frees: bool,
    prepare: fn(&Pool, &[(Pfn, Order)]) -> Prepared,
}

/// A prepared operation.
type Prepared = Box<dyn FnOnce(&mut Option<Pool>)>;

const fn own(name: &'static str, prepare: fn(&Pool, &[(Pfn, Order)]) -> Prepared) -> Operation {
    Operation { name, foreign: &[], frees: false, prepare }
}

/// All operations.
pub const OPERATIONS: &[Operation] = &[
    own("alloc", |pool, _| {
        free_all(pool, &pages(pool, 20));
        on(|pool| _ = alloc(pool, 0))
    }),
    own("alloc refills", |pool, _| {
        pool.drain_pagesets();
        on(|pool| _ = alloc(pool, 0))
    }),
    own("free", |pool, _| {
        let mine = pages(pool, 1);
        on(move |pool| free_all(pool, &mine))
    }),
    own("frees that drain", |pool, _| {
        let mine = pages(pool, 1500);
        // Most are freed before, one by one, so that one of the rest fills the pageset.
        free_all(pool, &mine[300..]);
        on(move |pool| free_all(pool, &mine[..300]))
    }),
    own("alloc of order 3", |_, _| on(|pool| _ = alloc(pool, 3))),
    own("free of order 3", |pool, _| {
        let mine = [alloc(pool, 3)];
        on(move |pool| free_all(pool, &mine))
    }),
    own("alloc of order 6", |pool, _| {
        pool.drain_pagesets();
        on(|pool| _ = alloc(pool, 6))
    }),
    own("2 MiB", |pool, _| {
        pool.drain_pagesets();
        on(|pool| {
            let block = alloc(pool, 9);
            free_all(pool, &[block]);
            pool.drain_pagesets();
        })
    }),
    own("alloc of order 10", |_, _| {
        on(|pool| {
            let block = alloc(pool, 10);
            free_all(pool, &[block]);
        })
    }),
    own("split", |pool, _| {
        let (first, order) = alloc(pool, 4);
        on(move |pool| {
            let to = Order::new(1).expect("small");
            // SAFETY: the child holds the block, and does not use it.
            unsafe { pool.allocator() }.split(first, order, to).expect("it is allocated");
        })
    }),
    own("run", |_, _| {
        on(|pool| {
            // SAFETY: only blocks of the child are used.
            let allocator = unsafe { pool.allocator() };
            let run =
                allocator.alloc_frames(&zonal::Request::page(), PageCount::new(11)).expect("there is room");
            allocator.free_frames(run.range.start, run.range.count).expect("it was allocated");
        })
    }),
    own("range", |pool, _| {
        let (first, order) = alloc(pool, 9);
        free_all(pool, &[(first, order)]);
        pool.drain_pagesets();
        on(move |pool| {
            // SAFETY: only blocks of the child are used.
            let allocator = unsafe { pool.allocator() };
            let range = zonal_linux::FrameRange { start: first, count: PageCount::new(100) };
            if allocator.alloc_range(range, zonal::request::PageKind::Kernel).is_ok() {
                allocator.free_frames(range.start, range.count).expect("it was allocated");
            }
        })
    }),
    own("bulk", |_, _| {
        on(|pool| {
            let mut frames = [Pfn::new(0); 200];
            let came = pool.alloc_bulk_raw(&PoolRequest::page(), &mut frames).expect("there is room");
            // SAFETY: the child holds the frames.
            unsafe { pool.free_bulk_raw(&frames[..came]) }.expect("they were allocated");
        })
    }),
    Operation {
        name: "free of another's page",
        foreign: &[0],
        frees: true,
        prepare: |_, given| {
            let given = given.to_vec();
            on(move |pool| free_all(pool, &given))
        },
    },
    Operation {
        name: "free of another's block",
        foreign: &[5],
        frees: true,
        prepare: |_, given| {
            let given = given.to_vec();
            on(move |pool| free_all(pool, &given))
        },
    },
    Operation {
        name: "take over",
        foreign: &[2],
        frees: true,
        prepare: |_, given| {
            let (first, order) = given[0];
            on(move |pool| pool.take_over(first, order.pages()).expect("it is allocated"))
        },
    },
    Operation {
        name: "nothing of another's",
        foreign: &[0, 3, 9],
        frees: false,
        prepare: |_, _| on(|pool| _ = alloc(pool, 1)),
    },
    own("drain", |pool, _| {
        free_all(pool, &pages(pool, 200));
        free_all(pool, &[alloc(pool, 3), alloc(pool, 9)]);
        on(Pool::drain_pagesets)
    }),
    own("trim", |pool, _| {
        let (first, order) = alloc(pool, 9);
        touch(pool, first);
        free_all(pool, &[(first, order)]);
        pool.drain_pagesets();
        on(|pool| assert!(pool.trim().expect("a memfd has no limit") > 0))
    }),
    own("tick", |pool, _| {
        free_all(pool, &pages(pool, 300));
        // SAFETY: a tick frees no block.
        on(|pool| unsafe { pool.allocator() }.tick())
    }),
    own("fold", |pool, _| {
        let _ = pages(pool, 100);
        on(Pool::stat_refresh)
    }),
    own("setting", |_, _| on(|pool| _ = pool.set_setting("watermark_scale_factor", "200"))),
    own("join", |_, _| on(|pool| std::mem::forget(Pool::join_file(file_of(pool))))),
    own("join as", |_, _| on(|pool| std::mem::forget(Pool::join_file_as(file_of(pool), SECOND)))),
    own("root", |pool, _| {
        let (first, order) = alloc(pool, 2);
        let block = zonal_linux::FrameRange { start: first, count: order.pages() };
        pool.set_root(ROOT, Some(block)).expect("it is allocated");
        on(move |pool| {
            pool.set_root(ROOT, Some(block)).expect("it is allocated");
            pool.set_root(ROOT, None).expect("it can be removed");
        })
    }),
    own("discard", |pool, _| {
        let second = Pool::join_file_as(file_of(pool), SECOND).expect("there is room");
        let _ = pages(&second, 10);
        let (first, order) = alloc(&second, 1);
        let block = zonal_linux::FrameRange { start: first, count: order.pages() };
        second.set_root(ROOT, Some(block)).expect("it is allocated");
        drop(second);
        on(|pool| _ = pool.discard(SECOND).expect("it is kept"))
    }),
    own("leave", |pool, _| {
        let _ = pages(pool, 100);
        Box::new(|pool| drop(pool.take()))
    }),
];

/// The names of a child whose blocks outlive it, and of its second membership.
pub(super) const CHILD: &str = "child";
const SECOND: &str = "second";
/// The names of a root that changes, and of one that stays.
pub(super) const ROOT: &str = "root";
pub(super) const STAYING: &str = "staying";

/// Runs the child's part: joins the pool of the descriptor, prepares the operation, and marks its begin and end. The blocks of a
/// child with a name outlive it.
pub fn child(name: &str, fd: BorrowedFd<'_>, is_named: bool, given: &[(Pfn, Order)]) {
    let operation =
        OPERATIONS.iter().find(|operation| operation.name == name).expect("the parent knows the names");
    stay_on_one_cpu();
    let pool = if is_named { Pool::join_file_as(fd, CHILD) } else { Pool::join_file(fd) };
    let pool = pool.expect("the parent has made the pool");
    let (first, order) = alloc(&pool, 2);
    let block = zonal_linux::FrameRange { start: first, count: order.pages() };
    pool.set_root(STAYING, Some(block)).expect("it is allocated");
    let run = (operation.prepare)(&pool, given);
    mark();
    let mut pool = Some(pool);
    run(&mut pool);
    mark();
}

/// Returns the operation that `run` makes of a pool.
fn on(run: impl FnOnce(&Pool) + 'static) -> Prepared {
    Box::new(|pool| run(pool.as_ref().expect("the child has joined")))
}

/// Reports to the parent that the operation begins or ends.
fn mark() {
    // SAFETY: the parent gets the signal, and not this process.
    unsafe { libc::raise(libc::SIGUSR1) };
}

/// Keeps the calling thread, and those that it starts, on one CPU: a child's steps are then the same every time, and changes
/// between it and its parent are fast.
pub(super) fn stay_on_one_cpu() {
    zonal_testing::pin_to(zonal_testing::allowed_cpus()[0]);
}

fn file_of(pool: &Pool) -> BorrowedFd<'_> {
    pool.shared_file().expect("the pool is shared")
}

fn alloc(pool: &Pool, order: u8) -> (Pfn, Order) {
    let order = Order::new(order).expect("a small order");
    (pool.alloc_raw(&PoolRequest::new(order)).expect("there is room").first, order)
}

/// Writes to a frame that the child holds, so that it has memory.
fn touch(pool: &Pool, frame: Pfn) {
    let first = pool.ptr_of(frame).expect("it is the pool's");
    // SAFETY: the child holds the frame.
    unsafe { first.write(1) };
}

fn pages(pool: &Pool, count: usize) -> Vec<(Pfn, Order)> {
    (0..count).map(|_| alloc(pool, 0)).collect()
}

fn free_all(pool: &Pool, blocks: &[(Pfn, Order)]) {
    for &(first, order) in blocks {
        // SAFETY: the child holds the block, or the parent has given it to the child.
        unsafe { pool.free_raw(first, order) }.expect("it was allocated");
    }
}
