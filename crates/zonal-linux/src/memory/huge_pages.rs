//! The kinds of huge pages, and how many of them the kernel has.
//!
//! Related file: `memory/zones.rs` maps them.

use std::fs;
use std::io;

use zonal::units::NodeId;

use super::page_sizes::{HUGE_PAGE_BYTES, HugePageSize};

/// The kind of huge pages that back a pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum HugePages {
    /// No huge pages, not even if the kernel would use them without a request.
    Never,
    /// Transparent huge pages, which the kernel allocates by itself where possible.
    #[default]
    Transparent,
    /// Explicit huge pages from the kernel's reserve (`vm.nr_hugepages`), populated when the pool is built. If the
    /// reserve is too small for a zone, the zone uses transparent huge pages, and the pool has a
    /// [`Warning`](crate::Warning).
    ///
    /// A child made by `fork` gets no copy of explicit huge pages, because the pool reserves them only for the parent.
    /// In the child, any access to the frames raises `SIGSEGV`, [`Pool::ptr_of`](crate::Pool::ptr_of) returns `None`,
    /// and allocating [`Frames`](crate::Frames) panics. The child may drop frames and handles.
    ///
    /// In the child, inaccessible pages replace the huge pages, with two exceptions. No pages replace them if the child
    /// was made by `_Fork` or by the bare system call instead of `fork`, or if the kernel refuses the child more
    /// addresses (for example because `RLIMIT_AS` was lowered). The child may then map other memory at the addresses of
    /// frames that it inherited.
    ///
    /// If the program registers a handler for children (`pthread_atfork`) before it builds its first pool with explicit
    /// huge pages, that handler must not leave new memory mapped. If such memory is at the addresses of the pool, the
    /// child is aborted.
    Explicit,
    /// Explicit huge pages of 1 GiB, otherwise as [`Explicit`](Self::Explicit). Each zone has whole GiB. If the reserve
    /// of such pages is too small for a zone, the zone uses explicit huge pages of 2 MiB, and if these are too few,
    /// transparent huge pages. The pool has a [`Warning`](crate::Warning) for each of these steps.
    Explicit1G,
}

impl HugePages {
    /// Returns the sizes of explicit huge pages to try, in order.
    pub(crate) const fn explicit_sizes(self) -> &'static [HugePageSize] {
        match self {
            Self::Never | Self::Transparent => &[],
            Self::Explicit => &[HugePageSize::TwoMiB],
            Self::Explicit1G => &[HugePageSize::OneGiB, HugePageSize::TwoMiB],
        }
    }

    /// Returns the size in bytes of which zones have whole multiples where possible.
    pub(crate) fn unit_bytes(self) -> usize {
        self.explicit_sizes().first().map_or(HUGE_PAGE_BYTES, |size| size.bytes())
    }
}

/// Returns the number of free huge pages in the kernel's reserve, on one node or, for `None`, on all nodes. Returns
/// `None` if the kernel does not report the number.
pub(crate) fn free_huge_pages(size: HugePageSize, node: Option<NodeId>) -> Option<u64> {
    let dir = node.map_or("/sys/kernel/mm".into(), |node| format!("/sys/devices/system/node/node{node}"));
    let free = fs::read_to_string(format!("{dir}/hugepages/{}/free_hugepages", size.folder()));
    free.ok()?.trim().parse().ok()
}

/// Returns the reason if transparent huge pages are not used: the kernel refused the advice, or they are disabled.
/// Otherwise returns `None`. `is_file` says whether the memory is that of a file.
pub(super) fn transparent_refused(advised: io::Result<()>, is_file: bool) -> Option<String> {
    if let Err(why) = advised {
        return Some(why.to_string());
    }
    let name = if is_file { "shmem_enabled" } else { "enabled" };
    // Kernels since 6.8 (since 6.10 for files) have a setting for each size, which may be to use the general one.
    let folder = "/sys/kernel/mm/transparent_hugepage";
    let files = [format!("{folder}/hugepages-2048kB/{name}"), format!("{folder}/{name}")];
    let settings = files.iter().filter_map(|file| Some((file, fs::read_to_string(file).ok()?)));
    let (file, setting) = settings.into_iter().find(|(_, setting)| !setting.contains("[inherit]"))?;
    let value = ["never", "deny"].into_iter().find(|value| setting.contains(&format!("[{value}]")))?;
    Some(format!("{file} is set to {value}"))
}
