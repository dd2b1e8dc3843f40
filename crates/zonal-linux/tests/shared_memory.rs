//! Tests of pools whose memory other processes can map.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, RawFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use zonal_linux::{
    FrameRange, Frames, HugePages, Order, PageCount, Pool, PoolBuilder, PoolRequest, Prefault, SharedFrames,
    Warning,
};
use zonal_testing::skipped;

#[path = "common/pages.rs"]
mod pages;
#[path = "common/reserve.rs"]
mod reserve;

use pages::filled;
use reserve::{Reserve, free_huge_pages, returned};

const MIB: u64 = 1 << 20;
/// Environment variables that name the descriptor and the offset that the second process maps.
const DESCRIPTOR: &str = "ZONAL_TEST_DESCRIPTOR";
const OFFSET: &str = "ZONAL_TEST_OFFSET";

fn shared(mib: u64, nodes: usize) -> PoolBuilder<'static> {
    Pool::builder().size(mib * MIB).fake_nodes(nodes).huge_pages(HugePages::Never).shared_memory()
}

/// Returns duplicates of the pool's files, with the frames that they hold.
fn files(pool: &Pool) -> Vec<(File, FrameRange)> {
    // SAFETY: the tests access only frames that nothing else accesses meanwhile, or atomically.
    let files = unsafe { pool.memory_files() };
    files.map(|file| (file.as_fd().try_clone_to_owned().unwrap().into(), file.frames())).collect()
}

/// Returns how many bytes of memory the pool's files have.
fn memory(pool: &Pool) -> u64 {
    files(pool).iter().map(|(file, _)| file.metadata().unwrap().blocks() * 512).sum()
}

#[test]
fn files_hold_the_bytes_of_all_zones() {
    let pool = shared(64, 4).build().unwrap();
    let held = filled(&pool, 12_000);
    let files = files(&pool);
    assert_eq!(files.len(), 4);
    assert_eq!(memory(&pool), 12_000 * 4096);
    for (at, page) in held.iter().enumerate() {
        let (file, frames) =
            files.iter().find(|(_, frames)| page.node() == node_of(&pool, *frames)).expect("a file");
        let offset = (page.first().get() - frames.start.get()) * 4096;
        let mut bytes = [0; 4096];
        file.read_exact_at(&mut bytes, offset).unwrap();
        assert_eq!(bytes, [at as u8 | 1; 4096], "page {at}");
    }
    // SAFETY: nothing is accessed through the files.
    for file in unsafe { pool.memory_files() } {
        let FrameRange { start, count } = file.frames();
        let last = start.plus(PageCount::new(count.get() - 1));
        assert_eq!((file.offset_of(start), file.offset_of(last)), (Some(0), Some((count.get() - 1) * 4096)));
        assert_eq!(file.offset_of(file.frames().end()), None);
    }
    drop(held);
    // Files outlive the pool.
    drop(pool);
    let kept: u64 = files.iter().map(|(file, _)| file.metadata().unwrap().blocks() * 512).sum();
    assert_eq!(kept, 12_000 * 4096);
}

fn node_of(pool: &Pool, frames: FrameRange) -> zonal_linux::NodeId {
    pool.ranges().find(|zone| zone.frames == frames).expect("a zone").node
}

#[test]
fn pools_without_files_have_none() {
    let pool = Pool::builder().size(16 * MIB).build().unwrap();
    assert!(files(&pool).is_empty());
}

/// Does nothing unless the test below starts it in a second process. Adds one to a word of the mapped file for each
/// input byte.
#[test]
fn second_process() {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let (Some(descriptor), Some(offset)) = (number(DESCRIPTOR), number(OFFSET)) else { return };
    // SAFETY: the parent left this descriptor open for this process.
    let file = unsafe { File::from_raw_fd(descriptor as RawFd) };
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let at = offset as libc::off_t;
    // SAFETY: the call creates a new mapping.
    let start = unsafe { libc::mmap(null_mut(), 4096, access, libc::MAP_SHARED, file.as_raw_fd(), at) };
    assert_ne!(start, libc::MAP_FAILED);
    // SAFETY: the page is mapped until the process ends, and both processes access it atomically.
    let word = unsafe { &*start.cast::<AtomicU64>() };
    let mut input = Vec::new();
    std::io::stdin().read_to_end(&mut input).unwrap();
    for byte in input {
        word.fetch_add(u64::from(byte), SeqCst);
    }
}

#[test]
fn another_process_writes_to_frames() {
    let pool = shared(16, 2).build().unwrap();
    let other = filled(&pool, 100);
    let page = SharedFrames::from(pool.alloc(&PoolRequest::page().zeroed()).unwrap());
    let files = files(&pool);
    let (file, frames) = files.iter().find(|(_, frames)| node_of(&pool, *frames) == page.node()).unwrap();
    let offset = (page.first().get() - frames.start.get()) * 4096;
    page.words()[0].store(7, SeqCst);
    let descriptor = file.as_raw_fd();
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "second_process"]).stdin(Stdio::piped()).stdout(Stdio::null());
    child.env(DESCRIPTOR, descriptor.to_string()).env(OFFSET, offset.to_string());
    let keep_open = move || {
        // SAFETY: the descriptor is open in the child.
        match unsafe { libc::fcntl(descriptor, libc::F_SETFD, 0) } {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        }
    };
    // SAFETY: the function only makes a system call.
    unsafe { child.pre_exec(keep_open) };
    let mut child = child.spawn().unwrap();
    child.stdin.take().unwrap().write_all(&[1, 2, 100]).unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(page.words()[0].load(SeqCst), 110);
    let is_kept = |(at, page): (usize, &Frames)| page.iter().all(|&byte| byte == at as u8 | 1);
    assert!(other.iter().enumerate().all(is_kept), "the frames of others stay as they were");
}

#[test]
fn memory_that_leaves_makes_holes() {
    let pool = shared(64, 2).build().unwrap();
    drop(filled(&pool, 12_000));
    assert_eq!(memory(&pool), 12_000 * 4096);
    let shrunk = pool.shrink(32 * MIB).unwrap();
    assert_eq!(shrunk, 32 * MIB);
    assert!(memory(&pool) <= 32 * MIB, "{}", memory(&pool));
    assert_eq!(pool.grow(shrunk).unwrap(), shrunk);
    let held = filled(&pool, 100);
    let before = memory(&pool);
    assert_eq!(pool.trim().unwrap(), before - 100 * 4096, "all but the frames in use");
    assert_eq!(memory(&pool), 100 * 4096);
    assert!(held.iter().enumerate().all(|(at, page)| page.iter().all(|&byte| byte == at as u8 | 1)));
    let fresh: Vec<_> = (0..10_000).map(|_| pool.alloc(&PoolRequest::page()).unwrap()).collect();
    assert!(fresh.iter().all(|page| page.iter().all(|&byte| byte == 0)), "holes read zero");
    drop((held, fresh));
    assert_eq!(pool.verify().unwrap().allocated, PageCount::ZERO);
}

#[test]
fn a_terabyte_of_files_uses_the_memory_that_is_online() {
    let pool = shared(64, 2).max_size(1 << 40).prefault(Prefault::AtOnce).build().unwrap();
    assert_eq!(files(&pool).iter().map(|(file, _)| file.metadata().unwrap().len()).sum::<u64>(), 1 << 40);
    assert_eq!(memory(&pool), 64 * MIB);
    let grown = pool.grow(64 * MIB).unwrap();
    assert_eq!(memory(&pool), 64 * MIB + grown, "what comes online is populated too");
    pool.shrink(grown).unwrap();
    assert_eq!(memory(&pool), 64 * MIB);
}

#[test]
fn shared_transparent_huge_pages_are_used_or_reported() {
    let pool = shared(32, 1).huge_pages(HugePages::Transparent).build().unwrap();
    let mut block = pool.alloc(&PoolRequest::new(Order::new(9).unwrap())).unwrap();
    block.fill(1);
    let settings = ["hugepages-2048kB/shmem_enabled", "shmem_enabled"];
    let read = |name| std::fs::read_to_string(format!("/sys/kernel/mm/transparent_hugepage/{name}")).ok();
    let setting = settings.into_iter().filter_map(read).find(|text| !text.contains("[inherit]"));
    let Some(setting) = setting else { return skipped!("this kernel has no huge pages of files") };
    let is_off = setting.contains("[never]") || setting.contains("[deny]");
    match pool.warnings() {
        [] => assert!(!is_off, "{setting}"),
        [Warning::NoTransparentHugePages { reason }] => {
            assert!(is_off && reason.contains("shmem_enabled is set to"), "{setting}: {reason}");
        }
        others => panic!("{others:?}"),
    }
}

#[test]
fn shared_explicit_huge_pages_return_to_the_reserve() {
    let _reserve = match Reserve::with_free(8) {
        Ok(reserve) => reserve,
        Err(why) => return skipped!("shared memory in explicit huge pages: {why}"),
    };
    let before = free_huge_pages();
    let pool = shared(16, 1).huge_pages(HugePages::Explicit).build().unwrap();
    assert_eq!(pool.warnings(), []);
    assert_eq!(free_huge_pages(), before - 8);
    drop(filled(&pool, 3500));
    assert_eq!(pool.shrink(6 * MIB).unwrap(), 6 * MIB);
    assert_eq!(free_huge_pages(), before - 5);
    assert_eq!(pool.grow(6 * MIB).unwrap(), 6 * MIB);
    drop(filled(&pool, 3500));
    drop(pool);
    returned(before);
}
