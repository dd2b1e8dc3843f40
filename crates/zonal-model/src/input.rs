//! Reads untrusted files without blocking. It reads only regular files, and never more than a given length.
//!
//! A path from an untrusted source may name an endless device, a FIFO without a writer, or a link to a file that the
//! caller must not read. All code that reads such paths uses this module.
//!
//! Related files: `file.rs` and `capture/tree.rs` read machines with this module, and the lab reads experiments.

use std::cell::Cell;
use std::fs::{self, File, FileType, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Component, Path, PathBuf};

use crate::bytes::Bytes;

/// The largest allowed length of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Limit {
    /// A machine file: 64 MiB. The file of a machine with 1024 nodes, with all distances and fallback orders,
    /// is about 17 MiB.
    Document,
    /// An experiment or a table of figures, which people write by hand: 4 MiB.
    Experiment,
    /// `proc/zoneinfo` of a captured tree: 256 MiB. It has about 150 bytes per CPU and zone, which is 160 MiB
    /// for 8192 CPUs and 128 zones.
    ZoneInfo,
    /// A kernel log or `proc/cpuinfo`: 64 MiB. Kernels keep at most 32 MiB of log and print less than 2 KiB
    /// per CPU.
    Log,
    /// A list of CPUs or nodes, a row of distances, or the memory of a node: 1 MiB. A list of 50000 CPUs, every second
    /// one of 100000, is about 300 KiB.
    List,
    /// A setting or a name: 4 KiB, which is one page, the most that `/sys` and `/proc/sys` print.
    Setting,
}

impl Limit {
    /// Returns the limit in bytes.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        match self {
            Self::Document | Self::Log => 64 << 20,
            Self::ZoneInfo => 256 << 20,
            Self::Experiment => 4 << 20,
            Self::List => 1 << 20,
            Self::Setting => 4 << 10,
        }
    }
}

/// Reads a regular file, following links.
///
/// The reported size does not bound the read, because files of `/proc` and `/sys` report none; reading stops at the
/// limit. A file that is not regular is never opened, because opening alone can block (a FIFO) or have side effects (a
/// watchdog).
///
/// # Errors
/// [`ErrorKind::InvalidInput`] for a file that is not regular and [`ErrorKind::FileTooLarge`] for one longer than
/// `limit`. Both messages state what is allowed. All other errors are those of the system.
pub fn read(path: &Path, limit: Limit) -> io::Result<Vec<u8>> {
    check_regular(fs::metadata(path)?.file_type())?;
    read_opened(open(path, libc::O_NONBLOCK | libc::O_NOCTTY)?, limit.bytes(), || too_large(limit))
}

/// Opens a regular file, following links, so that the caller can read a file of any length in pieces.
///
/// # Errors
/// [`ErrorKind::InvalidInput`] for a file that is not regular, and the errors of the system.
pub fn stream(path: &Path) -> io::Result<File> {
    check_regular(fs::metadata(path)?.file_type())?;
    let file = open(path, libc::O_NONBLOCK | libc::O_NOCTTY)?;
    check_regular(file.metadata()?.file_type())?;
    Ok(file)
}

/// Reads a text file in the same way as [`read`].
///
/// # Errors
/// The errors of [`read`], and [`ErrorKind::InvalidData`] for a file that is not UTF-8.
pub fn read_text(path: &Path, limit: Limit) -> io::Result<String> {
    text(read(path, limit)?)
}

/// Reads at most `most` bytes from the beginning of a regular file that is not a link.
///
/// # Errors
/// [`ErrorKind::InvalidInput`] for a file that is not regular, and the errors of the system.
pub fn head(path: &Path, most: usize) -> io::Result<Vec<u8>> {
    check_regular(fs::symlink_metadata(path)?.file_type())?;
    let file = open(path, libc::O_NONBLOCK | libc::O_NOCTTY | libc::O_NOFOLLOW)?;
    let mut bytes = Vec::new();
    file.take(most as u64).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Whether an error of this module means that a file is of a kind that neither a machine nor a copy can have: a device,
/// a FIFO, a file that is too large, or a link that leads out of its folder.
#[must_use]
pub fn is_foreign(error: &io::Error) -> bool {
    // An error with a number is from the system, and a live machine may refuse or fail to show a file. `ELOOP` means that
    // the file is a link.
    error.raw_os_error().is_none_or(|number| number == libc::ELOOP)
}

/// The number of bytes that may still be read from several files. This bound is necessary because links can name the
/// same file any number of times.
#[derive(Debug)]
pub struct Budget {
    all: u64,
    left: Cell<u64>,
}

impl Budget {
    /// Creates a budget for all files of a tree: 384 MiB. It is enough for a `proc/zoneinfo` and a log of the largest
    /// size allowed, and for the same amount again in other files.
    #[must_use]
    pub const fn of_tree() -> Self {
        Self::new(384 << 20)
    }

    /// Creates a budget of so many bytes.
    #[must_use]
    pub const fn new(bytes: u64) -> Self {
        Self { all: bytes, left: Cell::new(bytes) }
    }

    /// Subtracts bytes from the budget.
    ///
    /// # Errors
    /// [`ErrorKind::FileTooLarge`] if fewer bytes are left.
    fn spend(&self, bytes: u64) -> io::Result<()> {
        self.left.set(self.left.get().checked_sub(bytes).ok_or_else(|| self.exceeded())?);
        Ok(())
    }

    fn exceeded(&self) -> io::Error {
        let all = self.all >> 20;
        let problem = format!("it exceeds the limit of {all} MiB for all files read from this directory");
        io::Error::new(ErrorKind::FileTooLarge, problem)
    }
}

/// A folder that confines reads to its own files. Links that lead out of it are refused.
#[derive(Clone, Debug)]
pub struct Folder(PathBuf);

impl Folder {
    /// Creates the folder at `path`; an empty path is the current folder.
    #[must_use]
    pub fn new(path: &Path) -> Self {
        Self(if path.as_os_str().is_empty() { PathBuf::from(".") } else { path.to_owned() })
    }

    /// Returns the folder's path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Reads a file below the folder in the same way as [`read`].
    ///
    /// No other process may change the folder during the call, because links are checked before the file is opened.
    ///
    /// # Errors
    /// The errors of [`read`], and [`ErrorKind::InvalidInput`] for a path that is absolute, contains `..`, or leads out
    /// of the folder through a link.
    pub fn read(&self, relative: &Path, limit: Limit) -> io::Result<Vec<u8>> {
        read_opened(self.open(relative)?, limit.bytes(), || too_large(limit))
    }

    /// Reads a file in the same way as [`Folder::read`], within a budget for several files.
    ///
    /// # Errors
    /// The errors of [`Folder::read`], and [`ErrorKind::FileTooLarge`] for a file longer than the remaining budget.
    pub fn read_within(&self, relative: &Path, limit: Limit, budget: &Budget) -> io::Result<Vec<u8>> {
        let file = self.open(relative)?;
        let left = budget.left.get();
        let refused = || if left < limit.bytes() { budget.exceeded() } else { too_large(limit) };
        let bytes = read_opened(file, limit.bytes().min(left), refused)?;
        budget.spend(bytes.len() as u64)?;
        Ok(bytes)
    }

    fn open(&self, relative: &Path) -> io::Result<File> {
        let path = self.resolve(relative)?;
        check_regular(fs::symlink_metadata(&path)?.file_type())?;
        open(&path, libc::O_NONBLOCK | libc::O_NOCTTY | libc::O_NOFOLLOW)
    }

    /// Reads a text file in the same way as [`Folder::read`].
    ///
    /// # Errors
    /// The errors of [`Folder::read`], and [`ErrorKind::InvalidData`] for a file that is not UTF-8.
    pub fn read_text(&self, relative: &Path, limit: Limit) -> io::Result<String> {
        text(self.read(relative, limit)?)
    }

    /// Returns the numbers in the names of a subfolder's entries, for names that consist of `prefix` and a number.
    ///
    /// # Errors
    /// The errors of [`Folder::read_within`], and [`ErrorKind::InvalidInput`] for more than a million names.
    pub(crate) fn numbered(&self, relative: &Path, prefix: &str, budget: &Budget) -> io::Result<Vec<u64>> {
        let entries = fs::read_dir(self.resolve(relative)?)?.map(|entry| {
            let name = entry?.file_name();
            budget.spend(ENTRY_BYTES + name.len() as u64)?;
            Ok(name)
        });
        let number = |name: std::ffi::OsString| name.to_str()?.strip_prefix(prefix)?.parse().ok();
        Ok(at_most(entries, ENTRIES_MAX)?.into_iter().filter_map(number).collect())
    }

    /// Returns the path with all links resolved, if it is inside the folder.
    fn resolve(&self, relative: &Path) -> io::Result<PathBuf> {
        let is_plain = |part: Component<'_>| matches!(part, Component::Normal(_) | Component::CurDir);
        if !relative.components().all(is_plain) {
            return Err(refused("it must be inside this directory: a relative path without `..`"));
        }
        let (folder, path) = (fs::canonicalize(&self.0)?, fs::canonicalize(self.0.join(relative))?);
        if !path.starts_with(folder) {
            return Err(refused(
                "it is a symbolic link that leads out of this directory; replace it with the file itself",
            ));
        }
        Ok(path)
    }
}

/// Largest number of entries in a folder. A node of 2 PiB has this many memory blocks in `/sys`.
const ENTRIES_MAX: usize = 1 << 20;

/// Bytes that an entry costs in addition to the length of its name, because each entry takes memory and time.
const ENTRY_BYTES: u64 = 24;

fn at_most<T>(entries: impl Iterator<Item = io::Result<T>>, most: usize) -> io::Result<Vec<T>> {
    let entries: Vec<T> = entries.take(most + 1).collect::<io::Result<_>>()?;
    if entries.len() > most {
        return Err(refused(&format!("this directory has more than {most} entries, the limit")));
    }
    Ok(entries)
}

fn open(path: &Path, flags: i32) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(flags | libc::O_CLOEXEC).open(path)
}

/// Reads a file of at most `most` bytes. `too_large` creates the error for a longer file. Files of `/sys` report one
/// page as their size whatever they contain, so the reported size is an error only if it exceeds a page.
fn read_opened(file: File, most: u64, too_large: impl Fn() -> io::Error) -> io::Result<Vec<u8>> {
    let about = file.metadata()?;
    check_regular(about.file_type())?;
    if about.len() > most.max(REPORTED_BYTES) {
        return Err(too_large());
    }
    let mut bytes = Vec::new();
    file.take(most + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most { Err(too_large()) } else { Ok(bytes) }
}

/// Largest page size of any machine, which files of `/sys` report as their size.
const REPORTED_BYTES: u64 = 64 << 10;

fn too_large(limit: Limit) -> io::Error {
    io::Error::new(
        ErrorKind::FileTooLarge,
        format!("it is larger than {}, the limit for such a file", Bytes(limit.bytes())),
    )
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
        "a special file"
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
        let status = Folder::new(Path::new("/")).read_text(Path::new("proc/self/status"), Limit::List);
        assert!(status.unwrap().contains("Pid:"));
    }

    #[test]
    fn a_file_of_exactly_the_limit_is_read() {
        let directory = tempfile::tempdir().unwrap();
        let (file, limit) = (directory.path().join("name"), Limit::Setting);
        let most = vec![b'x'; limit.bytes() as usize];
        fs::write(&file, &most).unwrap();
        assert_eq!(read(&file, limit).unwrap(), most);
        fs::write(&file, [&most[..], b"x"].concat()).unwrap();
        assert_eq!(read(&file, limit).unwrap_err().kind(), ErrorKind::FileTooLarge);
    }

    #[test]
    fn directories_have_a_limit_of_entries() {
        assert_eq!(at_most((0..3).map(Ok), 3).unwrap(), [0, 1, 2]);
        let error = at_most((0..).map(Ok), 3).unwrap_err();
        assert_eq!(error.to_string(), "this directory has more than 3 entries, the limit");
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
