//! The files of the page cache: their cached pages, their dirty pages, and the list of unused files.
//!
//! Related files: `page_cache/table.rs` finds pages by frame, `page_cache/writeback.rs` writes dirty pages,
//! `page_cache/reclaim.rs` drops the pages of unused files.

use std::collections::{TryReserveError, VecDeque};

use super::table::NONE;
use crate::sim::Time;

/// Identifier of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FileId(pub(super) u32);

/// A file. Pages before `first` are not cached.
#[derive(Default, Debug)]
struct File {
    first: u32,
    pages: VecDeque<u32>,
    cached: u64,
    /// Pages that became dirty, oldest first. Some of them may have left the cache since then.
    dirty: VecDeque<u32>,
    dirty_since: Time,
    /// Number of opens without a matching close.
    users: u32,
    is_queued: bool,
    is_unused: bool,
    /// Whether the file was opened again after it was put on the list of unused files.
    was_used: bool,
}

/// All files.
#[derive(Default, Debug)]
pub(super) struct Files {
    files: Vec<File>,
    /// Files with dirty pages, in the order in which they are written.
    queue: VecDeque<u32>,
    /// Files that are not open, longest unused first. Linux: the list of unused inodes.
    unused: VecDeque<u32>,
}

impl Files {
    /// Host memory for each file, excluding its list of pages, in bytes.
    pub(super) const FILE_BYTES: usize = size_of::<File>();

    /// Creates a file and opens it.
    ///
    /// # Errors
    /// Returns an error if the host has too little memory for the file.
    pub(super) fn create(&mut self) -> Result<FileId, TryReserveError> {
        let all = self.files.len() + 1;
        self.files.try_reserve(1)?;
        // Each queue contains a file at most once.
        self.queue.try_reserve(all - self.queue.len())?;
        self.unused.try_reserve(all - self.unused.len())?;
        self.files.push(File { users: 1, ..File::default() });
        Ok(FileId(all as u32 - 1))
    }

    pub(super) fn open(&mut self, file: FileId) {
        let file = &mut self.files[file.0 as usize];
        (file.users, file.was_used) = (file.users + 1, true);
    }

    pub(super) fn close(&mut self, id: FileId) {
        let file = &mut self.files[id.0 as usize];
        file.users -= 1;
        if file.users == 0 && !file.is_unused {
            (file.is_unused, file.was_used) = (true, false);
            self.unused.push_back(id.0);
        }
    }

    /// Returns the cached page at `index` of a file.
    pub(super) fn page_at(&self, file: FileId, index: u32) -> Option<u32> {
        let file = &self.files[file.0 as usize];
        let at = file.pages.get(index.checked_sub(file.first)? as usize)?;
        (*at != NONE).then_some(*at)
    }

    /// Adds a page to the cache.
    ///
    /// # Errors
    /// Returns an error if the host has too little memory for the page.
    pub(super) fn insert(&mut self, file: FileId, index: u32, page: u32) -> Result<(), TryReserveError> {
        let file = &mut self.files[file.0 as usize];
        if file.pages.is_empty() {
            file.first = index;
        }
        let end = file.first as usize + file.pages.len();
        let (before, after) = (file.first.saturating_sub(index), (index as usize + 1).saturating_sub(end));
        file.pages.try_reserve(before as usize + after)?;
        while index < file.first {
            file.first -= 1;
            file.pages.push_front(NONE);
        }
        let at = (index - file.first) as usize;
        if at >= file.pages.len() {
            file.pages.resize(at + 1, NONE);
        }
        file.pages[at] = page;
        file.cached += 1;
        Ok(())
    }

    /// Removes a page from the cache.
    pub(super) fn remove(&mut self, file: u32, index: u32) {
        let file = &mut self.files[file as usize];
        file.pages[(index - file.first) as usize] = NONE;
        file.cached -= 1;
        if file.cached == 0 {
            file.pages = VecDeque::new();
            return;
        }
        while file.pages.front() == Some(&NONE) {
            file.pages.pop_front();
            file.first += 1;
        }
    }

    /// Records that a page of the file has become dirty.
    pub(super) fn note_dirty(&mut self, id: FileId, page: u32, now: Time) {
        let file = &mut self.files[id.0 as usize];
        file.dirty.push_back(page);
        if !file.is_queued {
            file.is_queued = true;
            file.dirty_since = now;
            self.queue.push_back(id.0);
        }
    }

    /// Returns the time at which the first file of the queue became dirty.
    pub(super) fn oldest_dirty(&self) -> Option<Time> {
        self.queue.front().map(|&file| self.files[file as usize].dirty_since)
    }

    /// Removes and returns up to `most` dirty pages of the queue's first file. If the file has more dirty pages, it
    /// moves to the end of the queue.
    pub(super) fn take_dirty(&mut self, most: usize) -> Option<(FileId, Vec<u32>)> {
        let id = self.queue.pop_front()?;
        let file = &mut self.files[id as usize];
        let count = most.min(file.dirty.len());
        let pages = file.dirty.drain(..count).collect();
        if file.dirty.is_empty() {
            file.dirty = VecDeque::new();
            file.is_queued = false;
        } else {
            self.queue.push_back(id);
        }
        Some((FileId(id), pages))
    }

    /// Returns all cached pages of a file.
    pub(super) fn pages_of(&self, file: FileId) -> Vec<u32> {
        self.files[file.0 as usize].pages.iter().copied().filter(|&page| page != NONE).collect()
    }

    /// Returns the file that has been unused for the longest time, with its number of cached pages.
    pub(super) fn longest_unused(&mut self) -> Option<(FileId, u64)> {
        loop {
            let id = *self.unused.front()?;
            let file = &mut self.files[id as usize];
            let is_used = file.users != 0 || std::mem::take(&mut file.was_used);
            if file.cached != 0 && !is_used {
                return Some((FileId(id), file.cached));
            }
            self.unused.pop_front();
            if file.users == 0 && file.cached != 0 {
                self.unused.push_back(id); // a file that was used again gets a second chance
            } else {
                file.is_unused = false;
            }
        }
    }

    /// Moves the file that has been unused for the longest time to the end of the list.
    pub(super) fn pass_over_unused(&mut self) {
        if let Some(id) = self.unused.pop_front() {
            self.unused.push_back(id);
        }
    }
}
