//! Handovers: a process that frees or takes over a block of another process becomes its holder first.
//!
//! A process counts the frames that it holds, and they are given back when it dies. So before it frees another process's
//! block, it becomes the holder, under the node's handover lock, and counts move with the block. What is to be stored is
//! written before the first change, and the exchange of the first frame's state to `Claimed` decides: if a process dies
//! during a handover, the next holder of the lock finishes a decided handover and drops another. Related files:
//! `zone/processes.rs` has the holders, `alloc/release.rs` claims frees.

use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::Allocator;
use crate::error::FreeError;
use crate::pageset::state::MachineState;
use crate::platform::lock::Held;
use crate::platform::{Atomic, Platform};
use crate::units::{PageCount, Pfn};
use crate::zone::Zone;
use crate::zone::counters::{Item, ZoneItem};
use crate::zone::frame_state::FrameState;
use crate::zone::node::Node;
use crate::zone::processes::HandoverCells;
use crate::zone::runs::Run;

impl<'m, P: Platform> Allocator<'m, P> {
    /// Makes this process the holder of `count` frames that were allocated together, from `first`, by this or another
    /// process; they are then not given back when that process dies.
    ///
    /// Does nothing unless processes share the allocator ([`Config::processes`](crate::Config::processes)).
    ///
    /// # Errors
    /// Returns an error if exactly these frames are not allocated together, or if the call would have to wait for the caller's
    /// own thread. Nothing has changed then.
    pub fn take_over(&self, first: Pfn, count: PageCount) -> Result<(), FreeError> {
        let (zone, run) = self.state.run_of(first, count)?;
        if zone.holders().are_kept() && self.state.platform.is_reentered() {
            return Err(FreeError::Reentered(first));
        }
        let found = self.state.take_over(zone, run);
        found.map_err(|state| self.state.run_refusal(zone, first, count, state))
    }
}

impl<'m, P: Platform> MachineState<'m, P> {
    /// Claims a block or run for this process by `claim`, after it has become its holder; `undo` reverts a claim.
    ///
    /// Another process may take the block over between the two, so the holder is checked again after the claim, which no
    /// handover follows.
    ///
    /// # Errors
    /// Those of `claim`, and the first frame's state if exactly these frames are not allocated together.
    #[inline(always)]
    pub(crate) fn claim_here<T: Copy>(
        &self,
        zone: &Zone<'m, P>,
        run: Run,
        claim: impl Fn() -> Result<T, FrameState>,
        undo: impl Fn(T),
    ) -> Result<T, FrameState> {
        let holders = zone.holders();
        let is_here = || !holders.are_kept() || holders.is_here(run.first);
        loop {
            if !is_here() {
                if self.must_wait_for_handover(zone, run.first) {
                    return Err(zone.frames.state(run.first)); // it was here when the handler began
                }
                self.take_over(zone, run)?;
            }
            let claimed = claim()?;
            if is_here() {
                return Ok(claimed);
            }
            undo(claimed);
        }
    }

    /// Whether a handler may not claim the block at `frame`, because it would have to wait for the handover lock.
    #[inline]
    pub(crate) fn must_wait_for_handover(&self, zone: &Zone<'m, P>, frame: u32) -> bool {
        zone.holders().are_kept() && !zone.holders().is_here(frame) && self.platform.is_reentered()
    }

    /// Makes this process the holder of an allocated block or run.
    ///
    /// # Errors
    /// Returns the state of the first frame if exactly these frames are not allocated together.
    #[cold]
    #[inline(never)]
    fn take_over(&self, zone: &Zone<'m, P>, run: Run) -> Result<(), FrameState> {
        let (holders, node) = (zone.holders(), &self.nodes[zone.node]);
        let Some(cells) = node.handover.filter(|_| P::IS_SHARED) else { return Ok(()) };
        loop {
            let _held = self.handover(node, cells);
            let (state, from) = (zone.frames.state(run.first), holders.of(run.first));
            let (FrameState::Allocated(_, kind) | FrameState::RunHead(_, kind)) = state else {
                return Err(state);
            };
            let Some(totals) = usize::from(from).checked_sub(1).and_then(|at| zone.by_process.get(at)) else {
                return Err(zone.frames.state(run.first)); // it was freed meanwhile
            };
            if from == holders.process {
                return if zone.frames.block_or_run_at(run.first) == Some(run) { Ok(()) } else { Err(state) };
            }
            let lane = kind.item().lane();
            let allocated = node.by_process[usize::from(from) - 1].moved.0[lane].load(Relaxed);
            let free = totals.moved.0[ZoneItem::Free.lane()].load(Relaxed);
            let values = [
                run.first.into(),
                run.count,
                state.encode().into(),
                from.into(),
                holders.process.into(),
                lane as u64,
                free.wrapping_add(run.count),
                allocated.wrapping_sub(run.count),
            ];
            // Relaxed: the next store publishes them.
            cells.intent.iter().zip(values).for_each(|(cell, value)| cell.store(value, Relaxed));
            // Release: publishes the values; pairs with `MachineState::finish_handover`.
            cells.zone.store(zone.id.index() as u64 + 1, Release);
            let claimed = claim(zone, run, state);
            if claimed.is_err() || holders.is_here(run.first) {
                // If it is here, another thread of this process has allocated it meanwhile. Its state comes before the intent ends.
                if claimed.is_ok() {
                    zone.frames.set(run.first, state);
                }
                cells.zone.store(0, Release); // Release: publishes the state; pairs with `MachineState::finish_handover`.
                claimed?;
                continue;
            }
            if self.finish_handover(node, cells) {
                // These are counts of this process, which are dropped if it dies before they are right.
                zone.counters().add_total(ZoneItem::Free, -(run.count as i64));
                node.counters.add_total(kind.item(), run.count as i64);
                return Ok(());
            }
            // The holder changed before the block was claimed.
        }
    }

    /// Waits for a node's handover lock; finishes the handover that a process died in.
    pub(super) fn handover<'a>(&self, node: &Node<'m, P>, cells: &'a HandoverCells<P>) -> Held<'a, P::Lock> {
        let held = Held::wait(&cells.lock.0);
        held.repair_with(|| _ = self.finish_handover(node, cells));
        held
    }

    /// Stores what a handover has decided to store, or drops a handover that had not decided; the caller holds the lock. Returns
    /// whether the block has changed hands.
    ///
    /// Between the moments at which a handover reads the holder and claims the block, the block may be freed and allocated by
    /// another process. Such a handover is dropped, too.
    fn finish_handover(&self, node: &Node<'m, P>, cells: &HandoverCells<P>) -> bool {
        // Acquire: takes the values; pairs with `MachineState::take_over`.
        let Some(zone) = (cells.zone.load(Acquire) as usize).checked_sub(1) else { return false };
        let zone = &self.zones[zone];
        let [first, count, state, from, to, lane, free, allocated] =
            cells.intent.each_ref().map(|cell| cell.load(Relaxed));
        let (first, from, to) = (first as u32, from as usize - 1, to as u8);
        let is_claimed = zone.frames.state(first) == FrameState::Claimed;
        let holder = zone.holders().of(first);
        let is_first = is_claimed && usize::from(holder) == from + 1;
        if is_first {
            let moved = &zone.by_process[from].moved.0[ZoneItem::Free.lane()];
            moved.store(free, Relaxed);
            let moved = &node.by_process[from].moved.0[lane as usize];
            moved.store(allocated, Relaxed);
        }
        // If the first frame is that of `to`, the counts are stored, or another thread of `to` has allocated the block.
        let is_decided = is_first || is_claimed && holder == to;
        if is_decided {
            zone.holders().set(first, count, to);
        }
        // The state before the intent ends, so that no block stays `Claimed`. An intent whose block is not is dropped.
        if is_claimed {
            zone.frames.set(first, FrameState::decode(state as u8));
        }
        // Release: publishes the holders to a process that takes the lock over; pairs with `MachineState::finish_handover`.
        cells.zone.store(0, Release);
        is_decided
    }
}

/// Claims an allocated block or run, whose first frame has `state`, for a handover.
///
/// # Errors
/// Returns the first frame's state if exactly these frames are not allocated together any more.
fn claim<P: Platform>(zone: &Zone<'_, P>, run: Run, state: FrameState) -> Result<(), FrameState> {
    let exchange = || zone.frames.exchange(run.first, state, FrameState::Claimed);
    let exchange_whole =
        || if zone.frames.block_or_run_at(run.first) == Some(run) { exchange() } else { Err(state) };
    match state {
        // A free or split of a run checks the run's states and changes them under the area's lock.
        FrameState::RunHead(..) => zone.free_areas.with_lock_of(run.first, exchange_whole),
        _ => exchange_whole(),
    }
}
