//! Writes files completely or not at all. It never writes through a link, and by default replaces only files that zonal
//! wrote.
//!
//! A file is written under a new name in the same folder and then renamed, so a reader opens either the old file or the
//! new one. A link at the path is replaced or refused, but never followed. Each kind of file begins with a marker by
//! which zonal recognises its own files. `docs/decisions/0030-files-are-renamed-into-place.md` says what this does not
//! guarantee.
//!
//! Related files: `tree_writer.rs` writes trees with this module, the lab its results, and the command
//! line its charts and its manual.

use std::fs::{self, File, Metadata, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};
use std::process;

use tempfile::NamedTempFile;
use zonal_model::{Excerpt, input};

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
    /// A captured state, which begins with its schema.
    Capture,
    /// The figures of a check-up, which begin with their schema.
    Checkup,
    /// The results of an experiment, which begin with their schema.
    Results,
    /// An HTML page, whose head names zonal as its generator.
    Page,
    /// A picture, which begins with [`DRAWING_MARK`].
    Drawing,
    /// A page of the manual, which begins with [`MANUAL_MARK`].
    Manual,
    /// A trace of the page allocator, which begins with [`TRACE_MARK`].
    Trace,
    /// The events of a trace as a table, whose first line begins with [`EVENT_TABLE_MARK`].
    EventTable,
    /// A trace for Perfetto, whose first packet contains [`PERFETTO_MARK`].
    Perfetto,
}

/// The first line of every picture.
pub const DRAWING_MARK: &str = "<!-- Drawn by zonal -->\n";

/// The first line of every manual page, a comment.
pub const MANUAL_MARK: &str = ".\\\" Written by zonal\n";

/// The beginning of every trace.
pub const TRACE_MARK: &str = "zonal trace ";

/// The beginning of every table of events.
pub const EVENT_TABLE_MARK: &str = "at_ns,cpu,thread,name,event,";

/// A text in the first packet of every trace for Perfetto.
pub const PERFETTO_MARK: &str = "page allocator, exported by zonal";

/// How much of a file's beginning must contain the marker.
const HEAD_BYTES: usize = 256;

impl Kind {
    /// Whether a file that begins with `head` is of this kind.
    fn is_marked(self, head: &[u8]) -> bool {
        let head = String::from_utf8_lossy(&head[..head.len().min(HEAD_BYTES)]);
        match self {
            Self::Machine => head.starts_with("{\n  \"schema\": \"zonal.machine-file."),
            Self::Capture => head.starts_with("{\n  \"schema\": \"zonal.capture."),
            Self::Checkup => head.starts_with("{\n  \"schema\": \"zonal.checkup."),
            Self::Results => head.starts_with("{\n  \"schema\": \"zonal.lab."),
            Self::Page => {
                head.starts_with("<!DOCTYPE html>")
                    && head.contains("<meta name=\"generator\" content=\"zonal\">")
            }
            Self::Drawing => head.starts_with(DRAWING_MARK),
            Self::Manual => head.starts_with(MANUAL_MARK),
            Self::Trace => head.starts_with(TRACE_MARK),
            Self::EventTable => head.starts_with(EVENT_TABLE_MARK),
            Self::Perfetto => head.contains(PERFETTO_MARK),
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
/// The errors of [`check`], and the file system's. After an error, `path` has no new file. If nothing was at `path`, a
/// file that another process creates there during the call is not replaced.
///
/// # Panics
/// Panics if `text` does not have the marker.
pub fn write(path: &Path, text: &str, kind: Kind, replace: Replace) -> Result<(), WriteError> {
    assert!(kind.is_marked(text.as_bytes()), "a file of kind {kind:?} begins with its mark");
    let written =
        check_existing(path, kind, replace).and_then(|found| put(path, text.as_bytes(), found.as_ref()));
    written.map_err(|source| WriteError { path: path.to_owned(), source })
}

/// Checks that a file may be written to `path`: either the path does not exist in a directory that does, or its entry
/// may be replaced.
///
/// # Errors
/// The file system's for a directory that does not exist, and [`ErrorKind::AlreadyExists`] for a path that may not be
/// replaced: anything except files and links. With [`Replace::Own`] it is also every link, and every file without the
/// marker of `kind`.
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
        Err(error) if error.kind() == ErrorKind::NotFound => {
            fs::metadata(parent(path))?;
            return Ok(None);
        }
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

fn is_folder_or_free(path: &Path) -> io::Result<()> {
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
fn make_folder(path: &Path) -> io::Result<()> {
    match fs::create_dir(path) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => is_folder_or_free(path),
        made => made,
    }
}

/// Writes a file to `path`. It replaces `found`. If nothing was found, the path must still be free.
fn put(path: &Path, bytes: &[u8], found: Option<&Metadata>) -> io::Result<()> {
    let mut file = new_for(path, found)?;
    file.as_file_mut().write_all(bytes)?;
    place(file, path, found)
}

/// Creates a file with a new name next to `path`, with the permissions of the file that it is to replace.
fn new_for(path: &Path, found: Option<&Metadata>) -> io::Result<NamedTempFile> {
    let before = found.filter(|found| found.is_file());
    // Until it gets the permissions of the old file, only its owner may access the new one.
    let mode = if before.is_some() { 0o600 } else { 0o666 };
    let file = new_file(parent(path), mode)?;
    before.map_or(Ok(()), |before| inherit(file.as_file(), before))?;
    Ok(file)
}

/// Renames a complete file to `path`.
fn place(file: NamedTempFile, path: &Path, found: Option<&Metadata>) -> io::Result<()> {
    file.as_file().sync_all()?;
    let placed = if found.is_some() { file.persist(path) } else { file.persist_noclobber(path) };
    placed.map_err(|error| match error.error.kind() {
        ErrorKind::AlreadyExists => {
            exists("it was created by another process meanwhile; choose another name")
        }
        _ => error.error,
    })?;
    // Some file systems do not support syncing a folder. The error is ignored because the file is complete in any case.
    let _ = File::open(parent(path)).and_then(|folder| folder.sync_all());
    Ok(())
}

/// A file that is written in parts. Nothing is at its path until [`Pending::place`] is called, and if it is dropped
/// before, it is removed.
#[derive(Debug)]
pub struct Pending {
    file: NamedTempFile,
    path: PathBuf,
    found: Option<Metadata>,
}

impl Pending {
    /// Creates a file that is to be moved to `path`. What is written to it must begin with the marker of `kind`.
    ///
    /// # Errors
    /// The errors of [`check`], and the file system's.
    pub fn begin(path: &Path, kind: Kind, replace: Replace) -> Result<Self, WriteError> {
        let created =
            check_existing(path, kind, replace).and_then(|found| Ok((new_for(path, found.as_ref())?, found)));
        match created {
            Ok((file, found)) => Ok(Self { file, path: path.to_owned(), found }),
            Err(source) => Err(WriteError { path: path.to_owned(), source }),
        }
    }

    /// Returns the number of bytes written.
    ///
    /// # Errors
    /// The file system's errors.
    pub fn bytes(&mut self) -> io::Result<u64> {
        self.file.flush()?;
        self.file.as_file().metadata().map(|about| about.len())
    }

    /// Moves the file to its path.
    ///
    /// # Errors
    /// The file system's errors. If nothing was at the path when the file was created, this includes
    /// [`ErrorKind::AlreadyExists`] for one that another process created meanwhile.
    pub fn place(self) -> Result<(), WriteError> {
        let Self { file, path, found } = self;
        place(file, &path, found.as_ref()).map_err(|source| WriteError { path, source })
    }
}

impl Write for Pending {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// Returns the folder of a file.
#[must_use]
pub fn parent(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Creates a file with a new name. The errors of `Builder::tempfile_in` would have this name.
fn new_file(folder: &Path, mode: u32) -> io::Result<NamedTempFile> {
    let create = |path: &Path| OpenOptions::new().write(true).create_new(true).mode(mode).open(path);
    with_new_name(|new| new.make_in(folder, create))
}

/// Calls `make` with a builder of files and folders, whose names [`left_over`] recognises and which are removed when
/// they are dropped.
pub(crate) fn with_new_name<T>(make: impl FnOnce(&mut tempfile::Builder<'_, '_>) -> T) -> T {
    let prefix = format!(".zonal-{}-", process::id());
    make(tempfile::Builder::new().prefix(&prefix).suffix(".new"))
}

/// Returns the files and folders that killed processes left next to `path` while they wrote a file or a tree.
///
/// They have temporary names, and may be removed once their contents are no longer needed. The result omits files of a
/// process whose id is in use again. Process ids are those of the caller's namespace.
///
/// # Errors
/// Returns an error if the folder of `path` cannot be read. The folder need not exist.
pub fn left_over(path: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(parent(path)) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let is_left =
        |path: &PathBuf| path.file_name().and_then(|name| name.to_str()).is_some_and(is_of_a_dead_process);
    let mut found = entries.map(|entry| Ok(entry?.path())).collect::<io::Result<Vec<_>>>()?;
    found.retain(is_left);
    found.sort();
    Ok(found)
}

/// Whether [`with_new_name`] created a name in a process that no longer runs.
fn is_of_a_dead_process(name: &str) -> bool {
    let parts = name.strip_prefix(".zonal-").and_then(|name| name.strip_suffix(".new")?.split_once('-'));
    let process = parts.and_then(|(process, _)| process.parse::<u32>().ok());
    process.is_some_and(|process| !Path::new("/proc").join(process.to_string()).exists())
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
        put(&path, b"one", None).unwrap();
        let error = put(&path, b"two", None).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AlreadyExists);
        assert!(error.to_string().contains("created by another process meanwhile"), "{error}");
        assert_eq!((fs::read(&path).unwrap(), names(folder.path()).len()), (b"one".to_vec(), 1));
        let found = fs::symlink_metadata(&path).unwrap();
        put(&path, b"two", Some(&found)).unwrap();
        // A file that has disappeared need not be replaced.
        fs::remove_file(&path).unwrap();
        put(&path, b"three", Some(&found)).unwrap();
        assert_eq!((fs::read(&path).unwrap(), names(folder.path()).len()), (b"three".to_vec(), 1));
        // A folder that has appeared is not replaced.
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        put(&path, b"four", Some(&found)).unwrap_err();
        assert_eq!(names(folder.path()), ["file"]);
    }

    #[test]
    fn a_pending_file_is_placed_complete_or_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let mut file = Pending::begin(&path, Kind::Trace, Replace::Own).unwrap();
        file.write_all(b"zonal trace 1").unwrap();
        assert!(!path.exists() && names(folder.path()).len() == 1);
        drop(file);
        assert!(names(folder.path()).is_empty());
        let mut file = Pending::begin(&path, Kind::Trace, Replace::Own).unwrap();
        file.write_all(b"zonal trace 1").unwrap();
        file.place().unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"zonal trace 1");
        // The file may be replaced, and one of another kind may not.
        Pending::begin(&path, Kind::Trace, Replace::Own).unwrap();
        let error = Pending::begin(&path, Kind::Perfetto, Replace::Own).unwrap_err();
        assert_eq!(error.source.kind(), ErrorKind::AlreadyExists);
        // A file that another process creates meanwhile stays.
        let other = folder.path().join("other");
        let file = Pending::begin(&other, Kind::Trace, Replace::Own).unwrap();
        fs::write(&other, "other").unwrap();
        file.place().unwrap_err();
        assert_eq!((fs::read(&other).unwrap(), names(folder.path()).len()), (b"other".to_vec(), 2));
    }

    #[test]
    fn new_files_are_private_until_permissions_are_set() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, "").unwrap();
        let mode = |mode| {
            let file = new_file(folder.path(), mode).unwrap();
            file.as_file().metadata().unwrap().mode()
        };
        // A file that replaces nothing gets the usual permissions.
        assert_eq!((mode(0o600) & 0o777, mode(0o666)), (0o600, fs::metadata(&path).unwrap().mode()));
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
