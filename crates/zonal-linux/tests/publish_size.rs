//! Memory that the snapshot of a pool with many nodes needs. This is the only test of its program, because it counts the
//! bytes of all threads.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use zonal_linux::Pool;

/// Counts bytes.
struct Counting;

static NOW: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

// SAFETY: the system's allocator does the work.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        PEAK.fetch_max(NOW.fetch_add(layout.size(), Relaxed) + layout.size(), Relaxed);
        // SAFETY: the caller upholds the same contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller upholds the same contract.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

#[test]
fn a_snapshot_needs_little_more_memory_than_its_text() {
    let pool = Pool::builder().size(512 << 20).fake_nodes(256).build().unwrap();
    let before = NOW.load(Relaxed);
    PEAK.store(before, Relaxed);
    let text = pool.snapshot_json();
    let peak = PEAK.load(Relaxed) - before;
    println!("{} bytes of text, {peak} at the peak", text.len());
    assert!(peak < 5 * text.len(), "{peak} bytes for {}", text.len());
    let nodes = serde_json::from_str::<serde_json::Value>(&text).unwrap()["nodes"].take();
    assert_eq!(nodes[255]["distances"].as_object().unwrap().len(), 256);
    assert_eq!(nodes[255]["fallback_order"].as_array().unwrap().len(), 256);
}
