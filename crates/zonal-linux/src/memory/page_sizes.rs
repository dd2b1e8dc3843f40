//! The sizes of the pages that the kernel maps.

use std::ffi::c_int;
use std::io;
use std::os::fd::BorrowedFd;

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

    /// Returns how large the explicit huge pages of a file or folder are, or `None` if it has ordinary pages.
    ///
    /// # Errors
    /// Those of the kernel; also for huge pages of another size, and for a file system that is not in memory: it would write the
    /// pool to a disk.
    pub(super) fn of_file(file: BorrowedFd<'_>) -> io::Result<Option<Self>> {
        let status = rustix::fs::fstatfs(file)?;
        let refused = |why| io::Error::new(io::ErrorKind::Unsupported, why);
        match status.f_type as u64 & 0xffff_ffff {
            kind if kind == libc::TMPFS_MAGIC as u64 => return Ok(None),
            kind if kind == libc::HUGETLBFS_MAGIC as u64 => {}
            _ => return Err(refused("its file system is neither tmpfs nor hugetlbfs, which are in memory")),
        }
        let size = [Self::TwoMiB, Self::OneGiB]
            .into_iter()
            .find(|size| size.bytes() as u64 == status.f_bsize as u64);
        let why = "its file system has huge pages of another size than 2 MiB and 1 GiB";
        size.map(Some).ok_or_else(|| refused(why))
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
