//! The sizes of the pages that the kernel maps.

/// Bytes of the huge pages that are asked for.
pub(crate) const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Bytes of an ordinary page of the running kernel.
pub(crate) fn os_page_bytes() -> usize {
    // SAFETY: no preconditions.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(bytes).expect("the page size is always known")
}
