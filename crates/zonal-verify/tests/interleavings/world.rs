//! A small machine with its allocator, which is built again for each interleaving.
//!
//! A ledger records which frames are owned, because no frame may be allocated twice. Owners write to their frames, so
//! that a checker of memory orderings detects whether the previous owner's writes happened before.
//!
//! Related files: `cells.rs` is the platform, and the scenarios build worlds.

use std::mem::{ManuallyDrop, MaybeUninit};
use std::sync::{Arc, Mutex};

use zonal::error::AllocError;
use zonal::machine::{FrameRange, NodeDescription, ZoneDescription};
use zonal::platform::cpu_local::Pinned;
use zonal::rules::watermarks::WatermarkSettings;
use zonal::snapshot::Accounting;
use zonal::units::{CpuId, NodeId, Order, PageCount, Pfn, ZoneKind};
use zonal::{Allocator, Block, Buffer, Config, Machine, Request};
use zonal_testing::Ledger;

use crate::interleavings::cells::Table;
use crate::interleavings::checker::{Checker, Contents};
use crate::interleavings::model::{Host, Model, NoReclaimer};
use crate::interleavings::restartable::{Orders, Restartable};
use crate::interleavings::ways::{Interrupts, Way};

/// The owner of all frames that jobs hold: any job may free frames that another job allocated.
const OWNER: u32 = 1;

/// Returns the first frame of a node's zone.
pub(crate) const fn start(node: u64) -> u64 {
    (node + 1) << 12
}

/// A node: its CPUs, and the frames of its one zone.
pub(crate) type NodeShape = (&'static [u32], u64);

/// A machine and its allocator.
pub(crate) struct World<C: Checker> {
    allocator: ManuallyDrop<Allocator<'static, Model<C>>>,
    buffers: Vec<*mut [MaybeUninit<u8>]>,
    ledger: Ledger,
    contents: Mutex<Vec<(u64, Shared<C::Contents>)>>,
    /// The CPUs' interrupts in the world of a kernel, which disables them around calls of the allocator.
    interrupts: Option<Interrupts<C>>,
}

struct Shared<T>(std::rc::Rc<T>);

// SAFETY: checkers run all threads of a model on one operating-system thread.
unsafe impl<C: Checker> Send for World<C> {}
// SAFETY: as above, all threads of a model run on one operating-system thread.
unsafe impl<C: Checker> Sync for World<C> {}

type Work<C> = dyn FnOnce(&World<C>) + Send;

/// A thread's work in a scenario, and its CPU.
pub(crate) struct Job<C: Checker> {
    cpu: u32,
    work: Box<Work<C>>,
}

/// Creates a job that does `work` on a CPU.
pub(crate) fn on<C: Checker>(cpu: u32, work: impl FnOnce(&World<C>) + Send + 'static) -> Job<C> {
    Job { cpu, work: Box::new(work) }
}

/// Returns a configuration for small zones, with a reserve of `min_free` frames in all zones together.
pub(crate) fn config(min_free: u64) -> Config {
    let min_free = Some(PageCount::new(min_free));
    Config { watermarks: WatermarkSettings { min_free, ..WatermarkSettings::default() }, ..Config::default() }
}

impl<C: Checker> World<C> {
    /// Creates the world of a program.
    pub(crate) fn new(nodes: &[NodeShape], config: &Config, host: Box<dyn Host>) -> Arc<Self> {
        C::table(Table::clear);
        Self::build(nodes, config, host, Way::Locks)
    }

    /// Creates the world of a kernel, whose CPUs use the allocator with interrupts disabled.
    pub(crate) fn of_kernel(nodes: &[NodeShape], config: &Config, host: Box<dyn Host>) -> Arc<Self> {
        C::table(Table::clear);
        let interrupts = Interrupts::new(cpus_of(nodes));
        Self::build(nodes, config, host, Way::Interrupts(Pinned(interrupts)))
    }

    /// Creates the world of a kernel like [`World::of_kernel`], and checks that the holder of a remote lock holds it.
    ///
    /// Otherwise only the owner's next operation, in the middle of the holder's, would show a lost lock. That takes more
    /// preemptions than can be explored.
    pub(crate) fn of_kernel_with_checked_locks(nodes: &[NodeShape], config: &Config) -> Arc<Self> {
        C::table(Table::clear);
        let interrupts = Interrupts::new(cpus_of(nodes)).with_checked_locks();
        Self::build(nodes, config, Box::new(NoReclaimer), Way::Interrupts(Pinned(interrupts)))
    }

    /// Creates the world of a program with restartable sequences, whose memory accesses have the given orders.
    pub(crate) fn of_sequences(
        nodes: &[NodeShape],
        config: &Config,
        host: Box<dyn Host>,
        orders: Orders,
    ) -> Arc<Self> {
        C::table(Table::clear);
        let sequences = Restartable::new(cpus_of(nodes), orders);
        Self::build(nodes, config, host, Way::Sequences(sequences))
    }

    fn build(nodes: &[NodeShape], config: &Config, host: Box<dyn Host>, way: Way<C>) -> Arc<Self> {
        C::set_cpu(0);
        let interrupts = match &way {
            Way::Interrupts(Pinned(interrupts)) => Some(interrupts.clone()),
            Way::Locks | Way::Sequences(_) => None,
        };
        let mut buffers = Vec::new();
        let mut supply = |bytes| {
            let buffer = Box::into_raw(vec![MaybeUninit::<u8>::uninit(); bytes].into_boxed_slice());
            buffers.push(buffer);
            // SAFETY: the box exists until the world is dropped, which happens after the allocator is dropped. No other
            // thread uses the box.
            Buffer::uninit(unsafe { &mut *buffer })
        };
        let allocator = with_machine(nodes, |machine| {
            Allocator::new(Model::new(host, way), machine, config, |request| Some(supply(request.bytes)))
        });
        let frames = nodes.iter().enumerate().flat_map(|(node, &(_, frames))| {
            let first = start(node as u64);
            first..first + frames
        });
        let end = frames.clone().last().map_or(start(0), |last| last + 1);
        let ledger = Ledger::new(start(0)..end);
        let contents = frames.map(|frame| (frame, Shared(std::rc::Rc::new(C::Contents::new())))).collect();
        Arc::new(Self {
            allocator: ManuallyDrop::new(allocator.expect("a valid machine")),
            buffers,
            ledger,
            contents: Mutex::new(contents),
            interrupts,
        })
    }

    /// Returns the allocator.
    pub(crate) fn allocator(&self) -> &Allocator<'static, Model<C>> {
        &self.allocator
    }

    /// Runs two jobs at once and waits for both. The first runs on the caller's thread.
    pub(crate) fn at_once(self: &Arc<Self>, first: Job<C>, second: Job<C>) {
        self.all_at_once(first, vec![second]);
    }

    /// Runs any number of jobs at once and waits for them. The first runs on the caller's thread.
    pub(crate) fn all_at_once(self: &Arc<Self>, first: Job<C>, others: Vec<Job<C>>) {
        C::table(Table::go_live);
        let spawn = |job: Job<C>| {
            let world = Arc::clone(self);
            C::spawn(job.cpu, move || (job.work)(&world))
        };
        let threads: Vec<_> = others.into_iter().map(spawn).collect();
        C::set_cpu(first.cpu);
        (first.work)(self);
        threads.into_iter().for_each(C::join);
        C::table(Table::settle);
        C::set_cpu(0);
    }

    /// Allocates a block and records that it is owned.
    pub(crate) fn alloc(&self, request: &Request<'_>) -> Result<Block, AllocError> {
        let block = self.undisturbed(|| self.allocator.alloc(request))?;
        self.own(block.first, block.order);
        Ok(block)
    }

    /// Allocates a frame, which must succeed, and records that it is owned.
    pub(crate) fn page(&self) -> Pfn {
        self.alloc(&Request::page()).expect("there is memory").first
    }

    /// Records that the caller owns a block.
    pub(crate) fn own(&self, first: Pfn, order: Order) {
        self.ledger.assign(first.get(), order.pages().get(), OWNER);
        for frame in frames_of(first, order) {
            let contents = {
                let contents = self.contents.lock().expect("no thread failed");
                let at = contents.binary_search_by_key(&frame, |&(frame, _)| frame);
                contents[at.expect("a frame of the machine")].1.0.clone()
            };
            contents.write();
        }
    }

    /// Records that the caller is about to free its block.
    pub(crate) fn disown(&self, first: Pfn, order: Order) {
        self.ledger.release(first.get(), order.pages().get(), OWNER);
    }

    /// Frees a frame that the caller owns.
    pub(crate) fn free(&self, frame: Pfn) {
        self.disown(frame, Order::PAGE);
        self.undisturbed(|| self.allocator.free(frame, Order::PAGE)).expect("the free is valid");
    }

    /// Frees a block that the caller owns.
    pub(crate) fn free_block(&self, block: Block) {
        self.disown(block.first, block.order);
        self.undisturbed(|| self.allocator.free(block.first, block.order)).expect("the free is valid");
    }

    /// Calls `work`, with interrupts disabled in the world of a kernel.
    pub(crate) fn undisturbed<R>(&self, work: impl FnOnce() -> R) -> R {
        match &self.interrupts {
            Some(interrupts) => interrupts.off(work),
            None => work(),
        }
    }

    /// Returns the owned frames.
    pub(crate) fn owned(&self) -> Vec<Pfn> {
        self.ledger.owned().map(Pfn::new).collect()
    }

    /// Checks the allocator, whose accounting must agree with the ledger.
    pub(crate) fn check(&self) -> Accounting {
        let accounting = self.allocator.verify().unwrap_or_else(|fault| panic!("{fault}"));
        assert!(accounting.balance(), "{accounting:?}");
        assert_eq!(accounting.allocated.get(), self.owned().len() as u64, "{accounting:?}");
        accounting
    }

    /// Calls [`World::check`], and then twice frees all owned frames and allocates every frame. This shows that no
    /// frame is lost and that none is in two places.
    pub(crate) fn check_to_the_last_frame(&self) {
        self.check();
        for _ in 0..2 {
            self.owned().into_iter().for_each(|frame| self.free(frame));
            let accounting = self.check();
            assert_eq!(accounting.free.plus(accounting.in_pagesets), accounting.managed);
            let all = Request::page().urgency(zonal::request::Urgency::Reserve);
            while self.alloc(&all).is_ok() {}
            assert_eq!(self.check().allocated, accounting.managed);
        }
    }
}

impl<C: Checker> Drop for World<C> {
    fn drop(&mut self) {
        // SAFETY: the allocator is dropped once, and is not used afterwards.
        unsafe { ManuallyDrop::drop(&mut self.allocator) };
        for &buffer in &self.buffers {
            // SAFETY: the buffer was made from a box, and only the allocator borrowed it. Its cells are plain numbers,
            // so nothing in it must be dropped.
            drop(unsafe { Box::from_raw(buffer) });
        }
    }
}

fn cpus_of(nodes: &[NodeShape]) -> usize {
    nodes.iter().map(|(cpus, _)| cpus.len()).sum()
}

fn frames_of(first: Pfn, order: Order) -> std::ops::Range<u64> {
    first.get()..first.get() + order.pages().get()
}

pub(crate) fn with_machine<R>(nodes: &[NodeShape], work: impl FnOnce(&Machine<'_>) -> R) -> R {
    let cpus: Vec<Vec<CpuId>> =
        nodes.iter().map(|(cpus, _)| cpus.iter().map(|&cpu| CpuId::new(cpu)).collect()).collect();
    let distance = |from, to| if from == to { 10 } else { 20 };
    let distances: Vec<Vec<u8>> =
        (0..nodes.len()).map(|from| (0..nodes.len()).map(|to| distance(from, to)).collect()).collect();
    let spans: Vec<_> = (0..nodes.len())
        .map(|at| FrameRange { start: Pfn::new(start(at as u64)), count: PageCount::new(nodes[at].1) })
        .collect();
    let id = |at| NodeId::new(at as u16).expect("it is small");
    let nodes: Vec<_> = (0..nodes.len())
        .map(|at| NodeDescription { id: id(at), cpus: &cpus[at], distances: &distances[at] })
        .collect();
    let zones: Vec<_> = spans
        .iter()
        .enumerate()
        .map(|(at, span)| ZoneDescription {
            node: id(at),
            kind: ZoneKind::Normal,
            span: *span,
            managed: std::slice::from_ref(span),
        })
        .collect();
    work(&Machine::new(&nodes, &zones).expect("a valid machine"))
}
