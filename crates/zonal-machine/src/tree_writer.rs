//! Writes an allocator's state as files of `/proc` and `/sys`, which [`capture`](crate::capture()) reads
//! back.
//!
//! The crate `zonal` creates the contents (`zonal::snapshot`), and this module writes them to a folder. It writes the
//! tree under a new name in the same parent, and then exchanges it with the existing folder as a whole. If the existing
//! folder contains other entries, which must stay, it replaces the files one by one. A list in the folder records
//! zonal's files and their contents.
//!
//! Related files: `old_tree.rs` examines the existing folder, and `output.rs` has the code shared by files and folders.

use std::fmt::{Display, Write as _};
use std::fs::{self, File, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;
use tempfile::TempDir;
use zonal::Platform;
use zonal::snapshot::Snapshot;

use crate::old_tree::{Files, LIST, LIST_HEAD, OldTree, Print};
use crate::output::{self, Replace, WriteError};

/// Writes the files of [`Snapshot::files`] below the folder `root`, which is created with its parents if missing. The
/// process must be able to create a new folder next to `root`.
///
/// A tree that was written before is replaced as a whole, and the new files get the permissions, owners and groups of
/// the old ones. With [`Replace::Any`], other files and links at paths of the tree's files are replaced as well, and
/// all other entries stay in the folder. If the folder has such entries, or the file system cannot exchange folders, the
/// files are replaced one by one, each as a whole.
///
/// # Errors
/// The errors of [`check_tree`], an error for a folder at a file's path or another entry at a folder's path, and the
/// file system's errors. After an error the old folder is unchanged, unless the message says what has changed.
pub fn write_tree<P: Platform>(
    snapshot: Snapshot<'_, '_, P>,
    root: &Path,
    replace: Replace,
) -> Result<(), WriteError> {
    check_tree(root, replace)?;
    let written = NewTree::make(output::parent(root)).and_then(|mut tree| {
        snapshot.files(|file: &dyn Display, text: &dyn Display| tree.add(file, &text.to_string()))?;
        tree.add_list()?;
        tree.place(root, replace)
    });
    written.map_err(|source| WriteError { path: root.to_owned(), source })
}

/// Checks that a tree may be written below `root`. The path must not exist, or it must be a folder that contains only
/// entries that [`write_tree`] wrote. With [`Replace::Any`] it may be any folder.
///
/// # Errors
/// Returns an error for anything else. For a folder, the error names an entry that [`write_tree`] did not write.
pub fn check_tree(root: &Path, replace: Replace) -> Result<(), WriteError> {
    let looked = output::check_place(root).and_then(|()| OldTree::look(root, &Files::new(), replace));
    looked.map(|_| ()).map_err(|source| WriteError { path: root.to_owned(), source })
}

/// A tree under a new name.
struct NewTree {
    /// The private folder that contains the tree, which other users cannot access. Dropping it removes it.
    private: TempDir,
    /// The tree in `private`, with the permissions of any new folder. After the exchange, this path has the old
    /// contents of `root`.
    folder: PathBuf,
    files: Files,
}

impl NewTree {
    fn make(beside: &Path) -> io::Result<Self> {
        fs::create_dir_all(beside)?;
        let private = Permissions::from_mode(0o700);
        let private = output::with_new_name(|new| new.permissions(private).tempdir_in(beside))
            .map_err(|error| without_name(&error))?;
        let folder = private.path().join("tree");
        fs::create_dir(&folder)?;
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
            // File names of `/proc` and `/sys` contain no line breaks.
            writeln!(text, "{print} {}", file.display()).expect("texts take everything");
        }
        self.add(&LIST, &text)
    }

    /// Puts the tree at its path.
    fn place(self, root: &Path, replace: Replace) -> io::Result<()> {
        let Some(old) = OldTree::look(root, &self.files, replace)? else {
            // Renaming a folder can replace only an empty folder.
            return fs::rename(&self.folder, root);
        };
        for path in old.common() {
            let (new, before) = (self.folder.join(path), fs::symlink_metadata(root.join(path))?);
            // Folders that stay need no permissions here, and without them they could not be removed.
            let stays = old.has_others() && before.is_dir();
            if new.exists() && !before.is_symlink() && !stays {
                output::inherit(&File::open(new)?, &before)?;
            }
        }
        if !old.has_others() {
            match renameat_with(CWD, &self.folder, CWD, root, RenameFlags::EXCHANGE) {
                // XDEV: the root is a mount point, or in a lower layer of an overlay.
                Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP | Errno::XDEV) => {}
                exchanged => return exchanged.map_err(io::Error::from).and_then(|()| self.remove_old(&old)),
            }
        }
        let mut has_changed = false;
        self.place_each(root, &old, &mut has_changed).map_err(|error| match has_changed {
            false => error,
            true => io::Error::new(
                error.kind(),
                format!("{error}; some files of the tree are new and others old"),
            ),
        })
    }

    /// Removes what the tree has replaced. Keeps everything else, of which the error names the place.
    fn remove_old(self, old: &OldTree) -> io::Result<()> {
        old.remove_from(&self.folder).map_err(|error| {
            let place = self.private.keep();
            let place = place.display();
            let problem =
                format!("the tree is written, but some of the previous contents are in {place}: {error}");
            io::Error::new(error.kind(), problem)
        })
    }

    /// Replaces the files one by one, and removes those that zonal wrote before and that the tree no longer has. The
    /// list is moved last, because it names all other files.
    fn place_each(&self, root: &Path, old: &OldTree, has_changed: &mut bool) -> io::Result<()> {
        let mut put = |path: &Path| {
            let place = root.join(path);
            fs::create_dir_all(output::parent(&place))?;
            fs::rename(self.folder.join(path), place)?;
            *has_changed = true;
            Ok(())
        };
        let list = Path::new(LIST);
        self.files.keys().filter(|path| *path != list).try_for_each(|path| put(path))?;
        let mut gone = old.replaced().filter(|path| !self.files.contains_key(*path));
        gone.try_for_each(|path| fs::remove_file(root.join(path)))?;
        old.remove_empty_folders(root, &self.files);
        put(list)
    }
}

/// Returns an error of `tempfile` without the temporary name at its end. The system's error in it cannot be reached otherwise.
fn without_name(error: &io::Error) -> io::Error {
    let text = error.to_string();
    let cause = text.split_once(" at path \"").map_or(&*text, |(cause, _)| cause);
    io::Error::new(error.kind(), cause)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    const FORCED: Replace = Replace::Any;

    /// Returns a folder with a tree that zonal wrote, of the files `a/one` and `b/two`, and a file of the user in it.
    fn shared() -> (TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("root");
        tree(folder.path(), &["a/one", "b/two"], "old").place(&root, Replace::Own).unwrap();
        fs::write(root.join("notes"), "precious").unwrap();
        (folder, root)
    }

    fn tree(beside: &Path, files: &[&str], text: &str) -> NewTree {
        let mut tree = NewTree::make(beside).unwrap();
        files.iter().for_each(|file| tree.add(file, text).unwrap());
        tree.add_list().unwrap();
        tree
    }

    /// Returns the paths and texts of all files in a folder, and the paths of its subfolders.
    fn contents(folder: &Path) -> Vec<(String, String)> {
        let mut all = Vec::new();
        for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
            let name = entry.file_name().into_string().unwrap();
            if entry.file_type().unwrap().is_dir() {
                all.push((format!("{name}/"), String::new()));
                all.extend(
                    contents(&entry.path()).into_iter().map(|(path, text)| (format!("{name}/{path}"), text)),
                );
            } else if name != LIST {
                all.push((name, fs::read_to_string(entry.path()).unwrap()));
            }
        }
        all.sort();
        all
    }

    fn expected(all: &[(&str, &str)]) -> Vec<(String, String)> {
        all.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect()
    }

    const NEW: [(&str, &str); 5] =
        [("a/", ""), ("a/one", "new"), ("c/", ""), ("c/three", "new"), ("notes", "precious")];

    #[test]
    fn unaffected_files_never_leave_the_directory() {
        let (folder, root) = shared();
        let inode = |path: &Path| fs::symlink_metadata(path).unwrap().ino();
        let before = (inode(&root), inode(&root.join("notes")));
        tree(folder.path(), &["a/one", "c/three"], "new").place(&root, FORCED).unwrap();
        assert_eq!((contents(&root), contents(folder.path()).len()), (expected(&NEW), NEW.len() + 1));
        assert_eq!((inode(&root), inode(&root.join("notes"))), before);
        // Without other files, the folder counts as written by zonal again.
        fs::remove_file(root.join("notes")).unwrap();
        check_tree(&root, Replace::Own).unwrap();
    }

    #[test]
    fn errors_say_only_what_happened_and_leave_nothing() {
        let (folder, root) = shared();
        // A folder at the path of the first file: nothing has been renamed when that fails.
        fs::remove_file(root.join("a/one")).unwrap();
        fs::create_dir_all(root.join("a/one/full")).unwrap();
        let new = tree(folder.path(), &["a/one", "c/three"], "new");
        let (old, mut has_changed) = (OldTree::look(&folder.path().join("gone"), &new.files, FORCED), false);
        assert!(old.unwrap().is_none());
        let (_other, shared_root) = shared();
        let old = OldTree::look(&shared_root, &new.files, FORCED).unwrap().unwrap();
        assert!(new.place_each(&root, &old, &mut has_changed).is_err());
        assert!(!has_changed, "the first rename failed");
        // A folder of a shared tree that cannot be written.
        let (folder, root) = shared();
        fs::set_permissions(root.join("b"), Permissions::from_mode(0o555)).unwrap();
        let new = tree(folder.path(), &["a/one", "b/two"], "new");
        let private = new.private.path().to_owned();
        _ = new.place(&root, FORCED); // succeeds for root
        assert!(!private.exists());
    }

    #[test]
    fn an_error_of_the_private_folder_has_the_systems_text() {
        let beside = Path::new("/dev/null");
        let error = NewTree::make(beside).map(|_| ()).unwrap_err().to_string();
        assert!(error.contains("os error"), "{error}");
        let long = tempfile::Builder::new().prefix(&"n".repeat(300)).tempdir_in("/").unwrap_err();
        let expected = io::Error::from(Errno::NAMETOOLONG).to_string();
        assert_eq!(without_name(&long).to_string(), expected);
    }

    /// Checks a file that another process creates between the check and the exchange.
    #[test]
    fn files_of_others_are_not_removed() {
        let (folder, root) = shared();
        fs::remove_file(root.join("notes")).unwrap();
        let tree = tree(folder.path(), &["a/one"], "new");
        let old = OldTree::look(&root, &tree.files, Replace::Own).unwrap().unwrap();
        fs::write(root.join("notes"), "precious").unwrap();
        fs::remove_dir_all(&tree.folder).unwrap();
        fs::rename(&root, &tree.folder).unwrap();
        let place = tree.folder.join("notes");
        let error = tree.remove_old(&old).unwrap_err().to_string();
        assert!(error.contains("some of the previous contents are in"), "{error}");
        assert_eq!(fs::read_to_string(place).unwrap(), "precious");
    }
}
