//! Pages from the kernel instead of a pool: what a program pays that keeps none.
//!
//! `kernel_pages/mapped.rs` and `kernel_pages/punched.rs` are contenders, which give each page back to the kernel when it
//! is freed. They touch their pages, because a page that was never touched has no memory to give back. `kernel_pages/cost.rs`
//! measures the same for the check-up, which has no rounds and no other allocators.

mod cost;
mod mapped;
mod punched;

use rustix::system::uname;
use zonal::units::PageCount;
use zonal_linux::available_bytes;
use zonal_machine::Bytes;
use zonal_workload::{REPEAT, Workload};

pub use self::cost::{PageCost, page_cost};
use self::mapped::Mapped;
use self::punched::Punched;
use crate::contender::{Entry, Reason};

/// Names of the contenders.
pub const KERNEL_PAGES: [&str; 2] = ["kernel-mmap", "kernel-memfd"];

/// Returns the entries that get each page from the kernel: by a mapping of its own, and from a file in memory.
#[must_use]
pub fn kernel_pages() -> Vec<Entry> {
    let [mmap, memfd] = KERNEL_PAGES;
    vec![
        Entry::new(mmap, version(), |_| Ok(Mapped::default())).without_pool().admitting(
            |workload, frames, threads| {
                if matches!(workload, Workload::Random | Workload::Orders) {
                    return Err(
                        "scattered pages would need more mappings than vm.max_map_count allows".into()
                    );
                }
                fits(workload, frames, threads)
            },
        ),
        Entry::new(memfd, version(), Punched::new).of_single_frames().without_pool().admitting(fits),
    ]
}

/// Returns the three numbers of the running kernel's version.
fn version() -> String {
    let release = uname().release().to_string_lossy().into_owned();
    let is_number = |letter: char| letter.is_ascii_digit() || letter == '.';
    let numbers = release.split(|letter| !is_number(letter)).next().unwrap_or_default();
    numbers.split('.').take(3).collect::<Vec<_>>().join(".")
}

/// Checks that the pages that a workload touches take at most half of the available memory.
fn fits(workload: Workload, frames: PageCount, threads: usize) -> Result<(), Reason> {
    let touched = match workload {
        Workload::Fill => frames.get(),
        Workload::Random => frames.get() / 2,
        // Together, threads hold at most three quarters of the pool.
        _ => (frames.get() / 4 * 3).min((REPEAT as u64).saturating_mul(threads as u64)),
    };
    let touched = touched.saturating_mul(page_bytes() as u64);
    let available = available_bytes().map_err(|error| error.to_string())?;
    if touched > available / 2 {
        let (touched, available) = (Bytes(touched), Bytes(available));
        return Err(format!("it would fill {touched}, more than half of the {available} available"));
    }
    Ok(())
}

/// Returns the size of this machine's pages. A frame of these contenders is such a page.
fn page_bytes() -> usize {
    rustix::param::page_size()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_three_numbers() {
        let version = version();
        let numbers: Vec<&str> = version.split('.').collect();
        assert!(numbers.len() == 3 && numbers.iter().all(|part| part.parse::<u32>().is_ok()), "{version}");
    }

    #[test]
    fn workloads_that_would_fill_the_memory_are_refused() {
        let huge = PageCount::new(1 << 40);
        let why = fits(Workload::Fill, huge, 1).unwrap_err();
        assert!(why.starts_with("it would fill 4 PiB, more than half of the "), "{why}");
        let (few, many) = (1, 1 << 20);
        for workload in Workload::ALL {
            assert!(fits(workload, huge, many).is_err(), "{workload:?}");
            assert_eq!(fits(workload, PageCount::new(1), many), Ok(()), "{workload:?}");
        }
        assert!(fits(Workload::Random, huge, few).is_err());
        assert_eq!(fits(Workload::Repeat, huge, few), Ok(()));
    }
}
