//! Huge pages of the kernel's reserve, for tests that may change it.
#![allow(dead_code, unreachable_pub)] // each test file uses a part

use std::fs;

const PAGES: &str = "/proc/sys/vm/nr_hugepages";
const FREE: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages";

fn number(file: &str) -> Option<u64> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

/// Huge pages of 2 MiB added to the reserve, until this is dropped.
pub struct Reserve {
    added: u64,
}

/// Pages of the reserve that are free; none where there is no reserve.
pub fn free_huge_pages() -> u64 {
    number(FREE).unwrap_or(0)
}

impl Reserve {
    /// Makes sure that `free` pages are free.
    ///
    /// # Errors
    /// Why they are not.
    pub fn with_free(free: u64) -> Result<Self, String> {
        let there = number(FREE).ok_or_else(|| format!("{FREE} cannot be read"))?;
        let added = free.saturating_sub(there);
        let before = number(PAGES).ok_or_else(|| format!("{PAGES} cannot be read"))?;
        fs::write(PAGES, (before + added).to_string()).map_err(|why| format!("{PAGES}: {why}"))?;
        let reserve = Self { added: number(PAGES).unwrap_or(before).saturating_sub(before) };
        match number(FREE) {
            Some(now) if now >= free => Ok(reserve),
            now => Err(format!("{free} huge pages are needed, and {} are free", now.unwrap_or(0))),
        }
    }
}

impl Drop for Reserve {
    fn drop(&mut self) {
        let now = number(PAGES).unwrap_or(0);
        fs::write(PAGES, now.saturating_sub(self.added).to_string()).ok();
    }
}
