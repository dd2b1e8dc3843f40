//! Classifies the contents of a folder that a tree is to replace. An entry is a file that zonal wrote, another file
//! that zonal may replace, or any other entry.
//!
//! A file counts as written by zonal only if the list in the folder has its name and its current contents. Links are
//! never followed.
//!
//! Related files: `tree_writer.rs` writes the list and replaces the folder.

use std::collections::BTreeMap;
use std::fmt::{self, Display};
use std::fs::{self, FileType};
use std::io::{self, ErrorKind};
use std::ops::Bound;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use zonal_model::Excerpt;
use zonal_model::input::{self, Limit};

use crate::output::{Replace, exists};

/// The name of the file that lists the files that zonal wrote to a folder.
pub(crate) const LIST: &str = "zonal-tree.txt";

/// The first line of the list.
pub(crate) const LIST_HEAD: &str = "Files that zonal wrote: hash (FNV-1a, 64 bits), bytes, name\n";

/// The fingerprints of files, by path in the folder.
pub(crate) type Files = BTreeMap<PathBuf, Print>;

/// A fingerprint of a file's contents. It is not secure against deliberate collisions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Print {
    hash: u64,
    bytes: u64,
}

impl Print {
    /// Computes the fingerprint by Fowler, Noll and Vo, "The FNV Non-Cryptographic Hash Algorithm", RFC 9923.
    pub(crate) fn of(contents: &[u8]) -> Self {
        let step = |hash: u64, &byte: &u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        Self { hash: contents.iter().fold(0xcbf2_9ce4_8422_2325, step), bytes: contents.len() as u64 }
    }

    /// Whether a file has contents with this fingerprint.
    fn is_of(self, path: &Path) -> io::Result<bool> {
        if self.bytes > Limit::ZoneInfo.bytes() || fs::symlink_metadata(path)?.len() != self.bytes {
            return Ok(false);
        }
        Ok(Self::of(&input::head(path, self.bytes as usize + 1)?) == self)
    }
}

impl Display for Print {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x} {}", self.hash, self.bytes)
    }
}

/// The contents of a folder, by path in it.
#[derive(Debug, Default)]
pub(crate) struct OldTree {
    /// Files and links to remove.
    replaced: Vec<PathBuf>,
    /// Folders of the old or the new tree, each after its parent. The first is the folder itself.
    folders: Vec<PathBuf>,
    /// Whether there are entries that zonal did not write and that do not conflict with the new tree.
    has_others: bool,
}

impl OldTree {
    /// Examines the folder `root`, which is to contain only the files of `new`. Returns `None` if there is no
    /// folder.
    ///
    /// # Errors
    /// [`ErrorKind::AlreadyExists`] for any entry that may not be replaced. With [`Replace::Any`] these are only the
    /// entries that can neither be replaced nor preserved.
    pub(crate) fn look(root: &Path, new: &Files, replace: Replace) -> io::Result<Option<Self>> {
        let found = match fs::symlink_metadata(root) {
            Ok(about) => about,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        if found.is_symlink() {
            return Err(exists("it is a symbolic link, which is not followed; name the directory itself"));
        }
        if !found.is_dir() {
            return Err(Errno::NOTDIR.into());
        }
        let mut looked = Self::default();
        Look { root, written: listed(root), new, replace }.folder(PathBuf::new(), &mut looked)?;
        Ok(Some(looked))
    }

    /// Returns the folders and the files that exist in the old tree and may exist in the new one.
    pub(crate) fn common(&self) -> impl Iterator<Item = &PathBuf> {
        self.folders.iter().chain(&self.replaced)
    }

    /// Whether there are entries that must be preserved.
    pub(crate) fn has_others(&self) -> bool {
        self.has_others
    }

    /// Returns the files and links to remove.
    pub(crate) fn replaced(&self) -> impl Iterator<Item = &PathBuf> {
        self.replaced.iter()
    }

    /// Removes the empty folders of old trees in `root` that the new tree does not have.
    pub(crate) fn remove_empty_folders(&self, root: &Path, new: &Files) {
        for folder in self.folders.iter().rev().filter(|folder| !has_folder(new, folder)) {
            // The removal of a folder that is not empty fails, and the folder stays.
            let _ = fs::remove_dir(root.join(folder));
        }
    }

    /// Removes the replaced entries and then the folders of the old tree, which is now at `place`. Fails at the first
    /// folder that is not empty.
    pub(crate) fn remove_from(&self, place: &Path) -> io::Result<()> {
        self.replaced.iter().try_for_each(|path| fs::remove_file(place.join(path)))?;
        self.folders.iter().rev().try_for_each(|path| fs::remove_dir(place.join(path)))
    }
}

struct Look<'a> {
    root: &'a Path,
    /// The contents of the list.
    written: Files,
    new: &'a Files,
    replace: Replace,
}

impl Look<'_> {
    fn folder(&self, folder: PathBuf, looked: &mut OldTree) -> io::Result<()> {
        let entries = fs::read_dir(self.root.join(&folder))?;
        looked.folders.push(folder.clone());
        for entry in entries {
            let entry = entry?;
            let (path, kind) = (folder.join(entry.file_name()), entry.file_type()?);
            if kind.is_dir() && (has_folder(&self.written, &path) || has_folder(self.new, &path)) {
                self.folder(path, looked)?;
            } else if !kind.is_dir() && self.is_written(&path, kind)? {
                looked.replaced.push(path);
            } else {
                self.foreign(path, kind, looked)?;
            }
        }
        Ok(())
    }

    /// Whether zonal wrote a file and the file has not changed since.
    fn is_written(&self, path: &Path, kind: FileType) -> io::Result<bool> {
        if !kind.is_file() {
            return Ok(false);
        }
        let place = self.root.join(path);
        match self.written.get(path) {
            Some(print) => print.is_of(&place),
            None => {
                Ok(path == Path::new(LIST) && input::head(&place, LIST_HEAD.len())? == LIST_HEAD.as_bytes())
            }
        }
    }

    fn foreign(&self, path: PathBuf, kind: FileType, looked: &mut OldTree) -> io::Result<()> {
        let refused =
            |problem: &str| Err(exists(&format!("{} in it {problem}", Excerpt::name(path.display()))));
        if self.replace == Replace::Own {
            return refused("has changed since zonal wrote it; choose another directory, or use --force");
        }
        if has_folder(self.new, &path) {
            return refused("is not a directory (links are not followed); choose another directory");
        }
        match self.new.contains_key(&path) {
            true if !kind.is_file() && !kind.is_symlink() => {
                return refused("is neither a file nor a link; choose another directory");
            }
            true => looked.replaced.push(path),
            false => looked.has_others = true,
        }
        Ok(())
    }
}

/// Whether `path` is a folder that contains one of the files.
fn has_folder(files: &Files, path: &Path) -> bool {
    // The contents of a folder follow it directly, because paths are ordered by their components.
    let mut after = files.range::<Path, _>((Bound::Excluded(path), Bound::Unbounded));
    after.next().is_some_and(|(file, _)| file.starts_with(path))
}

/// Reads the list of a folder. The result is empty if the folder has no readable list.
fn listed(root: &Path) -> Files {
    let text = input::head(&root.join(LIST), Limit::List.bytes() as usize).ok();
    let text = text.and_then(|bytes| String::from_utf8(bytes).ok()).unwrap_or_default();
    let line = |line: &str| {
        let mut parts = line.splitn(3, ' ');
        let hash = u64::from_str_radix(parts.next()?, 16).ok()?;
        let bytes = parts.next()?.parse().ok()?;
        Some((PathBuf::from(parts.next()?), Print { hash, bytes }))
    };
    text.strip_prefix(LIST_HEAD).into_iter().flat_map(str::lines).filter_map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_match_the_published_test_vectors() {
        for (text, hash) in
            [("", 0xcbf2_9ce4_8422_2325), ("a", 0xaf63_dc4c_8601_ec8c), ("foobar", 0x8594_4171_f739_67e8)]
        {
            assert_eq!(Print::of(text.as_bytes()), Print { hash, bytes: text.len() as u64 });
        }
    }

    #[test]
    fn folders_of_files() {
        let files: Files =
            ["a/b/c", "a-b/c", "d"].map(|file| (PathBuf::from(file), Print::of(b""))).into_iter().collect();
        for (path, is_one) in [
            ("a", true),
            ("a/b", true),
            ("a/b/c", false),
            ("a-b", true),
            ("a-", false),
            ("d", false),
            ("", true),
        ] {
            assert_eq!(has_folder(&files, Path::new(path)), is_one, "{path}");
        }
    }
}
