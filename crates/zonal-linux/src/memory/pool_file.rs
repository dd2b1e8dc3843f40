//! The file of a pool that processes share: a header, the allocator's metadata, and the zones.
//!
//! The header describes the pool, so that a process can join it, and has cells for each process and each root. The file is a
//! `memfd`, or a file in a memory file system whose name appears only when the pool is ready. Related files:
//! `pool/members.rs` uses the cells of processes, `pool/joining.rs` writes and reads the description, and
//! `memory/mapping.rs` maps the parts.

use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::huge_pages::HugePages;
use super::mapping::Mapping;
use super::page_sizes::{HUGE_PAGE_BYTES, HugePageSize};
use super::pool_socket;
use super::shared_file::{self, beyond_streams};
use crate::error::SharedError;
use crate::shared_name::NameCells;

const MAGIC: u64 = u64::from_le_bytes(*b"zonalshr");
/// Version of the file's layout, metadata included. It changes with every change of either.
const VERSION: u32 = 5;
/// Offset of the description.
const TEXT_AT: usize = 20 << 10;
/// The most bytes that a description can have.
const TEXT_MAX: usize = 16 << 20;
/// The most processes that the header has cells for.
pub(crate) const MEMBERS_MAX: usize = zonal::units::PROCESSES_MAX as usize;

/// The first bytes of the file.
#[repr(C)]
struct Header {
    magic: AtomicU64,
    version: AtomicU32,
    word_bits: AtomicU32,
    file_bytes: AtomicU64,
    /// Bytes before the zones.
    meta_bytes: AtomicU64,
    text_bytes: AtomicU64,
    text_sum: AtomicU64,
}

/// The cells of one process.
#[repr(C, align(128))]
pub(crate) struct MemberCells {
    /// What the process is doing, as `pool/members.rs` numbers it.
    stage: AtomicU32,
    /// Id of the process in its own namespace, for people.
    pub(crate) pid: AtomicU32,
    /// 1 if the process has a name, and its blocks outlive it.
    pub(crate) is_named: AtomicU32,
    pub(crate) name: NameCells,
    /// Number of processes that have had these cells. Locks name their holder with it.
    pub(crate) epoch: AtomicU64,
    /// Number of times that another process asked this one to drain its pagesets; a futex.
    pub(crate) asked: AtomicU32,
    /// The last of these numbers that this process has answered; a futex.
    pub(crate) answered: AtomicU32,
    /// A bit for each node, of those with the same number modulo 64, for which other processes have asked this one to reclaim.
    pub(crate) low_nodes: AtomicU64,
}

impl MemberCells {
    pub(crate) fn stage(&self) -> u32 {
        self.stage.load(Ordering::Acquire) // Acquire: takes the other cells; pairs with `MemberCells::set_stage`.
    }

    pub(crate) fn set_stage(&self, stage: u32) {
        self.stage.store(stage, Ordering::Release); // Release: publishes the other cells; pairs with `MemberCells::stage`.
    }
}

/// A named block. A root that is set again is first put into other cells, so that a process can die at any moment.
#[repr(C, align(64))]
pub(crate) struct RootCells {
    /// 0 if the cells are free; otherwise, of two with one name, the greater number is valid.
    pub(crate) number: AtomicU64,
    pub(crate) name: NameCells,
    pub(crate) first: AtomicU64,
    pub(crate) count: AtomicU64,
    /// The process that has set it.
    pub(crate) process: AtomicU64,
}

/// The most roots that a pool can have, with one place for a root that is being set.
pub(crate) const ROOTS_MAX: usize = 128;

const MEMBERS_AT: usize = 4096;
const ROOTS_AT: usize = MEMBERS_AT + MEMBERS_MAX * size_of::<MemberCells>();
const _: () = assert!(ROOTS_AT + ROOTS_MAX * size_of::<RootCells>() <= TEXT_AT);

/// An open file of a shared pool, of which the header and the metadata are mapped.
#[derive(Debug)]
pub(crate) struct PoolFile {
    file: File,
    meta: Mapping,
    path: Option<PathBuf>,
}

/// Where a new file is to be.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum FilePlace {
    /// Nowhere in the file system; the descriptor is passed on.
    Memory,
    /// At a path, in a memory file system.
    Path(PathBuf),
}

/// How processes share a pool, if they do.
#[derive(Clone, Debug, Default)]
pub(crate) struct SharedOptions {
    pub(crate) place: Option<FilePlace>,
    pub(crate) processes: Option<u8>,
    /// The name under which this process takes part.
    pub(crate) name: Option<String>,
}

impl FilePlace {
    /// Returns the kind of huge pages that a pool has here for which `asked` was asked. In hugetlbfs, the file system decides.
    ///
    /// # Errors
    /// If the folder cannot be opened, or only hugetlbfs could have these huge pages.
    pub(crate) fn huge_pages(&self, asked: HugePages) -> Result<HugePages, SharedError> {
        let Self::Path(path) = self else { return Ok(asked) };
        // Without `O_PATH`, a folder that cannot be read would be refused, and a pipe would make this wait.
        let mut options = OpenOptions::new();
        options.read(true).custom_flags(libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC);
        let size = options.open(folder_of(path)).and_then(|folder| HugePageSize::of_file(folder.as_fd()));
        match size.map_err(|source| SharedError::create(Some(path), source))? {
            Some(HugePageSize::TwoMiB) => Ok(HugePages::Explicit),
            Some(HugePageSize::OneGiB) => Ok(HugePages::Explicit1G),
            None if asked.explicit_sizes().is_empty() => Ok(asked),
            None => Err(SharedError::Option(
                "explicit huge pages, except in a file of hugetlbfs or without a path",
            )),
        }
    }
}

/// The sizes of a file's parts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FileSizes {
    /// Explicit huge pages of this size, or ordinary pages.
    pub(crate) huge_page: Option<HugePageSize>,
    /// Bytes before the zones.
    pub(crate) meta: usize,
    pub(crate) file: u64,
}

/// Returns the offset after a description with this length.
pub(crate) const fn after_text(bytes: usize) -> usize {
    TEXT_AT + bytes
}

impl PoolFile {
    /// Creates the file, which no other process can find before [`PoolFile::publish`].
    pub(crate) fn create(place: &FilePlace, sizes: FileSizes, text: &str) -> Result<Self, SharedError> {
        let (file, path) = match place {
            FilePlace::Memory => {
                let bytes = usize::try_from(sizes.file).map_err(|_| SharedError::Corrupt("its size"))?;
                let file = shared_file::create("zonal shared pool", bytes, sizes.huge_page);
                (file.map(File::from).map_err(|source| SharedError::create(None, source))?, None)
            }
            FilePlace::Path(path) => {
                let failed = |source| SharedError::create(Some(path), source);
                if path.exists() {
                    return Err(failed(io::ErrorKind::AlreadyExists.into()));
                }
                let mut options = OpenOptions::new();
                options.read(true).write(true).mode(0o600).custom_flags(libc::O_TMPFILE | libc::O_CLOEXEC);
                let file = options.open(folder_of(path)).and_then(beyond_streams).map_err(failed)?;
                shared_file::check_length(sizes.file)
                    .and_then(|()| file.set_len(sizes.file))
                    .map_err(failed)?;
                if sizes.huge_page.is_none() {
                    reserve(&file, 0..sizes.meta as u64).map_err(failed)?;
                }
                (file, Some(path.clone()))
            }
        };
        let meta = map_meta(&file, sizes.meta)?;
        let this = Self { file, meta, path };
        if sizes.huge_page.is_some() {
            this.meta.populate_reserved().map_err(|source| this.unusable(source))?;
        }
        // Not by `write`, which hugetlbfs does not have.
        // SAFETY: no other process can find the file yet, and this one uses the bytes for nothing else.
        let cells = unsafe { this.meta.bytes_of(TEXT_AT..TEXT_AT + text.len()) };
        cells.iter_mut().zip(text.bytes()).for_each(|(cell, byte)| _ = cell.write(byte));
        let header = this.header();
        let values = [
            (&header.file_bytes, sizes.file),
            (&header.meta_bytes, sizes.meta as u64),
            (&header.text_bytes, text.len() as u64),
            (&header.text_sum, sum(text.as_bytes())),
        ];
        values.into_iter().for_each(|(cell, value)| cell.store(value, Ordering::Relaxed)); // relaxed: published below
        header.version.store(VERSION, Ordering::Relaxed);
        header.word_bits.store(usize::BITS, Ordering::Relaxed);
        Ok(this)
    }

    /// Reserves the zones of the file, if its file system may have no room for them. The caller has bound them to nodes: the kernel
    /// allocates their memory in this call.
    pub(crate) fn reserve_zones(&self, sizes: FileSizes) -> Result<(), SharedError> {
        match &self.path {
            Some(path) if sizes.huge_page.is_none() => reserve(&self.file, sizes.meta as u64..sizes.file)
                .map_err(|source| SharedError::create(Some(path), source)),
            _ => Ok(()),
        }
    }

    /// Opens the file at `path`, or that of the pool that is published on the socket there, and returns its description.
    pub(crate) fn open(path: &Path) -> Result<(Self, String), SharedError> {
        let failed = |source| SharedError::Open { path: path.into(), source };
        if path.symlink_metadata().is_ok_and(|status| status.file_type().is_socket()) {
            return Self::read(File::from(pool_socket::file_of(path)?), None);
        }
        let mut options = OpenOptions::new();
        options.read(true).write(true).custom_flags(libc::O_CLOEXEC | libc::O_NOFOLLOW);
        let file = options.open(path).and_then(beyond_streams).map_err(failed)?;
        Self::read(file, Some(path.into()))
    }

    /// Opens the file of a descriptor, and returns its description.
    pub(crate) fn of_descriptor(fd: BorrowedFd<'_>) -> Result<(Self, String), SharedError> {
        Self::read(reopen(fd)?, None)
    }

    fn read(file: File, path: Option<PathBuf>) -> Result<(Self, String), SharedError> {
        let status = file.metadata().map_err(|source| SharedError::Unusable { source })?;
        // SAFETY: the call has no preconditions.
        let user = unsafe { libc::geteuid() };
        if !status.is_file() {
            return Err(SharedError::Corrupt("it is no regular file"));
        }
        if status.uid() != user {
            return Err(SharedError::Owner { owner: status.uid(), user });
        }
        if status.len() < TEXT_AT as u64 {
            return Err(SharedError::Corrupt("it is shorter than a header"));
        }
        let header = map_meta(&file, TEXT_AT)?;
        let this = Self { file, meta: header, path };
        let header = this.header();
        // Acquire: takes the rest of the header; pairs with `PoolFile::publish`.
        if header.magic.load(Ordering::Acquire) != MAGIC {
            return Err(SharedError::Corrupt("it does not begin like a pool"));
        }
        let version = header.version.load(Ordering::Relaxed); // relaxed, as below: ordered by the load above
        if version != VERSION || header.word_bits.load(Ordering::Relaxed) != usize::BITS {
            return Err(SharedError::Version { found: version, expected: VERSION });
        }
        let [file_bytes, meta_bytes, text_bytes, text_sum] =
            [&header.file_bytes, &header.meta_bytes, &header.text_bytes, &header.text_sum]
                .map(|cell| cell.load(Ordering::Relaxed));
        if file_bytes != status.len() {
            return Err(SharedError::Length { found: status.len(), expected: file_bytes });
        }
        let is_within = meta_bytes <= file_bytes
            && text_bytes <= TEXT_MAX as u64
            && (TEXT_AT as u64).saturating_add(text_bytes) <= meta_bytes;
        if !is_within {
            return Err(SharedError::Corrupt("its parts do not fit in it"));
        }
        let mut text = vec![0; text_bytes as usize];
        this.file.read_exact_at(&mut text, TEXT_AT as u64).map_err(|source| this.unusable(source))?;
        if sum(&text) != text_sum {
            return Err(SharedError::Corrupt("its description is damaged"));
        }
        let text = String::from_utf8(text).map_err(|_| SharedError::Corrupt("its description is damaged"))?;
        let meta = map_meta(&this.file, meta_bytes as usize)?;
        Ok((Self { meta, ..this }, text))
    }

    /// Makes the file one that can be joined, and gives it its name.
    pub(crate) fn publish(&self) -> Result<(), SharedError> {
        // Release: publishes the header and the metadata; pairs with `PoolFile::read`.
        self.header().magic.store(MAGIC, Ordering::Release);
        let Some(path) = &self.path else { return Ok(()) };
        let failed = |source| SharedError::create(Some(path), source);
        let from =
            CString::new(format!("/proc/self/fd/{}", self.file.as_raw_fd())).expect("it has no zero byte");
        let to = CString::new(path.as_os_str().as_bytes()).map_err(|why| failed(why.into()))?;
        let (here, follow) = (libc::AT_FDCWD, libc::AT_SYMLINK_FOLLOW);
        // SAFETY: both names outlive the call.
        let linked = unsafe { libc::linkat(here, from.as_ptr(), here, to.as_ptr(), follow) };
        if linked == 0 { Ok(()) } else { Err(failed(io::Error::last_os_error())) }
    }

    /// Opens the file once more: locks of the result are released when this process ends, whatever other descriptors do.
    pub(crate) fn reopened(&self) -> Result<OwnedFd, SharedError> {
        reopen(self.file.as_fd()).map(OwnedFd::from)
    }

    /// Returns the descriptor, with which other processes can join.
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Returns the cells of the process with this index.
    pub(crate) fn member(&self, at: usize) -> &MemberCells {
        // SAFETY: the header is mapped, and has cells for all processes, which are aligned.
        let cells = unsafe { self.meta.base().byte_add(MEMBERS_AT) }.cast::<[MemberCells; MEMBERS_MAX]>();
        // SAFETY: atomics have no invalid values; the mapping lives as long as `self`.
        let cells = unsafe { cells.as_ref() };
        &cells[at]
    }

    /// Returns the cells of the roots.
    pub(crate) fn roots(&self) -> &[RootCells; ROOTS_MAX] {
        // SAFETY: the header is mapped, and has cells for all roots, which are aligned.
        let cells = unsafe { self.meta.base().byte_add(ROOTS_AT) }.cast();
        // SAFETY: atomics have no invalid values; the mapping lives as long as `self`.
        unsafe { cells.as_ref() }
    }

    /// Whether a zone with `frames` frames can be at `offset`: after the metadata, and within the file.
    pub(crate) fn has_zone(&self, offset: u64, frames: u64, page_bytes: u32) -> bool {
        let file_bytes = self.header().file_bytes.load(Ordering::Relaxed); // relaxed: `read` has ordered it
        let end = frames.checked_mul(page_bytes.into()).and_then(|bytes| offset.checked_add(bytes));
        let is_aligned = offset.is_multiple_of(self.meta.unit().max(HUGE_PAGE_BYTES) as u64);
        is_aligned && offset >= self.meta.bytes() as u64 && end.is_some_and(|end| end <= file_bytes)
    }

    fn header(&self) -> &Header {
        // SAFETY: the header is mapped at a page's start; atomics have no invalid values.
        unsafe { self.meta.base().cast::<Header>().as_ref() }
    }

    /// Returns the header and the metadata.
    pub(crate) const fn meta(&self) -> &Mapping {
        &self.meta
    }

    const fn unusable(&self, source: io::Error) -> SharedError {
        SharedError::Unusable { source }
    }
}

/// Returns the first place for a zone from `offset` on, in a file with explicit huge pages of this size or ordinary ones.
pub(crate) fn zone_offset(offset: usize, huge_page: Option<HugePageSize>) -> usize {
    offset.next_multiple_of(huge_page.map_or(HUGE_PAGE_BYTES, HugePageSize::bytes))
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn map_meta(file: &File, bytes: usize) -> Result<Mapping, SharedError> {
    let duplicate = file.try_clone().map_err(|source| SharedError::Unusable { source })?;
    Mapping::of_file(duplicate.into(), 0, bytes, HUGE_PAGE_BYTES)
        .map_err(|source| SharedError::Unusable { source })
}

/// Reserves memory of a file: an access to a page that its file system has no room for would kill the process.
///
/// A signal interrupts a reservation, which some kernels (6.1) then undo. So a file is reserved in pieces, each of which takes
/// less time than programs usually have between two signals.
fn reserve(file: &File, range: Range<u64>) -> io::Result<()> {
    for start in range.clone().step_by(HUGE_PAGE_BYTES) {
        let bytes = (range.end - start).min(HUGE_PAGE_BYTES as u64) as libc::off_t;
        let start = libc::off_t::try_from(start).map_err(|_| io::ErrorKind::FileTooLarge)?;
        loop {
            // SAFETY: the descriptor is open.
            match unsafe { libc::posix_fallocate(file.as_raw_fd(), start, bytes) } {
                0 => break,
                libc::EINTR => {}
                code => return Err(io::Error::from_raw_os_error(code)),
            }
        }
    }
    Ok(())
}

/// Opens a descriptor's file with an open file description of its own.
fn reopen(fd: BorrowedFd<'_>) -> Result<File, SharedError> {
    let path = PathBuf::from(format!("/proc/self/fd/{}", fd.as_raw_fd()));
    let mut options = OpenOptions::new();
    options.read(true).write(true).custom_flags(libc::O_CLOEXEC);
    options.open(&path).and_then(beyond_streams).map_err(|source| SharedError::Open { path, source })
}

/// Returns a checksum (FNV-1a) that shows damage, not intent.
fn sum(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |sum, &byte| (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}
