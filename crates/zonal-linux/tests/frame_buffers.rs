//! Tests of frame buffers: any number of adjacent pool frames.

use zonal_linux::{AllocError, FreeError, Order, PageCount, Pfn, Pool, PoolRequest, SplitError};

fn pool() -> Pool {
    Pool::builder().size(64 << 20).build().expect("64 MiB can be mapped")
}

#[test]
fn buffers_of_any_size_hold_their_bytes_until_they_are_dropped() {
    let pool = pool();
    let page = pool.page_bytes();
    let mut held = Vec::new();
    for count in (1..=20).chain([100, 511, 513, 1024]) {
        let mut buffer = pool.alloc_frames(&PoolRequest::page(), PageCount::new(count)).unwrap();
        assert_eq!((buffer.count().get(), buffer.len()), (count, count as usize * page));
        buffer.fill(count as u8);
        held.push(buffer);
    }
    let frames: u64 = held.iter().map(|buffer| buffer.count().get()).sum();
    assert_eq!(pool.verify().unwrap().allocated.get(), frames);
    for buffer in held {
        assert!(buffer.iter().all(|&byte| byte == buffer.count().get() as u8), "{buffer:?}");
    }
    assert_eq!(pool.verify().unwrap().allocated.get(), 0);
    assert_eq!(
        pool.alloc_bytes(&PoolRequest::page(), 12 << 10).unwrap().count().get(),
        (12 << 10) / page as u64
    );
}

#[test]
fn pages_of_a_buffer_keep_its_contents_and_are_freed_one_by_one() {
    let pool = pool();
    for count in [1, 2, 7, 64, 300] {
        let mut buffer = pool.alloc_frames(&PoolRequest::page(), PageCount::new(count)).unwrap();
        let (first, page) = (buffer.first(), pool.page_bytes());
        buffer.chunks_mut(page).zip((1..=u8::MAX).cycle()).for_each(|(page, number)| page.fill(number));
        let pages = buffer.into_pages();
        for (at, (frames, number)) in pages.iter().zip((1..=u8::MAX).cycle()).enumerate() {
            assert_eq!(frames.first(), first.plus(PageCount::new(at as u64)));
            assert!(frames.iter().all(|&byte| byte == number));
        }
        let kept: Vec<_> = pages.into_iter().step_by(2).collect();
        assert_eq!(pool.verify().unwrap().allocated.get(), kept.len() as u64);
        drop(kept);
        assert_eq!(pool.verify().unwrap().allocated.get(), 0);
    }
}

#[test]
fn contiguous_buffers_may_be_larger_than_the_largest_block() {
    let pool = pool();
    // On a machine with several nodes, each has a part of the pool.
    let most = pool.zones().map(|zone| zone.present.get()).max().unwrap();
    let count = PageCount::new(most / 16 * 9);
    assert!(count > Order::holding(PageCount::new(1024)).unwrap().pages());
    let mut buffer = pool.alloc_contiguous(&PoolRequest::page().zeroed(), count).unwrap();
    assert!(buffer.iter().all(|&byte| byte == 0));
    buffer.fill(1);
    let failure = pool.alloc_contiguous(&PoolRequest::page(), PageCount::new(most)).unwrap_err();
    assert!(matches!(failure.error(), AllocError::NotContiguous { .. }), "{failure}");
    drop(buffer);
    assert_eq!(pool.verify().unwrap().allocated.get(), 0);
}

#[test]
fn failures_name_the_count_and_the_zones() {
    let pool = pool();
    let none = pool.alloc_frames(&PoolRequest::page(), PageCount::ZERO).unwrap_err();
    assert_eq!(none.error(), AllocError::Count { count: PageCount::ZERO, max: PageCount::new(1024) });
    let mut held = Vec::new();
    let failure = loop {
        match pool.alloc_frames(&PoolRequest::page(), PageCount::new(1000)) {
            Ok(buffer) => held.push(buffer),
            Err(failure) => break failure,
        }
    };
    assert!(!failure.zones().is_empty() && failure.to_string().contains("order 10"), "{failure}");
}

#[test]
fn raw_runs_are_freed_and_split_as_they_were_allocated() {
    let pool = pool();
    let run = pool.alloc_frames_raw(&PoolRequest::page(), PageCount::new(3)).unwrap().range;
    // SAFETY: no value owns the frames, here and below.
    let wrong = unsafe { pool.free_frames_raw(run.start, PageCount::new(4)) };
    let (allocated, given) = (PageCount::new(3), PageCount::new(4));
    assert_eq!(wrong, Err(FreeError::WrongCount { frame: run.start, allocated, given }));
    // SAFETY: as above.
    unsafe { pool.split_frames_raw(run.start, run.count, Order::PAGE) }.unwrap();
    // SAFETY: as above.
    let again = unsafe { pool.split_frames_raw(run.start, run.count, Order::PAGE) };
    assert!(matches!(again, Err(SplitError::NotAllocated(FreeError::WrongCount { .. }))), "{again:?}");
    for frame in run.start.get()..run.end().get() {
        // SAFETY: as above.
        unsafe { pool.free_raw(Pfn::new(frame), Order::PAGE) }.unwrap();
    }
    assert_eq!(pool.verify().unwrap().allocated.get(), 0);
}
