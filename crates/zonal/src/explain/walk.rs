//! The walk of an explanation: which zones a request would try, read from the state without changing it.
//!
//! The walk follows the order of `alloc/slow.rs` up to reclaim, and the rules of a scan, `ScanRules`. It reads a list zone
//! by zone, and copies the full bits, so that it can set and clear them as the request would. A test over random states
//! holds it to real requests.

use core::sync::atomic::Ordering::Relaxed;

use crate::alloc::ScanRules;
use crate::pageset::state::MachineState;
use crate::platform::{Atomic, Platform};
use crate::reclaim::failed::Past;
use crate::request::context::AllocContext;
use crate::request::steps::{Outcome, ReclaimStep, Step, ZoneName};
use crate::rules::watermarks::Watermark;
use crate::units::ZoneKind;
use crate::zone::Zone;
use crate::zonelist::candidates::Candidates;
use crate::zonelist::{ListChanged, NO_POSITIONS, PositionMask, RESTARTS};

/// The walk of one scan.
struct Walk<'s, 'm, P: Platform> {
    state: &'s MachineState<'m, P>,
    context: &'s AllocContext<'s>,
    rules: ScanRules<'s, 'm, P>,
    watermark: Watermark,
    /// The full bits as the request would find and change them; `None` until a scan uses them.
    marks: &'s mut Option<PositionMask>,
    /// Whether the scan respects full bits: `None` until a zone fails, and false after a pass that found no zone.
    respects_bits: Option<bool>,
    /// The first zone that may serve the request.
    preferred: Option<&'m Zone<'m, P>>,
    met_marks: bool,
}

impl<'m, P: Platform> MachineState<'m, P> {
    /// Returns the zone that would serve the request without direct reclaim, and reports the steps.
    pub(super) fn walk_lists(&self, context: &AllocContext<'_>) -> Option<&'m Zone<'m, P>> {
        let mut marks = None;
        let mut walk = |context: &AllocContext<'_>, watermark| self.walk_list(context, watermark, &mut marks);
        for watermark in [Watermark::Low, Watermark::Min] {
            let mut places = context.first.iter().filter_map(|&node| self.place_of(node));
            let served = places.find_map(|target| walk(&context.only_from(target), watermark));
            if served.is_some() {
                return served;
            }
        }
        let served = walk(context, Watermark::Low).or_else(|| {
            context.report(Step::BackgroundWoken);
            walk(context, Watermark::Min)
        });
        if served.is_none() {
            if context.may_reclaim {
                context.report(Step::WouldReclaim { has_reclaimable: self.has_reclaimable(context) });
            }
            context.report(Step::PagesetsDrained { frames: self.in_allowed_pagesets(context) });
        }
        served
    }

    /// Walks a list as a scan at `watermark` would, and again if the list changes.
    fn walk_list(
        &self,
        context: &AllocContext<'_>,
        watermark: Watermark,
        marks: &mut Option<PositionMask>,
    ) -> Option<&'m Zone<'m, P>> {
        if !self.shared.zonelist_cache().is_published_form() {
            *marks = None; // the bits that a scan sets at `low` do not apply at `min`
        }
        let walk = |_| {
            let rules = ScanRules::new(self, context, watermark, Past::Heeded);
            let (marks, preferred, respects_bits, met_marks) = (&mut *marks, None, None, false);
            Walk { state: self, context, rules, watermark, marks, respects_bits, preferred, met_marks }
                .run()
                .ok()
        };
        (0..RESTARTS).find_map(walk).flatten()
    }
}

impl<'m, P: Platform> Walk<'_, 'm, P> {
    /// Walks the list, and once more without full bits if they hid a zone.
    fn run(mut self) -> Result<Option<&'m Zone<'m, P>>, ListChanged> {
        if self.rules.begins_with_cache()? {
            self.use_bits();
        }
        let served = self.walk_once()?;
        if served.is_some() || !self.met_marks {
            return Ok(served);
        }
        self.respects_bits = Some(false);
        self.walk_once()
    }

    fn walk_once(&mut self) -> Result<Option<&'m Zone<'m, P>>, ListChanged> {
        let (state, context) = (self.state, self.context);
        let list = state.lists.read(context.target);
        let (mut all, mut from) = (Candidates::new(list, ZoneKind::Movable, None), 0);
        while let Some((position, zone)) = all.next(from, None)? {
            from = position + 1;
            let zone = &state.zones[zone.index()];
            if context.strict && zone.node != context.target {
                break;
            }
            if let Some(exclusion) = context.exclusion(zone) {
                self.report_zone(zone, Outcome::NotAllowed(exclusion));
                continue;
            }
            self.preferred.get_or_insert(zone);
            if self.is_marked(position) {
                let within_ns = state.lists.full(context.target).age_ns(state.platform.now());
                self.report_zone(zone, Outcome::MarkedFull { within_ns });
                self.met_marks = true;
                continue;
            }
            let outcome = self.rules.outcome(zone);
            self.report_zone(zone, outcome);
            let serves = outcome == Outcome::Serves;
            let served = if serves { Some(zone) } else { self.explain_failure(zone, position) };
            if served.is_some() {
                return Ok(served);
            }
        }
        Ok(None)
    }

    /// Explains what a scan does with a zone that does not serve: node reclaim, as if it freed nothing, or the full bit.
    /// Returns the zone that serves after reclaim.
    fn explain_failure(&mut self, zone: &'m Zone<'m, P>, position: usize) -> Option<&'m Zone<'m, P>> {
        let mode = self.state.shared.zonelist_cache();
        if mode.consults_before_reclaim() {
            self.use_bits();
        }
        let is_marked = self.is_marked(position);
        let step = self.rules.reclaim_step(zone, self.preferred.unwrap_or(zone));
        self.met_marks |= is_marked && step.is_some();
        let step = step.map(|step| match step {
            ReclaimStep::WouldRun if !is_marked => self.state.expected_node_reclaim(zone, self.context),
            _ => ReclaimStep::FailedRecently,
        });
        if let Some(step) = step {
            self.report_zone(zone, Outcome::Reclaim(step));
        }
        // After reclaim, a scan tries every part of the memory again, even those with a full bit.
        let serves = |part: &&Zone<'m, P>| self.rules.outcome(part) == Outcome::Serves;
        if step == Some(ReclaimStep::WouldRun)
            && let Some(part) = self.state.parts_up_to(zone).iter().find(serves)
        {
            self.report_zone(part, Outcome::Serves);
            return Some(part);
        }
        let sets_bit = match step {
            Some(ReclaimStep::NotTried) => false,
            Some(ReclaimStep::TooFew) => mode.marks_unreclaimable(),
            _ => true,
        };
        if let Some(marks) = self.marks.as_mut().filter(|_| sets_bit) {
            marks[position / 64] |= 1 << (position % 64);
        }
        self.use_bits();
        None
    }

    /// Whether the scan respects full bits and that of `position` is set.
    fn is_marked(&self, position: usize) -> bool {
        let is_set = |marks: &PositionMask| marks[position / 64] & (1 << (position % 64)) != 0;
        self.respects_bits == Some(true) && self.marks.as_ref().is_some_and(is_set)
    }

    /// Makes the scan respect full bits, which are empty if a scan would wipe them.
    fn use_bits(&mut self) {
        let (None, Some(bits)) = (self.respects_bits, self.rules.bits) else { return };
        self.respects_bits = Some(true);
        let (full, now) = (self.state.lists.full(self.context.target), self.state.platform.now());
        self.marks.get_or_insert_with(|| {
            let mut marks = NO_POSITIONS;
            if !full.is_stale(now) {
                let copies = marks.iter_mut().zip(bits);
                copies.for_each(|(copy, bits)| *copy = bits.load(Relaxed)); // relaxed: full bits are hints
            }
            marks
        });
    }

    fn report_zone(&self, zone: &Zone<'m, P>, outcome: Outcome) {
        self.context.report(Step::Zone { zone: ZoneName::of(zone), watermark: self.watermark, outcome });
    }
}
