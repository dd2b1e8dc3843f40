//! Writes an allocator's state as files of `/proc` and `/sys`, which [`capture`](crate::capture()) reads back.
//!
//! What stands in them is the core's (`zonal::snapshot`); this makes folders and files of it. Neighbours:
//! `output.rs` writes each file.

use std::fmt::Display;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use zonal::Platform;
use zonal::snapshot::Snapshot;

use crate::input::{Folder, Limit};
use crate::output::{self, Replace, WriteError};

/// The file by which a tree is known as one of these: no kernel has such a release.
const MARK_FILE: &str = "proc/sys/kernel/osrelease";
const MARK: &str = "-zonal\n";

/// Writes the files of [`Snapshot::files`] below the folder `root`, which is made if it is not there. Files of
/// the same names are replaced; links below `root` are not followed.
///
/// # Errors
/// As [`check_tree`], and when the file system refuses.
pub fn write_tree<P: Platform>(
    snapshot: Snapshot<'_, '_, P>,
    root: &Path,
    replace: Replace,
) -> Result<(), WriteError> {
    check_tree(root, replace)?;
    fs::create_dir_all(root).map_err(|source| WriteError { path: root.to_owned(), source })?;
    snapshot.files(|file: &dyn Display, text: &dyn Display| {
        let file = PathBuf::from(file.to_string());
        let written = folders(root, &file)
            .and_then(|()| output::put_any(&root.join(&file), text.to_string().as_bytes()));
        written.map_err(|source| WriteError { path: root.join(file), source })
    })
}

/// Checks that a tree may be written below `root`: nothing is there, or a tree that [`write_tree`] wrote, or with
/// [`Replace::Any`] any folder.
///
/// # Errors
/// When something else is there.
pub fn check_tree(root: &Path, replace: Replace) -> Result<(), WriteError> {
    may_be_written(root, replace).map_err(|source| WriteError { path: root.to_owned(), source })
}

fn may_be_written(root: &Path, replace: Replace) -> io::Result<()> {
    let mut entries = match fs::read_dir(root) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    if replace == Replace::Any || entries.next().is_none() {
        return Ok(());
    }
    let release = Folder::new(root).read_text(Path::new(MARK_FILE), Limit::Setting);
    if release.is_ok_and(|release| release.ends_with(MARK)) {
        return Ok(());
    }
    let problem = "the folder has files that zonal did not write; choose another one, or --force";
    Err(io::Error::new(ErrorKind::AlreadyExists, problem))
}

/// Makes the folders of a file, none of which may be a link.
fn folders(root: &Path, file: &Path) -> io::Result<()> {
    let mut path = root.to_owned();
    for part in file.parent().into_iter().flat_map(Path::components) {
        path.push(part);
        output::make_folder(&path)?;
    }
    Ok(())
}
