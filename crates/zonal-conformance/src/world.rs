//! A small machine with a new allocator, and the record of who owns its frames.
//!
//! Frames are numbers: the machine's memory does not exist. Related files: `duel.rs` and `load.rs` build worlds.

use core::array;
use core::fmt::{self, Write};
use core::mem::MaybeUninit;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicU8, AtomicU32, AtomicU64};

use zonal::error::ConfigError;
use zonal::layout::BufferRequest;
use zonal::machine::{FrameRange, NodeDescription, ZoneDescription};
use zonal::request::Urgency;
use zonal::rules::pageset_tuning::PagesetTuning;
use zonal::rules::watermarks::WatermarkSettings;
use zonal::units::{CpuId, NodeId, Order, PageCount, Pfn, ZoneKind};
use zonal::{Allocator, Buffer, Config, Layout, Machine, NodeMask, Platform, Request};

use crate::harness::Harness;

/// Frames of each of the two nodes, and the first frame of node 0.
pub(crate) const FRAMES: u64 = 128;
const START: u64 = 4096;
const ALL: usize = 2 * FRAMES as usize;
/// Number of blocks that a lane holds.
const HELD_MAX: usize = 24;
/// Number of lanes: jobs that hold blocks.
pub(crate) const LANES: usize = 8;
/// Length of a sentence about what went wrong.
const NOTE_BYTES: usize = 240;

/// A sentence about what went wrong first, which any CPU can write.
pub(crate) struct Note {
    /// 0 while nothing went wrong, 1 while a CPU writes, 2 when it has written.
    state: AtomicU32,
    text: [AtomicU8; NOTE_BYTES],
}

/// The same on one CPU.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Text {
    bytes: [u8; NOTE_BYTES],
    len: usize,
}

impl Write for Text {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for &byte in text.as_bytes().iter().take(NOTE_BYTES - self.len) {
            self.bytes[self.len] = byte;
            self.len += 1;
        }
        Ok(())
    }
}

impl Text {
    pub(crate) fn new(text: fmt::Arguments<'_>) -> Self {
        let mut written = Self { bytes: [0; NOTE_BYTES], len: 0 };
        written.write_fmt(text).expect("a text that is too long is cut");
        written
    }

    pub(crate) fn as_str(&self) -> &str {
        let written = &self.bytes[..self.len];
        str::from_utf8(written).unwrap_or("a text that is not UTF-8 where it was cut")
    }
}

impl Note {
    pub(crate) const fn new() -> Self {
        Self { state: AtomicU32::new(0), text: [const { AtomicU8::new(0) }; NOTE_BYTES] }
    }

    /// Records what went wrong, unless something else did before.
    pub(crate) fn write(&self, text: fmt::Arguments<'_>) {
        // Relaxed: only the exchange itself decides who writes.
        if self.state.compare_exchange(0, 1, Relaxed, Relaxed).is_ok() {
            let text = Text::new(text);
            self.text.iter().zip(text.bytes).for_each(|(cell, byte)| cell.store(byte, Relaxed));
            // Release: publishes the text; pairs with `read`.
            self.state.store(2, Release);
        }
    }

    pub(crate) fn read(&self) -> Option<Text> {
        // Acquire: takes the text; pairs with `write`.
        (self.state.load(Acquire) == 2).then(|| {
            let bytes = array::from_fn(|at| self.text[at].load(Relaxed));
            Text { bytes, len: bytes.iter().position(|&byte| byte == 0).unwrap_or(NOTE_BYTES) }
        })
    }
}

/// An allocator of its own machine.
pub(crate) struct World<'w, H: Harness> {
    pub(crate) harness: &'w H,
    pub(crate) allocator: Allocator<'w, H::Platform>,
    pub(crate) note: Note,
    /// Whether a frame is owned: one bit for each frame.
    owned: [AtomicU64; ALL / 64],
    /// The blocks that each lane holds: twice the frame plus 1, and above that the order; 0 is none.
    held: [[AtomicU64; HELD_MAX]; LANES],
}

pub(crate) fn node(id: u16) -> NodeId {
    NodeId::new(id).expect("a small id")
}

/// Returns the frames of a node.
pub(crate) const fn frames_of(node: u64) -> FrameRange {
    FrameRange { start: Pfn::new(START + node * FRAMES), count: PageCount::new(FRAMES) }
}

pub(crate) fn config() -> Config {
    let watermarks = WatermarkSettings { min_free: Some(PageCount::new(8)), ..WatermarkSettings::default() };
    // Without tuning, a CPU locks its pagesets as rarely as possible.
    Config { watermarks, tuning: PagesetTuning::Fixed, ..Config::default() }
}

/// Calls `use_it` with the machine: two nodes that share the CPUs.
fn with_machine<R>(cpus: &[CpuId], use_it: impl FnOnce(&Machine<'_>) -> R) -> R {
    let (first, second) = cpus.split_at(cpus.len().div_ceil(2));
    let nodes = [
        NodeDescription { id: node(0), cpus: first, distances: &[10, 20] },
        NodeDescription { id: node(1), cpus: second, distances: &[20, 10] },
    ];
    let spans = [[frames_of(0)], [frames_of(1)]];
    let zones: [_; 2] = array::from_fn(|at| ZoneDescription {
        node: node(at as u16),
        kind: ZoneKind::Normal,
        span: spans[at][0],
        managed: &spans[at],
    });
    use_it(&Machine::new(&nodes, &zones).expect("CPU ids that differ"))
}

/// Returns how many bytes of memory the scenarios need for a platform with these CPUs.
///
/// # Panics
/// Panics if `cpus` contains a CPU twice.
#[must_use]
pub fn memory_bytes<P: Platform>(cpus: &[CpuId]) -> usize {
    with_machine(cpus, |machine| {
        let layout = Layout::new(machine, &config()).expect("a valid configuration");
        layout.requests::<P>().map(|request| request.bytes).sum()
    })
}

impl<'w, H: Harness> World<'w, H> {
    pub(crate) fn build(harness: &'w H, memory: &'w mut [MaybeUninit<u8>]) -> Result<Self, ConfigError> {
        let mut rest = memory;
        let supply = |request: BufferRequest| {
            let (buffer, others) = core::mem::take(&mut rest).split_at_mut_checked(request.bytes)?;
            rest = others;
            Some(Buffer::uninit(buffer))
        };
        let new = |machine: &Machine<'_>| Allocator::new(harness.platform(), machine, &config(), supply);
        Ok(Self {
            harness,
            allocator: with_machine(harness.cpus(), new)?,
            note: Note::new(),
            owned: [const { AtomicU64::new(0) }; ALL / 64],
            held: [const { [const { AtomicU64::new(0) }; HELD_MAX] }; LANES],
        })
    }

    /// Calls the allocator as the embedder does.
    pub(crate) fn call<R>(&self, call: impl FnOnce(&Allocator<'w, H::Platform>) -> R) -> R {
        let (mut call, mut result) = (Some(call), None);
        self.harness.call(&mut || {
            if let Some(call) = call.take() {
                result = Some(call(&self.allocator));
            }
        });
        result.expect("`Harness::call` calls its argument")
    }

    /// Runs work on one CPU.
    pub(crate) fn on(&self, cpu: CpuId, work: impl Fn() + Sync) {
        self.harness.run(&[(cpu, &work)]);
    }

    fn mark(&self, first: Pfn, order: Order, is_owned: bool) {
        for frame in first.get()..first.get() + order.pages().get() {
            let at = frame.wrapping_sub(START) as usize;
            let Some(word) = self.owned.get(at / 64) else {
                return self.note.write(format_args!("frame {frame} was allocated, which the machine lacks"));
            };
            let bit = 1 << (at % 64);
            // AcqRel: takes the last owner's writes, publishes this one's; pairs with `mark`.
            let before = if is_owned { word.fetch_or(bit, AcqRel) } else { word.fetch_and(!bit, AcqRel) };
            if is_owned && before & bit != 0 {
                self.note.write(format_args!("frame {frame} was allocated twice"));
            }
        }
    }

    /// Returns the number of owned frames.
    fn owned(&self) -> u64 {
        self.owned.iter().map(|word| u64::from(word.load(Relaxed).count_ones())).sum()
    }

    /// Allocates a block for a lane, which frees it at once if it holds too many. Returns whether it was allocated.
    pub(crate) fn alloc(&self, lane: usize, request: &Request<'_>) -> bool {
        match self.call(|allocator| allocator.alloc(&request.no_wait())) {
            Ok(block) => {
                self.keep(lane, block.first, block.order);
                true
            }
            Err(error) => {
                self.note.write(format_args!("a request failed although frames are free: {error}"));
                false
            }
        }
    }

    /// Records that a lane owns a block, which it frees at once if it holds too many.
    pub(crate) fn keep(&self, lane: usize, first: Pfn, order: Order) {
        self.mark(first, order, true);
        let held = (u64::from(order.get()) << 48) + 2 * first.get() + 1;
        // Relaxed here and below: one job at a time uses a lane.
        match self.held[lane].iter().find(|place| place.load(Relaxed) == 0) {
            Some(place) => place.store(held, Relaxed),
            None => self.give_back(first, order),
        }
    }

    /// Frees the block in the first place of a lane. Returns whether there was one.
    ///
    /// Blocks are not freed in the reverse order of their allocation, so that slots of a stack get other frames than they
    /// had.
    pub(crate) fn free(&self, lane: usize) -> bool {
        let Some((first, order)) = self.take(lane) else { return false };
        self.give_back(first, order);
        true
    }

    /// Takes a block from a lane. The caller still owns it.
    pub(crate) fn take(&self, lane: usize) -> Option<(Pfn, Order)> {
        let place = self.held[lane].iter().find(|place| place.load(Relaxed) != 0)?;
        let held = place.swap(0, Relaxed);
        let order = Order::new((held >> 48) as u8).expect("the order of a block");
        Some((Pfn::new((held & ((1 << 48) - 1)) / 2), order))
    }

    /// Records that a block is no longer owned.
    pub(crate) fn disown(&self, first: Pfn, order: Order) {
        self.mark(first, order, false);
    }

    fn give_back(&self, first: Pfn, order: Order) {
        self.disown(first, order);
        if let Err(error) = self.call(|allocator| allocator.free(first, order)) {
            self.note.write(format_args!("a free of an allocated block was refused: {error}"));
        }
    }

    /// Checks everything: the accounting, the owners, and that each frame can be allocated once. All jobs have ended.
    pub(crate) fn check(&self) -> Option<Text> {
        self.on(self.harness.cpus()[0], || self.check_to_the_last_frame());
        self.note.read()
    }

    fn check_to_the_last_frame(&self) {
        self.check_accounting(self.owned());
        (0..LANES).for_each(|lane| while self.free(lane) {});
        let managed = self.check_accounting(0);
        let all = Request::page().urgency(Urgency::Reserve).no_wait();
        for _ in 0..=ALL {
            let Ok(block) = self.call(|allocator| allocator.alloc(&all)) else { break };
            self.mark(block.first, block.order, true);
        }
        let owned = self.owned();
        if owned != managed {
            self.note.write(format_args!("only {owned} of {managed} frames can be allocated"));
        }
        self.check_accounting(owned);
        for at in 0..ALL as u64 {
            if self.owned[at as usize / 64].load(Relaxed) & 1 << (at % 64) != 0 {
                self.give_back(Pfn::new(START + at), Order::PAGE);
            }
        }
        self.call(Allocator::drain_pagesets);
        self.check_accounting(0);
        let (retired, cached) =
            self.call(|allocator| (allocator.events().retired, allocator.accounting().in_pagesets));
        if retired != 0 || cached != PageCount::ZERO {
            self.note.write(format_args!("{retired} frames were on two stacks, and {cached} remain on one"));
        }
    }

    /// Checks the accounting, in which so many frames must be allocated. Returns the number of managed frames.
    fn check_accounting(&self, allocated: u64) -> u64 {
        match self.call(Allocator::verify) {
            Err(error) => {
                self.note.write(format_args!("{error}"));
                0
            }
            Ok(sums) => {
                if !sums.balance() || sums.allocated.get() != allocated {
                    self.note.write(format_args!("{allocated} frames are owned, but {sums}"));
                }
                sums.managed.get()
            }
        }
    }
}

/// Returns a request for a frame of a node.
pub(crate) fn on_node<R>(id: u16, use_it: impl FnOnce(&Request<'_>) -> R) -> R {
    let nodes: NodeMask = [node(id)].into_iter().collect();
    use_it(&Request::page().allowed(&nodes))
}
