//! The state as text: human-readable accounting, events and localities, and the debug output of the allocator.
//!
//! Related files: `admin/snapshot.rs` defines the values, and `admin/snapshot/text.rs` prints them in Linux's formats.

use core::fmt;

use super::{Accounting, Events, Locality, NodeSnapshot, ZoneSnapshot};
use crate::Allocator;
use crate::platform::Platform;

/// Displays the equation and whether it holds: `1024 managed = 1000 free + 20 in pagesets + 4 allocated (balanced)`.
/// The alternate form (`{:#}`) omits the word in parentheses, which has no meaning while threads allocate and free.
impl fmt::Display for Accounting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { managed, free, in_pagesets, allocated } = self;
        write!(f, "{managed} managed = {free} free + {in_pagesets} in pagesets + {allocated} allocated")?;
        match (f.alternate(), self.balance()) {
            (true, _) => Ok(()),
            (false, true) => f.write_str(" (balanced)"),
            (false, false) => f.write_str(" (NOT BALANCED)"),
        }
    }
}

/// Displays `hit 5, miss 0, foreign 0, interleave hit 0, local 5, other 0`.
impl fmt::Display for Locality {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { hit, miss, foreign, interleave_hit, local, other } = self;
        write!(
            f,
            "hit {hit}, miss {miss}, foreign {foreign}, interleave hit {interleave_hit}, local {local}, other {other}"
        )
    }
}

/// Displays four lines: for zonelists, reclaim, pagesets and failures.
impl fmt::Display for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "zonelist      {}, {} marked full, wiped {}, {} cleared early",
            Counted(self.probes, "zone probed", "zones probed"),
            self.marks,
            Counted(self.wipes, "time", "times"),
            self.early_clears
        )?;
        writeln!(
            f,
            "reclaim       background woken {}, {}, {}; direct {}, {} in {} us",
            Counted(self.background_wakes, "time", "times"),
            Counted(self.background_rounds, "round", "rounds"),
            Counted(self.background_reclaimed, "frame", "frames"),
            Counted(self.direct_stalls, "time", "times"),
            Counted(self.direct_reclaimed, "frame", "frames"),
            self.direct_ns / 1000
        )?;
        writeln!(
            f,
            "node reclaim  not scanned {}, full {}, some freed {}, enough freed {}",
            self.node_reclaim_no_scan,
            self.node_reclaim_full,
            self.node_reclaim_some,
            self.node_reclaim_success
        )?;
        writeln!(
            f,
            "pagesets      refilled {}, drained {}, by other CPUs {}",
            Counted(self.refills, "time", "times"),
            Counted(self.drains, "time", "times"),
            Counted(self.remote_drains, "time", "times")
        )?;
        write!(
            f,
            "failures      {} failed, {} retired, {} changed while free",
            Counted(self.failures, "request", "requests"),
            Counted(self.retired, "frame", "frames"),
            Counted(self.poison_found, "frame", "frames")
        )
    }
}

/// Displays `node 0 Normal: 900 free, 20 in pagesets, of 1024 managed; min 5, low 6, high 7`.
impl fmt::Display for ZoneSnapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { node, kind, free, in_pagesets, managed, .. } = self;
        write!(f, "node {node} {kind}: {free} free, {in_pagesets} in pagesets, of {managed} managed; ")?;
        write!(f, "min {}, low {}, high {}", self.watermarks.min, self.watermarks.low, self.watermarks.high)
    }
}

/// Displays `node 0: allocated 4 user, 0 cache, 0 kernel; reclaimed 0 background, 0 direct, 0 node`.
impl fmt::Display for NodeSnapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [user, cache, kernel] = self.allocated;
        let [background, direct, node] = self.reclaimed;
        write!(f, "node {}: allocated {user} user, {cache} cache, {kernel} kernel; ", self.id)?;
        write!(f, "reclaimed {background} background, {direct} direct, {node} node")
    }
}

/// Formats one line with the nodes, the frame size and the current accounting.
impl<P: Platform> fmt::Debug for Allocator<'_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (nodes, bytes) = (self.state.nodes.len() as u64, self.page_bytes());
        let nodes = Counted(nodes, "node", "nodes");
        write!(f, "Allocator({nodes}, frames of {bytes} bytes, {:#})", self.accounting())
    }
}

/// A number with its noun, singular or plural.
struct Counted(u64, &'static str, &'static str);

impl fmt::Display for Counted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.0, if self.0 == 1 { self.1 } else { self.2 })
    }
}

#[cfg(test)]
mod tests {
    use std::format;
    use std::string::ToString as _;

    use super::*;
    use crate::testing::small;
    use crate::units::PageCount;
    use crate::{Config, Request};

    #[test]
    fn accounting_shows_the_equation_and_whether_it_holds() {
        let [managed, free, in_pagesets, allocated] = [1024, 1000, 20, 4].map(PageCount::new);
        let mut accounting = Accounting { managed, free, in_pagesets, allocated };
        let equation = "1024 managed = 1000 free + 20 in pagesets + 4 allocated";
        assert_eq!(accounting.to_string(), format!("{equation} (balanced)"));
        assert_eq!(format!("{accounting:#}"), equation);
        accounting.allocated = PageCount::new(3);
        assert!(accounting.to_string().ends_with("3 allocated (NOT BALANCED)"));
    }

    #[test]
    fn events_are_one_line_per_subject() {
        let events = Events { probes: 1, wipes: 2, direct_ns: 4999, failures: 1, ..Events::default() };
        let lines = [
            "zonelist      1 zone probed, 0 marked full, wiped 2 times, 0 cleared early",
            "reclaim       background woken 0 times, 0 rounds, 0 frames; direct 0 times, 0 frames in 4 us",
            "node reclaim  not scanned 0, full 0, some freed 0, enough freed 0",
            "pagesets      refilled 0 times, drained 0 times, by other CPUs 0 times",
            "failures      1 request failed, 0 frames retired, 0 frames changed while free",
        ];
        assert_eq!(events.to_string(), lines.join("\n"));
    }

    #[test]
    fn zones_nodes_and_localities_are_one_line_each() {
        let allocator = small(&Config::default(), |_| {});
        let block = allocator.alloc(&Request::page()).unwrap();
        let zone = allocator.zones().find(|zone| zone.id == block.zone).unwrap();
        let (free, cached) = (zone.free, zone.in_pagesets);
        let start = format!("node {} {}: {free} free, {cached} in pagesets, of ", zone.node, zone.kind);
        assert!(zone.to_string().starts_with(&start), "{zone}");
        let node = allocator.nodes().find(|node| node.id == block.node).unwrap();
        let text = "allocated 1 user, 0 cache, 0 kernel; reclaimed 0 background, 0 direct, 0 node";
        assert_eq!(node.to_string(), format!("node {}: {text}", block.node));
        let text = "hit 1, miss 0, foreign 0, interleave hit 0, local 1, other 0";
        assert_eq!(allocator.locality().to_string(), text);
        allocator.free(block.first, block.order).unwrap();
    }

    #[test]
    fn debug_output_of_an_allocator_is_one_short_line() {
        let allocator = small(&Config::default(), |_| {});
        let text = format!("{allocator:?}");
        let nodes = Counted(allocator.nodes().count() as u64, "node", "nodes");
        let equation = format!("{:#}", allocator.accounting());
        assert_eq!(text, format!("Allocator({nodes}, frames of 4096 bytes, {equation})"));
        assert_eq!(format!("{allocator:#?}"), text);
    }
}
