//! Memory pressure: reports to the embedder when a node is short of frames, when callers stall, and when requests fail.
//!
//! Only slow paths and the tick detect pressure, and they hold no lock when they report it. Each process that shares
//! the allocator reports what its own calls detect. Related files: `platform/pressure.rs` defines the events, `zone/stalls.rs`
//! measures stalls.

use core::sync::atomic::Ordering::Relaxed;

use crate::Allocator;
use crate::pageset::state::MachineState;
use crate::platform::pressure::{PressureEvent, PressureKind, StallShares};
use crate::platform::{Atomic, Platform};
use crate::request::context::AllocContext;
use crate::units::{NodeId, PageCount, SECOND_NS};
use crate::zone::Zone;

/// Time between two events of one kind on one node.
const INTERVAL_NS: u64 = SECOND_NS;

impl<'m, P: Platform> Allocator<'m, P> {
    /// Returns the shares of the recent time in which direct reclaim stalled callers that prefer `node`, or `None` if the
    /// machine has no such node.
    ///
    /// [`Platform::pressure`] receives events.
    ///
    /// ```
    /// # use zonal::machine::{FrameRange, NodeDescription, ZoneDescription};
    /// # use zonal::platform::one_thread::OneThread;
    /// # use zonal::units::{CpuId, NodeId, PageCount, Pfn, ZoneKind};
    /// # use zonal::{Allocator, Buffer, Config, Machine};
    /// # let id = NodeId::new(0).unwrap();
    /// # let memory = FrameRange { start: Pfn::new(0x1000), count: PageCount::new(0x4000) };
    /// # let nodes = [NodeDescription { id, cpus: &[CpuId::new(0)], distances: &[10] }];
    /// # let zones = [ZoneDescription { node: id, kind: ZoneKind::Normal, span: memory, managed: &[memory] }];
    /// # let machine = Machine::new(&nodes, &zones)?;
    /// # let metadata = |bytes| Buffer::uninit(Box::leak(vec![std::mem::MaybeUninit::uninit(); bytes].into_boxed_slice()));
    /// # let allocator = Allocator::new(OneThread::new(), &machine, &Config::default(), |r| Some(metadata(r.bytes)))?;
    /// let stalled = allocator.stall_shares(id).expect("the machine has this node");
    /// assert_eq!(stalled.last_60s, 0); // in hundredths of a percent
    /// assert_eq!(stalled.to_string(), "avg10=0.00 avg60=0.00 avg300=0.00");
    /// # Ok::<(), Box<dyn core::error::Error>>(())
    /// ```
    #[must_use]
    pub fn stall_shares(&self, node: NodeId) -> Option<StallShares> {
        let place = self.state.place_of(node)?;
        Some(self.state.nodes[place].cells.stalls.0.shares(self.state.platform.now()))
    }

    /// Returns an event of `kind` with the node's present state, or `None` if the machine has no such node.
    #[must_use]
    pub fn pressure_event(&self, node: NodeId, kind: PressureKind) -> Option<PressureEvent> {
        Some(self.state.event(self.state.place_of(node)?, kind))
    }
}

impl<'m, P: Platform> MachineState<'m, P> {
    /// Reports nodes that are above `high` again.
    pub(crate) fn report_recovered(&self) {
        (0..self.nodes.len()).for_each(|place| self.report_if_recovered(place));
    }

    /// Reports the nodes of a request that are below `low`.
    pub(crate) fn report_low(&self, context: &AllocContext<'_>) {
        if !P::RECLAIMS {
            return;
        }
        let nodes = self.allowed_nodes(context);
        for (place, node) in self.nodes.iter().enumerate().filter(|(_, node)| nodes.contains(node.id)) {
            let is_low =
                |zone: &Zone<'m, P>| zone.managed() != PageCount::ZERO && zone.free() < zone.watermarks().low;
            // Relaxed: only the exchange decides which caller reports.
            if node.own.is_low.load(Relaxed) == 0
                && self.node_zones(place).iter().any(is_low)
                && self.may_report(place, PressureKind::BelowLow)
                && node.own.is_low.swap(1, Relaxed) == 0
            {
                self.report(place, PressureKind::BelowLow);
            }
        }
    }

    /// Reports a node if all its zones are above `high` after one was below `low`. If the last such report is less than a
    /// second old, a later tick reports it.
    pub(super) fn report_if_recovered(&self, place: usize) {
        let is_low = &self.nodes[place].own.is_low;
        let is_high =
            |zone: &Zone<'m, P>| zone.managed() == PageCount::ZERO || zone.free() > zone.watermarks().high;
        // Relaxed: as in `report_low`.
        if P::RECLAIMS
            && is_low.load(Relaxed) != 0
            && self.node_zones(place).iter().all(is_high)
            && self.may_report(place, PressureKind::AboveHigh)
            && is_low.swap(0, Relaxed) != 0
        {
            self.report(place, PressureKind::AboveHigh);
        }
    }

    /// Reports an event, unless one of this kind was reported for the node in the last second.
    pub(crate) fn report_sometimes(&self, place: usize, kind: PressureKind) {
        if P::RECLAIMS && self.may_report(place, kind) {
            self.report(place, kind);
        }
    }

    /// Whether no event of this kind was reported for the node in the last second. If so, this call counts as the next event.
    fn may_report(&self, place: usize, kind: PressureKind) -> bool {
        let now = self.platform.now().ns();
        // The time of the last event + 1; 0 if there was none. Relaxed: only the exchange decides which caller reports.
        let cell = &self.nodes[place].own.reported_at[kind as usize];
        let last = cell.load(Relaxed);
        // A clock that was set back ends the interval.
        let is_over = last == 0 || now < last - 1 || now - (last - 1) >= INTERVAL_NS;
        is_over && cell.compare_exchange(last, now.saturating_add(1), Relaxed, Relaxed).is_ok()
    }

    fn report(&self, place: usize, kind: PressureKind) {
        self.platform.pressure(&self.event(place, kind));
    }

    fn event(&self, place: usize, kind: PressureKind) -> PressureEvent {
        let (node, zones) = (&self.nodes[place], self.node_zones(place));
        let sum = |of: fn(&Zone<'m, P>) -> PageCount| zones.iter().map(of).sum();
        PressureEvent {
            node: node.id,
            kind,
            free: sum(Zone::free),
            low: sum(|zone| zone.watermarks().low),
            high: sum(|zone| zone.watermarks().high),
            stalled: node.cells.stalls.0.shares(self.platform.now()),
        }
    }
}
