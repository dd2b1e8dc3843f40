//! What must hold in every run, looked at while it runs and at its end.
//!
//! *Owners* knows of each frame whether a program has it: no frame is handed out twice, and none is
//! taken back that nobody has. At the end all books must balance. A check that fails stops the run
//! with the operation that it noticed it at. Neighbours: `hands.rs` calls this at each operation.

use std::any::Any;
use std::cell::Cell;

use bytemuck::zeroed_slice_box;
use thiserror::Error;
use zonal::Block;
use zonal::units::Pfn;
use zonal_machine::MachineModel;

use crate::sim::Time;

/// What a run was doing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Operation {
    /// Its number, from 1 in the order of the run.
    pub number: u64,
    /// The thread.
    pub thread: usize,
    /// Its CPU.
    pub cpu: usize,
    /// When.
    pub at: Time,
}

/// A check that failed.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("operation {} (thread {} on CPU {}, at {}): {what}", operation.number, operation.thread, operation.cpu, operation.at)]
pub struct Fault {
    /// When it was noticed.
    pub operation: Operation,
    /// What is wrong.
    pub what: String,
}

/// Returns what a panic says: the text of a [`Fault`], or any other message.
#[must_use]
pub fn panic_text(payload: &(dyn Any + Send)) -> String {
    if let Some(fault) = payload.downcast_ref::<Fault>() {
        return fault.to_string();
    }
    let text = payload.downcast_ref::<&str>().copied();
    let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
    format!("panicked: {}", text.unwrap_or("without a message"))
}

/// Which frames programs have.
pub struct Owners {
    /// A bit for each frame.
    taken: Box<[Cell<u64>]>,
    held: Cell<u64>,
}

impl Owners {
    /// Nobody has anything of this machine.
    #[must_use]
    pub fn new(machine: &MachineModel) -> Self {
        let end = machine.zones.iter().map(|zone| zone.start.get() + zone.spanned.get()).max();
        Self { taken: zeroed_slice_box(end.unwrap_or(0).div_ceil(64) as usize), held: Cell::new(0) }
    }

    /// A program gets a block.
    ///
    /// # Errors
    /// The first frame that somebody has already.
    pub fn take(&self, block: &Block) -> Result<(), Pfn> {
        self.change(block.first, block.order.pages().get(), |word, bit| {
            (word & bit == 0).then_some(word | bit)
        })?;
        self.held.set(self.held.get() + block.order.pages().get());
        Ok(())
    }

    /// A program gives a block back.
    ///
    /// # Errors
    /// The first frame that nobody has.
    pub fn give(&self, block: &Block) -> Result<(), Pfn> {
        self.change(block.first, block.order.pages().get(), |word, bit| {
            (word & bit != 0).then_some(word & !bit)
        })?;
        self.held.set(self.held.get() - block.order.pages().get());
        Ok(())
    }

    #[inline]
    fn change(&self, first: Pfn, count: u64, change: impl Fn(u64, u64) -> Option<u64>) -> Result<(), Pfn> {
        for frame in first.get()..first.get() + count {
            let word = self.taken.get((frame / 64) as usize).ok_or(Pfn::new(frame))?;
            word.set(change(word.get(), 1 << (frame % 64)).ok_or(Pfn::new(frame))?);
        }
        Ok(())
    }

    /// Frames that programs have.
    #[must_use]
    pub fn held(&self) -> u64 {
        self.held.get()
    }
}
