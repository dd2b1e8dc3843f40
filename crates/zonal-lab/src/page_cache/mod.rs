//! A model of a kernel's page cache on a simulated machine. It stores file pages in frames of the allocator, reads and
//! writes a simulated disk, and frees frames when the allocator requests reclaim.
//!
//! The page cache uses the allocator only through its public interface, as any embedder does, and implements the
//! allocator's reclaim callback. It follows Linux of 2011 (2.6.39 to 3.0): each zone has LRU lists, dirty limits
//! apply to the whole machine, and node reclaim neither writes nor unmaps pages unless its mode allows it.
//! `page_cache/table.rs` defines the pages, `page_cache/files.rs` the files, and
//! `page_cache/free_lists.rs` the lists of free frames in those kernels. `page_cache/writeback.rs` writes
//! dirty pages, and `page_cache/reclaim.rs` handles reclaim requests. Related files: programs of `workload/` use the
//! page cache.

mod counts;
mod files;
mod free_lists;
mod reclaim;
mod settings;
mod table;
#[cfg(test)]
mod tests;
mod writeback;

use std::cell::{Cell, RefCell};
use std::ops::Add;

use zonal::units::NodeId;
use zonal::{Block, Request, request::PageKind};

use self::counts::Counts;
pub use self::files::FileId;
use self::files::Files;
use self::free_lists::FreeLists;
pub use self::settings::CacheSettings;
use self::table::{State, Table, Tally};
use crate::sim::{Disk, ProgramLock, Time, Transfer, WaitList, World};
use crate::system::System;

/// Number of pages that a CPU collects before it acquires the LRU lock and adds them to a list. Linux:
/// `PAGEVEC_SIZE`.
const ADD_BATCH: u32 = 14;
/// Work under the LRU lock for each added page, in nanoseconds.
const ADD_NS: f64 = 50.0;
/// Number of pages in one read: 4 MiB. A sequential reader thus occupies the disk for a while before the requests of
/// other threads are served.
const READ_PAGES: u32 = 1024;

/// A page cache. Its operations run on the calling thread and use that thread's time.
///
/// Invariant: a frame has an entry in the table exactly while the cache holds the frame, and it belongs to a file
/// during exactly this time.
pub struct PageCache<'h, 's, 'm> {
    system: &'h System<'s, 'm>,
    settings: CacheSettings,
    disk: Disk,
    table: RefCell<Table>,
    files: RefCell<Files>,
    free_lists: FreeLists,
    /// Locks of the LRU lists, by zone index.
    locks: Vec<ProgramLock>,
    /// Number of pages added since the CPU last acquired the lock, indexed by CPU.
    added: RefCell<Vec<u32>>,
    /// Writers that wait until fewer pages are dirty.
    throttled: WaitList,
    /// Number of pages modified since the thread last checked the limits, indexed by thread.
    changed: RefCell<Vec<u32>>,
    counts: Counts,
    /// Pages that the flusher must write even if fewer pages than the background limit are dirty.
    hurried: Cell<u64>,
    /// Bytes of file metadata to write, in addition to the contents of pages.
    metadata: Cell<u64>,
    /// Unused files' pages that reclaim still has to scan.
    inode_debt: Cell<f64>,
    /// Number of the cache's own threads that are currently using the allocator.
    at_work: Cell<u32>,
    stopping: Cell<bool>,
    /// The machine's managed frames.
    managed: u64,
}

impl PageCache<'_, '_, '_> {
    /// Host memory for each frame of the machine, whether or not it holds a cached page, in bytes.
    pub(crate) const FRAME_BYTES: f64 = Table::PAGE_BYTES as f64;
    /// Host memory for each file, in bytes. The list of files doubles when it grows.
    pub(crate) const FILE_BYTES: f64 = 2.0 * Files::FILE_BYTES as f64;
    /// Host memory for each cached or dirty page of a file, in bytes. The lists of pages double when they grow.
    pub(crate) const FILE_PAGE_BYTES: f64 = 4.0 * size_of::<u32>() as f64;
}

impl<'h, 's, 'm> PageCache<'h, 's, 'm> {
    /// Creates an empty cache for the machine.
    ///
    /// # Panics
    /// Panics with a [`Fault`](crate::checks::Fault) if the host has too little memory for the cache.
    #[must_use]
    pub fn new(system: &'h System<'s, 'm>, settings: &CacheSettings) -> Self {
        let (world, model) = (system.sim.world, &system.sim.machine.model);
        let hardware = world.hardware();
        let cpus = model.nodes.iter().flat_map(|node| &node.cpus);
        let ids = cpus.map(|cpu| cpu.index() + 1).max().unwrap_or(0);
        let table = Table::new(model)
            .unwrap_or_else(|_| system.fault("the host has too little memory for the page cache".to_owned()));
        Self {
            system,
            settings: settings.clone(),
            disk: Disk::new(hardware.disk_mb_s, Time::from_ns(hardware.disk_request_ms * 1e6)),
            table: RefCell::new(table),
            files: RefCell::default(),
            free_lists: FreeLists::new(system, ids),
            locks: model
                .zones
                .iter()
                .map(|zone| ProgramLock::new(world, world.place_of(zone.node)))
                .collect(),
            added: RefCell::new(vec![0; ids]),
            throttled: WaitList::default(),
            changed: RefCell::default(),
            counts: Counts::default(),
            hurried: Cell::new(0),
            metadata: Cell::new(0),
            inode_debt: Cell::new(0.0),
            at_work: Cell::new(0),
            stopping: Cell::new(false),
            managed: model.zones.iter().map(|zone| zone.managed.get()).sum(),
        }
    }

    /// Creates a file and opens it. The metadata of the file is written together with its contents.
    pub fn create(&self) -> FileId {
        self.metadata.set(self.metadata.get() + (self.settings.metadata_kib * 1024.0) as u64);
        self.new_file()
    }

    fn new_file(&self) -> FileId {
        let file = self.files.borrow_mut().create();
        file.unwrap_or_else(|_| self.system.fault("the host has too little memory for a file".to_owned()))
    }

    /// Opens an existing file, which may already be open.
    pub fn open(&self, file: FileId) {
        self.files.borrow_mut().open(file);
    }

    /// Closes a file once; every open needs one close.
    pub fn close(&self, file: FileId) {
        self.files.borrow_mut().close(file);
    }

    /// Writes a whole page of a file. The running thread waits while too many pages are dirty.
    pub fn write(&self, file: FileId, index: u32) {
        self.work_on_page();
        let page = match self.find(file, index) {
            Some(page) => page,
            None => self.bring(file, index, State::REFERENCED),
        };
        self.make_dirty(file, page);
        self.balance_dirty();
    }

    /// Reads a page of a file that has `pages` pages. If the page is not cached, it is read from the disk together
    /// with the pages after it.
    pub fn read(&self, file: FileId, index: u32, pages: u32) {
        self.work_on_page();
        if let Some(page) = self.find(file, index) {
            return self.copy(page);
        }
        let end = (index + READ_PAGES).min(pages);
        let missing: Vec<u32> = (index..end).filter(|&index| self.find(file, index).is_none()).collect();
        self.disk.transfer(self.world(), Transfer::Read, missing.len() as u64 * self.page_bytes());
        for ahead in missing {
            // Another thread may have read the page while this thread waited for the disk.
            if self.files.borrow().page_at(file, ahead).is_none() {
                self.bring(file, ahead, if ahead == index { State::REFERENCED } else { State::CLEAN });
            }
        }
    }

    /// Stores into a page of a mapped file. In addition to the effects of [`Self::write`], the page becomes mapped,
    /// that is, part of an address space.
    pub fn store(&self, file: FileId, index: u32) {
        self.work_on_page();
        let used = State::MAPPED.with(State::REFERENCED);
        let found = self.files.borrow().page_at(file, index);
        let page = match found {
            Some(page) => {
                let mut table = self.table.borrow_mut();
                let state = table.page(page).state.with(used);
                table.set_state(page, state);
                page
            }
            None => self.bring(file, index, used),
        };
        self.make_dirty(file, page);
        self.balance_dirty();
    }

    /// Deletes a file and frees its cached pages. One mapping metadata block is read for every 4 MiB of the file.
    pub fn delete(&self, file: FileId, pages: u32) {
        for _ in 0..pages.div_ceil(1024) {
            self.disk.transfer(self.world(), Transfer::Read, self.page_bytes());
        }
        let cached = self.files.borrow().pages_of(file);
        for page in cached {
            let entry = self.table.borrow().page(page);
            if entry.file != file.0 {
                continue; // reclaimed while this thread waited for the disk
            }
            let state = entry.state;
            if state.has(State::WRITEBACK) {
                // The frame is freed when the write completes.
                self.table.borrow_mut().set_state(page, state.with(State::DOOMED));
            } else {
                self.drop_page(page);
            }
        }
    }

    /// Fills the active lists with pages of a file that other processes use. The pages come from the `allowed` nodes.
    pub fn add_resident(&self, allowed: &zonal::NodeMask, pages: u32) {
        let file = self.new_file();
        for index in 0..pages {
            let Ok(block) = self.system.alloc(&Request::page().kind(PageKind::Cache).allowed(allowed)) else {
                self.system.fault("the machine has too little memory for the resident files".to_owned())
            };
            self.enter(file, index, &block, State::ACTIVE);
        }
    }

    /// Waits until no page is dirty.
    pub fn sync(&self) {
        while self.dirty() != 0 {
            self.hurried.set(u64::MAX);
            self.throttled.wait(self.world());
        }
    }

    /// Stops the cache's own threads. Waits until none of them is using the allocator.
    pub fn stop(&self) {
        self.stopping.set(true);
        while self.at_work.get() != 0 {
            self.world().sleep_until(self.world().now() + Time::from_seconds(0.001));
        }
    }

    /// Returns the reclaim counters.
    #[must_use]
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Returns the amount written to the disk so far, in KiB.
    #[must_use]
    pub fn written_kib(&self) -> f64 {
        self.disk.written() as f64 / 1024.0
    }

    /// Returns the number of pages that are dirty or under writeback.
    #[must_use]
    pub fn dirty(&self) -> u64 {
        let table = self.table.borrow();
        (0..self.locks.len()).map(|zone| table.tally(zone)).map(|tally| tally.dirty + tally.writeback).sum()
    }

    /// Returns the number of cached pages on the node with index `place`.
    #[must_use]
    pub fn cached(&self, place: usize) -> u64 {
        let model = &self.system.sim.machine.model;
        let of_node = |&zone: &usize| model.zones[zone].node == model.nodes[place].id;
        let tally = self.tally(&(0..model.zones.len()).filter(of_node).collect::<Vec<_>>());
        tally.inactive + tally.active
    }

    fn world(&self) -> &'s World {
        self.system.sim.world
    }

    fn page_bytes(&self) -> u64 {
        u64::from(self.system.sim.machine.model.page_bytes)
    }

    /// Returns the sums of some zones' page counts.
    fn tally(&self, zones: &[usize]) -> Tally {
        let table = self.table.borrow();
        zones.iter().map(|&zone| table.tally(zone)).fold(Tally::default(), Add::add)
    }

    /// Spends the kernel's time for a page, excluding allocation and copying.
    fn work_on_page(&self) {
        self.world().spend(Time::from_ns(self.settings.page_ns));
        self.system.checkpoint();
    }

    /// Returns a page if it is cached, and records a use of the page.
    fn find(&self, file: FileId, index: u32) -> Option<u32> {
        let page = self.files.borrow().page_at(file, index)?;
        let mut table = self.table.borrow_mut();
        let state = table.page(page).state;
        if state.has(State::ACTIVE) || !state.has(State::REFERENCED) {
            table.set_state(page, state.with(State::REFERENCED));
        } else {
            table.move_to(page, state.without(State::REFERENCED).with(State::ACTIVE)); // this is the second use
        }
        Some(page)
    }

    /// Allocates a frame for a page that is not cached, adds the page to the cache, and writes the whole frame.
    fn bring(&self, file: FileId, index: u32, state: State) -> u32 {
        let request = Request::page().kind(PageKind::Cache);
        let served = match self.system.alloc(&request) {
            Err(_) if self.free_lists.drain_all(self.system) => self.system.alloc(&request),
            served => served,
        };
        let block = match served {
            Ok(block) => self.free_lists.take(self.system, block),
            Err(error) => self.system.fault(format!("no frame for a page of a file: {error}")),
        };
        let page = self.enter(file, index, &block, state);
        self.copy(page);
        page
    }

    fn enter(&self, file: FileId, index: u32, block: &Block, state: State) -> u32 {
        let world = self.world();
        let page = self.table.borrow_mut().insert(block, file.0, index, state);
        if self.files.borrow_mut().insert(file, index, page).is_err() {
            self.system.fault("the host has too little memory for a page of a file".to_owned());
        }
        let full = {
            let added = &mut self.added.borrow_mut()[world.cpu()];
            *added = (*added + 1) % ADD_BATCH;
            *added == 0
        };
        if full {
            let work = Time::from_ns(ADD_NS * f64::from(ADD_BATCH));
            self.locks[block.zone.index()].hold(world, || world.spend(work));
        }
        page
    }

    fn copy(&self, page: u32) {
        let place = self.table.borrow().node_of(page);
        self.world().stream(place, self.page_bytes());
    }

    /// Removes a page from the cache and frees its frame.
    fn drop_page(&self, page: u32) {
        let block = self.forget(page);
        self.free_lists.free(self.system, block);
        self.system.checkpoint();
    }

    /// Removes a page from the cache and returns its frame.
    fn forget(&self, page: u32) -> Block {
        let mut table = self.table.borrow_mut();
        let entry = table.page(page);
        self.files.borrow_mut().remove(entry.file, entry.index);
        table.remove(page)
    }

    /// Runs work on one of the cache's threads. [`Self::stop`] waits for the end of this work.
    fn at_work<R>(&self, work: impl FnOnce() -> R) -> R {
        self.at_work.set(self.at_work.get() + 1);
        let result = work();
        self.at_work.set(self.at_work.get() - 1);
        result
    }

    /// Reclaims a node's pages in the background. This is the body of a kernel thread.
    pub fn reclaim_in_background(&self, node: NodeId) {
        let place = self.system.place_of(node);
        loop {
            self.world().wait_for_reclaim(place);
            if !self.stopping.get() {
                self.at_work(|| self.system.sim.allocator.background_reclaim(node));
            }
        }
    }
}
