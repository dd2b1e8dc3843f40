//! Compares C interface calls with calls of the crate `zonal-linux`: an allocation and a free, one after the other.
//!
//! `cargo run --release -p zonal-c --example call_costs` prints medians of interleaved rounds, in nanoseconds.

use std::ffi::c_void;
use std::hint::black_box;
use std::time::Instant;

use zonal_c::blocks::{zonal_alloc, zonal_alloc_pages, zonal_free, zonal_free_pages};
use zonal_c::pool::{zonal_pool_build, zonal_pool_close};
use zonal_c::status::zonal_status::ZONAL_OK;
use zonal_c::types::{zonal_block, zonal_pool, zonal_pool_options, zonal_request};
use zonal_linux::{NodeId, Order, Pfn, Pool, PoolRequest};

const ROUNDS: usize = 21;
const BULK: usize = 64;

/// Returns nanoseconds for each of `times` calls to `body`.
fn time(times: u32, mut body: impl FnMut()) -> f64 {
    let start = Instant::now();
    (0..times).for_each(|_| body());
    start.elapsed().as_secs_f64() * 1e9 / f64::from(times)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn compare(name: &str, times: u32, share: f64, mut rust: impl FnMut(), mut c: impl FnMut()) {
    let (mut of_rust, mut of_c) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        of_rust.push(time(times, &mut rust) / share);
        of_c.push(time(times, &mut c) / share);
    }
    let (rust, c) = (median(of_rust), median(of_c));
    println!("{name:<24} {rust:>8.1} {c:>8.1} {:>8.1} {:>6.2}", c - rust, c / rust);
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let pool = Pool::builder().size(256 << 20).build()?;
    let options = zonal_pool_options { size: 256 << 20, ..zonal_pool_options::default() };
    let mut handle = zonal_pool::default();
    // SAFETY: both point to values.
    assert_eq!(unsafe { zonal_pool_build(&raw const options, &raw mut handle) }, ZONAL_OK);
    let alloc = |request: &zonal_request| {
        let mut block = zonal_block::default();
        // SAFETY: both point to structures with their sizes.
        assert_eq!(unsafe { zonal_alloc(handle, request, &raw mut block) }, ZONAL_OK);
        // SAFETY: the block was allocated just now.
        assert_eq!(unsafe { zonal_free(handle, black_box(block.address), block.bytes) }, ZONAL_OK);
    };
    let raw = |request: &PoolRequest<'_>| {
        let block = pool.alloc_raw(request).expect("the pool has free memory");
        // SAFETY: the block was allocated just now.
        unsafe { pool.free_raw(black_box(block.first), block.order) }.expect("the block is allocated");
    };
    println!("{:<24} {:>8} {:>8} {:>8} {:>6}", "alloc and free", "Rust ns", "C ns", "more", "ratio");
    let request = zonal_request::default();
    compare("page", 200_000, 1.0, || raw(&PoolRequest::page()), || alloc(&request));
    let large = zonal_request { bytes: 2 << 20, ..request };
    let huge = PoolRequest::new(Order::new(9).ok_or("order 9")?);
    compare("2 MiB", 20_000, 1.0, || raw(&huge), || alloc(&large));
    let node = [pool.memory_nodes().iter().next().map_or(0, NodeId::get)];
    let bound = zonal_request { policy: 2, nodes: node.as_ptr(), nodes_len: 1, ..request };
    let policy = pool.bind(pool.memory_nodes())?;
    compare("page, bound", 100_000, 1.0, || raw(&PoolRequest::page().policy(&policy)), || alloc(&bound));
    let (mut frames, mut addresses) = ([Pfn::default(); BULK], [std::ptr::null_mut::<c_void>(); BULK]);
    let bulk_raw = || {
        let count = pool.alloc_bulk_raw(&PoolRequest::page(), &mut frames).expect("the pool has free memory");
        // SAFETY: the frames were allocated just now.
        unsafe { pool.free_bulk_raw(&frames[..count]) }.expect("the frames are allocated");
    };
    let bulk_c = || {
        let mut count = 0;
        let (places, null) = (addresses.as_mut_ptr(), std::ptr::null_mut());
        // SAFETY: there is room for the addresses.
        assert_eq!(unsafe { zonal_alloc_pages(handle, null, places, BULK, &raw mut count) }, ZONAL_OK);
        // SAFETY: the pages were allocated just now.
        assert_eq!(unsafe { zonal_free_pages(handle, places, count, null.cast()) }, ZONAL_OK);
    };
    compare("64 pages, each", 5_000, BULK as f64, bulk_raw, bulk_c);
    assert_eq!(zonal_pool_close(handle, 0), ZONAL_OK);
    Ok(())
}
