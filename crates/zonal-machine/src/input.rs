//! Reads files that others wrote: without waiting, regular files only, and never more than a stated length.
//!
//! A path from outside may name a device without end, a FIFO nobody writes to, or a link to a file that is
//! none of the caller's business. Everything that reads such a path reads it here. Neighbours: `file.rs` and
//! `capture/tree.rs` read machines with it, the lab reads experiments.

use std::fs::{self, File, FileType, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Component, Path, PathBuf};

/// How long a file may be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Limit {
    /// A machine file, an experiment or a table of figures: 64 MiB. The file of a machine of 1024 nodes, with
    /// all distances and fallback orders, has about 17 MiB.
    Document,
    /// A file of a captured tree: 256 MiB. `proc/zoneinfo` has about 150 bytes for each CPU of each zone, so
    /// 160 MiB for 8192 CPUs and 128 zones.
    TreeFile,
}

impl Limit {
    const fn bytes(self) -> u64 {
        match self {
            Self::Document => 64 << 20,
            Self::TreeFile => 256 << 20,
        }
    }
}

/// Reads a regular file, following links.
///
/// The reported size bounds nothing, because files of `/proc` and `/sys` report none: at most the limit is read
/// of whatever is there. Nothing is opened that is not a regular file, because opening alone can wait (a FIFO)
/// or act (a watchdog).
///
/// # Errors
/// [`ErrorKind::InvalidInput`] for what is no regular file and [`ErrorKind::FileTooLarge`] for one that is
/// longer than `limit`, both of which say what would be right; else what the system says.
pub fn read(path: &Path, limit: Limit) -> io::Result<Vec<u8>> {
    check_regular(fs::metadata(path)?.file_type())?;
    read_opened(open(path, libc::O_NONBLOCK | libc::O_NOCTTY)?, limit)
}

/// As [`read`], for text.
///
/// # Errors
/// As [`read`]; [`ErrorKind::InvalidData`] for what is not UTF-8.
pub fn read_text(path: &Path, limit: Limit) -> io::Result<String> {
    text(read(path, limit)?)
}

/// The first bytes of a regular file that is no link, `most` at most.
pub(crate) fn head(path: &Path, most: usize) -> io::Result<Vec<u8>> {
    check_regular(fs::symlink_metadata(path)?.file_type())?;
    let file = open(path, libc::O_NONBLOCK | libc::O_NOCTTY | libc::O_NOFOLLOW)?;
    let mut bytes = Vec::new();
    file.take(most as u64).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// A folder whose files may be read, and no others: links that lead out of it are refused.
#[derive(Clone, Debug)]
pub struct Folder(PathBuf);

impl Folder {
    /// The folder at `path`; an empty path is the current one.
    #[must_use]
    pub fn new(path: &Path) -> Self {
        Self(if path.as_os_str().is_empty() { PathBuf::from(".") } else { path.to_owned() })
    }

    /// Its path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// As [`read`], for a file of the folder or of a folder in it.
    ///
    /// The folder must not be changed meanwhile: links are looked at before the file is opened.
    ///
    /// # Errors
    /// As [`read`]; [`ErrorKind::InvalidInput`] for a path that is absolute, has `..` in it, or leads out of the
    /// folder by a link.
    pub fn read(&self, relative: &Path, limit: Limit) -> io::Result<Vec<u8>> {
        let path = self.resolve(relative)?;
        check_regular(fs::symlink_metadata(&path)?.file_type())?;
        read_opened(open(&path, libc::O_NONBLOCK | libc::O_NOCTTY | libc::O_NOFOLLOW)?, limit)
    }

    /// As [`Folder::read`], for text.
    ///
    /// # Errors
    /// As [`Folder::read`]; [`ErrorKind::InvalidData`] for what is not UTF-8.
    pub fn read_text(&self, relative: &Path, limit: Limit) -> io::Result<String> {
        text(self.read(relative, limit)?)
    }

    /// Names in a folder of this folder that are `prefix` and a number: the numbers.
    ///
    /// # Errors
    /// As [`Folder::read`], and [`ErrorKind::InvalidInput`] for more than a million names.
    pub(crate) fn numbered(&self, relative: &Path, prefix: &str) -> io::Result<Vec<u64>> {
        let entries =
            fs::read_dir(self.resolve(relative)?)?.map(|entry| entry.map(|entry| entry.file_name()));
        let number = |name: std::ffi::OsString| name.to_str()?.strip_prefix(prefix)?.parse().ok();
        Ok(at_most(entries, ENTRIES_MAX)?.into_iter().filter_map(number).collect())
    }

    /// The path without links, if it lies in the folder.
    fn resolve(&self, relative: &Path) -> io::Result<PathBuf> {
        let is_plain = |part: Component<'_>| matches!(part, Component::Normal(_) | Component::CurDir);
        if !relative.components().all(is_plain) {
            return Err(refused("it must lie in this folder: a relative path without `..`"));
        }
        let (folder, path) = (fs::canonicalize(&self.0)?, fs::canonicalize(self.0.join(relative))?);
        if !path.starts_with(folder) {
            return Err(refused(
                "it is a symbolic link that leads out of this folder; put the file itself there",
            ));
        }
        Ok(path)
    }
}

/// Most entries of a folder: a node of 2 PiB has as many blocks of memory in `/sys`.
const ENTRIES_MAX: usize = 1 << 20;

fn at_most<T>(entries: impl Iterator<Item = io::Result<T>>, most: usize) -> io::Result<Vec<T>> {
    let entries: Vec<T> = entries.take(most + 1).collect::<io::Result<_>>()?;
    if entries.len() > most {
        return Err(refused(&format!("it is a folder of more than {most} names")));
    }
    Ok(entries)
}

fn open(path: &Path, flags: i32) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(flags | libc::O_CLOEXEC).open(path)
}

fn read_opened(file: File, limit: Limit) -> io::Result<Vec<u8>> {
    let about = file.metadata()?;
    check_regular(about.file_type())?;
    let too_large = || {
        let problem = format!("it is larger than {} MiB, which is all that is read", limit.bytes() >> 20);
        io::Error::new(ErrorKind::FileTooLarge, problem)
    };
    if about.len() > limit.bytes() {
        return Err(too_large());
    }
    let mut bytes = Vec::new();
    file.take(limit.bytes() + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit.bytes() { Err(too_large()) } else { Ok(bytes) }
}

fn check_regular(kind: FileType) -> io::Result<()> {
    let found = if kind.is_file() {
        return Ok(());
    } else if kind.is_dir() {
        "a directory"
    } else if kind.is_fifo() {
        "a FIFO"
    } else if kind.is_socket() {
        "a socket"
    } else if kind.is_char_device() {
        "a character device"
    } else if kind.is_block_device() {
        "a block device"
    } else {
        "of a kind of its own"
    };
    Err(refused(&format!("it is {found}; it must be a regular file")))
}

fn text(bytes: Vec<u8>) -> io::Result<String> {
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        io::Error::new(ErrorKind::InvalidData, format!("byte {at} is not UTF-8; it must be text"))
    })
}

fn refused(problem: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidInput, problem)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_without_a_size_are_read() {
        let status = read_text(Path::new("/proc/self/status"), Limit::Document).unwrap();
        assert!(status.contains("VmRSS") || status.contains("Pid:"), "{status}");
        let status = Folder::new(Path::new("/")).read_text(Path::new("proc/self/status"), Limit::TreeFile);
        assert!(status.unwrap().contains("Pid:"));
    }

    #[test]
    fn folders_have_an_end() {
        assert_eq!(at_most((0..3).map(Ok), 3).unwrap(), [0, 1, 2]);
        let error = at_most((0..).map(Ok), 3).unwrap_err();
        assert_eq!(error.to_string(), "it is a folder of more than 3 names");
    }

    #[test]
    fn paths_stay_in_their_folder() {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir(directory.path().join("in")).unwrap();
        fs::write(directory.path().join("in/file"), "text").unwrap();
        fs::write(directory.path().join("file"), "other").unwrap();
        let folder = Folder::new(&directory.path().join("in"));
        let read =
            |path: &str| folder.read_text(Path::new(path), Limit::Document).map_err(|error| error.kind());
        assert_eq!(read("file").unwrap(), "text");
        assert_eq!(read("./file").unwrap(), "text");
        let outside = directory.path().join("file");
        for path in ["../file", "../in/file", outside.to_str().unwrap(), "/proc/self/status"] {
            assert_eq!(read(path), Err(ErrorKind::InvalidInput), "{path}");
        }
        assert_eq!(read("missing"), Err(ErrorKind::NotFound));
    }
}
