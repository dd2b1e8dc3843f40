//! What files cost a kernel, and how much of memory may be dirty.

/// Figures of a page cache; those of its disk are the machine's.
#[derive(Clone, PartialEq, Debug)]
pub struct CacheSettings {
    /// What the disk writes for each new file beside its contents, in KiB.
    pub metadata_kib: f64,
    /// The kernel's work for a page that is read, written or stored into, beside allocation and copying,
    /// in nanoseconds.
    pub page_ns: f64,
    /// Looking at a page on a list by use, in nanoseconds.
    pub scan_ns: f64,
    /// Pages of files that nobody has open that reclaim looks at for each page it looks at on a list;
    /// what is clean of these files leaves the cache with them. 0 = files keep their pages until the
    /// lists give them up. Linux: shrinking of inodes in proportion to pages scanned.
    pub inode_pressure: f64,
    /// Share of memory that may be dirty before it is written in the background, in percent. Linux:
    /// `vm.dirty_background_ratio`.
    pub background_pct: f64,
    /// Share of memory that may be dirty or on its way before writers wait, in percent. Linux:
    /// `vm.dirty_ratio`.
    pub limit_pct: f64,
}

impl Default for CacheSettings {
    /// Linux's limits.
    fn default() -> Self {
        Self {
            metadata_kib: 0.0,
            page_ns: 500.0,
            scan_ns: 150.0,
            inode_pressure: 0.0,
            background_pct: 10.0,
            limit_pct: 20.0,
        }
    }
}
