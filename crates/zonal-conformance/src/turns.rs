//! Turns of two jobs: only the job whose turn it is goes on.
//!
//! A job gives its turn away at one chosen access, wherever it waits for the other job's CPU, between its calls, and at
//! its end. The interleaving is therefore always the same for the same accesses.
//!
//! Related files: `duel.rs` runs the jobs.

use core::cell::Cell;
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use zonal::Platform;
use zonal::units::CpuId;

use crate::harness::{Event, Harness};

/// One of the two jobs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Side {
    A,
    B,
}

impl Side {
    pub(crate) const fn other(self) -> Self {
        match self {
            Self::A => Self::B,
            Self::B => Self::A,
        }
    }
}

/// The turns of two jobs.
pub(crate) struct Turns {
    holder: AtomicU32,
    /// Whether a job has ended, by [`Side`].
    ended: [AtomicU32; 2],
    /// Whether a job makes a call, by [`Side`]. Between its calls, it answers other CPUs and holds no lock.
    is_inside: [AtomicU32; 2],
    /// Whether a job has given its turn because it waits for the other job's CPU.
    waits: [AtomicU32; 2],
}

impl Turns {
    pub(crate) const fn new(first: Side) -> Self {
        let [ended, is_inside, waits] = [const { [const { AtomicU32::new(0) }; 2] }; 3];
        Self { holder: AtomicU32::new(first as u32), ended, is_inside, waits }
    }

    fn wait(&self, me: Side, wait: impl Fn()) {
        // Acquire: takes the other job's writes; pairs with `give`, `end`.
        while self.holder.load(Acquire) != me as u32 {
            wait();
        }
    }

    /// Lets the other job go on until it gives the turn back. Calls `wait` meanwhile.
    fn give(&self, me: Side, wait: impl Fn()) {
        // Relaxed: the other job has ended before it gave its last turn.
        if self.ended[me.other() as usize].load(Relaxed) == 0 {
            // Release: publishes this job's writes; pairs with `wait`.
            self.holder.store(me.other() as u32, Release);
            self.wait(me, wait);
        }
    }

    /// Lets the other job go on if it makes a call, because this one waits for its CPU.
    fn give_to_wait(&self, me: Side, wait: impl Fn()) {
        // Relaxed, as below: ordered by the turns.
        if self.is_inside[me.other() as usize].load(Relaxed) == 1 {
            self.waits[me as usize].store(1, Relaxed);
            self.give(me, wait);
            self.waits[me as usize].store(0, Relaxed);
        }
    }

    /// Pauses in the middle of an operation, unless the other job waits for its end.
    fn pause(&self, me: Side, wait: impl Fn()) {
        if self.waits[me.other() as usize].load(Relaxed) == 0 {
            self.give(me, wait);
        }
    }

    fn end(&self, me: Side) {
        self.ended[me as usize].store(1, Relaxed); // relaxed: ordered by the store below
        // Release: publishes this job's writes; pairs with `wait`.
        self.holder.store(me.other() as u32, Release);
    }
}

/// Ends a job's turns when it is dropped, also by a panic, so that the other job goes on.
struct Ending<'t>(&'t Turns, Side);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.end(self.1);
    }
}

/// Makes a job's calls, which `call` makes by number, in turns with the other job, which runs on CPU `other`. The job
/// pauses before its access number `pause`, counted from 1. Returns the number of its accesses.
pub(crate) fn take_turns<H: Harness>(
    (turns, me): (&Turns, Side),
    (harness, platform): (&H, &H::Platform),
    (pause, other): (u32, CpuId),
    (calls, call): (usize, &dyn Fn(usize)),
) -> u32 {
    let answer = || platform.relax(0);
    turns.wait(me, answer);
    let _ending = Ending(turns, me);
    let (accesses, is_in_hook) = (Cell::new(0), Cell::new(false));
    let hook = |event| {
        if is_in_hook.replace(true) {
            return; // `relax` in the hook waits, too
        }
        match event {
            Event::Access => {
                accesses.set(accesses.get() + 1);
                if accesses.get() == pause {
                    turns.pause(me, || harness.spin());
                }
            }
            Event::Waits(of) if of.is_none_or(|cpu| cpu == other) => turns.give_to_wait(me, answer),
            Event::Waits(_) | Event::Locks | Event::Unlocks => {}
        }
        is_in_hook.set(false);
    };
    for at in 0..calls {
        turns.is_inside[me as usize].store(1, Relaxed);
        harness.watch(&mut || call(at), &hook).expect("it was supported before");
        turns.is_inside[me as usize].store(0, Relaxed);
        turns.give(me, answer);
    }
    accesses.get()
}
