//! Writes files completely or not at all. It never writes through a link, and by default replaces only files that zonal
//! wrote.
//!
//! A file is written under a new name in the same folder and then exchanged with the existing file, so a reader opens
//! either the old file or the new one. A link at the path is replaced or refused, but never followed. If another
//! process created a file at the path after the check, that file is moved back. Each kind of file begins with a marker
//! by which zonal recognises its own files.
//!
//! Related files: `new_names.rs` has the new names. `export.rs` and `tree_writer.rs` write machines with this module, the
//! lab its results, and the command line its charts and its manual.

use std::fs::{self, File, Metadata, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;

use crate::escape::Excerpt;
use crate::input;
use crate::new_names::with_new_name;
pub use crate::new_names::{left_over, parent};

/// The reason why a file was not written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write {}: {source}", Excerpt::name(path.display()))]
pub struct WriteError {
    /// The file.
    pub path: PathBuf,
    /// The system's error.
    pub source: io::Error,
}

/// The kind of a file, which its marker identifies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A machine file, which begins with its schema.
    Machine,
    /// The results of an experiment, which begin with their schema.
    Results,
    /// An HTML page, whose head names zonal as its generator.
    Page,
    /// A picture, which begins with [`DRAWING_MARK`].
    Drawing,
    /// A page of the manual, which begins with [`MANUAL_MARK`].
    Manual,
}

/// The first line of every picture.
pub const DRAWING_MARK: &str = "<!-- Drawn by zonal -->\n";

/// The first line of every manual page, a comment.
pub const MANUAL_MARK: &str = ".\\\" Written by zonal\n";

/// How much of a file's beginning must contain the marker.
const HEAD_BYTES: usize = 256;

impl Kind {
    /// Whether a file that begins with `head` is of this kind.
    fn is_marked(self, head: &[u8]) -> bool {
        let head = String::from_utf8_lossy(&head[..head.len().min(HEAD_BYTES)]);
        match self {
            Self::Machine => head.starts_with("{\n  \"schema\": \"zonal.machine-file."),
            Self::Results => head.starts_with("{\n  \"schema\": \"zonal.lab."),
            Self::Page => {
                head.starts_with("<!DOCTYPE html>")
                    && head.contains("<meta name=\"generator\" content=\"zonal\">")
            }
            Self::Drawing => head.starts_with(DRAWING_MARK),
            Self::Manual => head.starts_with(MANUAL_MARK),
        }
    }
}

/// The files that may be replaced.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Replace {
    /// Files of the same kind that zonal wrote.
    Own,
    /// Any regular file or link.
    Any,
}

/// Writes a file, which must begin with the marker of its kind.
///
/// A file that replaces another keeps its permissions, and its owner and group if this process may set them.
/// If it may not, the new group has no more permissions than others.
///
/// # Errors
/// The errors of [`check`], also if another process creates something at `path` during the call, and the file system's
/// errors. After an error `path` has no new file, unless the message says so. On a file system that cannot exchange
/// files (`RENAME_EXCHANGE`), a file that appears at `path` between the check and the renaming is replaced without a
/// check.
///
/// # Panics
/// Panics if `text` does not have the marker.
pub fn write(path: &Path, text: &str, kind: Kind, replace: Replace) -> Result<(), WriteError> {
    assert!(kind.is_marked(text.as_bytes()), "a file of kind {kind:?} begins with its mark");
    let written = check_existing(path, kind, replace).and_then(|found| {
        put(path, text.as_bytes(), found.as_ref(), |held| may_replace(held, found.as_ref(), kind, replace))
    });
    written.map_err(|source| WriteError { path: path.to_owned(), source })
}

/// Checks that a file may be written to `path`: either the path does not exist, or its entry may be replaced.
///
/// # Errors
/// [`ErrorKind::AlreadyExists`] for a path that may not be replaced. This is anything except files and links. With
/// [`Replace::Own`] it is also every link, and every file without the marker of `kind`.
pub fn check(path: &Path, kind: Kind, replace: Replace) -> Result<(), WriteError> {
    let looked = check_existing(path, kind, replace);
    looked.map(|_| ()).map_err(|source| WriteError { path: path.to_owned(), source })
}

/// Returns the metadata of the existing file at `path`, if there is one, after checking that it may be
/// replaced.
fn check_existing(path: &Path, kind: Kind, replace: Replace) -> io::Result<Option<Metadata>> {
    check_place(path)?;
    let about = match fs::symlink_metadata(path) {
        Ok(about) => about,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let found = about.file_type();
    if !found.is_file() && !found.is_symlink() {
        return Err(exists("it exists and is neither a file nor a link; choose another name"));
    }
    match replace {
        Replace::Any => Ok(Some(about)),
        Replace::Own if found.is_symlink() => {
            Err(exists("it is a symbolic link, which is not followed; choose another name, or use --force"))
        }
        Replace::Own if kind.is_marked(&input::head(path, HEAD_BYTES)?) => Ok(Some(about)),
        Replace::Own => Err(exists(
            "this file was not written by zonal for this purpose; choose another name, or use --force",
        )),
    }
}

/// Refuses paths that do not name a file or folder, and paths of system devices.
pub(crate) fn check_place(path: &Path) -> io::Result<()> {
    if path.file_name().is_none() {
        return Err(io::Error::new(ErrorKind::InvalidInput, "this is not a file name; add one"));
    }
    // A privileged process would otherwise replace the system's `/dev/stdout`.
    let is_of_devices = |folder: &Path| folder.starts_with("/dev") && !folder.starts_with("/dev/shm");
    let is_of_the_kernel = |folder: &Path| folder.starts_with("/proc") || folder.starts_with("/sys");
    if parent(path).canonicalize().is_ok_and(|folder| is_of_devices(&folder) || is_of_the_kernel(&folder)) {
        return Err(exists("files cannot be written there; choose another directory"));
    }
    Ok(())
}

/// Creates the folder `name` in `parent` unless it exists. A missing `parent` is created as well. `parent` may contain
/// links, because the user chose that path, but `name` must not be a link.
///
/// # Errors
/// [`ErrorKind::AlreadyExists`] if `name` exists and is not a folder, otherwise the file system's error.
pub fn folder(parent: &Path, name: &str) -> Result<PathBuf, WriteError> {
    create_folder(parent)?;
    let path = parent.join(name);
    match make_folder(&path) {
        Ok(()) => Ok(path),
        Err(source) => Err(WriteError { path, source }),
    }
}

/// Creates a folder and its missing parents unless it exists. All parts of the path may be links.
///
/// # Errors
/// The file system's error.
pub fn create_folder(path: &Path) -> Result<(), WriteError> {
    fs::create_dir_all(path).map_err(|source| WriteError { path: path.to_owned(), source })
}

/// Checks that [`folder`] can create or use a folder at `path`: the path does not exist, or is a folder and
/// not a link.
///
/// # Errors
/// [`ErrorKind::AlreadyExists`] for anything else.
pub fn check_folder(path: &Path) -> Result<(), WriteError> {
    is_folder_or_free(path).map_err(|source| WriteError { path: path.to_owned(), source })
}

pub(crate) fn is_folder_or_free(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(about) if about.is_dir() => Ok(()),
        Ok(about) if about.is_symlink() => {
            Err(exists("it is a symbolic link, which is not followed; remove it"))
        }
        Ok(_) => Err(exists("it exists and is not a directory; choose another name")),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

/// Creates a folder whose parent exists. The folder may exist already, but must not be a link.
pub(crate) fn make_folder(path: &Path) -> io::Result<()> {
    match fs::create_dir(path) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => is_folder_or_free(path),
        made => made,
    }
}

/// Whether the old file, which was at the path and is now at `held`, may be removed. It may if it has the marker of
/// `kind`, or, with [`Replace::Any`], if it is the file that the check found and has not changed. Any other file that
/// appeared after the check is never removed.
fn may_replace(held: &Path, found: Option<&Metadata>, kind: Kind, replace: Replace) -> bool {
    let is_found = |found: &Metadata| {
        // The inode number alone does not identify a file: a later file may have the number of a deleted one.
        let unchanged = |about: &Metadata| (identity(about), about.mtime(), about.mtime_nsec(), about.len());
        fs::symlink_metadata(held).is_ok_and(|about| unchanged(&about) == unchanged(found))
    };
    check_existing(held, kind, Replace::Own).is_ok_and(|own| own.is_some())
        || (replace == Replace::Any && found.is_some_and(is_found))
}

/// Writes a file to `path`. It replaces `found` if `may_replace` accepts the file that was last at the path. If nothing
/// was found, the path must still be free.
fn put(
    path: &Path,
    bytes: &[u8],
    found: Option<&Metadata>,
    may_replace: impl Fn(&Path) -> bool,
) -> io::Result<()> {
    let folder = parent(path);
    let before = found.filter(|found| found.is_file());
    let (new, mut file) = new_file(folder, before)?;
    let ours = identity(&file.metadata()?);
    let placed = before
        .map_or(Ok(()), |before| inherit(&file, before))
        .and_then(|()| file.write_all(bytes))
        .and_then(|()| file.sync_all())
        .and_then(|()| {
            if found.is_some() { replace(&new, path, may_replace) } else { rename_to_free(&new, path) }
        });
    if placed.is_err() {
        // The first error is reported, so an error of the removal is ignored. A file of another process under this name
        // stays.
        if fs::symlink_metadata(&new).is_ok_and(|about| identity(&about) == ours) {
            let _ = fs::remove_file(&new);
        }
        return placed;
    }
    // Some file systems do not support syncing a folder. The error is ignored because the file is complete in any case.
    let _ = File::open(folder).and_then(|folder| folder.sync_all());
    Ok(())
}

/// Replaces the file at `path` by `new`, and removes the old file if `may_replace` accepts it. Otherwise moves the old
/// file back.
fn replace(new: &Path, path: &Path, may_replace: impl Fn(&Path) -> bool) -> io::Result<()> {
    let ours = identity(&fs::symlink_metadata(new)?);
    match renameat_with(CWD, new, CWD, path, RenameFlags::EXCHANGE) {
        // The old file has disappeared.
        Err(Errno::NOENT) => return rename_to_free(new, path),
        Err(errno) if is_unsupported(errno) => return fs::rename(new, path),
        exchanged => exchanged?,
    }
    let left = |kind: ErrorKind, problem: &str| {
        let left = Excerpt::name(new.display());
        io::Error::new(kind, format!("{problem}; the previous contents are in {left}"))
    };
    if may_replace(new) {
        return fs::remove_file(new)
            .map_err(|error| left(error.kind(), &format!("the file is written, but {error}")));
    }
    let back = renameat_with(CWD, new, CWD, path, RenameFlags::EXCHANGE);
    // Another process may have created a file at the path once more, so the file at `new` is compared with ours.
    if back.is_ok() && fs::symlink_metadata(new).is_ok_and(|about| identity(&about) == ours) {
        return Err(exists("it was created by another process meanwhile; choose another name"));
    }
    Err(left(ErrorKind::AlreadyExists, "it was created by another process meanwhile"))
}

/// Whether an error means that the kernel or the file system does not support a way of renaming.
pub(crate) const fn is_unsupported(errno: Errno) -> bool {
    matches!(errno, Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP)
}

/// Returns the device and inode numbers, which identify a file as long as it exists.
fn identity(about: &Metadata) -> (u64, u64) {
    (about.dev(), about.ino())
}

/// Sets the owner, group and permissions of a new file or folder to what the replaced one has, as far as this process
/// may do so: only the superuser may set another owner. If the group differs, the permissions of the old group are
/// dropped.
pub(crate) fn inherit(new: &File, before: &Metadata) -> io::Result<()> {
    let about = new.metadata()?;
    let group = Some(before.gid());
    let owned = about.uid() == before.uid() || fchown(new, Some(before.uid()), group).is_ok();
    let _ = owned || about.gid() == before.gid() || fchown(new, None, group).is_ok();
    let has_group = new.metadata()?.gid() == before.gid();
    new.set_permissions(Permissions::from_mode(inherited_mode(before.mode(), has_group)))
}

/// Returns only the read, write and execute bits. Set-user-id and set-group-id bits are dropped, because new contents
/// must not run with the permissions of the file's owner.
const fn inherited_mode(before: u32, has_group: bool) -> u32 {
    let mode = before & 0o777;
    if has_group { mode } else { mode & !0o070 | (mode & mode << 3 & 0o070) }
}

/// Renames a file or folder to a name that does not exist.
///
/// # Errors
/// [`ErrorKind::AlreadyExists`] if the name exists, in which case nothing is renamed.
pub(crate) fn rename_to_free(new: &Path, path: &Path) -> io::Result<()> {
    let renamed = match renameat_with(CWD, new, CWD, path, RenameFlags::NOREPLACE) {
        // On file systems without this flag, a hard link has the same effect, because creating it never replaces a
        // file.
        Err(errno) if is_unsupported(errno) && !fs::symlink_metadata(new)?.is_dir() => {
            fs::hard_link(new, path).and_then(|()| fs::remove_file(new))
        }
        // Renaming a folder can replace only an empty folder.
        Err(errno) if is_unsupported(errno) => fs::rename(new, path),
        renamed => renamed.map_err(io::Error::from),
    };
    renamed.map_err(|error| match error.kind() {
        ErrorKind::AlreadyExists => {
            exists("it was created by another process meanwhile; choose another name")
        }
        _ => error,
    })
}

/// Creates a new file and returns its path. If it is to replace another file, only its owner may access it until it
/// gets the permissions of the old file.
fn new_file(folder: &Path, before: Option<&Metadata>) -> io::Result<(PathBuf, File)> {
    let mode = if before.is_some() { 0o600 } else { 0o666 };
    // `create_new` does not follow links and fails if the file exists.
    with_new_name(folder, |path| OpenOptions::new().write(true).create_new(true).mode(mode).open(path))
}

pub(crate) fn exists(problem: &str) -> io::Error {
    io::Error::new(ErrorKind::AlreadyExists, problem)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the names in a folder.
    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn concurrently_created_files_are_not_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        put(&path, b"one", None, |_| true).unwrap();
        let error = put(&path, b"two", None, |_| true).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AlreadyExists);
        assert!(error.to_string().contains("created by another process meanwhile"), "{error}");
        assert_eq!(
            (fs::read(&path).unwrap(), names(folder.path())),
            (b"one".to_vec(), vec!["file".to_owned()])
        );
        let found = fs::symlink_metadata(&path).unwrap();
        put(&path, b"two", Some(&found), |_| true).unwrap();
        assert_eq!((fs::read(&path).unwrap(), names(folder.path()).len()), (b"two".to_vec(), 1));
        // A file that has disappeared need not be replaced.
        fs::remove_file(&path).unwrap();
        put(&path, b"three", Some(&found), |_| false).unwrap();
        assert_eq!((fs::read(&path).unwrap(), names(folder.path()).len()), (b"three".to_vec(), 1));
    }

    /// Writes a drawing to a path where the check found `first` and which `later` then changes. Returns whether the
    /// drawing was written, the path, and the folder that contains it.
    fn write_after_change(
        first: &str,
        later: impl Fn(&Path),
        replace: Replace,
    ) -> (bool, PathBuf, tempfile::TempDir) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, first).unwrap();
        let found = check_existing(&path, Kind::Drawing, replace).unwrap();
        later(&path);
        let may_replace = |held: &Path| may_replace(held, found.as_ref(), Kind::Drawing, replace);
        let written = put(&path, b"new", found.as_ref(), may_replace);
        if let Err(error) = &written {
            assert!(error.to_string().contains("created by another process meanwhile"), "{error}");
        }
        assert_eq!(names(folder.path()), ["file"]);
        (written.is_ok(), path, folder)
    }

    #[test]
    fn files_created_after_the_check_are_put_back() {
        let renamed = |text: &'static str| {
            move |path: &Path| {
                let other = path.with_extension("other");
                fs::write(&other, text).unwrap();
                fs::rename(other, path).unwrap();
            }
        };
        for (first, replace) in
            [(DRAWING_MARK, Replace::Own), (DRAWING_MARK, Replace::Any), ("old", Replace::Any)]
        {
            let (is_written, path, _folder) = write_after_change(first, renamed("precious"), replace);
            assert_eq!((is_written, fs::read_to_string(path).unwrap()), (false, "precious".to_owned()));
            let folder = |path: &Path| {
                fs::remove_file(path).unwrap();
                fs::create_dir(path).unwrap();
            };
            let (is_written, path, _folder) = write_after_change(first, folder, replace);
            assert!(!is_written && path.is_dir());
            // A file of another zonal run may be replaced.
            let (is_written, path, _folder) = write_after_change(first, renamed(DRAWING_MARK), replace);
            assert_eq!((is_written, fs::read_to_string(path).unwrap()), (true, "new".to_owned()));
        }
        let changed = |path: &Path| fs::write(path, "precious").unwrap();
        for replace in [Replace::Own, Replace::Any] {
            let (is_written, path, _folder) = write_after_change(DRAWING_MARK, changed, replace);
            assert_eq!((is_written, fs::read_to_string(path).unwrap()), (false, "precious".to_owned()));
        }
        let (is_written, ..) = write_after_change("old", |_| (), Replace::Any);
        assert!(is_written, "nothing came");
    }

    #[test]
    fn new_files_are_private_until_permissions_are_set() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, "").unwrap();
        let found = fs::symlink_metadata(&path).unwrap();
        let (_, new) = new_file(folder.path(), Some(&found)).unwrap();
        assert_eq!(new.metadata().unwrap().mode() & 0o777, 0o600);
        // A file that replaces nothing gets the usual permissions.
        let (_, new) = new_file(folder.path(), None).unwrap();
        assert_eq!(new.metadata().unwrap().mode(), found.mode());
    }

    #[test]
    fn a_different_group_gets_no_more_rights_than_others() {
        for (before, after) in
            [(0o640, 0o600), (0o664, 0o644), (0o4750, 0o700), (0o644, 0o644), (0o666, 0o666), (0o604, 0o604)]
        {
            assert_eq!(inherited_mode(before, false), after, "{before:o}");
            assert_eq!(inherited_mode(before, true), before & 0o777);
        }
    }
}
