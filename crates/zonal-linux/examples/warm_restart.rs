//! A cache that is warm after a crash: a process under a name fills blocks and dies in the middle of its work; its successor finds
//! every block that the index has, with its contents, and frees the others.
//!
//! `cargo run --release -p zonal-linux --example warm_restart`

use std::collections::HashSet;
use std::error::Error;
use std::process::{Command, ExitCode};
use std::time::Instant;

use zonal_linux::{FrameRange, Order, Pfn, Pool, PoolRequest};

/// How many blocks the cache has when its process dies, and their size.
const BLOCKS: u64 = 400;
const ORDER: Order = Order::new(4).expect("small");

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [mode, path] = arguments.as_slice()
        && mode == "--fill"
    {
        fill(path)?;
        std::process::abort();
    }
    let path = format!("/dev/shm/zonal-warm-restart-{}", std::process::id());
    let died = Command::new(std::env::current_exe()?).args(["--fill", &path]).status()?;
    let restarted = restart(&path);
    std::fs::remove_file(&path)?;
    println!("the first process ended with {died}");
    restarted
}

/// The first process: makes the pool, and fills blocks. The index is a block, too: how many entries it has, and the first frame
/// of each block.
fn fill(path: &str) -> Result<(), Box<dyn Error>> {
    let pool = Pool::builder().size(256 << 20).shared(path).process_name("cache").build()?;
    // Zeroed, so that the index has no entry before the root names it: the process may die after each step.
    let index = pool.alloc_raw(&PoolRequest::new(ORDER).zeroed())?.first;
    let words = words(&pool, index);
    pool.set_root("index", Some(FrameRange { start: index, count: ORDER.pages() }))?;
    for number in 0..BLOCKS {
        let block = pool.alloc_raw(&PoolRequest::new(ORDER))?.first;
        // SAFETY: the block is allocated, and this process alone uses it, as it does the index.
        unsafe { self::words(&pool, block).write(tag(block)) };
        // SAFETY: as above. The entry is written before it counts, so that the index is right at every moment.
        unsafe { words.wrapping_add(1 + number as usize).write_volatile(block.get()) };
        // SAFETY: as above.
        unsafe { words.write_volatile(number + 1) };
    }
    // The process dies before this block is in the index.
    pool.alloc_raw(&PoolRequest::new(ORDER))?;
    Ok(())
}

/// The successor: has all blocks that the index has, and frees the others.
fn restart(path: &str) -> Result<ExitCode, Box<dyn Error>> {
    let begin = Instant::now();
    let pool = Pool::join_as(path, "cache")?;
    let index = pool.root("index")?.ok_or("there is no index")?;
    let entries = words(&pool, index.start);
    // SAFETY: the index is allocated, and no other process uses it; here and below.
    let word = |at: u64| unsafe { entries.wrapping_add(at as usize).read() };
    let blocks: HashSet<u64> = (1..=word(0)).map(word).collect();
    let time = begin.elapsed();
    let mut unknown = Vec::new();
    pool.for_each_held(|held| {
        if held.start != index.start && !blocks.contains(&held.start.get()) {
            unknown.push(held);
        }
    });
    for held in &unknown {
        // SAFETY: the index does not have the block, so nothing uses it.
        drop(unsafe { pool.own_frames_raw(held.start, held.count) });
    }
    // SAFETY: the blocks are allocated, and no other process uses them.
    let is_whole = |&&block: &&u64| unsafe { words(&pool, Pfn::new(block)).read() } == tag(Pfn::new(block));
    let whole = blocks.iter().filter(is_whole).count();
    println!("{whole} of {BLOCKS} blocks are there with their contents, after {time:.1?}");
    println!("{} block was not in the index, and is free", unknown.len());
    pool.verify()?;
    Ok(if whole as u64 == BLOCKS && unknown.len() == 1 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn words(pool: &Pool, block: Pfn) -> *mut u64 {
    pool.ptr_of(block).expect("it is a frame of the pool").cast().as_ptr()
}

/// Returns what a block contains.
fn tag(block: Pfn) -> u64 {
    block.get().wrapping_mul(0x9e37_79b9_7f4a_7c15)
}
