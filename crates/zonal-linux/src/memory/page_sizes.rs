//! The sizes of the pages that the kernel maps.

/// Bytes of a huge page that pools use.
pub(crate) const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Returns the bytes of an ordinary page of the running kernel.
pub(crate) fn os_page_bytes() -> usize {
    // SAFETY: no preconditions.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(bytes).expect("the page size is always known")
}
