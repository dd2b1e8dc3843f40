//! The memory of a buffer, which its views and DLPack capsules share.
//!
//! Locks here are held for a few instructions, and never while Python code runs or the interpreter lock changes hands.

use std::sync::{Arc, Mutex, MutexGuard, Weak};

use pyo3::PyResult;
use zonal_linux::{FrameBuffer, Frames, NodeId};

use super::errors::Kind;
use super::fork::Process;

/// Adjacent frames with one owner.
pub(crate) enum Run {
    Block(Frames),
    Buffer(FrameBuffer),
}

impl Run {
    /// Returns the address of the first byte.
    pub(crate) fn address(&self) -> *mut u8 {
        match self {
            Self::Block(frames) => frames.as_ptr().cast_mut(),
            Self::Buffer(buffer) => buffer.as_ptr().cast_mut(),
        }
    }

    /// Returns the length in bytes.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Block(frames) => frames.len(),
            Self::Buffer(buffer) => buffer.len(),
        }
    }

    /// Returns the node of the frames.
    pub(crate) fn node(&self) -> NodeId {
        match self {
            Self::Block(frames) => frames.node(),
            Self::Buffer(buffer) => buffer.node(),
        }
    }

    /// Releases the frames without freeing them.
    pub(crate) fn forget(self) {
        match self {
            Self::Block(frames) => _ = frames.into_raw(),
            Self::Buffer(buffer) => _ = buffer.into_raw(),
        }
    }

    /// Returns the number of the first frame.
    pub(crate) fn frame(&self) -> u64 {
        match self {
            Self::Block(frames) => frames.first().get(),
            Self::Buffer(buffer) => buffer.first().get(),
        }
    }
}

/// Invariant: while `exports` is not 0, `run` is `Some`.
struct State {
    run: Option<Run>,
    exports: usize,
}

/// A run that is freed when the last view of it ends, or when `free` is called without views.
pub(crate) struct Block {
    state: Mutex<State>,
    process: Process,
    blocks: Arc<Blocks>,
    slot: usize,
}

/// The blocks of a pool.
#[derive(Default)]
pub(crate) struct Blocks(Mutex<Slots>);

#[derive(Default)]
struct Slots {
    all: Vec<Weak<Block>>,
    unused: Vec<usize>,
}

fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

impl Blocks {
    /// Returns a new block of the pool.
    pub(crate) fn add(self: &Arc<Self>, run: Run) -> Arc<Block> {
        let mut slots = held(&self.0);
        let slot = slots.unused.pop().unwrap_or(slots.all.len());
        let block = Arc::new(Block {
            state: Mutex::new(State { run: Some(run), exports: 0 }),
            process: Process::current(),
            blocks: Arc::clone(self),
            slot,
        });
        let weak = Arc::downgrade(&block);
        match slots.all.get_mut(slot) {
            Some(place) => *place = weak,
            None => slots.all.push(weak),
        }
        block
    }

    /// Returns how many blocks have views.
    pub(crate) fn exported(&self) -> usize {
        self.each().iter().filter(|block| held(&block.state).exports > 0).count()
    }

    /// Whether a block begins at the frame.
    pub(crate) fn has_frame(&self, frame: u64) -> bool {
        let begins =
            |block: &Arc<Block>| held(&block.state).run.as_ref().is_some_and(|run| run.frame() == frame);
        self.each().iter().any(begins)
    }

    /// Takes the memory of all blocks without views.
    pub(crate) fn take_all(&self) -> Vec<Run> {
        self.each().iter().filter_map(|block| block.take().ok().flatten()).collect()
    }

    fn each(&self) -> Vec<Arc<Block>> {
        held(&self.0).all.iter().filter_map(Weak::upgrade).collect()
    }
}

impl Block {
    /// Counts a view, during which the memory stays allocated.
    pub(crate) fn export(&self) -> PyResult<()> {
        self.check_process()?;
        let mut state = held(&self.state);
        let is_alive = state.run.is_some();
        state.exports += usize::from(is_alive);
        drop(state);
        if is_alive { Ok(()) } else { Err(freed()) }
    }

    /// Ends a view.
    pub(crate) fn release(&self) {
        if self.process.is_current() {
            held(&self.state).exports -= 1;
        }
    }

    /// Takes the memory, which must have no views. Returns `None` if it was freed before.
    pub(crate) fn take(&self) -> PyResult<Option<Run>> {
        self.check_process()?;
        let mut state = held(&self.state);
        let (exports, run) = (state.exports, if state.exports == 0 { state.run.take() } else { None });
        drop(state);
        match exports {
            0 => Ok(run),
            count => Err(Kind::InUse.error(format_args!(
                "views of the buffer exist, such as memoryviews or arrays ({count}); delete them first"
            ))),
        }
    }

    /// Whether the memory is still allocated.
    pub(crate) fn is_alive(&self) -> bool {
        !self.process.is_current() || held(&self.state).run.is_some()
    }

    fn check_process(&self) -> PyResult<()> {
        if self.process.is_current() { Ok(()) } else { Err(forked()) }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner);
        let run = state.run.take();
        if self.process.is_current() {
            held(&self.blocks.0).unused.push(self.slot);
            drop(run);
        } else {
            // A lock of the pool may have been held when the process forked.
            std::mem::forget(run);
        }
    }
}

#[cold]
pub(crate) fn freed() -> pyo3::PyErr {
    Kind::Closed.error("the buffer has been freed, by its own `free` or with its pool")
}

#[cold]
pub(crate) fn forked() -> pyo3::PyErr {
    Kind::Forked.error(
        "the pool was built in the parent of this process; build another one here, or start processes with `spawn`",
    )
}
