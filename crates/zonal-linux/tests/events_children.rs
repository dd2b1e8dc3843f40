//! Tests that a child made by `fork` emits no events, because another thread of the parent may have held a subscriber's
//! lock. This file has only one test, because a test that forks must be alone in its process.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};
use zonal_linux::Pool;

/// Number of events.
static COUNT: AtomicU64 = AtomicU64::new(0);

struct Counter;

impl Subscriber for Counter {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, _: &Event<'_>) {
        COUNT.fetch_add(1, Relaxed); // a counter
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

#[test]
fn a_child_emits_no_events() {
    tracing::subscriber::set_global_default(Counter).unwrap();
    let pool = Pool::builder().size(16 << 20).build().unwrap();
    let status = pool.with_threads_paused(|_| {
        let before = COUNT.load(Relaxed);
        pool.set_setting("zone_reclaim_mode", "1").unwrap();
        assert_eq!(COUNT.load(Relaxed), before + 1, "the parent emits");
        // SAFETY: the child only changes a setting, reads a counter, and ends.
        let id = unsafe { libc::fork() };
        if id == 0 {
            let before = COUNT.load(Relaxed);
            let changed = pool.set_setting("zone_reclaim_mode", "0").is_ok();
            let is_right = changed && COUNT.load(Relaxed) == before;
            // SAFETY: the call ends this process without running the parent's exit handlers.
            unsafe { libc::_exit(i32::from(!is_right)) };
        }
        let mut status = -1;
        // SAFETY: the call waits for a child of this process, and writes to `status`.
        assert_eq!(unsafe { libc::waitpid(id, &raw mut status, 0) }, id);
        status
    });
    assert_eq!(status, 0);
}
