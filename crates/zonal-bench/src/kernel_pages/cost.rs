//! The cost of a page from the kernel, in two forms: for programs that map and unmap their memory.

use std::io;
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use memmap2::{MmapMut, MmapOptions};
use rustix::time::{ClockId, clock_gettime};

/// Bytes that a thread holds before it gives them back.
const HELD_BYTES: usize = 32 << 20;

/// The cost of a page from the kernel: to map, touch and unmap it, in nanoseconds of CPU time.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct KernelCost {
    /// If each page has a mapping of its own.
    pub own_mapping_ns: f64,
    /// If 32 MiB are mapped at once and each page is touched.
    pub in_region_ns: f64,
}

/// Measures both costs on `threads` threads, each for half of `duration`.
///
/// ```
/// let cost = zonal_bench::kernel_cost(1, 4096, std::time::Duration::from_millis(10))?;
/// assert!(cost.own_mapping_ns > cost.in_region_ns / 100.0);
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Errors
/// When the kernel refuses a mapping.
pub fn kernel_cost(threads: usize, page_bytes: usize, duration: Duration) -> io::Result<KernelCost> {
    let measure = |mapped_bytes| on_threads(threads, page_bytes, mapped_bytes, duration / 2);
    Ok(KernelCost { own_mapping_ns: measure(page_bytes)?, in_region_ns: measure(HELD_BYTES)? })
}

/// Returns the CPU time that the calling thread has used.
fn cpu_time() -> Duration {
    let used = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(used.tv_sec as u64, used.tv_nsec as u32)
}

/// Returns the nanoseconds for a page if `mapped_bytes` are mapped at once.
fn on_threads(threads: usize, page_bytes: usize, mapped_bytes: usize, duration: Duration) -> io::Result<f64> {
    let one = || -> io::Result<f64> {
        let mut held: Vec<MmapMut> = Vec::with_capacity(HELD_BYTES / mapped_bytes);
        let (begin, used_before, mut pages) = (Instant::now(), cpu_time(), 0u32);
        while pages == 0 || begin.elapsed() < duration {
            for _ in 0..HELD_BYTES / mapped_bytes {
                let mut mapped = MmapOptions::new().len(mapped_bytes).map_anon()?;
                mapped.iter_mut().step_by(page_bytes).for_each(|byte| *byte = 1);
                held.push(mapped);
            }
            held.clear();
            pages = pages.saturating_add((HELD_BYTES / page_bytes) as u32);
        }
        let used = cpu_time().saturating_sub(used_before);
        Ok(used.as_nanos() as f64 / f64::from(pages))
    };
    let join = |thread: ScopedJoinHandle<'_, io::Result<f64>>| {
        thread.join().unwrap_or_else(|_| Err(io::Error::other("a thread panicked")))
    };
    let costs: io::Result<Vec<f64>> = thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(one)).collect();
        threads.into_iter().map(join).collect()
    });
    let costs = costs?;
    Ok(costs.iter().sum::<f64>() / costs.len().max(1) as f64)
}
