//! Exchanges files and folders. If the file system can exchange them atomically, one of the two always exists at the
//! path.
//!
//! Related files: `tree_writer.rs` replaces trees with this module, and `new_names.rs` creates new names.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, RenameFlags, renameat_with};

use crate::new_names::with_new_name;
use crate::output;

/// Exchanges two files or folders.
pub(crate) fn exchange(new: &Path, old: &Path) -> io::Result<()> {
    match renameat_with(CWD, new, CWD, old, RenameFlags::EXCHANGE) {
        Err(errno) if output::is_unsupported(errno) => exchange_in_steps(new, old),
        exchanged => Ok(exchanged?),
    }
}

/// Exchanges two files or folders on file systems without an atomic exchange. For a moment nothing exists at the path
/// of `old`.
fn exchange_in_steps(new: &Path, old: &Path) -> io::Result<()> {
    let beside = output::parent(old);
    let (aside, ()) = with_new_name(beside, |aside| output::rename_to_free(old, aside))?;
    let Err(error) = output::rename_to_free(new, old) else { return fs::rename(aside, new) };
    output::rename_to_free(&aside, old).map_err(|_| {
        let problem = format!("{error}; the previous contents are in {}", aside.display());
        io::Error::new(error.kind(), problem)
    })?;
    Err(error)
}

/// A step that can be undone.
enum Move {
    /// An exchange of the entries at two paths.
    Exchanged(PathBuf, PathBuf),
    /// A move from the first path to the second, which was free.
    Moved(PathBuf, PathBuf),
    /// A new folder.
    Made(PathBuf),
}

/// Moves that can be undone.
#[derive(Default)]
pub(crate) struct Moves(Vec<Move>);

impl Moves {
    /// Moves the file `new` to `place`. A file that exists at `place` moves to the path of `new`.
    pub(crate) fn put(&mut self, new: &Path, place: &Path) -> io::Result<()> {
        match exchange(new, place) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => self.take(new, place),
            exchanged => {
                exchanged?;
                self.0.push(Move::Exchanged(new.to_owned(), place.to_owned()));
                Ok(())
            }
        }
    }

    /// Moves a file to a free path.
    pub(crate) fn take(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        self.make_folders(output::parent(to))?;
        output::rename_to_free(from, to)?;
        self.0.push(Move::Moved(from.to_owned(), to.to_owned()));
        Ok(())
    }

    /// Creates a folder and its missing parents.
    fn make_folders(&mut self, folder: &Path) -> io::Result<()> {
        if fs::symlink_metadata(folder).is_ok() {
            return output::is_folder_or_free(folder);
        }
        self.make_folders(output::parent(folder))?;
        output::make_folder(folder)?;
        self.0.push(Move::Made(folder.to_owned()));
        Ok(())
    }

    /// Undoes all moves, starting with the last.
    pub(crate) fn undo(self) -> io::Result<()> {
        self.0.into_iter().rev().try_for_each(|one| match one {
            Move::Exchanged(new, place) => exchange(&new, &place),
            Move::Moved(from, to) => output::rename_to_free(&to, &from),
            Move::Made(folder) => fs::remove_dir(folder),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_are_exchanged_in_steps() {
        let folder = tempfile::tempdir().unwrap();
        let [new, old] = ["new", "old"].map(|name| folder.path().join(name));
        let names =
            |path: &Path| fs::read_dir(path).unwrap().map(|e| e.unwrap().file_name()).collect::<Vec<_>>();
        for path in [&new, &old] {
            fs::create_dir(path).unwrap();
            fs::write(path.join(path.file_name().unwrap()), "").unwrap();
        }
        exchange_in_steps(&new, &old).unwrap();
        assert_eq!((names(&new), names(&old)), (vec!["old".into()], vec!["new".into()]));
        // If the new folder is missing, the old one stays.
        exchange_in_steps(&folder.path().join("missing"), &old).unwrap_err();
        assert_eq!((names(&old), names(folder.path()).len()), (vec!["new".into()], 2));
    }
}
