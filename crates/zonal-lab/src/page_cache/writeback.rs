//! Writeback: the dirty limits, the writers that wait at them, and the flusher thread.
//!
//! Above the *background* limit, the flusher writes the dirty pages of one file after the other, in the order in
//! which the files became dirty. Above the *limit*, a thread that modifies pages waits for the disk. Both limits are
//! shares of the whole machine's memory, and pages under writeback count as dirty. Related files: `page_cache/mod.rs`
//! calls this module.

use super::table::State;
use super::{FileId, PageCache};
use crate::sim::{Time, Transfer};

/// Number of pages written at a time: 4 MiB. Linux: `MAX_WRITEBACK_PAGES`.
const WRITE_PAGES: usize = 1024;
/// Pages that a thread modifies between two checks of the limits. Linux: `ratelimit_pages` under load.
const LOOK_PAGES: u32 = 32;
/// Maximum age of a dirty page before it is written. Linux: `vm.dirty_expire_centisecs`.
const EXPIRE: Time = Time::from_ps(30_000_000_000_000);
/// Time for which the flusher sleeps when there is nothing to write.
const NAP: Time = Time::from_ps(100_000_000_000);

impl PageCache<'_, '_, '_> {
    /// Returns how many pages are `percent` percent of memory.
    fn pages_of(&self, percent: f64) -> u64 {
        (self.managed as f64 * percent / 100.0) as u64
    }

    /// Records that a page of a file has been modified.
    pub(super) fn make_dirty(&self, file: FileId, page: u32) {
        let mut table = self.table.borrow_mut();
        let state = table.page(page).state;
        if !state.has(State::DIRTY) {
            table.set_state(page, state.with(State::DIRTY));
            self.files.borrow_mut().note_dirty(file, page, self.world().now());
        }
    }

    /// Makes a thread that modifies pages wait while too many pages are dirty.
    pub(super) fn balance_dirty(&self) {
        if self.is_time_to_look() {
            while self.dirty() > self.pages_of(self.settings.limit_pct) {
                self.throttled.wait(self.world());
            }
        }
    }

    /// Counts a page that the running thread modifies. Returns whether the thread must check the limits now.
    fn is_time_to_look(&self) -> bool {
        let thread = self.world().thread().index();
        let changed = &mut *self.changed.borrow_mut();
        if changed.len() <= thread {
            changed.resize(thread + 1, 0);
        }
        changed[thread] = (changed[thread] + 1) % LOOK_PAGES;
        changed[thread] == 0
    }

    /// Writes dirty pages when necessary. This is the body of the flusher thread.
    pub fn write_back(&self) {
        loop {
            if !self.wants_writing() || !self.write_some() {
                self.world().sleep_until(self.world().now() + NAP);
            }
        }
    }

    fn wants_writing(&self) -> bool {
        let expired = |since: Time| self.world().now().saturating_sub(since) > EXPIRE;
        self.hurried.get() != 0
            || self.dirty() > self.pages_of(self.settings.background_pct)
            || self.files.borrow().oldest_dirty().is_some_and(expired)
    }

    /// Writes dirty pages of one file. Returns `false` if no file has dirty pages.
    fn write_some(&self) -> bool {
        let taken = self.files.borrow_mut().take_dirty(WRITE_PAGES);
        let Some((file, mut pages)) = taken else {
            self.hurried.set(0);
            return false;
        };
        {
            let mut table = self.table.borrow_mut();
            pages.retain(|&at| {
                let page = table.page(at);
                let writes = page.file == file.0 && page.state.has(State::DIRTY);
                if writes {
                    table.set_state(at, page.state.without(State::DIRTY).with(State::WRITEBACK));
                }
                writes
            });
        }
        if !pages.is_empty() {
            let bytes = pages.len() as u64 * self.page_bytes() + self.metadata.take();
            self.disk.transfer(self.world(), Transfer::Write, bytes);
            self.at_work(|| pages.iter().for_each(|&page| self.end_writeback(page)));
            self.hurried.set(self.hurried.get().saturating_sub(pages.len() as u64));
            self.wake_writers();
        }
        true
    }

    /// Wakes as many writers as the limit permits, or all waiting threads if no page is dirty.
    fn wake_writers(&self) {
        let dirty = self.dirty();
        let room = self.pages_of(self.settings.limit_pct).saturating_sub(dirty);
        let writers = if dirty == 0 { usize::MAX } else { room.div_ceil(u64::from(LOOK_PAGES)) as usize };
        self.throttled.wake(self.world(), writers);
    }

    fn end_writeback(&self, page: u32) {
        let state = self.table.borrow().page(page).state;
        self.table.borrow_mut().set_state(page, state.without(State::WRITEBACK));
        if state.has(State::DOOMED) {
            self.drop_page(page);
        }
    }
}
