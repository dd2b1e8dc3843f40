//! A tree of `/proc` and `/sys` files, and notes on the files that it lacks.

use std::cell::RefCell;
use std::io::{self, ErrorKind};
use std::ops::RangeInclusive;
use std::path::Path;

use crate::error::MachineError;
use crate::input::{self, Budget, Folder, Limit};

pub(super) const NODES: &str = "sys/devices/system/node";

/// Page size if no file states it.
const USUAL_PAGE_BYTES: u64 = 4096;

/// Range of page sizes in bytes. Every page size is a power of two.
const PAGE_SIZES: RangeInclusive<u64> = 1 << 12..=1 << 30;

/// Key of the page size in the auxiliary vector, from elf.h.
const AT_PAGESZ: usize = 6;

pub(super) struct Tree {
    root: Folder,
    budget: Budget,
    notes: RefCell<Vec<String>>,
    /// The first file that exists and could not be read.
    unreadable: RefCell<Option<UnreadableFile>>,
}

/// A file that exists and could not be read.
struct UnreadableFile {
    error: MachineError,
    /// Whether neither a machine nor a copy of one can have such a file: a device, a FIFO, or a link that leads out of
    /// the tree.
    is_foreign: bool,
}

impl Tree {
    pub(super) fn new(root: &Path) -> Self {
        let budget = Budget::of_tree();
        Self { root: Folder::new(root), budget, notes: RefCell::default(), unreadable: RefCell::default() }
    }

    pub(super) fn root(&self) -> &Path {
        self.root.path()
    }

    /// Reads a file as text. If the file is not valid UTF-8, every byte that is not ASCII is replaced. Some kernels end
    /// CPU lists with a zero byte, which is removed.
    pub(super) fn read(&self, file: &str, limit: Limit) -> Option<String> {
        let mut text = text_of(self.bytes(file, limit)?);
        text.truncate(text.trim_end_matches('\0').len());
        Some(text)
    }

    fn bytes(&self, file: &str, limit: Limit) -> Option<Vec<u8>> {
        let read = self.root.read_within(Path::new(file), limit, &self.budget);
        read.map_err(|error| self.remember(file, error)).ok()
    }

    pub(super) fn has(&self, file: &str) -> bool {
        self.root().join(file).exists()
    }

    /// Returns the numbers in the names of a directory's entries, for names that consist of `prefix` and a number.
    /// Returns none if the directory does not exist.
    pub(super) fn numbered(&self, directory: &str, prefix: &str) -> Vec<u64> {
        let numbers = self.root.numbered(Path::new(directory), prefix, &self.budget);
        numbers.map_err(|error| self.remember(directory, error)).unwrap_or_default()
    }

    /// Records that a file could not be read, unless it does not exist.
    fn remember(&self, file: &str, source: io::Error) {
        if matches!(source.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) {
            return;
        }
        let is_foreign = input::is_foreign(&source);
        self.note(&format!("{file} cannot be read ({source}): it is treated as missing"));
        let mut unreadable = self.unreadable.borrow_mut();
        if unreadable.as_ref().is_none_or(|first| is_foreign && !first.is_foreign) {
            let error = MachineError::Read { path: self.root().join(file), source };
            *unreadable = Some(UnreadableFile { error, is_foreign });
        }
    }

    /// Returns the result of a capture, unless a file is of a kind that cannot be captured. If the tree contains no
    /// machine, the error is that of the file that could not be read.
    pub(super) fn or_unreadable<T>(&self, captured: Result<T, MachineError>) -> Result<T, MachineError> {
        let has_nothing = matches!(captured, Err(MachineError::NoTree(_) | MachineError::NoMemory(_)));
        match self.unreadable.take() {
            Some(unreadable) if unreadable.is_foreign || has_nothing => Err(unreadable.error),
            _ => captured,
        }
    }

    /// Reads the text of a setting and adds a note if it is missing.
    pub(super) fn note_missing(&self, file: &str) -> Option<String> {
        let text = self.read(file, Limit::Setting);
        if text.is_none() {
            self.note(&format!(
                "{file} is missing: its default is assumed, and values that depend on it are not checked"
            ));
        }
        text
    }

    pub(super) fn note(&self, note: &str) {
        let mut notes = self.notes.borrow_mut();
        if !notes.iter().any(|known| known == note) {
            notes.push(note.to_owned());
        }
    }

    pub(super) fn notes(&self) -> Vec<String> {
        self.notes.borrow().clone()
    }

    /// Returns the host's name, or the name of the tree.
    pub(super) fn name(&self) -> String {
        let host = self.read("proc/sys/kernel/hostname", Limit::Setting).map(|text| text.trim().to_owned());
        let directory = || Some(self.root().file_name()?.to_string_lossy().into_owned());
        host.filter(|name| !name.is_empty()).or_else(directory).unwrap_or_else(|| "captured".to_owned())
    }

    /// Reads a memory size in KiB from a `meminfo` file, whose line is `MemTotal:  8123 kB` or
    /// `Node 0 MemTotal:  8123 kB`.
    pub(super) fn memory_kib(&self, file: &str) -> Option<u64> {
        let text = self.read(file, Limit::List)?;
        let line = text.lines().find_map(|line| line.split_once("MemTotal:"))?;
        line.1.split_whitespace().next()?.parse().ok()
    }

    /// Returns the page size.
    ///
    /// If the tree is that of the running kernel, this is the page size that the kernel passed to this process.
    /// Otherwise it is the size for which `managed` frames come closest to the memory of the nodes, or of the machine
    /// if the node's is unknown. The nodes come first because `proc/meminfo` in a container may state less than the
    /// machine's memory.
    pub(super) fn page_bytes(&self, managed: Option<u64>) -> u64 {
        let memory = || self.memory_of_nodes().or_else(|| self.memory_kib("proc/meminfo"));
        let closest = || {
            let managed = managed.filter(|&managed| managed > 0)?;
            let memory = memory()?.checked_mul(1024)?;
            let sizes = (12..=30).map(|shift| 1_u64 << shift);
            sizes.min_by_key(|size| managed.saturating_mul(*size).abs_diff(memory))
        };
        self.page_bytes_from_auxv().or_else(closest).unwrap_or_else(|| {
            self.note("the page size is unknown (proc/meminfo with proc/zoneinfo): 4096 bytes is assumed");
            USUAL_PAGE_BYTES
        })
    }

    /// Reads the page size from the auxiliary vector. The kernel passes this vector to a process as pairs of a key and
    /// a value, of one word each.
    fn page_bytes_from_auxv(&self) -> Option<u64> {
        let bytes = self.bytes("proc/self/auxv", Limit::Setting)?;
        let words: Vec<usize> = bytes
            .chunks_exact(size_of::<usize>())
            .filter_map(|word| Some(usize::from_ne_bytes(word.try_into().ok()?)))
            .collect();
        let size = words.chunks_exact(2).find(|pair| pair[0] == AT_PAGESZ)?[1];
        let size = size as u64;
        (size.is_power_of_two() && PAGE_SIZES.contains(&size)).then_some(size)
    }

    /// Returns the memory of all nodes together in KiB, if it is known for every node.
    fn memory_of_nodes(&self) -> Option<u64> {
        let nodes = self.numbered(NODES, "node").into_iter();
        let memory = nodes.map(|id| self.memory_kib(&format!("{NODES}/node{id}/meminfo")));
        let known: Vec<u64> = memory.collect::<Option<_>>()?;
        known.into_iter().reduce(u64::saturating_add)
    }
}

/// Converts bytes to text in place.
fn text_of(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap_or_else(|error| {
        let mut bytes = error.into_bytes();
        bytes.iter_mut().filter(|byte| !byte.is_ascii()).for_each(|byte| *byte = b'?');
        String::from_utf8(bytes).expect("ASCII is UTF-8")
    })
}
