//! Writes an allocator's state as files of `/proc` and `/sys`, which [`capture`](crate::capture()) reads back.
//!
//! What stands in them is the core's (`zonal::snapshot`); this makes folders and files of it.

use std::fmt::Display;
use std::fs;
use std::path::Path;

use zonal::Platform;
use zonal::snapshot::Snapshot;

use crate::error::MachineError;

/// Writes the files of [`Snapshot::files`] below the folder `root`, which is made if it is not there. Files of
/// the same names are replaced.
///
/// # Errors
/// [`MachineError::Write`] when the file system refuses.
pub fn write_tree<P: Platform>(snapshot: Snapshot<'_, '_, P>, root: &Path) -> Result<(), MachineError> {
    let write = |path: &dyn Display, text: &dyn Display| {
        let path = root.join(path.to_string());
        let folder = path.parent().unwrap_or(root);
        let written = fs::create_dir_all(folder).and_then(|()| fs::write(&path, text.to_string()));
        written.map_err(|source| MachineError::Write { path, source })
    };
    snapshot.files(write)
}
