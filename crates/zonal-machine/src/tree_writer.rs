//! Writes an allocator's state as files of `/proc` and `/sys`, which [`capture`](crate::capture()) reads
//! back.
//!
//! The crate `zonal` creates the contents (`zonal::snapshot`), and this module writes them to a folder. It writes the
//! tree under a new name in the same parent, and then exchanges it with the existing folder as a whole. If the existing
//! folder contains other entries that must stay, it exchanges the files one by one. A list in the folder records
//! zonal's files and their contents.
//!
//! Related files: `old_tree.rs` examines the existing folder, `places.rs` exchanges files and folders, and `output.rs`
//! has the code shared by files and folders.

use std::fmt::{Display, Write as _};
use std::fs::{self, DirBuilder, File};
use std::io::{self, Write as _};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use zonal::Platform;
use zonal::snapshot::Snapshot;

use crate::new_names::with_new_name;
use crate::old_tree::{Files, LIST, LIST_HEAD, OldTree, Print};
use crate::output::{self, Replace, WriteError};
use crate::places::{self, Moves};

/// Writes the files of [`Snapshot::files`] below the folder `root`, which is created with its parents if missing. The
/// process must be able to create a new folder next to `root`.
///
/// A tree that was written before is replaced as a whole, and the new files get the permissions, owners and groups of
/// the old ones. With [`Replace::Any`], other files and links at paths of the tree's files are replaced as well, and
/// all other entries stay in the folder at every moment. If the folder has such entries, the files are replaced one by
/// one, each as a whole.
///
/// If the process is killed during this replacement, some files are new and others old. Files that were to be removed
/// are then next to the tree, in a folder whose name begins with `.zonal-` ([`output::left_over`]). Other entries are
/// not removed. Only entries that appear in the folder during the replacement leave it temporarily, until they are put
/// back.
///
/// # Errors
/// The errors of [`check_tree`], an error for a folder at a file's path or another entry at a folder's path, and the
/// file system's errors. After an error the old folder is unchanged, unless the message says where it is.
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
            .map_err(Unplaced::from)
            .and_then(|()| tree.place(root, replace));
        tree.finish(root, replace, placed)
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

/// The reason why a tree was not put at its path.
enum Unplaced {
    /// The folder is unchanged.
    Undone(io::Error),
    /// Some of the folder's old contents are still under the new name, as the error says.
    Left(io::Error),
}

impl From<io::Error> for Unplaced {
    fn from(error: io::Error) -> Self {
        Self::Undone(error)
    }
}

/// A tree under a new name.
struct NewTree {
    /// The private folder that contains the tree, which other users cannot access.
    private: PathBuf,
    /// The tree in `private`, with the permissions of any new folder. After the exchange, this path has the old
    /// contents of `root`.
    folder: PathBuf,
    files: Files,
}

impl NewTree {
    fn make(beside: &Path) -> io::Result<Self> {
        let (private, ()) = with_new_name(beside, |path| DirBuilder::new().mode(0o700).create(path))?;
        let folder = private.join("tree");
        // Remove the empty folder again, and report the first error.
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
            // File names of `/proc` and `/sys` contain no line breaks.
            writeln!(text, "{print} {}", file.display()).expect("texts take everything");
        }
        self.add(&LIST, &text)
    }

    /// Puts the tree at its path. Returns whether a folder existed there, which then has the new name.
    fn place(&self, root: &Path, replace: Replace) -> Result<bool, Unplaced> {
        let Some(old) = OldTree::look(root, &self.files, replace)? else {
            return Ok(output::rename_to_free(&self.folder, root).map(|()| false)?);
        };
        let is_shared = old.kept().next().is_some();
        for path in old.common() {
            let (new, before) = (self.folder.join(path), fs::symlink_metadata(root.join(path))?);
            // In a tree with other entries the old folders stay, so they already have their permissions.
            if new.exists() && !before.is_symlink() && !(is_shared && before.is_dir()) {
                output::inherit(&File::open(new)?, &before)?;
            }
        }
        if is_shared {
            self.place_each(root, &old)?;
        } else {
            places::exchange(&self.folder, root)?;
        }
        Ok(true)
    }

    /// Puts the files at their paths one by one. Files that zonal wrote before and that the tree no longer
    /// has are moved to the new name. The list is moved last, because it names all other files.
    fn place_each(&self, root: &Path, old: &OldTree) -> Result<(), Unplaced> {
        let mut moves = Moves::default();
        let is_list = |path: &&PathBuf| path.as_path() == Path::new(LIST);
        let mut files = self.files.keys().filter(|path| !is_list(path));
        let moved = files
            .try_for_each(|path| moves.put(&self.folder.join(path), &root.join(path)))
            .and_then(|()| {
                let mut gone = old.replaced().filter(|path| !self.files.contains_key(*path));
                gone.try_for_each(|path| moves.take(&root.join(path), &self.folder.join(path)))
            })
            .and_then(|()| moves.put(&self.folder.join(LIST), &root.join(LIST)));
        let Err(error) = moved else {
            old.remove_empty_folders(root, &self.files);
            return Ok(());
        };
        match moves.undo() {
            Ok(()) => Err(Unplaced::Undone(error)),
            Err(why) => {
                let place = self.private.display();
                let problem = format!("{error}; some of the previous contents are in {place}: {why}");
                Err(Unplaced::Left(io::Error::new(error.kind(), problem)))
            }
        }
    }

    /// Removes the entries under the new name that zonal wrote or that the tree replaces. All other old entries are
    /// moved back. An entry that can be neither removed nor moved back stays, and the error names its folder.
    fn finish(self, root: &Path, replace: Replace, placed: Result<bool, Unplaced>) -> io::Result<()> {
        let had_old = match placed {
            Ok(had_old) => had_old,
            Err(Unplaced::Left(error)) => return Err(error),
            Err(Unplaced::Undone(error)) => {
                // The first error is reported, so an error of the removal is ignored. The removal does not follow
                // links.
                let _ = fs::remove_dir_all(&self.private);
                return Err(error);
            }
        };
        let cleared = if had_old { self.clear(root, replace) } else { Ok(()) };
        cleared.and_then(|()| fs::remove_dir(&self.private)).map_err(|error| {
            let place = self.private.display();
            let problem =
                format!("the tree is written, but some of the previous contents are in {place}: {error}");
            io::Error::new(error.kind(), problem)
        })
    }

    fn clear(&self, root: &Path, replace: Replace) -> io::Result<()> {
        let look = |replace| OldTree::look(&self.folder, &self.files, replace);
        // Entries that appeared meanwhile are moved back, even if `replace` would allow their replacement.
        let Some(old) = look(Replace::Any)? else { return Ok(()) };
        for path in old.kept() {
            let place = root.join(path);
            fs::create_dir_all(output::parent(&place))?;
            output::rename_to_free(&self.folder.join(path), &place)?;
        }
        // Check once more: other processes no longer use this folder, so the second result is final.
        let Some(old) = look(replace)? else { return Ok(()) };
        old.remove_from(&self.folder)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    const FORCED: Replace = Replace::Any;

    /// Returns a folder with a tree that zonal wrote, of the files `a/one` and `b/two`, and a file of the user in it.
    fn shared() -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("root");
        let tree = tree(folder.path(), &["a/one", "b/two"], "old");
        let placed = tree.place(&root, Replace::Own);
        tree.finish(&root, Replace::Own, placed).unwrap();
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
        let tree = tree(folder.path(), &["a/one", "c/three"], "new");
        // If the process is killed here, the folder stays in the following state.
        assert!(matches!(tree.place(&root, FORCED), Ok(true)));
        assert_eq!(contents(&root), expected(&NEW));
        assert_eq!((inode(&root), inode(&root.join("notes"))), before);
        assert_eq!(output::left_over(&root).unwrap(), [] as [PathBuf; 0], "its process runs");
        tree.finish(&root, FORCED, Ok(true)).unwrap();
        assert_eq!((contents(&root), contents(folder.path()).len()), (expected(&NEW), NEW.len() + 1));
        // Without other files, the folder counts as written by zonal again.
        fs::remove_file(root.join("notes")).unwrap();
        check_tree(&root, Replace::Own).unwrap();
    }

    #[test]
    fn concurrently_created_files_are_put_back() {
        let (folder, root) = shared();
        fs::remove_file(root.join("notes")).unwrap();
        let tree = tree(folder.path(), &["a/one", "c/three"], "new");
        assert!(matches!(tree.place(&root, FORCED), Ok(true)));
        fs::write(tree.folder.join("notes"), "precious").unwrap();
        tree.finish(&root, FORCED, Ok(true)).unwrap();
        assert_eq!(contents(&root), expected(&NEW));
    }

    #[test]
    fn concurrently_created_files_are_put_back_without_force() {
        let (folder, root) = shared();
        fs::remove_file(root.join("notes")).unwrap();
        let tree = tree(folder.path(), &["a/one", "c/three"], "new");
        assert!(matches!(tree.place(&root, Replace::Own), Ok(true)));
        fs::write(tree.folder.join("notes"), "precious").unwrap();
        tree.finish(&root, Replace::Own, Ok(true)).unwrap();
        assert_eq!((contents(&root), contents(folder.path()).len()), (expected(&NEW), NEW.len() + 1));
    }

    #[test]
    fn a_tree_that_cannot_be_placed_changes_nothing() {
        let (folder, root) = shared();
        let tree = tree(folder.path(), &["a/one", "c/three"], "new");
        let old = OldTree::look(&root, &tree.files, FORCED).unwrap().unwrap();
        fs::write(root.join("c"), "in the way").unwrap();
        let before = contents(&root);
        let placed = tree.place_each(&root, &old).map(|()| true);
        assert!(matches!(placed, Err(Unplaced::Undone(_))));
        assert_eq!(contents(&root), before);
        tree.finish(&root, FORCED, placed).unwrap_err();
        assert_eq!(contents(folder.path()).len(), before.len() + 1);
    }
}
