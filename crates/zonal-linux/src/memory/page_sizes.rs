//! The sizes of the pages that the kernel maps.

use std::ffi::c_int;

/// Size in bytes of transparent huge pages, and of the smaller explicit ones.
pub(crate) const HUGE_PAGE_BYTES: usize = 2 << 20;

/// The size of an explicit huge page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum HugePageSize {
    TwoMiB,
    OneGiB,
}

impl HugePageSize {
    pub(crate) const fn bytes(self) -> usize {
        match self {
            Self::TwoMiB => HUGE_PAGE_BYTES,
            Self::OneGiB => 1 << 30,
        }
    }

    /// Returns the flag of `mmap` and `memfd_create` that selects the size.
    pub(super) const fn flag(self) -> c_int {
        (self.bytes().ilog2() as c_int) << libc::MAP_HUGE_SHIFT
    }

    /// Returns the name of the folder, in a folder `hugepages` of the kernel, that describes the reserve of this size.
    pub(crate) fn folder(self) -> String {
        format!("hugepages-{}kB", self.bytes() >> 10)
    }
}

/// Returns the running kernel's ordinary page size in bytes.
pub(crate) fn os_page_bytes() -> usize {
    // SAFETY: the call has no preconditions.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(bytes).expect("the page size is always known")
}
