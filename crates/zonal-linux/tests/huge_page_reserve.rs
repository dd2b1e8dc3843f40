//! Pools on explicit huge pages. If the kernel's reserve is large enough, a pool uses only pages of the reserve.
//! Otherwise the pool works with other pages, and warns.
//!
//! The tests enlarge the reserve if this process may do so, and restore its size afterwards.

use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

use zonal::units::{Order, PageCount};
use zonal_linux::{HugePages, Pool, PoolRequest, Topology, Warning};
use zonal_testing::{eventually, skipped};

#[path = "common/reserve.rs"]
mod reserve;

use reserve::{Files, Reserve, free_huge_pages};

const MIB: u64 = 1 << 20;
const HUGE_PAGE_BYTES: u64 = 2 * MIB;
/// The most 2 MiB blocks that the `min` watermark of such a pool keeps free.
const BELOW_MIN: u64 = 1;

/// Locks the reserve, so that only one test at a time uses it.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Builds a pool with one emulated node, so that it does not matter which real node has the reserve.
fn pool(bytes: u64) -> Pool {
    let topology = Topology::fake(1).unwrap();
    Pool::builder().topology(topology).size(bytes).huge_pages(HugePages::Explicit).build().unwrap()
}

/// Returns a field of the mapping that contains `address`, from `/proc/self/smaps`, in KiB.
fn of_mapping(address: usize, field: &str) -> u64 {
    let smaps = fs::read_to_string("/proc/self/smaps").unwrap();
    let mut holds_it = false;
    for line in smaps.lines() {
        let first = line.split_whitespace().next().unwrap_or_default();
        if let Some((from, to)) = first.split_once('-') {
            let bound = |text| usize::from_str_radix(text, 16).unwrap();
            holds_it = (bound(from)..bound(to)).contains(&address);
        } else if holds_it && first.strip_suffix(':') == Some(field) {
            return line.split_whitespace().nth(1).unwrap().parse().unwrap();
        }
    }
    panic!("no {field} of a mapping at {address:#x}");
}

/// Allocates all free blocks of 2 MiB, writes to all of their pages and reads them back.
fn use_all(pool: &Pool) -> Vec<zonal_linux::Frames> {
    let request = PoolRequest::new(Order::new(9).unwrap()).no_wait();
    let mut held: Vec<_> = std::iter::from_fn(|| pool.alloc(&request).ok()).collect();
    for (at, frames) in held.iter_mut().enumerate() {
        frames.fill(at as u8 | 1);
    }
    for (at, frames) in held.iter().enumerate() {
        assert!(frames.iter().all(|&byte| byte == at as u8 | 1));
    }
    held
}

fn warning_of(pool: &Pool) -> Option<(u64, Option<u64>)> {
    pool.warnings().iter().find_map(|one| match one {
        Warning::NoExplicitHugePages { needed, free, .. } => Some((*needed, *free)),
        _ => None,
    })
}

#[test]
fn pool_uses_and_returns_the_huge_page_reserve() {
    let _alone = alone();
    let pages = 64 * MIB / HUGE_PAGE_BYTES;
    let _reserve = match Reserve::with_free(pages) {
        Ok(reserve) => reserve,
        Err(why) => return skipped!("no reserve of huge pages, so only the fallback is tested: {why}"),
    };
    let before = free_huge_pages();
    for round in 0..3 {
        let pool = pool(64 * MIB);
        assert_eq!(warning_of(&pool), None, "round {round}");
        // All pages are populated before any is touched. If the reserve ran out later, the kernel would kill the
        // process.
        assert_eq!(before - free_huge_pages(), pages, "round {round}");
        let held = use_all(&pool);
        assert!(held.len() as u64 + BELOW_MIN >= pages, "round {round}: {}", held.len());
        let address = held[0].as_ptr() as usize;
        assert_eq!(of_mapping(address, "KernelPageSize"), 2048, "round {round}");
        let huge = of_mapping(address, "Private_Hugetlb") + of_mapping(address, "Shared_Hugetlb");
        assert_eq!(huge, 64 << 10, "round {round}");
        drop(held);
        assert_eq!(pool.verify().unwrap().allocated, PageCount::ZERO);
        drop(pool);
        assert_eq!(free_huge_pages(), before, "round {round}");
    }
}

/// Each pool first finds a free address range and then maps it. Another thread may map something there in between,
/// which is no reason to fall back to other pages.
#[test]
fn pools_built_concurrently_all_use_the_reserve() {
    const THREADS: u64 = 4;
    const PAGES: u64 = 4;
    let _alone = alone();
    let _reserve = match Reserve::with_free(THREADS * PAGES) {
        Ok(reserve) => reserve,
        Err(why) => return skipped!("no reserve of huge pages to build several pools on: {why}"),
    };
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            scope.spawn(move || {
                for round in 0..150 {
                    let pool = pool(PAGES * HUGE_PAGE_BYTES);
                    assert_eq!(warning_of(&pool), None, "thread {thread}, round {round}");
                }
            });
        }
    });
}

#[test]
fn pool_larger_than_the_reserve_warns_and_works() {
    let _alone = alone();
    let _reserve = Reserve::locked(Files::of_the_machine()).unwrap();
    let free = free_huge_pages();
    let wanted = (free + 8).max(32);
    if zonal_linux::available_bytes().is_ok_and(|bytes| bytes / 2 < wanted * HUGE_PAGE_BYTES) {
        return skipped!("the reserve of {free} huge pages is more than half of what is available");
    }
    let pool = pool(wanted * HUGE_PAGE_BYTES);
    let (needed, available) = warning_of(&pool).expect("the reserve does not suffice");
    assert_eq!((needed, available.unwrap_or(0)), (wanted, free));
    let held = use_all(&pool);
    assert!(held.len() as u64 + BELOW_MIN >= wanted, "{}", held.len());
    assert_eq!(of_mapping(held[0].as_ptr() as usize, "KernelPageSize"), 4);
    assert_eq!(free_huge_pages(), free, "nothing of the reserve is kept");
}

/// Environment variable that names the folder in which [`reserve_holder_process`] has its reserve.
const HELD: &str = "ZONAL_TEST_RESERVE";

/// Makes a reserve of plain files for one test. All of its pages are free.
fn in_folder(folder: &Path) -> Files {
    let at = |name: &str| folder.join(name);
    Files { pages: at("pages"), free: at("pages"), lock: at("lock") }
}

/// Does nothing unless the test below starts it in a separate process.
#[test]
fn reserve_holder_process() {
    let Some(folder) = std::env::var_os(HELD) else { return };
    let mut reserve = Reserve::locked(in_folder(folder.as_ref())).unwrap();
    reserve.raise(9).unwrap();
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap(); // the input ends when the parent does
}

#[test]
fn reserve_of_a_killed_process_is_restored_by_the_next() {
    let folder = tempfile::tempdir().unwrap();
    let files = in_folder(folder.path());
    let pages = || fs::read_to_string(&files.pages).unwrap();
    fs::write(&files.pages, "3\n").unwrap();
    let mut holder = Command::new(std::env::current_exe().unwrap());
    holder.args(["--exact", "reserve_holder_process"]).env(HELD, folder.path());
    let mut holder = holder.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    eventually("the reserve is raised", || pages() == "9");
    assert!(Reserve::try_locked(files.clone()).unwrap().is_none(), "two have the reserve");
    holder.kill().unwrap();
    holder.wait().unwrap();
    assert_eq!(pages(), "9");

    let mut reserve = Reserve::locked(files.clone()).unwrap();
    assert_eq!(pages(), "3");
    reserve.raise(5).unwrap();
    reserve.raise(7).unwrap();
    assert_eq!(pages(), "7");
    drop(reserve);
    assert_eq!(pages(), "3");
    // If other software has set a different size meanwhile, that size stays.
    let mut reserve = Reserve::locked(files.clone()).unwrap();
    reserve.raise(5).unwrap();
    fs::write(&files.pages, "100").unwrap();
    drop(reserve);
    assert_eq!(pages(), "100");
    // The lock does not follow a symbolic link that another user has created in place of the lock file.
    fs::remove_file(&files.lock).unwrap();
    std::os::unix::fs::symlink(&files.pages, &files.lock).unwrap();
    assert!(Reserve::try_locked(files.clone()).is_err());
    assert_eq!(pages(), "100");
}
