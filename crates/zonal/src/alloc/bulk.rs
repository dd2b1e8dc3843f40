//! Bulk operations on single frames, which allocate or free many frames under one acquisition of the pageset's lock.
//!
//! One run under the lock allocates the frames that the pageset holds, or frees into its free slots. When the pageset
//! is empty or full, the next frame is allocated or freed individually, which refills or drains the pageset. Related
//! files: `alloc/mod.rs` allocates and frees one block.

use crate::Allocator;
use crate::config::InvalidFree;
use crate::error::{AllocError, FreeBulkError};
use crate::pageset::session::PagesetSession;
use crate::pageset::state::MachineState;
use crate::pageset::{PagesetGuard, StackId};
use crate::platform::Platform;
use crate::platform::tracepoint::RetireCause;
use crate::platform::whole_words::WORD_FRAMES;
use crate::request::{PageKind, Request};
use crate::rules::pageset_tuning::TuningRule;
use crate::units::{Order, PageCount, Pfn};
use crate::zone::frame_state::FrameState;
use crate::zone::{CpuInfo, Zone};

impl<'m, P: Platform> Allocator<'m, P> {
    /// Allocates single frames, stores them in `frames` from its start, and returns how many were allocated.
    ///
    /// Returns less than the length of `frames` only if a later allocation fails. The rest of `frames` is then
    /// unchanged.
    ///
    /// # Errors
    /// Returns the error of [`Allocator::alloc`] if no frame can be allocated. Returns [`AllocError::NotSingle`] if the
    /// request is for blocks of more than one frame.
    pub fn alloc_bulk(&self, request: &Request<'_>, frames: &mut [Pfn]) -> Result<usize, AllocError> {
        if request.flags.order != Order::PAGE {
            return Err(AllocError::NotSingle(request.flags.order));
        }
        let mut came = 0;
        while came < frames.len() {
            if request.may_pop() {
                came += self.state.serve_bulk(request, &mut frames[came..]);
            }
            let Some(next) = frames.get_mut(came) else { break };
            match self.alloc(request) {
                Ok(block) => *next = block.first,
                Err(error) if came == 0 => return Err(error),
                Err(_) => break,
            }
            came += 1;
        }
        Ok(came)
    }

    /// Frees single frames, in order.
    ///
    /// # Errors
    /// Returns an error at the first frame that cannot be freed. The error names that frame and the number of frames
    /// freed before it. All later frames are still allocated.
    pub fn free_bulk(&self, frames: &[Pfn]) -> Result<(), FreeBulkError> {
        let mut freed = 0;
        while freed < frames.len() {
            freed += self.state.put_bulk(&frames[freed..]);
            let Some(&next) = frames.get(freed) else { break };
            self.free(next, Order::PAGE).map_err(|error| FreeBulkError { freed, error })?;
            freed += 1;
        }
        Ok(())
    }
}

impl<'m, P: Platform> MachineState<'m, P> {
    /// Allocates as many frames as the CPU's pageset holds, if the zone of this pageset suits the request.
    fn serve_bulk(&self, request: &Request<'_>, frames: &mut [Pfn]) -> usize {
        let suits = |zone: &Zone<'m, P>, cpu| {
            (request.is_plain() || request.accepts_zone(zone, cpu))
                && self.pagesets_of(zone).of(cpu).has(StackId::PAGES)
        };
        let Some(guard) = self.lock_slot_for_bulk(suits) else { return 0 };
        let (zone, kind) = (guard.zone, request.flags.kind);
        if !request.is_plain() && guard.serves_for_another() {
            return 0;
        }
        // A longer run continues after the lock was released.
        let most = guard.len(StackId::PAGES).min(guard.may_move());
        let count = most.min(u32::try_from(frames.len()).unwrap_or(u32::MAX));
        let (cached, allocated) = (FrameState::Cached(Order::PAGE), FrameState::Allocated(Order::PAGE, kind));
        let (mut left, mut came) = (count, 0);
        while left > 0 {
            let word = if left >= WORD_FRAMES as u32 { guard.whole_word_on_top() } else { None };
            let claimed = word.is_some_and(|word| zone.frames.replace_word(word, cached, allocated));
            let part = left.min(WORD_FRAMES as u32);
            // A frame that cannot be marked is the second copy of one that was freed twice.
            let claim = |&frame: &u32| claimed || zone.frames.step(frame, cached, allocated);
            for (frame, place) in guard.take_frames(part).filter(claim).zip(&mut frames[came..]) {
                *place = zone.pfn(frame);
                came += 1;
            }
            left -= part;
        }
        let moved = i64::from(count);
        guard.count_moved(count);
        guard.count_kind(kind, moved, &self.nodes[zone.node].counters);
        guard.count_hits(came as i64);
        let retired = PageCount::new(u64::from(count) - came as u64);
        if retired != PageCount::ZERO {
            self.note_retired(zone.node, RetireCause::InvalidFree, None, retired);
        }
        self.unlock_slot(&guard, moved);
        came
    }

    /// Frees frames from the start of `frames` as long as the preferred zone's pageset stays below `high`.
    ///
    /// Stops before the first frame that is not an allocated frame of that zone.
    fn put_bulk(&self, frames: &[Pfn]) -> usize {
        // One frame is freed faster on its own, so frames of two zones in turn are too.
        let begins_in = |zone: &Zone<'m, P>, _| {
            frames
                .first_chunk::<2>()
                .is_some_and(|pair| pair.iter().all(|&frame| zone.span.contains_frame(frame)))
        };
        let Some(guard) = self.lock_slot_for_bulk(begins_in) else { return 0 };
        let zone = guard.zone;
        let below_high = guard.high_now().saturating_minus(guard.count());
        // The push that reaches `high` drains the pageset, so it is not part of a bulk run.
        let free_slots = below_high.saturating_minus(PageCount::new(1)).get();
        let most = guard.free_slots(StackId::PAGES).min(guard.may_move());
        let most = u64::from(most).min(free_slots) as usize;
        let (mut freed, mut of_kinds) = (0, [0; PageKind::COUNT]);
        let run = &frames[..most.min(frames.len())];
        let holders = zone.holders();
        let run = if holders.are_kept() {
            // Another process's frame is taken over, one by one.
            let is_here =
                |frame: &&Pfn| zone.span.contains_frame(**frame) && holders.is_here(zone.offset(**frame));
            &run[..run.iter().take_while(is_here).count()]
        } else {
            run
        };
        while let Some(&first) = run.get(freed) {
            if !zone.span.contains_frame(first) {
                break;
            }
            let of_word = run[freed..]
                .first_chunk()
                .map_or(0, |word| guard.put_freed(zone, word, self.config().invalid_free));
            if of_word > 0 {
                of_kinds[PageKind::User as usize] += of_word as i64;
                freed += of_word;
                continue;
            }
            let Some(kind) = zone.frames.release(zone.offset(first), Order::PAGE, self.config().invalid_free)
            else {
                break;
            };
            if holders.are_kept() && !holders.is_here(zone.offset(first)) {
                zone.frames.mark_allocated_again(zone.offset(first), Order::PAGE, kind);
                break;
            }
            guard.push(StackId::PAGES, Order::PAGE, zone.offset(first));
            of_kinds[kind as usize] += 1;
            freed += 1;
        }
        guard.count_moved(freed as u32);
        for kind in PageKind::ALL {
            guard.count_kind(kind, -of_kinds[kind as usize], &self.nodes[zone.node].counters);
        }
        self.unlock_slot(&guard, -(freed as i64));
        freed
    }

    /// Locks the current CPU's pageset of its preferred zone for a bulk run, if it `suits` the run.
    ///
    /// Returns `None` if hardening or fault injection is configured, or tuning follows a past form, which counts each free.
    fn lock_slot_for_bulk(
        &self,
        suits: impl FnOnce(&Zone<'m, P>, CpuInfo) -> bool,
    ) -> Option<PagesetSession<'_, 'm, P>> {
        let may_run = self.is_plain() && !self.shared.tuning().is_past();
        let cpu = self.current_cpu_info().filter(|_| may_run)?;
        let zone = &self.zones[self.nodes[usize::from(cpu.node)].preferred_zone()?];
        // Before the lock: frame by frame, a run that uses another pageset comes here again.
        if !suits(zone, cpu) {
            return None;
        }
        self.own_pageset(zone, cpu).filter(|guard| !guard.is_closed())
    }

    /// Reports `moved` frames (negative for frees) to the tuning rule, and updates the limits of the fast path.
    fn unlock_slot(&self, guard: &PagesetSession<'_, '_, P>, moved: i64) {
        if moved == 0 {
            return; // the limits have not changed
        }
        // Counts the first free and ends the period of the depth rule if it is over, then counts the remaining frames.
        let first = moved.clamp(-1, 0);
        guard.account(first);
        if first < 0 && self.shared.tuning().rule() == TuningRule::Depth {
            guard.end_period();
        }
        guard.account(moved - first);
        guard.update_limits();
    }
}

impl<P: Platform> PagesetGuard<'_, P> {
    /// Frees frames of kind `User` if they are one whole word in ascending order: marks them as cached, up to the first that
    /// is not allocated, and pushes them. Returns how many were freed. The stack must have enough free slots.
    fn put_freed(&self, zone: &Zone<'_, P>, frames: &[Pfn; WORD_FRAMES], invalid_free: InvalidFree) -> usize {
        let (first, last) = (frames[0], frames[WORD_FRAMES - 1]);
        let within = zone.span.contains_frame(first) && zone.span.contains_frame(last);
        if last.get().wrapping_sub(first.get()) != WORD_FRAMES as u64 - 1 || !within {
            return 0;
        }
        let ascending = frames.iter().zip(first.get()..);
        let differences = ascending.fold(0, |all, (frame, expected)| all | frame.get() ^ expected);
        let word = zone.offset(first);
        if !word.is_multiple_of(WORD_FRAMES as u32) || differences != 0 {
            return 0;
        }
        let marked = zone.frames.mark_word_freed(word, invalid_free);
        let holders = zone.holders();
        let freed = if holders.are_kept() {
            (word..).take(marked).take_while(|&frame| holders.is_here(frame)).count()
        } else {
            marked
        };
        // Another process has taken the others over meanwhile.
        for frame in (freed..marked).map(|at| word + at as u32) {
            zone.frames.mark_allocated_again(frame, Order::PAGE, PageKind::User);
        }
        if freed > 0 {
            self.put_word(word, !0 >> (WORD_FRAMES - freed));
        }
        freed
    }
}

#[cfg(test)]
mod tests {
    use core::sync::atomic::Ordering::Relaxed;
    use std::vec::Vec;

    use super::*;
    use crate::Policy;
    use crate::config::Config;
    use crate::node_mask::NodeMask;
    use crate::platform::pageset_word::PUSH_NONE;
    use crate::testing::{Native, small};
    use crate::units::CpuId;

    /// Runs `work` and returns whether it left the preferred zone's pageset of CPU 0 alone: a session sets its limits.
    fn leaves_preferred_alone(a: &Allocator<'_, Native>, work: impl FnOnce()) -> bool {
        let cpu = a.state.cpu_info(CpuId::new(0)).unwrap();
        let limit = &a.state.pagesets[a.state.nodes[0].preferred_zone().unwrap()].of(cpu).head.push_limit;
        let before = limit.load(Relaxed);
        limit.store(PUSH_NONE, Relaxed);
        work();
        let is_alone = limit.load(Relaxed) == PUSH_NONE;
        limit.store(before, Relaxed);
        is_alone
    }

    /// Allocates 200 single frames at once.
    fn some(a: &Allocator<'_, Native>, request: &Request<'_>) -> Vec<Pfn> {
        let mut frames = std::vec![Pfn::new(0); 200];
        assert_eq!(a.alloc_bulk(request, &mut frames), Ok(200));
        frames
    }

    #[test]
    fn bulk_calls_lock_only_the_pageset_that_they_use() {
        let a = small(&Config::default(), |_| {});
        let other = NodeMask::from_iter([a.state.nodes[1].id]);
        let policy = Policy::interleave(&a, other).unwrap();
        let requests = [Request::page().policy(&policy), Request::page().allowed(&other)];
        a.free_bulk(&some(&a, &Request::page())).unwrap();
        for request in requests {
            let mut frames = Vec::new();
            assert!(leaves_preferred_alone(&a, || frames = some(&a, &request)));
            let own = some(&a, &Request::page());
            let in_turn: Vec<Pfn> = frames.iter().zip(&own).flat_map(|(&other, &own)| [other, own]).collect();
            assert!(leaves_preferred_alone(&a, || assert_eq!(a.state.put_bulk(&in_turn), 0)));
            assert!(leaves_preferred_alone(&a, || assert_eq!(a.state.put_bulk(&in_turn[1..]), 0)));
            a.free_bulk(&in_turn[..100]).unwrap();
            a.free_bulk(&own[50..]).unwrap();
            assert!(leaves_preferred_alone(&a, || a.free_bulk(&frames[50..]).unwrap()));
        }
        assert!(!leaves_preferred_alone(&a, || a.free_bulk(&some(&a, &Request::page())).unwrap()));
    }

    #[test]
    fn an_empty_run_leaves_the_limits_alone() {
        let a = small(&Config::default(), |_| {});
        let zone = &a.state.zones[a.state.nodes[0].preferred_zone().unwrap()];
        let mut none = [Pfn::new(0); 2];
        assert!(leaves_preferred_alone(&a, || assert_eq!(
            a.state.serve_bulk(&Request::page(), &mut none),
            0
        )));
        let frames = some(&a, &Request::page());
        a.free_bulk(&frames).unwrap();
        // The frames are free, so the run ends before them.
        assert!(zone.span.start <= frames[0] && frames[0] < zone.span.end());
        assert!(leaves_preferred_alone(&a, || assert_eq!(a.state.put_bulk(&frames[..2]), 0)));
    }
}
