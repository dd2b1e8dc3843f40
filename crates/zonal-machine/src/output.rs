//! Writes files as a whole or not at all, never through a link, and never over what zonal did not write.
//!
//! A file is written under a new name beside its place and then exchanged for what is there: a reader sees the old
//! file or the new one, a link planted at the place is replaced or refused, not followed, and what came there after
//! the look is put back. Each kind of file begins with a
//! mark by which zonal knows its own. Neighbours: `export.rs` and `tree_writer.rs` write machines with it, the
//! lab its results, the command line its charts.

use std::fs::{self, File, Metadata, OpenOptions, Permissions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;

use crate::escape::Excerpt;
use crate::input;

/// Why a file was not written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write {}: {source}", Excerpt::name(path.display()))]
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

/// Writes a file, which begins with the mark of its kind. One that replaces a file has its rights, and its owner
/// and group where this process may give them; where it may not, the new group has no more rights than everybody.
///
/// # Errors
/// As [`check`], also when something appears at `path` meanwhile, and what the file system says; there is nothing
/// new at `path` then, unless the error says so. Where the file system cannot exchange files (`RENAME_EXCHANGE`), what
/// comes to `path` between the look and the renaming is replaced without a look.
///
/// # Panics
/// When `text` has not the mark.
pub fn write(path: &Path, text: &str, kind: Kind, replace: Replace) -> Result<(), WriteError> {
    assert!(kind.is_marked(text.as_bytes()), "a file of kind {kind:?} begins with its mark");
    let written = look(path, kind, replace).and_then(|found| {
        put(path, text.as_bytes(), found.as_ref(), |held| may_go(held, found.as_ref(), kind, replace))
    });
    written.map_err(|source| WriteError { path: path.to_owned(), source })
}

/// Checks that a file may be written: nothing is at its place, or something that may be replaced.
///
/// # Errors
/// [`ErrorKind::AlreadyExists`] for what may not be replaced: anything but files and links, and with
/// [`Replace::Own`] links and files that have not the mark of `kind`.
pub fn check(path: &Path, kind: Kind, replace: Replace) -> Result<(), WriteError> {
    let looked = look(path, kind, replace);
    looked.map(|_| ()).map_err(|source| WriteError { path: path.to_owned(), source })
}

/// What is at the place of a file, and may be replaced.
fn look(path: &Path, kind: Kind, replace: Replace) -> io::Result<Option<Metadata>> {
    check_place(path)?;
    let about = match fs::symlink_metadata(path) {
        Ok(about) => about,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let found = about.file_type();
    if !found.is_file() && !found.is_symlink() {
        return Err(exists("what is there is neither a file nor a link; choose another name"));
    }
    match replace {
        Replace::Any => Ok(Some(about)),
        Replace::Own if found.is_symlink() => {
            Err(exists("a symbolic link is there, which is not followed; choose another name, or --force"))
        }
        Replace::Own if kind.is_marked(&input::head(path, HEAD_BYTES)?) => Ok(Some(about)),
        Replace::Own => Err(exists(
            "the file that is there was not written by zonal for this purpose; choose another name, or --force",
        )),
    }
}

/// Refuses what names no file or folder, and places that are the system's.
pub(crate) fn check_place(path: &Path) -> io::Result<()> {
    if path.file_name().is_none() {
        return Err(io::Error::new(ErrorKind::InvalidInput, "this is no name; give one"));
    }
    // Whoever may would take the system's `/dev/stdout` away.
    let is_of_devices = |folder: &Path| folder.starts_with("/dev") && !folder.starts_with("/dev/shm");
    let is_of_the_kernel = |folder: &Path| folder.starts_with("/proc") || folder.starts_with("/sys");
    if parent(path).canonicalize().is_ok_and(|folder| is_of_devices(&folder) || is_of_the_kernel(&folder)) {
        return Err(exists("this is no place for files; choose another one"));
    }
    Ok(())
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

pub(crate) fn is_folder_or_free(path: &Path) -> io::Result<()> {
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

/// Whether what was at the place of a file, and is at `held` now, may be removed: it is zonal's own of the kind, or with
/// [`Replace::Any`] what was found there at first, unchanged. A file that came later is nobody's to replace.
fn may_go(held: &Path, found: Option<&Metadata>, kind: Kind, replace: Replace) -> bool {
    let is_found = |found: &Metadata| {
        // A file that came later may have the number of one that is gone.
        let unchanged = |about: &Metadata| (identity(about), about.mtime(), about.mtime_nsec(), about.len());
        fs::symlink_metadata(held).is_ok_and(|about| unchanged(&about) == unchanged(found))
    };
    look(held, kind, Replace::Own).is_ok_and(|own| own.is_some())
        || (replace == Replace::Any && found.is_some_and(is_found))
}

/// Puts a file in the place of `found`, if `may_go` says so of what was there in the end, or where nothing was found
/// and nothing may be.
fn put(
    path: &Path,
    bytes: &[u8],
    found: Option<&Metadata>,
    may_go: impl Fn(&Path) -> bool,
) -> io::Result<()> {
    let folder = parent(path);
    let before = found.filter(|found| found.is_file());
    let (new, mut file) = new_file(folder, before)?;
    let ours = identity(&file.metadata()?);
    let placed = before
        .map_or(Ok(()), |before| inherit(&file, before))
        .and_then(|()| file.write_all(bytes))
        .and_then(|()| file.sync_all())
        .and_then(
            |()| if found.is_some() { replace(&new, path, may_go) } else { rename_to_free(&new, path) },
        );
    if placed.is_err() {
        // The first error is the one that counts. Whatever else has the name now stays.
        if fs::symlink_metadata(&new).is_ok_and(|about| identity(&about) == ours) {
            let _ = fs::remove_file(&new);
        }
        return placed;
    }
    // Some file systems cannot; the file is there and whole all the same.
    let _ = File::open(folder).and_then(|folder| folder.sync_all());
    Ok(())
}

/// Puts the file `new` in the place of what is at `path`, and removes that if `may_go` says so; else it goes back.
fn replace(new: &Path, path: &Path, may_go: impl Fn(&Path) -> bool) -> io::Result<()> {
    let ours = identity(&fs::symlink_metadata(new)?);
    match renameat_with(CWD, new, CWD, path, RenameFlags::EXCHANGE) {
        // What was there is gone.
        Err(Errno::NOENT) => return rename_to_free(new, path),
        Err(errno) if is_unsupported(errno) => return fs::rename(new, path),
        exchanged => exchanged?,
    }
    let left = |kind: ErrorKind, problem: &str| {
        let left = Excerpt::name(new.display());
        io::Error::new(kind, format!("{problem}; what was there is left in {left}"))
    };
    if may_go(new) {
        return fs::remove_file(new)
            .map_err(|error| left(error.kind(), &format!("the file is there, but {error}")));
    }
    let back = renameat_with(CWD, new, CWD, path, RenameFlags::EXCHANGE);
    // Something else may have come there again.
    if back.is_ok() && fs::symlink_metadata(new).is_ok_and(|about| identity(&about) == ours) {
        return Err(exists("something appeared there meanwhile; choose another name"));
    }
    Err(left(ErrorKind::AlreadyExists, "something appeared there meanwhile"))
}

/// Whether the kernel or the file system does not know a way of renaming.
pub(crate) const fn is_unsupported(errno: Errno) -> bool {
    matches!(errno, Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP)
}

/// What tells a file from all others as long as it is there.
fn identity(about: &Metadata) -> (u64, u64) {
    (about.dev(), about.ino())
}

/// Gives a new file or folder the owner, group and rights of the one that it replaces, as far as this process may:
/// owners other than itself are for the superuser to give. Where the group is another one, what was for the group
/// alone is for nobody.
pub(crate) fn inherit(new: &File, before: &Metadata) -> io::Result<()> {
    let about = new.metadata()?;
    let group = Some(before.gid());
    let owned = about.uid() == before.uid() || fchown(new, Some(before.uid()), group).is_ok();
    let _ = owned || about.gid() == before.gid() || fchown(new, None, group).is_ok();
    let has_group = new.metadata()?.gid() == before.gid();
    new.set_permissions(Permissions::from_mode(inherited_mode(before.mode(), has_group)))
}

/// Never more than reading, writing and running: new contents do not run with the rights of the file's owner.
const fn inherited_mode(before: u32, has_group: bool) -> u32 {
    let mode = before & 0o777;
    if has_group { mode } else { mode & !0o070 | (mode & mode << 3 & 0o070) }
}

/// Renames a file or a folder to a name that nothing has.
///
/// # Errors
/// [`ErrorKind::AlreadyExists`] when something has it; nothing is renamed then.
pub(crate) fn rename_to_free(new: &Path, path: &Path) -> io::Result<()> {
    let renamed = match renameat_with(CWD, new, CWD, path, RenameFlags::NOREPLACE) {
        // The file system cannot: a second name, which is never taken from another file, does the same.
        Err(errno) if is_unsupported(errno) && !fs::symlink_metadata(new)?.is_dir() => {
            fs::hard_link(new, path).and_then(|()| fs::remove_file(new))
        }
        // Folders are put in the place of empty folders at most.
        Err(errno) if is_unsupported(errno) => fs::rename(new, path),
        renamed => renamed.map_err(io::Error::from),
    };
    renamed.map_err(|error| match error.kind() {
        ErrorKind::AlreadyExists => exists("something appeared there meanwhile; choose another name"),
        _ => error,
    })
}

/// The folder of a file.
pub(crate) fn parent(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// A file that was not there before, and its path. One that is to replace another is its owner's alone, until it
/// has the rights of that.
fn new_file(folder: &Path, before: Option<&Metadata>) -> io::Result<(PathBuf, File)> {
    let mode = if before.is_some() { 0o600 } else { 0o666 };
    // `create_new` follows no link and takes no file that is there.
    with_new_name(folder, |path| OpenOptions::new().write(true).create_new(true).mode(mode).open(path))
}

/// The number of the next new name of this process.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// Makes something under a name that nothing had before.
pub(crate) fn with_new_name<T>(
    folder: &Path,
    make: impl Fn(&Path) -> io::Result<T>,
) -> io::Result<(PathBuf, T)> {
    /// Names that are tried: each was left by a process of the same number that was killed.
    const TRIES: u32 = 1000;
    let mut outcome = Err(ErrorKind::AlreadyExists.into());
    for _ in 0..TRIES {
        // Relaxed: all that counts is that every number is had once.
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = folder.join(format!(".zonal-{}-{number}.new", process::id()));
        outcome = make(&path).map(|made| (path, made));
        if !matches!(&outcome, Err(error) if error.kind() == ErrorKind::AlreadyExists) {
            break;
        }
    }
    outcome
}

/// What processes that were killed left beside `path`, where they wrote a file or a tree: files and folders under names
/// that are no places. They may be removed once nothing in them is wanted. What processes left whose numbers others
/// have now is not found; processes are those of the caller's namespace.
///
/// # Errors
/// When the folder that `path` is in cannot be read; there need not be one.
pub fn left_over(path: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(parent(path)) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut found = Vec::new();
    for entry in entries {
        let entry = entry?;
        if entry.file_name().to_str().is_some_and(is_of_a_dead_process) {
            found.push(entry.path());
        }
    }
    found.sort();
    Ok(found)
}

/// Whether a name is one of [`with_new_name`] that no process uses any more.
fn is_of_a_dead_process(name: &str) -> bool {
    let parts = name.strip_prefix(".zonal-").and_then(|name| name.strip_suffix(".new")?.split_once('-'));
    let numbers = parts.and_then(|(writer, number)| Some((writer.parse().ok()?, number.parse().ok()?)));
    numbers.is_some_and(|(writer, number): (u32, u64)| {
        if writer == process::id() {
            // Another one had the number of this process. Relaxed: names of this process that others see are
            // made after their numbers were had.
            return number >= NEXT.load(Ordering::Relaxed);
        }
        !Path::new("/proc").join(writer.to_string()).exists()
    })
}

pub(crate) fn exists(problem: &str) -> io::Error {
    io::Error::new(ErrorKind::AlreadyExists, problem)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Names in a folder.
    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn what_appears_meanwhile_is_not_replaced() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        put(&path, b"one", None, |_| true).unwrap();
        let error = put(&path, b"two", None, |_| true).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AlreadyExists);
        assert!(error.to_string().contains("appeared there meanwhile"), "{error}");
        assert_eq!(
            (fs::read(&path).unwrap(), names(folder.path())),
            (b"one".to_vec(), vec!["file".to_owned()])
        );
        let found = fs::symlink_metadata(&path).unwrap();
        put(&path, b"two", Some(&found), |_| true).unwrap();
        assert_eq!((fs::read(&path).unwrap(), names(folder.path()).len()), (b"two".to_vec(), 1));
        // What is gone in the end need not be replaced.
        fs::remove_file(&path).unwrap();
        put(&path, b"three", Some(&found), |_| false).unwrap();
        assert_eq!((fs::read(&path).unwrap(), names(folder.path()).len()), (b"three".to_vec(), 1));
    }

    /// Whether a drawing is written where `first` was found, and `later` is in the end; then what is there.
    fn raced(first: &str, later: impl Fn(&Path), replace: Replace) -> (bool, PathBuf, tempfile::TempDir) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, first).unwrap();
        let found = look(&path, Kind::Drawing, replace).unwrap();
        later(&path);
        let may_go = |held: &Path| may_go(held, found.as_ref(), Kind::Drawing, replace);
        let written = put(&path, b"new", found.as_ref(), may_go);
        if let Err(error) = &written {
            assert!(error.to_string().contains("appeared there meanwhile"), "{error}");
        }
        assert_eq!(names(folder.path()), ["file"]);
        (written.is_ok(), path, folder)
    }

    #[test]
    fn what_comes_to_the_place_after_the_look_is_put_back() {
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
            let (is_written, path, _folder) = raced(first, renamed("precious"), replace);
            assert_eq!((is_written, fs::read_to_string(path).unwrap()), (false, "precious".to_owned()));
            let folder = |path: &Path| {
                fs::remove_file(path).unwrap();
                fs::create_dir(path).unwrap();
            };
            let (is_written, path, _folder) = raced(first, folder, replace);
            assert!(!is_written && path.is_dir());
            // Another run of zonal is no one's loss.
            let (is_written, path, _folder) = raced(first, renamed(DRAWING_MARK), replace);
            assert_eq!((is_written, fs::read_to_string(path).unwrap()), (true, "new".to_owned()));
        }
        let changed = |path: &Path| fs::write(path, "precious").unwrap();
        for replace in [Replace::Own, Replace::Any] {
            let (is_written, path, _folder) = raced(DRAWING_MARK, changed, replace);
            assert_eq!((is_written, fs::read_to_string(path).unwrap()), (false, "precious".to_owned()));
        }
        let (is_written, ..) = raced("old", |_| (), Replace::Any);
        assert!(is_written, "nothing came");
    }

    #[test]
    fn what_a_killed_process_left_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("root");
        // No process has the first number: it is larger than the kernel's largest. The second is an earlier one's.
        let left = [".zonal-4194999-0.new".to_owned(), format!(".zonal-{}-{}.new", process::id(), u64::MAX)];
        let mut left = left.map(|name| folder.path().join(name));
        left.sort();
        left.iter().for_each(|path| fs::create_dir(path).unwrap());
        with_new_name(folder.path(), |path| fs::create_dir(path)).unwrap();
        for other in [".zonal-x-0.new", ".zonal-4194999.new", "zonal-4194999-0.new", ".zonal-4194999-0.old"] {
            fs::create_dir(folder.path().join(other)).unwrap();
        }
        assert_eq!(left_over(&path).unwrap(), left);
        assert_eq!(left_over(&folder.path().join("none/root")).unwrap(), [] as [PathBuf; 0]);
    }

    #[test]
    fn nobody_reads_a_new_file_before_it_has_its_rights() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, "").unwrap();
        let found = fs::symlink_metadata(&path).unwrap();
        let (_, new) = new_file(folder.path(), Some(&found)).unwrap();
        assert_eq!(new.metadata().unwrap().mode() & 0o777, 0o600);
        // Where nothing was, it is made as every file is.
        let (_, new) = new_file(folder.path(), None).unwrap();
        assert_eq!(new.metadata().unwrap().mode(), found.mode());
    }

    #[test]
    fn another_group_has_no_more_rights_than_everybody() {
        for (before, after) in
            [(0o640, 0o600), (0o664, 0o644), (0o4750, 0o700), (0o644, 0o644), (0o666, 0o666), (0o604, 0o604)]
        {
            assert_eq!(inherited_mode(before, false), after, "{before:o}");
            assert_eq!(inherited_mode(before, true), before & 0o777);
        }
    }
}
