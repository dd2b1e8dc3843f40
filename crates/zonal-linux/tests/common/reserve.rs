//! Huge pages of the kernel's reserve, for tests that may change it.
//!
//! The reserve belongs to the whole machine. A process that raises it holds a lock (`flock`, which ends with the
//! process) on a file in `/run`, which only processes that may raise the reserve can write. The file records the
//! previous and the new size. A record without a lock means that its writer was killed: the next holder restores
//! the reserve.
//!
//! Limits: after such a death the reserve stays raised if no process takes the lock again, or if other software
//! changed it in between. Programs that do not take the lock, or have another `/run`, are not excluded. The reserve
//! of a container's host is not considered.
#![allow(dead_code, unreachable_pub)] // each test file uses a part

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use zonal_testing::eventually;

/// Files of the reserve and of its lock.
#[derive(Clone, Debug)]
pub struct Files {
    /// Number of pages, read and written.
    pub pages: PathBuf,
    /// Number of free pages.
    pub free: PathBuf,
    /// Lock file, which records the previous and the new size of the reserve while it is raised.
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
}

fn number(file: &Path) -> Option<u64> {
    fs::read_to_string(file).ok()?.trim().parse().ok()
}

fn needed(file: &Path) -> Result<u64, String> {
    number(file).ok_or_else(|| format!("{} cannot be read", file.display()))
}

/// Returns the free pages of the reserve; 0 where there is no reserve.
pub fn free_huge_pages() -> u64 {
    number(&Files::of_the_machine().free).unwrap_or(0)
}

/// Exclusive use of the reserve of 2 MiB huge pages; restores its size when dropped.
pub struct Reserve {
    files: Files,
    /// Locked file.
    lock: File,
}

impl Reserve {
    /// Ensures that `free` pages are free. Waits for other processes that use the reserve.
    ///
    /// # Errors
    /// Why they are not free.
    ///
    /// # Panics
    /// When another process uses the reserve for longer than two minutes.
    pub fn with_free(free: u64) -> Result<Self, String> {
        let mut reserve = Self::locked(Files::of_the_machine())?;
        reserve.raise(free)?;
        Ok(reserve)
    }

    /// Locks the reserve, once no other process uses it, without changing its size.
    ///
    /// # Errors
    /// When the file cannot be locked, or changes of a killed process cannot be undone.
    pub fn locked(files: Files) -> Result<Self, String> {
        let mut taken = None;
        eventually("another process has the reserve of huge pages", || {
            taken = Self::try_locked(files.clone()).transpose();
            taken.is_some()
        });
        taken.expect("it was waited for")
    }

    /// Locks the reserve as [`Self::locked`] does; returns `None` while another process uses it.
    ///
    /// # Errors
    /// As [`Self::locked`].
    pub fn try_locked(files: Files) -> Result<Option<Self>, String> {
        let describe = |why: &dyn std::fmt::Display| format!("{}: {why}", files.lock.display());
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        // A symbolic link created by another user is not followed.
        let lock = options.custom_flags(libc::O_NOFOLLOW).open(&files.lock).map_err(|why| describe(&why))?;
        let status = lock.metadata().map_err(|why| describe(&why))?;
        // SAFETY: no preconditions.
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
    /// Why they are not free.
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

    /// Restores the size that the reserve had before this or a killed process raised it.
    ///
    /// # Errors
    /// When it cannot be changed.
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

    /// Returns the recorded previous and new size of the reserve.
    fn recorded(&mut self) -> Option<(u64, u64)> {
        let mut text = String::new();
        self.lock.rewind().and_then(|()| self.lock.read_to_string(&mut text)).ok()?;
        let mut numbers = text.split_whitespace().map(|number| number.parse().ok());
        Some((numbers.next()??, numbers.next()??))
    }

    /// Writes the record with one write of fixed length, so that a killed process cannot leave half of it.
    fn record(&self, before: u64, wanted: u64) -> Result<(), String> {
        let written = self.lock.write_all_at(format!("{before:20} {wanted:20}\n").as_bytes(), 0);
        written.map_err(|why| format!("{}: {why}", self.files.lock.display()))
    }
}

impl Drop for Reserve {
    fn drop(&mut self) {
        self.lower().ok();
        // Closing the file would leave the lock with children that were forked meanwhile.
        // SAFETY: the descriptor is open.
        unsafe { libc::flock(self.lock.as_raw_fd(), libc::LOCK_UN) };
    }
}
