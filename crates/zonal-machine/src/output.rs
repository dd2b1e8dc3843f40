//! Writes files as a whole or not at all, never through a link, and never over what zonal did not write.
//!
//! A file is written under a new name beside its place and then renamed: a reader sees the old file or the new
//! one, and a link planted at the place is replaced or refused, not followed. Each kind of file begins with a
//! mark by which zonal knows its own. Neighbours: `export.rs` and `tree_writer.rs` write machines with it, the
//! lab its results, the command line its charts.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::escape::Escaped;
use crate::input;

/// Why a file was not written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write {}: {source}", Escaped(path.display()))]
pub struct WriteError {
    /// The file.
    pub path: PathBuf,
    /// Why not.
    pub source: io::Error,
}

/// What a file is, which its mark tells.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A machine file: begins with its schema.
    Machine,
    /// The results of an experiment: begins with their schema.
    Results,
    /// A page: says in its head what generated it.
    Page,
    /// A picture: begins with [`DRAWING_MARK`].
    Drawing,
}

/// The first line of every picture.
pub const DRAWING_MARK: &str = "<!-- Drawn by zonal -->\n";

/// Bytes in which a mark must be.
const HEAD_BYTES: usize = 256;

impl Kind {
    /// Whether a file that begins with `head` is of this kind.
    fn is_marked(self, head: &[u8]) -> bool {
        let head = String::from_utf8_lossy(&head[..head.len().min(HEAD_BYTES)]);
        match self {
            Self::Machine => head.starts_with("{\"schema\":\"zonal.machine-file."),
            Self::Results => head.starts_with("{\n  \"schema\": \"zonal.lab."),
            Self::Page => {
                head.starts_with("<!DOCTYPE html>")
                    && head.contains("<meta name=\"generator\" content=\"zonal\">")
            }
            Self::Drawing => head.starts_with(DRAWING_MARK),
        }
    }
}

/// Which files may be replaced.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Replace {
    /// Those that zonal wrote itself, of the same kind.
    Own,
    /// Any regular file or link.
    Any,
}

/// Writes a file, which begins with the mark of its kind.
///
/// # Errors
/// As [`check`], and what the file system says; there is nothing new at `path` then.
///
/// # Panics
/// When `text` has not the mark.
pub fn write(path: &Path, text: &str, kind: Kind, replace: Replace) -> Result<(), WriteError> {
    assert!(kind.is_marked(text.as_bytes()), "a file of kind {kind:?} begins with its mark");
    check(path, kind, replace)?;
    replace_with(path, text.as_bytes()).map_err(|source| WriteError { path: path.to_owned(), source })
}

/// Checks that a file may be written: nothing is at its place, or something that may be replaced.
///
/// # Errors
/// [`ErrorKind::AlreadyExists`] for what may not be replaced: anything but files and links, and with
/// [`Replace::Own`] links and files that have not the mark of `kind`.
pub fn check(path: &Path, kind: Kind, replace: Replace) -> Result<(), WriteError> {
    refusal(path, kind, replace).map_err(|source| WriteError { path: path.to_owned(), source })
}

fn refusal(path: &Path, kind: Kind, replace: Replace) -> io::Result<()> {
    // Whoever may would take the system's `/dev/stdout` away.
    let is_of_devices = |folder: &Path| folder.starts_with("/dev") && !folder.starts_with("/dev/shm");
    let is_of_the_kernel = |folder: &Path| folder.starts_with("/proc") || folder.starts_with("/sys");
    if parent(path).canonicalize().is_ok_and(|folder| is_of_devices(&folder) || is_of_the_kernel(&folder)) {
        return Err(exists("this is no place for files; choose another one"));
    }
    let found = match fs::symlink_metadata(path) {
        Ok(about) => about.file_type(),
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    if !found.is_file() && !found.is_symlink() {
        return Err(exists("what is there is neither a file nor a link; choose another name"));
    }
    match replace {
        Replace::Any => Ok(()),
        Replace::Own if found.is_symlink() => {
            Err(exists("a symbolic link is there, which is not followed; choose another name, or --force"))
        }
        Replace::Own if kind.is_marked(&input::head(path, HEAD_BYTES)?) => Ok(()),
        Replace::Own => Err(exists(
            "the file that is there was not written by zonal for this purpose; choose another name, or --force",
        )),
    }
}

/// The folder `name` in `parent`, both made where they are not there. `parent` may be reached by links, which
/// are the user's; `name` is no link.
///
/// # Errors
/// [`ErrorKind::AlreadyExists`] for anything but a folder at its place, else what the file system says.
pub fn folder(parent: &Path, name: &str) -> Result<PathBuf, WriteError> {
    let path = parent.join(name);
    match fs::create_dir_all(parent).and_then(|()| make_folder(&path)) {
        Ok(()) => Ok(path),
        Err(source) => Err(WriteError { path, source }),
    }
}

/// Checks that [`folder`] can have a folder at `path`: nothing is there, or a folder that is no link.
///
/// # Errors
/// [`ErrorKind::AlreadyExists`] for anything else.
pub fn check_folder(path: &Path) -> Result<(), WriteError> {
    is_folder_or_free(path).map_err(|source| WriteError { path: path.to_owned(), source })
}

fn is_folder_or_free(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(about) if about.is_dir() => Ok(()),
        Ok(about) if about.is_symlink() => {
            Err(exists("a symbolic link is there, which is not followed; remove it"))
        }
        Ok(_) => Err(exists("what is there is not a folder; choose another name")),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

/// Makes a folder whose parent is there; one that is there already must not be a link.
pub(crate) fn make_folder(path: &Path) -> io::Result<()> {
    match fs::create_dir(path) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => is_folder_or_free(path),
        made => made,
    }
}

/// Puts a file at a place, whatever was there.
pub(crate) fn replace_with(path: &Path, bytes: &[u8]) -> io::Result<()> {
    if path.file_name().is_none() {
        return Err(io::Error::new(ErrorKind::InvalidInput, "this names no file; name one"));
    }
    let folder = parent(path);
    let (new, mut file) = new_file(folder)?;
    // What only its owner could read stays so.
    let before = fs::symlink_metadata(path).ok().filter(fs::Metadata::is_file);
    // Never more than that: new contents do not run with the rights of the file's owner.
    let mode = before.map(|before| Permissions::from_mode(before.mode() & 0o777));
    let renamed = mode
        .map_or(Ok(()), |mode| file.set_permissions(mode))
        .and_then(|()| file.write_all(bytes))
        .and_then(|()| file.sync_all())
        .and_then(|()| fs::rename(&new, path));
    if renamed.is_err() {
        // The first error is the one that counts.
        let _ = fs::remove_file(&new);
        return renamed;
    }
    // Some file systems cannot; the file is there and whole all the same.
    let _ = File::open(folder).and_then(|folder| folder.sync_all());
    Ok(())
}

/// The folder of a file.
fn parent(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// A file that was not there before, and its path.
fn new_file(folder: &Path) -> io::Result<(PathBuf, File)> {
    /// Names that are tried: each was left by a process of the same number that was killed.
    const TRIES: u32 = 1000;
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let mut outcome = Err(ErrorKind::AlreadyExists.into());
    for _ in 0..TRIES {
        // Relaxed: all that counts is that every number is had once.
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = folder.join(format!(".zonal-{}-{number}.new", process::id()));
        // `create_new` follows no link and takes no file that is there.
        outcome = OpenOptions::new().write(true).create_new(true).open(&path).map(|file| (path, file));
        if !matches!(&outcome, Err(error) if error.kind() == ErrorKind::AlreadyExists) {
            break;
        }
    }
    outcome
}

fn exists(problem: &str) -> io::Error {
    io::Error::new(ErrorKind::AlreadyExists, problem)
}
