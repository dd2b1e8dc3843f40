//! Huge pages of the kernel's reserve, for tests that may change it.
//!
//! The reserve belongs to the whole machine. Whoever raises it holds a lock on a file in `/run`, where
//! only those who may raise it can write (`flock`, which ends with the process), and has written there what the reserve was and what it is to become.
//! Where that stands although nobody holds the lock, its writer was killed: the next holder brings the reserve back.
//!
//! What this does not cover: a reserve that nobody takes the lock for after such a death stays raised, as does one
//! that somebody else has changed in between; programs that do not take the lock, or have another `/run`,
//! are not kept out; and the reserve of a container's host is not asked for.
#![allow(dead_code, unreachable_pub)] // each test file uses a part

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use zonal_testing::eventually;

/// Where the reserve is, and who has it.
#[derive(Clone, Debug)]
pub struct Files {
    /// Its pages: read and written.
    pub pages: PathBuf,
    /// Those of them that are free.
    pub free: PathBuf,
    /// The lock, which holds what the reserve was and what it is to become while it is raised.
    pub lock: PathBuf,
}

impl Files {
    /// Those of this machine.
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

/// Pages of the reserve that are free; none where there is no reserve.
pub fn free_huge_pages() -> u64 {
    number(&Files::of_the_machine().free).unwrap_or(0)
}

/// The reserve of huge pages of 2 MiB, of this process alone until this is dropped; then it is what it was.
pub struct Reserve {
    files: Files,
    /// Locked.
    lock: File,
}

impl Reserve {
    /// Makes sure that `free` pages are free. Waits for other processes that have the reserve.
    ///
    /// # Errors
    /// Why they are not.
    ///
    /// # Panics
    /// When another process has the reserve for longer than two minutes.
    pub fn with_free(free: u64) -> Result<Self, String> {
        let mut reserve = Self::locked(Files::of_the_machine())?;
        reserve.raise(free)?;
        Ok(reserve)
    }

    /// The reserve as it is, once no other process has it.
    ///
    /// # Errors
    /// When the lock cannot be had, or what a process that was killed has left cannot be undone.
    pub fn locked(files: Files) -> Result<Self, String> {
        let mut taken = None;
        eventually("another process has the reserve of huge pages", || {
            taken = Self::try_locked(files.clone()).transpose();
            taken.is_some()
        });
        taken.expect("it was waited for")
    }

    /// As [`Self::locked`]; `None` while another process has it.
    ///
    /// # Errors
    /// As [`Self::locked`].
    pub fn try_locked(files: Files) -> Result<Option<Self>, String> {
        let told = |why: &dyn std::fmt::Display| format!("{}: {why}", files.lock.display());
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        // A link that somebody else has put there is not followed.
        let lock = options.custom_flags(libc::O_NOFOLLOW).open(&files.lock).map_err(|why| told(&why))?;
        let status = lock.metadata().map_err(|why| told(&why))?;
        // SAFETY: no preconditions.
        if !status.is_file() || status.uid() != unsafe { libc::geteuid() } {
            return Err(told(&"is not a file of this user's"));
        }
        // SAFETY: the descriptor is open.
        if unsafe { libc::flock(lock.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } != 0 {
            let error = io::Error::last_os_error();
            let is_held = error.kind() == io::ErrorKind::WouldBlock;
            return if is_held { Ok(None) } else { Err(told(&error)) };
        }
        let mut reserve = Self { files, lock };
        reserve.lower()?;
        Ok(Some(reserve))
    }

    /// Makes sure that `free` pages are free.
    ///
    /// # Errors
    /// Why they are not.
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

    /// Makes the reserve what it was before it was raised, by this or by a process that was killed.
    ///
    /// # Errors
    /// When it cannot be changed.
    pub fn lower(&mut self) -> Result<(), String> {
        let Some((before, raised)) = self.recorded() else { return Ok(()) };
        // The kernel may have found less than was wanted.
        if (before + 1..=raised).contains(&needed(&self.files.pages)?) {
            self.set(before)?;
        }
        self.lock.set_len(0).map_err(|why| format!("{}: {why}", self.files.lock.display()))
    }

    fn set(&self, pages: u64) -> Result<(), String> {
        fs::write(&self.files.pages, pages.to_string())
            .map_err(|why| format!("{}: {why}", self.files.pages.display()))
    }

    /// What the reserve was, and what it was to become.
    fn recorded(&mut self) -> Option<(u64, u64)> {
        let mut text = String::new();
        self.lock.rewind().and_then(|()| self.lock.read_to_string(&mut text)).ok()?;
        let mut numbers = text.split_whitespace().map(|number| number.parse().ok());
        Some((numbers.next()??, numbers.next()??))
    }

    /// In one write of one length, so that no death leaves half of it.
    fn record(&self, before: u64, wanted: u64) -> Result<(), String> {
        let written = self.lock.write_all_at(format!("{before:20} {wanted:20}\n").as_bytes(), 0);
        written.map_err(|why| format!("{}: {why}", self.files.lock.display()))
    }
}

impl Drop for Reserve {
    fn drop(&mut self) {
        self.lower().ok();
        // Closing would leave it to children that were forked meanwhile.
        // SAFETY: the descriptor is open.
        unsafe { libc::flock(self.lock.as_raw_fd(), libc::LOCK_UN) };
    }
}
