//! Invariants that are checked during every run and at its end.
//!
//! [`Owners`] records for each frame whether a program holds it. With this record, the run detects an allocation of an
//! already allocated frame and a free that finds its frame free. At the end of a run the accounting must balance. A
//! failed check stops the run and reports the operation that detected the failure. Related files: `system.rs` calls
//! these checks on each operation.

use std::any::Any;
use std::cell::Cell;

use thiserror::Error;
use zonal::machine::FrameRange;
use zonal::units::Pfn;
use zonal_machine::MachineModel;

use crate::sim::Time;
use crate::zeroed::Zeroed;

/// The operation that a run was executing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Operation {
    /// Sequence number in the run, from 1.
    pub number: u64,
    /// Index of the thread that executed the operation.
    pub thread: usize,
    /// ID of the CPU that the thread ran on.
    pub cpu: usize,
    /// Virtual time of the operation.
    pub at: Time,
}

/// A failed check.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("operation {} (thread {} on CPU {}, at {}): {what}", operation.number, operation.thread, operation.cpu, operation.at)]
pub struct Fault {
    /// The operation that detected the violation.
    pub operation: Operation,
    /// Description of the violation.
    pub what: String,
}

/// Returns the text of a panic payload: a [`Fault`] or a panic message.
#[must_use]
pub fn panic_text(payload: &(dyn Any + Send)) -> String {
    if let Some(fault) = payload.downcast_ref::<Fault>() {
        return fault.to_string();
    }
    let text = payload.downcast_ref::<&str>().copied();
    let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    format!("panicked: {}", text.unwrap_or("without a message"))
}

/// The set of frames that programs hold.
///
/// Invariant: `held` = number of bits set in `taken`.
pub struct Owners {
    /// One bit for each frame, set while a program holds it.
    taken: Zeroed,
    held: Cell<u64>,
}

impl Owners {
    /// Creates the set for `machine`, with no frame held.
    #[must_use]
    pub fn new(machine: &MachineModel) -> Self {
        let end = machine.zones.iter().map(|zone| zone.start.get() + zone.spanned.get()).max();
        Self { taken: Zeroed::new(end.unwrap_or(0).div_ceil(64) as usize), held: Cell::new(0) }
    }

    /// Records that a program allocated a block.
    ///
    /// # Errors
    /// Returns the first frame of the block that a program already holds or that is beyond the machine's
    /// memory.
    pub fn take(&self, frames: &FrameRange) -> Result<(), Pfn> {
        self.change(frames, |word, bit| (word & bit == 0).then_some(word | bit))?;
        self.held.set(self.held.get() + frames.count.get());
        Ok(())
    }

    /// Records that a program freed a block.
    ///
    /// # Errors
    /// Returns the first frame of the block that no program holds or that is beyond the machine's memory.
    pub fn give(&self, frames: &FrameRange) -> Result<(), Pfn> {
        self.change(frames, |word, bit| (word & bit != 0).then_some(word & !bit))?;
        self.held.set(self.held.get() - frames.count.get());
        Ok(())
    }

    #[inline]
    fn change(&self, frames: &FrameRange, change: impl Fn(u64, u64) -> Option<u64>) -> Result<(), Pfn> {
        for frame in frames.start.get()..frames.end().get() {
            let word = self.taken.get((frame / 64) as usize).ok_or(Pfn::new(frame))?;
            word.set(change(word.get(), 1 << (frame % 64)).ok_or(Pfn::new(frame))?);
        }
        Ok(())
    }

    /// Returns the number of frames that programs hold.
    #[must_use]
    pub fn held(&self) -> u64 {
        self.held.get()
    }

    /// Returns how many frames of a range programs hold.
    #[must_use]
    pub fn held_in(&self, frames: &FrameRange) -> u64 {
        let word = |frame: u64| self.taken.get((frame / 64) as usize).map_or(0, Cell::get);
        let all = frames.start.get()..frames.end().get();
        all.map(|frame| word(frame) >> (frame % 64) & 1).sum()
    }
}
