//! The sizes of the pages that the kernel maps.

/// Size in bytes of the huge pages that pools use.
pub(crate) const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Returns the size in bytes of an ordinary page of the running kernel.
pub(crate) fn os_page_bytes() -> usize {
    // SAFETY: the call has no preconditions.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(bytes).expect("the page size is always known")
}
