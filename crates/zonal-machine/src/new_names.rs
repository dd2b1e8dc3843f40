//! New names for files and folders that are written before they get their place, and what killed processes left under
//! such names.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU64, Ordering};

/// Returns the folder of a file.
#[must_use]
pub fn parent(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// The number of this process's next new name.
static NEXT: AtomicU64 = AtomicU64::new(0);

/// Calls `make` with new names in `folder` until a name does not exist yet.
pub(crate) fn with_new_name<T>(
    folder: &Path,
    make: impl Fn(&Path) -> io::Result<T>,
) -> io::Result<(PathBuf, T)> {
    /// Number of names to try. A name may exist because a killed process with the same process id left a file.
    const TRIES: u32 = 1000;
    let mut outcome = Err(ErrorKind::AlreadyExists.into());
    for _ in 0..TRIES {
        // Relaxed: only the uniqueness of each number matters.
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = folder.join(format!(".zonal-{}-{number}.new", process::id()));
        outcome = make(&path).map(|made| (path, made));
        if !matches!(&outcome, Err(error) if error.kind() == ErrorKind::AlreadyExists) {
            break;
        }
    }
    outcome
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

/// Whether [`with_new_name`] created a name in a process that no longer runs.
fn is_of_a_dead_process(name: &str) -> bool {
    let parts = name.strip_prefix(".zonal-").and_then(|name| name.strip_suffix(".new")?.split_once('-'));
    let numbers = parts.and_then(|(writer, number)| Some((writer.parse().ok()?, number.parse().ok()?)));
    numbers.is_some_and(|(writer, number): (u32, u64)| {
        if writer == process::id() {
            // A number that this process has not used is from an earlier process with the same id. Relaxed: this
            // process's names become visible only after their numbers were allocated.
            return number >= NEXT.load(Ordering::Relaxed);
        }
        !Path::new("/proc").join(writer.to_string()).exists()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leftovers_of_killed_processes_are_found() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("root");
        // No process has the id in the first name, because it is larger than the kernel's maximum. The second name is
        // from an earlier process with the id of this one.
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
}
