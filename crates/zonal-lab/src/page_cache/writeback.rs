//! Writing what is dirty: how much may be, who waits for it, and the thread that writes.
//!
//! Beyond the *background* limit one thread writes, file by file, those that became dirty first before
//! others; beyond the *limit* whoever makes pages dirty waits for the disk. Limits are shares of the whole
//! machine's memory, and pages on their way to the disk count as well. Neighbours: `mod.rs`.

use super::table::State;
use super::{FileId, PageCache};
use crate::sim::{Time, Transfer};

/// Pages that are written at a time: 4 MiB. Linux: `MAX_WRITEBACK_PAGES`.
const WRITE_PAGES: usize = 1024;
/// Pages that a thread makes dirty between two looks at the limits. Linux: `ratelimit_pages` under load.
const LOOK_PAGES: u32 = 32;
/// Dirty pages are written after so long at the latest. Linux: `vm.dirty_expire_centisecs`.
const EXPIRE: Time = Time::from_ps(30_000_000_000_000);
/// How long the writing thread sleeps when there is nothing to do.
const NAP: Time = Time::from_ps(100_000_000_000);

impl PageCache<'_, '_, '_> {
    /// Pages that may be dirty before so many percent of memory are.
    fn pages_of(&self, percent: f64) -> u64 {
        (self.managed as f64 * percent / 100.0) as u64
    }

    /// A page of a file has been changed.
    pub(super) fn make_dirty(&self, file: FileId, page: u32) {
        let mut table = self.table.borrow_mut();
        let state = table.page(page).state;
        if !state.has(State::DIRTY) {
            table.set_state(page, state.with(State::DIRTY));
            self.files.borrow_mut().note_dirty(file, page, self.world().now());
        }
    }

    /// Has a thread that makes pages dirty wait while there are too many.
    pub(super) fn balance_dirty(&self) {
        if self.is_time_to_look() {
            while self.dirty() > self.pages_of(self.settings.limit_pct) {
                self.throttled.wait(self.world());
            }
        }
    }

    /// Counts a page that the running thread changes; says whether it looks at the limits now.
    fn is_time_to_look(&self) -> bool {
        let thread = self.world().thread().index();
        let changed = &mut *self.changed.borrow_mut();
        if changed.len() <= thread {
            changed.resize(thread + 1, 0);
        }
        changed[thread] = (changed[thread] + 1) % LOOK_PAGES;
        changed[thread] == 0
    }

    /// The work of the thread that writes.
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

    /// Writes pages of one file; `false` when none is dirty.
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

    /// Has as many writers go on as there is room for, and whoever waits until nothing is dirty.
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
