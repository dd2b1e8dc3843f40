//! Processes that share a small allocator, which is built again for each interleaving. Process 1 may die.
//!
//! It dies before one of its writes; which one, the runner chooses. What it holds then is given back, by another process as soon
//! as that knows of the death, or at the end. No frame may be lost or be in use twice.
//!
//! Each process has zeroed buffers of its own. An address in one stands for a cell of the table, which is the same for the shared
//! buffers of all. Related files: `cells.rs` makes processes die, and `deaths.rs` has the scenarios.

use std::collections::{BTreeMap, BTreeSet};
use std::mem::{ManuallyDrop, MaybeUninit};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex};

use zonal::layout::{BufferRequest, Place};
use zonal::platform::ZeroedCells;
use zonal::platform::cpu_local::TryLock;
use zonal::request::Urgency;
use zonal::rules::pageset_tuning::PagesetTuning;
use zonal::units::{CpuId, Moment, Order, PageCount, Pfn};
use zonal::{Allocator, Buffer, Config, Machine, Request};

use crate::interleavings::cells::{Death, Handle, LockHandle, Table, die, has_died};
use crate::interleavings::checker::Checker;
use crate::interleavings::world::{config, with_machine};

/// Each process has one CPU, that of its number minus 1.
const PROCESSES: u8 = 3;
const DOOMED: u8 = 1;
const FRAMES: u64 = 256;

/// A part of a buffer, with the alignment of the largest cells.
#[repr(align(256))]
struct Part(#[allow(dead_code, reason = "only its address is used")] [u8; PART_BYTES]);

/// Bytes of a part.
const PART_BYTES: usize = 256;

/// Zeroed buffers, which are freed with this value.
#[derive(Default)]
pub(crate) struct Buffers(Vec<*mut [Part]>);

impl Buffers {
    /// Returns a buffer that lasts as long as this value, and the index of its first cell: `first` if it stands for the cells of
    /// another buffer.
    pub(crate) fn add<C: Checker>(
        &mut self,
        bytes: usize,
        first: Option<usize>,
    ) -> (&'static mut [MaybeUninit<u8>], usize) {
        let parts = (0..bytes.div_ceil(PART_BYTES)).map(|_| Part([0; PART_BYTES]));
        let parts = Box::into_raw(parts.collect::<Box<[_]>>());
        self.0.push(parts);
        // SAFETY: the box has at least so many bytes, and nothing else uses them while there is an allocator.
        let bytes = unsafe { std::slice::from_raw_parts_mut(parts.cast(), bytes) };
        let first = C::table(|table| table.add_zeroed(bytes, first));
        (bytes, first)
    }
}

impl Drop for Buffers {
    fn drop(&mut self) {
        for &parts in &self.0 {
            // SAFETY: it was made from a box, and the allocator that borrowed it has been dropped. Its cells are plain numbers.
            drop(unsafe { Box::from_raw(parts) });
        }
    }
}

/// The platform of a process.
pub(crate) struct ProcessModel<C> {
    process: u8,
    of: std::marker::PhantomData<fn() -> C>,
}

impl<C: Checker> zonal::Platform for ProcessModel<C> {
    type U8 = Handle<C, u8>;
    type U32 = Handle<C, u32>;
    type U64 = Handle<C, u64>;
    type Lock = LockHandle<C>;
    type CpuLocal = TryLock;

    // SAFETY: a cell or lock of zero bytes is in a zeroed buffer, where its address stands for a cell of the table that is 0 at
    // first. Handles are plain numbers.
    const ZEROED_CELLS: Option<ZeroedCells<Self>> = Some(unsafe { ZeroedCells::promise() });

    fn process(&self) -> u8 {
        self.process
    }

    fn current_cpu(&self) -> CpuId {
        CpuId::new(C::cpu())
    }

    fn cpu_local(&self) -> &TryLock {
        &TryLock
    }

    fn now(&self) -> Moment {
        Moment::from_ns(C::table(|table| table.now_ns.get()))
    }

    fn relax(&self, _round: u32) {
        C::relax();
    }
}

/// The allocator of a process.
pub(crate) type Shared<C> = Allocator<'static, ProcessModel<C>>;

/// Processes, and what those that live have allocated.
pub(crate) struct Processes<C: Checker> {
    allocators: Vec<ManuallyDrop<Shared<C>>>,
    /// Dropped after the allocators.
    _buffers: Buffers,
    /// First frame and length of each block or run, and the process that has it.
    blocks: Mutex<BTreeMap<u64, (PageCount, u8)>>,
    /// Processes that are dead, and have not been recovered.
    dead: Mutex<BTreeSet<u8>>,
}

// SAFETY: checkers run all threads of a model on one operating-system thread.
unsafe impl<C: Checker> Send for Processes<C> {}
// SAFETY: as above, all threads of a model run on one operating-system thread.
unsafe impl<C: Checker> Sync for Processes<C> {}

/// What a process does.
pub(crate) type Work<C> = Box<dyn FnOnce(&Processes<C>) + Send>;

impl<C: Checker> Processes<C> {
    pub(crate) fn new() -> Arc<Self> {
        C::table(Table::clear);
        let config = Config { processes: PROCESSES, tuning: PagesetTuning::Fixed, ..config(0) };
        let (mut buffers, mut firsts) = (Buffers::default(), Vec::new());
        let mut begin = |process: u8, machine: &Machine<'_>| {
            let mut shared = 0;
            let supply = |request: BufferRequest| {
                let is_shared = request.place != Place::Local;
                let known = if is_shared { firsts.get(shared).copied() } else { None };
                let (bytes, first) = buffers.add::<C>(request.bytes, known);
                if is_shared {
                    shared += 1;
                    firsts.resize(firsts.len().max(shared), first);
                }
                // SAFETY: the bytes are zero and stay so; the cells for which they stand are those of all processes.
                Some(unsafe { Buffer::of_process(bytes) })
            };
            C::set_cpu(u32::from(process) - 1);
            let platform = ProcessModel { process, of: std::marker::PhantomData };
            let start = if process == 1 { Allocator::new } else { Allocator::join };
            ManuallyDrop::new(start(platform, machine, &config, supply).expect("a valid machine"))
        };
        let allocators = with_machine(&[(&[0, 1, 2], FRAMES)], |machine| {
            (1..=PROCESSES).map(|process| begin(process, machine)).collect()
        });
        Arc::new(Self { allocators, _buffers: buffers, blocks: Mutex::default(), dead: Mutex::default() })
    }

    pub(crate) fn allocator(&self, process: u8) -> &Shared<C> {
        &self.allocators[usize::from(process) - 1]
    }

    /// Allocates a block as a process while no others run.
    pub(crate) fn given(&self, process: u8, order: Order) -> Pfn {
        C::set_cpu(u32::from(process) - 1);
        self.alloc(process, order)
    }

    pub(crate) fn alloc(&self, process: u8, order: Order) -> Pfn {
        let block = self.allocator(process).alloc(&Request::new(order)).expect("there is memory");
        self.own(process, block.first, block.order.pages());
        block.first
    }

    fn own(&self, process: u8, first: Pfn, count: PageCount) {
        let mut blocks = self.blocks.lock().expect("no thread failed");
        if let Some((&at, &(its, by))) = blocks.range(..first.plus(count).get()).next_back() {
            assert!(at + its.get() <= first.get(), "{first} is process {process}'s and process {by}'s");
        }
        blocks.insert(first.get(), (count, process));
    }

    /// Records that no process has a block any more, which one frees next.
    pub(crate) fn disown(&self, first: Pfn) {
        self.blocks.lock().expect("no thread failed").remove(&first.get());
    }

    /// Frees a block, which another process may have allocated.
    pub(crate) fn free(&self, process: u8, first: Pfn, order: Order) {
        self.disown(first);
        assert_eq!(self.allocator(process).free(first, order), Ok(()), "{first}");
    }

    pub(crate) fn alloc_and_free(&self, process: u8, order: Order) {
        let first = self.alloc(process, order);
        self.free(process, first, order);
    }

    /// Makes a process dead that does nothing, with what it has allocated.
    pub(crate) fn kill(&self, process: u8) {
        self.blocks.lock().expect("no thread failed").retain(|_, &mut (_, its)| its != process);
        self.dead.lock().expect("no thread failed").insert(process);
    }

    /// Recovers a process.
    pub(crate) fn recover(&self, by: u8, process: u8) {
        self.allocator(by).recover(process);
        self.dead.lock().expect("no thread failed").remove(&process);
    }

    /// Recovers process 1, if it is known to have died.
    pub(crate) fn recover_if_dead(&self, by: u8) {
        if has_died::<C>(0) {
            self.recover(by, DOOMED);
        }
    }

    /// Runs the work of process 1, which may die, and at once that of others; for every other death the others begin in reverse
    /// order.
    pub(crate) fn at_once(self: &Arc<Self>, doomed: impl FnOnce(&Self), mut others: Vec<(u8, Work<C>)>) {
        C::table(Table::doom);
        if C::table(|table| table.writes.get()) % 2 == 1 {
            others.reverse();
        }
        C::table(Table::go_live);
        let spawn = |(process, work): (u8, Work<C>)| {
            let world = Arc::clone(self);
            C::spawn(u32::from(process) - 1, move || work(&world))
        };
        let threads: Vec<_> = others.into_iter().map(spawn).collect();
        C::set_cpu(0);
        if let Err(why) = catch_unwind(AssertUnwindSafe(|| doomed(self))) {
            if !why.is::<Death>() {
                resume_unwind(why);
            }
            C::set_reclaiming(false);
            self.kill(DOOMED);
            die::<C>();
        }
        threads.into_iter().for_each(C::join);
        C::table(Table::settle);
    }

    /// Checks that exactly the blocks of those that live are allocated and theirs, and perhaps `in_doubt`, a block of 4 frames
    /// of process 2, if process 1 has died; and that every frame can be allocated when these are freed and all processes end.
    pub(crate) fn check(&self, in_doubt: Option<Pfn>) {
        C::set_cpu(1);
        let in_doubt = in_doubt.filter(|_| has_died::<C>(0));
        let dead = self.dead.lock().expect("no thread failed").clone();
        dead.into_iter().for_each(|process| self.recover(2, process));
        let allocator = self.allocator(2);
        let mut held = Vec::new();
        allocator.for_each_held(|holder, range| held.push((holder, range)));
        let mut blocks = std::mem::take(&mut *self.blocks.lock().expect("no thread failed"));
        for (holder, range) in held {
            let doubtful = (in_doubt == Some(range.start)).then_some((PageCount::new(4), 2));
            let its = blocks.remove(&range.start.get()).or(doubtful);
            assert_eq!(its, Some((range.count, holder)), "{range} is held by process {holder}");
            assert_eq!(allocator.free_frames(range.start, range.count), Ok(()));
        }
        assert!(blocks.is_empty(), "blocks are lost: {blocks:?}");
        let accounting = allocator.verify().unwrap_or_else(|fault| panic!("{fault}"));
        assert!(accounting.balance() && accounting.allocated == PageCount::ZERO, "{accounting:?}");
        // When a process ends, what it cached is freed by its holder, so a wrong holder shows. Frames that a recovery forgot in a
        // pageset of the dead are lost.
        for process in (1..=PROCESSES).filter(|&process| process != DOOMED || !has_died::<C>(0)) {
            allocator.recover(process);
            allocator.verify().unwrap_or_else(|fault| panic!("process {process} has ended: {fault}"));
        }
        let all = Request::page().urgency(Urgency::Reserve);
        let mut count = 0;
        while let Ok(block) = allocator.alloc(&all) {
            self.own(2, block.first, block.order.pages());
            count += 1;
        }
        assert_eq!(count, FRAMES, "frames are lost");
        allocator.verify().unwrap_or_else(|fault| panic!("{fault}"));
    }
}

impl<C: Checker> Drop for Processes<C> {
    fn drop(&mut self) {
        for allocator in &mut self.allocators {
            // SAFETY: the allocator is dropped once, and is not used afterwards.
            unsafe { ManuallyDrop::drop(allocator) };
        }
    }
}
