//! Huge pages of the kernel's reserve, for tests that may change it.

use std::fs;

/// Bytes of such a page.
pub const HUGE_PAGE_BYTES: u64 = 2 << 20;

const RESERVE: &str = "/proc/sys/vm/nr_hugepages";
const FREE: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages";

/// Pages added to the reserve, which go again when this is dropped.
///
/// The reserve is the whole machine's. What is added and taken away is the difference, so that others may change
/// it meanwhile; a process that is killed leaves what it added.
#[derive(Debug)]
pub struct HugePageReserve {
    added: u64,
}

impl HugePageReserve {
    /// Makes sure that `pages` pages of the reserve are free.
    ///
    /// # Errors
    /// Why they are not: no such pages on this machine, no permission, or too little memory in one piece.
    pub fn with_free(pages: u64) -> Result<Self, String> {
        let missing = pages.saturating_sub(free_huge_pages()?);
        if missing == 0 {
            return Ok(Self { added: 0 });
        }
        let before = number(RESERVE)?;
        fs::write(RESERVE, (before + missing).to_string()).map_err(|error| format!("{RESERVE}: {error}"))?;
        let reserve = Self { added: number(RESERVE)?.saturating_sub(before) };
        match free_huge_pages()? {
            free if free >= pages => Ok(reserve),
            free => Err(format!(
                "{free} of {pages} huge pages could be had; memory is too scattered or too short"
            )),
        }
    }
}

impl Drop for HugePageReserve {
    fn drop(&mut self) {
        if self.added > 0 {
            let restored =
                number(RESERVE).map(|now| fs::write(RESERVE, now.saturating_sub(self.added).to_string()));
            // A panic that is under way says more.
            assert!(matches!(restored, Ok(Ok(()))) || std::thread::panicking(), "{RESERVE}: {restored:?}");
        }
    }
}

/// Pages of the reserve that nothing uses.
///
/// # Errors
/// When this machine has no such pages.
pub fn free_huge_pages() -> Result<u64, String> {
    number(FREE)
}

fn number(file: &str) -> Result<u64, String> {
    let text = fs::read_to_string(file).map_err(|error| format!("{file}: {error}"))?;
    text.trim().parse().map_err(|error| format!("{file}: {error}"))
}
