//! Settings of the page cache: the cost of file operations, and the dirty limits.

/// Settings of a page cache. The disk's speed is a property of the machine (`sim::Hardware`).
#[derive(Clone, PartialEq, Debug)]
pub struct CacheSettings {
    /// Metadata that the disk writes for each new file in addition to the contents of the file, in KiB.
    pub metadata_kib: f64,
    /// Kernel work for a page that is read, written or stored into, in nanoseconds. Excludes allocation and copying.
    pub page_ns: f64,
    /// Time to scan a page on an LRU list, in nanoseconds.
    pub scan_ns: f64,
    /// Pages of unused files that reclaim scans for each page that it scans on an LRU list. Reclaim drops the clean
    /// pages of the scanned files. 0 = pages of unused files are freed only through the LRU lists. Linux: inodes are
    /// shrunk in proportion to the number of pages scanned.
    pub inode_pressure: f64,
    /// Share of memory that may be dirty before background writeback starts, in percent. Linux:
    /// `vm.dirty_background_ratio`.
    pub background_pct: f64,
    /// Share of memory that may be dirty or under writeback before writers wait, in percent. Linux:
    /// `vm.dirty_ratio`.
    pub limit_pct: f64,
}

impl Default for CacheSettings {
    /// Returns Linux's limits.
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
