//! A tree of `/proc` and `/sys` files, and notes on what it lacks.

use std::cell::RefCell;
use std::fs;
use std::path::{Path, PathBuf};

/// Page size where nothing tells.
const USUAL_PAGE_BYTES: u64 = 4096;

pub(super) struct Tree {
    root: PathBuf,
    notes: RefCell<Vec<String>>,
}

impl Tree {
    pub(super) fn new(root: &Path) -> Self {
        Self { root: root.to_owned(), notes: RefCell::default() }
    }

    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    /// The file's text; bytes that are no text are replaced.
    pub(super) fn read(&self, file: &str) -> Option<String> {
        fs::read(self.root.join(file)).ok().map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
    }

    pub(super) fn has(&self, file: &str) -> bool {
        self.root.join(file).exists()
    }

    /// Names in a directory; none if it is not there.
    pub(super) fn names(&self, directory: &str) -> Vec<String> {
        let entries = fs::read_dir(self.root.join(directory)).into_iter().flatten();
        entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect()
    }

    /// The file's text; a note if it is missing.
    pub(super) fn note_missing(&self, file: &str) -> Option<String> {
        let text = self.read(file);
        if text.is_none() {
            self.note(&format!(
                "{file} is missing: its default is assumed, and what rests on it is not checked"
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

    /// The host's name, or what the tree is called.
    pub(super) fn name(&self) -> String {
        let host = self.read("proc/sys/kernel/hostname").map(|text| text.trim().to_owned());
        let directory = || Some(self.root.file_name()?.to_string_lossy().into_owned());
        host.filter(|name| !name.is_empty()).or_else(directory).unwrap_or_else(|| "captured".to_owned())
    }

    /// KiB of memory by `meminfo`: `MemTotal:  8123 kB`, or `Node 0 MemTotal:  8123 kB`.
    pub(super) fn memory_kib(&self, file: &str) -> Option<u64> {
        let text = self.read(file)?;
        let line = text.lines().find_map(|line| line.split_once("MemTotal:"))?;
        line.1.split_whitespace().next()?.parse().ok()
    }

    /// The page size for which `managed` frames come closest to the memory in `proc/meminfo`.
    pub(super) fn page_bytes(&self, managed: Option<u64>) -> u64 {
        let memory = self.memory_kib("proc/meminfo").map(|kib| kib * 1024);
        match (memory, managed) {
            (Some(memory), Some(managed)) if managed > 0 => {
                let sizes = (12..=30).map(|shift| 1_u64 << shift);
                sizes
                    .min_by_key(|size| managed.saturating_mul(*size).abs_diff(memory))
                    .unwrap_or(USUAL_PAGE_BYTES)
            }
            _ => {
                self.note(
                    "the page size is unknown (proc/meminfo with proc/zoneinfo): 4096 bytes is assumed",
                );
                USUAL_PAGE_BYTES
            }
        }
    }
}
