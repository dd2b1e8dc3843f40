//! Writes an allocator's state as files of `/proc` and `/sys`, which [`capture`](crate::capture()) reads back.
//!
//! What stands in them is the core's (`zonal::snapshot`); this makes a folder of it, as a whole or not at all: it is
//! written under a new name beside its place and then exchanged for what is there. A list in the folder says which
//! files are zonal's, and what is in them. Neighbours: `old_tree.rs` looks at what is there, `output.rs` has what
//! files and folders share.

use std::fmt::{Display, Write as _};
use std::fs::{self, DirBuilder, File};
use std::io::{self, Write as _};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;
use zonal::Platform;
use zonal::snapshot::Snapshot;

use crate::old_tree::{Files, LIST, LIST_HEAD, OldTree, Print};
use crate::output::{self, Replace, WriteError};

/// Writes the files of [`Snapshot::files`] below the folder `root`, which is made if it is not there, together with
/// its parents. Beside it there must be room for a new folder.
///
/// A tree that was written before is replaced as a whole; rights, owners and groups stay as for files. With
/// [`Replace::Any`] other files and links are replaced where the tree has a file, and everything else that is in the
/// folder stays in it.
///
/// # Errors
/// As [`check_tree`]; for a folder in the place of a file, or anything else in the place of a folder; and what the
/// file system says. The old folder is as it was then, unless the error says where it is.
pub fn write_tree<P: Platform>(
    snapshot: Snapshot<'_, '_, P>,
    root: &Path,
    replace: Replace,
) -> Result<(), WriteError> {
    check_tree(root, replace)?;
    let tree = fs::create_dir_all(output::parent(root)).and_then(|()| NewTree::make(output::parent(root)));
    let written = tree.and_then(|mut tree| {
        let placed = snapshot
            .files(|file: &dyn Display, text: &dyn Display| tree.add(file, &text.to_string()))
            .and_then(|()| tree.add_list())
            .and_then(|()| tree.place(root, replace));
        tree.finish(root, replace, placed)
    });
    written.map_err(|source| WriteError { path: root.to_owned(), source })
}

/// Checks that a tree may be written below `root`: nothing is there, or a folder with nothing in it but what
/// [`write_tree`] wrote, or with [`Replace::Any`] any folder.
///
/// # Errors
/// When something else is there; what it is in a folder is named.
pub fn check_tree(root: &Path, replace: Replace) -> Result<(), WriteError> {
    let looked = output::check_place(root).and_then(|()| OldTree::look(root, &Files::new(), replace));
    looked.map(|_| ()).map_err(|source| WriteError { path: root.to_owned(), source })
}

/// A tree under a new name.
struct NewTree {
    /// Nobody else looks into it.
    private: PathBuf,
    /// The tree, in it: with the rights of any new folder. Once it is at its place, what was there.
    folder: PathBuf,
    files: Files,
}

impl NewTree {
    fn make(beside: &Path) -> io::Result<Self> {
        let (private, ()) = output::with_new_name(beside, |path| DirBuilder::new().mode(0o700).create(path))?;
        let folder = private.join("tree");
        // What is empty is taken away again; the first error is the one that counts.
        fs::create_dir(&folder).inspect_err(|_| drop(fs::remove_dir(&private)))?;
        Ok(Self { private, folder, files: Files::new() })
    }

    fn add(&mut self, file: &dyn Display, text: &str) -> io::Result<()> {
        let file = PathBuf::from(file.to_string());
        let path = self.folder.join(&file);
        fs::create_dir_all(output::parent(&path))?;
        let mut written = File::create_new(&path)?;
        written.write_all(text.as_bytes())?;
        written.sync_all()?;
        self.files.insert(file, Print::of(text.as_bytes()));
        Ok(())
    }

    fn add_list(&mut self) -> io::Result<()> {
        let mut text = LIST_HEAD.to_owned();
        for (file, print) in &self.files {
            // Names of files of `/proc` and `/sys` have no line breaks.
            writeln!(text, "{print} {}", file.display()).expect("texts take everything");
        }
        self.add(&LIST, &text)
    }

    /// Puts the tree at its place; whether something was there, which has its new name then.
    fn place(&self, root: &Path, replace: Replace) -> io::Result<bool> {
        let Some(old) = OldTree::look(root, &self.files, replace)? else {
            return output::rename_to_free(&self.folder, root).map(|()| false);
        };
        for path in old.common() {
            let (new, before) = (self.folder.join(path), fs::symlink_metadata(root.join(path))?);
            if new.exists() && !before.is_symlink() {
                output::inherit(&File::open(new)?, &before)?;
            }
        }
        exchange(&self.folder, root)?;
        Ok(true)
    }

    /// Removes what is under the new name. Of what was at the place of the tree that is what zonal wrote and what it
    /// replaces; the rest goes back to its place, or stays and is named.
    fn finish(self, root: &Path, replace: Replace, placed: io::Result<bool>) -> io::Result<()> {
        let had_old = match placed {
            Ok(had_old) => had_old,
            Err(error) => {
                // The first error is the one that counts. No link is followed.
                let _ = fs::remove_dir_all(&self.private);
                return Err(error);
            }
        };
        let cleared = if had_old { self.clear(root, replace) } else { Ok(()) };
        cleared.and_then(|()| fs::remove_dir(&self.private)).map_err(|error| {
            let place = self.private.display();
            let problem =
                format!("the tree is there, but some of what was there is left in {place}: {error}");
            io::Error::new(error.kind(), problem)
        })
    }

    fn clear(&self, root: &Path, replace: Replace) -> io::Result<()> {
        // Once more, because nobody changes it any more.
        let Some(old) = OldTree::look(&self.folder, &self.files, replace)? else { return Ok(()) };
        for path in old.kept() {
            let place = root.join(path);
            fs::create_dir_all(output::parent(&place))?;
            output::rename_to_free(&self.folder.join(path), &place)?;
        }
        old.remove_from(&self.folder)
    }
}

/// Exchanges two folders.
fn exchange(new: &Path, old: &Path) -> io::Result<()> {
    match renameat_with(CWD, new, CWD, old, RenameFlags::EXCHANGE) {
        Err(Errno::INVAL | Errno::NOSYS) => exchange_in_steps(new, old),
        exchanged => Ok(exchanged?),
    }
}

/// [`exchange`] for file systems that cannot: nothing is at the place of `old` for a moment.
fn exchange_in_steps(new: &Path, old: &Path) -> io::Result<()> {
    let beside = output::parent(old);
    let (aside, ()) = output::with_new_name(beside, |aside| output::rename_to_free(old, aside))?;
    let Err(error) = output::rename_to_free(new, old) else { return fs::rename(aside, new) };
    output::rename_to_free(&aside, old).map_err(|_| {
        let problem = format!("{error}; what was there is left in {}", aside.display());
        io::Error::new(error.kind(), problem)
    })?;
    Err(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_are_exchanged_in_steps() {
        let folder = tempfile::tempdir().unwrap();
        let [new, old] = ["new", "old"].map(|name| folder.path().join(name));
        let names =
            |path: &Path| fs::read_dir(path).unwrap().map(|e| e.unwrap().file_name()).collect::<Vec<_>>();
        for path in [&new, &old] {
            fs::create_dir(path).unwrap();
            fs::write(path.join(path.file_name().unwrap()), "").unwrap();
        }
        exchange_in_steps(&new, &old).unwrap();
        assert_eq!((names(&new), names(&old)), (vec!["old".into()], vec!["new".into()]));
        // Without a new folder the old one stays.
        exchange_in_steps(&folder.path().join("missing"), &old).unwrap_err();
        assert_eq!((names(&old), names(folder.path()).len()), (vec!["new".into()], 2));
    }
}
