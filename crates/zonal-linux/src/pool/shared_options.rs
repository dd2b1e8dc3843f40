//! The options with which a pool is built that processes share.
//!
//! Related files: `pool/builder.rs` has the other options, `pool/joining.rs` builds such a pool.

use std::path::PathBuf;

use zonal::Config;

use super::builder::{PoolBuilder, Prefault};
use crate::error::{PoolError, SharedError};
use crate::memory::pool_file::{FilePlace, SharedOptions};
use crate::memory::zones::Sharing;
use crate::shared_name::SharedName;

/// Number of processes that can share a pool, unless its builder says otherwise.
const PROCESSES: u8 = 8;

impl PoolBuilder<'_> {
    /// Makes a pool that several processes share, in a file at `path`: each allocates and frees, and when one dies, what it
    /// held is given back. The others join it with [`Pool::join`](crate::Pool::join).
    ///
    /// The file must be in a memory file system, such as `/dev/shm`, which must have room for the whole pool. In hugetlbfs, the pool
    /// has explicit huge pages of the file system's size. The file appears when the pool is ready, is readable and writable for its
    /// owner alone, and stays until it is removed.
    ///
    /// ```
    /// use zonal_linux::{Pool, PoolRequest};
    ///
    /// let path = format!("/dev/shm/zonal-example-{}", std::process::id());
    /// let pool = Pool::builder().size(64 << 20).shared(&path).build()?;
    /// let other = Pool::join(&path)?; // usually in another process
    /// std::fs::remove_file(&path)?; // no further process joins
    /// let block = pool.alloc_raw(&PoolRequest::page())?;
    /// // SAFETY: no other code uses or frees the block.
    /// unsafe { other.free_raw(block.first, block.order) }?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn shared(self, path: impl Into<PathBuf>) -> Self {
        let place = Some(FilePlace::Path(path.into()));
        Self { shared: SharedOptions { place, ..self.shared }, ..self }
    }

    /// Makes a pool that several processes share like [`PoolBuilder::shared`], in a file without a path. Other processes join
    /// it with a descriptor of [`Pool::shared_file`](crate::Pool::shared_file) and [`Pool::join_file`](crate::Pool::join_file). If the
    /// kernel's reserve is too small for [`HugePages::Explicit`](crate::HugePages::Explicit), the whole pool is in smaller pages.
    pub fn shared_by_descriptor(self) -> Self {
        Self { shared: SharedOptions { place: Some(FilePlace::Memory), ..self.shared }, ..self }
    }

    /// Sets how many processes can share the pool at once: 1 to 64, by default 8. Each has pagesets of its own, about 2 KiB for
    /// each CPU and zone.
    pub fn processes(self, processes: u8) -> Self {
        Self { shared: SharedOptions { processes: Some(processes), ..self.shared }, ..self }
    }

    /// Names this process in a pool that processes share, so that its blocks outlive it, like
    /// [`Pool::join_as`](crate::Pool::join_as). Has no effect on other pools.
    pub fn process_name(self, name: impl Into<String>) -> Self {
        Self { shared: SharedOptions { name: Some(name.into()), ..self.shared }, ..self }
    }

    /// Returns where the file of a pool that processes share is to be, and under which name this process takes part in it.
    ///
    /// # Errors
    /// [`SharedError::Name`] if the name is not valid.
    pub(super) fn shared_place(&self) -> Result<Option<(&FilePlace, Option<SharedName>)>, SharedError> {
        let name = self.shared.name.as_deref().map(|name| SharedName::new(name).ok_or(SharedError::Name));
        let name = name.transpose()?;
        Ok(self.shared.place.as_ref().map(|place| (place, name)))
    }

    /// Returns the configuration, completed if processes share the pool.
    ///
    /// # Errors
    /// For options that such a pool cannot have.
    pub(super) fn shared_config(&self, config: Config) -> Result<Config, PoolError> {
        if self.shared.place.is_none() {
            return Ok(config);
        }
        let config = Config { processes: self.shared.processes.unwrap_or(PROCESSES), ..config };
        let refused = [
            (self.max_size.is_some(), "a largest size"),
            (self.prefault == Prefault::AtOnce, "prefaulting; a pool at a path has its memory at once"),
            (self.sharing == Sharing::Files, "a file for each zone; it has one file"),
            (config.processes == 0, "no processes"),
        ];
        let first = refused.into_iter().find(|(is_asked, _)| *is_asked);
        first.map_or(Ok(config), |(_, what)| Err(SharedError::Option(what).into()))
    }
}
