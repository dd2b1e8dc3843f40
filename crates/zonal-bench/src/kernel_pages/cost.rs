//! The cost of a cleared page: from the kernel in two forms, for programs that map and unmap their memory, and from a pool.

use std::io;
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use memmap2::{MmapMut, MmapOptions};
use zonal::units::Order;
use zonal_linux::{Pool, PoolRequest};
use zonal_workload::cpu_time;

/// Bytes that a thread holds before it gives them back.
const HELD_BYTES: usize = 32 << 20;
/// Times that each cost is measured, in turn with the others.
const ROUNDS: u32 = 2;

/// The cost to obtain a cleared page, touch it and give it back, in nanoseconds of CPU time.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct PageCost {
    /// From the kernel, if each page has a mapping of its own.
    pub own_mapping_ns: f64,
    /// From the kernel, if 32 MiB are mapped at once and each page is touched.
    pub in_region_ns: f64,
    /// From a pool, which clears it.
    pub from_pool_ns: f64,
}

/// Measures the costs on `threads` threads, in turn and `duration` long in total. Returns the least that was measured of each,
/// because other programs only add to it.
///
/// ```
/// use std::time::Duration;
///
/// let pool = zonal_linux::Pool::builder().size(64 << 20).build()?;
/// let cost = zonal_bench::page_cost(&pool, 1, Duration::from_millis(30))?;
/// assert!(cost.own_mapping_ns > cost.in_region_ns / 100.0 && cost.from_pool_ns > 0.0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// When the kernel refuses a mapping, or the pool a page.
pub fn page_cost(pool: &Pool, threads: usize, duration: Duration) -> io::Result<PageCost> {
    let page_bytes = pool.page_bytes();
    let held = usize::try_from(pool.frames().get()).unwrap_or(usize::MAX) / threads.max(1) / 2;
    let held = held.clamp(1, HELD_BYTES / page_bytes);
    let on_threads =
        |round: &(dyn Fn() -> io::Result<usize> + Sync)| on_threads(threads, duration / 3 / ROUNDS, round);
    let mut least = PageCost { own_mapping_ns: f64::MAX, in_region_ns: f64::MAX, from_pool_ns: f64::MAX };
    for _ in 0..ROUNDS {
        least.own_mapping_ns = least.own_mapping_ns.min(on_threads(&|| map(page_bytes, page_bytes))?);
        least.in_region_ns = least.in_region_ns.min(on_threads(&|| map(page_bytes, HELD_BYTES))?);
        least.from_pool_ns = least.from_pool_ns.min(on_threads(&|| take(pool, held))?);
    }
    Ok(least)
}

/// Maps memory, `mapped_bytes` at once, touches each page, and unmaps it. Returns the number of pages.
fn map(page_bytes: usize, mapped_bytes: usize) -> io::Result<usize> {
    let mut held: Vec<MmapMut> = Vec::with_capacity(HELD_BYTES / mapped_bytes);
    for _ in 0..HELD_BYTES / mapped_bytes {
        let mut mapped = MmapOptions::new().len(mapped_bytes).map_anon()?;
        mapped.iter_mut().step_by(page_bytes).for_each(|byte| *byte = 1);
        held.push(mapped);
    }
    Ok(HELD_BYTES / page_bytes)
}

/// Takes `pages` cleared pages from a pool, touches each, and gives them back. Returns their number.
fn take(pool: &Pool, pages: usize) -> io::Result<usize> {
    let mut held = Vec::with_capacity(pages);
    for _ in 0..pages {
        let mut page = pool.alloc(&PoolRequest::new(Order::PAGE).zeroed()).map_err(io::Error::other)?;
        page[0] = 1;
        held.push(page);
    }
    Ok(pages)
}

/// Repeats `round`, which returns a number of pages, on each thread. Returns the CPU time of a page in nanoseconds.
fn on_threads(
    threads: usize,
    duration: Duration,
    round: &(dyn Fn() -> io::Result<usize> + Sync),
) -> io::Result<f64> {
    let one = || -> io::Result<f64> {
        let (begin, used_before, mut pages) = (Instant::now(), cpu_time::of_this_thread(), 0);
        while pages == 0 || begin.elapsed() < duration {
            pages += round()?;
        }
        let used = cpu_time::of_this_thread().saturating_sub(used_before);
        Ok(used.as_nanos() as f64 / pages as f64)
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
