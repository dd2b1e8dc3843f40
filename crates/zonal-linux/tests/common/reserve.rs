//! Changes the kernel's reserve of huge pages, for tests that may do so.
//!
//! The reserve belongs to the whole machine. A process that enlarges it holds a lock on a file in `/run`. The lock is
//! an `flock`, which ends with the process, and only processes that may enlarge the reserve can write to the file.
//! The file records the previous and the new size. A record without a lock means that its writer was killed; the next
//! process that takes the lock then restores the size.
//!
//! Limitations: After the writer was killed, the reserve stays enlarged if no process takes the lock again, or if
//! other software changed the size in between. Programs that do not take the lock, or that have another `/run`, are
//! not excluded. The reserve of a container's host is not considered.
#![allow(dead_code, unreachable_pub)] // each test file uses only a part

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use zonal_testing::eventually;

/// The files of the reserve and its lock.
#[derive(Clone, Debug)]
pub struct Files {
    /// Number of pages; readable and writable.
    pub pages: PathBuf,
    /// Number of free pages.
    pub free: PathBuf,
    /// Lock file, which records the previous and the new size of the reserve while the reserve is enlarged.
    pub lock: PathBuf,
}

impl Files {
    /// Returns the files of this machine.
    pub fn of_the_machine() -> Self {
        Self {
            pages: "/proc/sys/vm/nr_hugepages".into(),
            free: "/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages".into(),
            lock: "/run/zonal-huge-page-reserve".into(),
        }
    }

    /// Returns the files of this machine's 1 GiB page reserve.
    pub fn gigantic() -> Self {
        let folder = PathBuf::from("/sys/kernel/mm/hugepages/hugepages-1048576kB");
        Self {
            pages: folder.join("nr_hugepages"),
            free: folder.join("free_hugepages"),
            lock: "/run/zonal-gigantic-page-reserve".into(),
        }
    }
}

fn number(file: &Path) -> Option<u64> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

fn needed(file: &Path) -> Result<u64, String> {
    number(file).ok_or_else(|| format!("{} cannot be read", file.display()))
}

/// Returns the number of free pages in the reserve, or 0 if there is no reserve.
pub fn free_huge_pages() -> u64 {
    number(&Files::of_the_machine().free).unwrap_or(0)
}

/// Waits until `pages` of the reserve are free.
///
/// A process that another thread is just starting has copies of all descriptors until it executes its program, so the
/// pages of a closed file may return a moment later.
///
/// # Panics
/// Panics if another number is free for longer than two minutes.
pub fn returned(pages: u64) {
    eventually("the pages return to the reserve", || free_huge_pages() == pages);
}

/// Exclusive use of a huge page reserve. Its size is restored when this is dropped.
pub struct Reserve {
    files: Files,
    /// The locked file.
    lock: File,
}

impl Reserve {
    /// Locks the reserve and ensures that `free` pages are free. Waits for other processes that use the reserve.
    ///
    /// # Errors
    /// A description of the reason why they are not free.
    ///
    /// # Panics
    /// Panics if another process uses the reserve for longer than two minutes.
    pub fn with_free(free: u64) -> Result<Self, String> {
        let mut reserve = Self::locked(Files::of_the_machine())?;
        reserve.raise(free)?;
        Ok(reserve)
    }

    /// Locks the reserve without changing its size. Waits for other processes that use it.
    ///
    /// # Errors
    /// A description, if the file cannot be locked or the changes of a killed process cannot be undone.
    pub fn locked(files: Files) -> Result<Self, String> {
        let mut taken = None;
        eventually("another process has the reserve of huge pages", || {
            taken = Self::try_locked(files.clone()).transpose();
            taken.is_some()
        });
        taken.expect("it was waited for")
    }

    /// Locks the reserve like [`Self::locked`], but returns `None` while another process uses it.
    ///
    /// # Errors
    /// Those of [`Self::locked`].
    pub fn try_locked(files: Files) -> Result<Option<Self>, String> {
        let describe = |why: &dyn std::fmt::Display| format!("{}: {why}", files.lock.display());
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        // If another user has created a symbolic link in place of the file, the link is not followed.
        let lock = options.custom_flags(libc::O_NOFOLLOW).open(&files.lock).map_err(|why| describe(&why))?;
        let status = lock.metadata().map_err(|why| describe(&why))?;
        // SAFETY: the function has no preconditions.
        if !status.is_file() || status.uid() != unsafe { libc::geteuid() } {
            return Err(describe(&"is not a file of this user's"));
        }
        // SAFETY: the descriptor is open.
        if unsafe { libc::flock(lock.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } != 0 {
            let error = io::Error::last_os_error();
            let is_held = error.kind() == io::ErrorKind::WouldBlock;
            return if is_held { Ok(None) } else { Err(describe(&error)) };
        }
        let mut reserve = Self { files, lock };
        reserve.lower()?;
        Ok(Some(reserve))
    }

    /// Ensures that `free` pages are free.
    ///
    /// # Errors
    /// A description of the reason why they are not free.
    pub fn raise(&mut self, free: u64) -> Result<(), String> {
        let there = needed(&self.files.free)?;
        if there >= free {
            return Ok(());
        }
        let before = needed(&self.files.pages)?;
        let first = self.recorded().map_or(before, |(first, _)| first);
        let wanted = before + (free - there);
        self.record(first, wanted)?;
        self.set(wanted)?;
        match needed(&self.files.free)? {
            now if now >= free => Ok(()),
            now => Err(format!("{free} huge pages are needed, and {now} are free")),
        }
    }

    /// Restores the size that the reserve had before this process or a killed process enlarged it.
    ///
    /// # Errors
    /// A description, if the size cannot be changed.
    pub fn lower(&mut self) -> Result<(), String> {
        let Some((before, raised)) = self.recorded() else { return Ok(()) };
        // The kernel may have provided fewer pages than requested.
        if (before + 1..=raised).contains(&needed(&self.files.pages)?) {
            self.set(before)?;
        }
        self.lock.set_len(0).map_err(|why| format!("{}: {why}", self.files.lock.display()))
    }

    fn set(&self, pages: u64) -> Result<(), String> {
        fs::write(&self.files.pages, pages.to_string())
            .map_err(|why| format!("{}: {why}", self.files.pages.display()))
    }

    /// Returns the recorded previous and new sizes of the reserve.
    fn recorded(&mut self) -> Option<(u64, u64)> {
        let mut text = String::new();
        self.lock.rewind().and_then(|()| self.lock.read_to_string(&mut text)).ok()?;
        let mut numbers = text.split_whitespace().map(|number| number.parse().ok());
        Some((numbers.next()??, numbers.next()??))
    }

    /// Writes the record in one write of fixed length, so that a killed process cannot leave half a record.
    fn record(&self, before: u64, wanted: u64) -> Result<(), String> {
        let written = self.lock.write_all_at(format!("{before:20} {wanted:20}\n").as_bytes(), 0);
        written.map_err(|why| format!("{}: {why}", self.files.lock.display()))
    }
}

impl Drop for Reserve {
    fn drop(&mut self) {
        self.lower().ok();
        // Closing the file is not enough: children that were forked meanwhile would still hold the lock.
        // SAFETY: the descriptor is open.
        unsafe { libc::flock(self.lock.as_raw_fd(), libc::LOCK_UN) };
    }
}
