//! The allocator's state as text, in the formats of Linux's `/proc` and `/sys`.
//!
//! A text is generated from the allocator's state while it is written, so a kernel can print it without a heap. As in
//! Linux, the figures are consistent only if no thread allocates or frees meanwhile. Linux has at most one zone of a
//! kind on a node. If the allocator has several such zones, called *parts* here, the texts show them as one zone.
//!
//! Related files: `admin/snapshot/files.rs` writes the texts as files.

use core::fmt;

use super::{Locality, PagesetSnapshot, ZoneSnapshot};
use crate::Allocator;
use crate::machine::FrameRange;
use crate::platform::Platform;
use crate::rules::watermarks::Watermarks;
use crate::units::{NodeId, PageCount, ZoneKind};
use crate::zone::{CpuInfo, Zone};

/// Kinds of zone in Linux's order. The allocator has no zones of the last kind.
const KINDS: [&str; 5] = ["DMA", "DMA32", "Normal", "Movable", "Device"];
/// Width of a zone's figure names.
const NAME_WIDTH: usize = 8;

/// The state of an allocator, ready to be printed in the formats of Linux.
///
/// Figures with names of Linux have the same meaning as in Linux. Names of figures that only this allocator has begin
/// with `zonal_`.
pub struct Snapshot<'a, 'm, P: Platform>(pub(super) &'a Allocator<'m, P>);

impl<P: Platform> Clone for Snapshot<'_, '_, P> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<P: Platform> Copy for Snapshot<'_, '_, P> {}

impl<P: Platform> fmt::Debug for Snapshot<'_, '_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Snapshot").finish_non_exhaustive()
    }
}

impl<'m, P: Platform> Allocator<'m, P> {
    /// Returns the allocator's state in Linux's formats.
    pub const fn snapshot(&self) -> Snapshot<'_, 'm, P> {
        Snapshot(self)
    }
}

impl<'a, 'm, P: Platform> Snapshot<'a, 'm, P> {
    /// Returns `/proc/zoneinfo`: watermarks, reserves, counters and pagesets of each zone, in frames.
    ///
    /// Each node's first section with frames also contains the node's figures. Sections without frames contain only sizes and
    /// watermarks, which are zero, except that a movable zone without frames may have a minimum of its own. The text includes `vm stats threshold` and, as in newer kernels, `high_min` and `high_max`.
    #[must_use]
    pub fn zoneinfo(self) -> impl fmt::Display + use<'a, 'm, P> {
        Text(move |f| {
            for (place, node) in self.0.nodes().enumerate() {
                let mut node_shown = false;
                for name in KINDS {
                    let kind = ZoneKind::ALL.into_iter().find(|kind| kind.name() == name);
                    let zone = kind.and_then(|kind| self.zone(place, kind));
                    writeln!(f, "Node {}, zone {name:>NAME_WIDTH$}", node.id)?;
                    if zone.is_some_and(|zone| zone.managed > PageCount::ZERO) && !node_shown {
                        node_shown = true;
                        writeln!(f, "  per-node stats")?;
                        let reclaimed = RECLAIMED.iter().zip(node.reclaimed);
                        for (name, pages) in ALLOCATED.iter().zip(node.allocated).chain(reclaimed) {
                            writeln!(f, "      {name} {pages}")?;
                        }
                    }
                    pages(f, zone.as_ref())?;
                    if let Some(zone) = zone {
                        self.populated(f, place, &zone)?;
                    }
                }
            }
            Ok(())
        })
    }

    /// Returns `/proc/buddyinfo`: the free blocks of each zone by order, from 0 to the maximum order.
    #[must_use]
    pub fn buddyinfo(self) -> impl fmt::Display + use<'a, 'm, P> {
        Text(move |f| {
            let orders = 0..=usize::from(self.0.max_order().get());
            for (place, node) in self.node_ids().enumerate() {
                let zones = ZoneKind::ALL.into_iter().filter_map(|kind| self.zone(place, kind));
                for zone in zones.filter(|zone| zone.managed > PageCount::ZERO) {
                    write!(f, "Node {node}, zone {:>8} ", zone.kind.name())?;
                    for blocks in &zone.free_blocks[orders.clone()] {
                        write!(f, "{blocks:>6} ")?;
                    }
                    writeln!(f)?;
                }
            }
            Ok(())
        })
    }

    /// Returns `/sys/devices/system/node/nodeN/numastat`: locality of one node's blocks, counted once per block.
    ///
    /// Returns `None` if the machine has no such node.
    #[must_use]
    pub fn numastat(self, node: NodeId) -> Option<impl fmt::Display + use<'a, 'm, P>> {
        let place = self.0.state.place_of(node)?;
        Some(Text(move |f| {
            let mut sum = Locality::default();
            let zones = ZoneKind::ALL.into_iter().filter_map(|kind| self.zone(place, kind));
            zones.for_each(|zone| sum.add(&zone.locality));
            locality(f, &sum, NUMASTAT, "")
        }))
    }

    /// Returns `/proc/vmstat`: machine-wide counters of frames, blocks or events.
    #[must_use]
    pub fn vmstat(self) -> impl fmt::Display + use<'a, 'm, P> {
        Text(move |f| {
            let allocator = self.0;
            writeln!(f, "nr_free_pages {}", allocator.accounting().free)?;
            locality(f, &allocator.locality(), NUMA, "")?;
            let (mut allocated, mut reclaimed) = ([PageCount::ZERO; 3], [PageCount::ZERO; 3]);
            for node in allocator.nodes() {
                allocated.iter_mut().zip(node.allocated).for_each(|(sum, more)| *sum = sum.plus(more));
                reclaimed.iter_mut().zip(node.reclaimed).for_each(|(sum, more)| *sum = sum.plus(more));
            }
            let pages = ALLOCATED.iter().zip(allocated).chain(RECLAIMED.iter().zip(reclaimed));
            for (name, pages) in pages {
                writeln!(f, "{name} {pages}")?;
            }
            let events = allocator.events();
            for (name, count) in [
                ("pageoutrun", events.background_rounds),
                ("allocstall", events.direct_stalls),
                ("zone_reclaim_success", events.node_reclaim_success),
                ("zone_reclaim_failed", events.node_reclaim_some),
                ("zonal_node_reclaim_no_scan", events.node_reclaim_no_scan),
                ("zonal_node_reclaim_full", events.node_reclaim_full),
                ("zonal_background_wakes", events.background_wakes),
                ("zonal_direct_reclaim_ns", events.direct_ns),
                ("zonal_zones_probed", events.probes),
                ("zonal_full_bits_set", events.marks),
                ("zonal_full_bits_cleared_early", events.early_clears),
                ("zonal_zonelist_cache_wipes", events.wipes),
                ("zonal_pageset_refills", events.refills),
                ("zonal_pageset_drains", events.drains),
                ("zonal_pageset_remote_drains", events.remote_drains),
                ("zonal_frames_retired", events.retired),
                ("zonal_poison_found", events.poison_found),
                ("zonal_failures", events.failures),
            ] {
                writeln!(f, "{name} {count}")?;
            }
            Ok(())
        })
    }

    /// Returns the lines `Fallback order for Node N: ...` of a kernel log, one for each node.
    #[must_use]
    pub fn fallback_lists(self) -> impl fmt::Display + use<'a, 'm, P> {
        Text(move |f| {
            for node in self.node_ids() {
                write!(f, "Fallback order for Node {node}: ")?;
                let mut written = Ok(());
                self.0.fallback_order(node, |next| written = written.and_then(|()| write!(f, "{next} ")));
                written?;
                writeln!(f)?;
            }
            Ok(())
        })
    }

    /// Returns the node ids in ascending order.
    pub fn node_ids(self) -> impl Iterator<Item = NodeId> + use<'a, 'm, P> {
        self.0.state.nodes.iter().map(|node| node.id)
    }

    /// Returns the CPU info of all online CPUs in ascending order.
    pub(super) fn online_cpu_infos(self) -> impl Iterator<Item = CpuInfo> + use<'a, 'm, P> {
        self.0.state.cpus.iter().copied().filter(move |cpu| cpu.exists() && self.0.state.is_online(*cpu))
    }

    /// Returns the zones of one kind on the node with index `place`, which the texts show as one zone.
    fn parts(self, place: usize, kind: ZoneKind) -> impl Iterator<Item = &'a Zone<'m, P>> {
        self.0.state.node_zones(place).iter().filter(move |zone| zone.kind == kind)
    }

    /// Returns the zones of one kind on the node with index `place`, joined into one.
    fn zone(self, place: usize, kind: ZoneKind) -> Option<ZoneSnapshot> {
        let mut parts = self.parts(place, kind).map(|part| self.0.state.zone_snapshot(part));
        let mut whole = parts.next()?;
        parts.for_each(|part| whole.join(&part));
        Some(whole)
    }

    /// Writes the figures that Linux shows only for populated zones.
    fn populated(self, f: &mut fmt::Formatter<'_>, place: usize, zone: &ZoneSnapshot) -> fmt::Result {
        writeln!(f, "      {:<12} {}", "nr_free_pages", zone.free)?;
        locality(f, &zone.locality, NUMA, "      ")?;
        writeln!(f, "  pagesets")?;
        for cpu in self.online_cpu_infos() {
            let pageset = self.pageset(place, zone.kind, cpu);
            writeln!(f, "    cpu: {}", cpu.id)?;
            for (name, pages) in [
                ("count:", pageset.count),
                ("high:", pageset.high),
                ("batch:", pageset.limits.batch),
                ("high_min:", pageset.limits.high_min),
                ("high_max:", pageset.limits.high_max),
            ] {
                writeln!(f, "              {name:<9} {pages}")?;
            }
            writeln!(f, "  vm stats threshold: {}", zone.stat_threshold)?;
        }
        writeln!(f, "  node_unreclaimable:  {}", u8::from(self.0.state.nodes[place].is_unreclaimable()))?;
        writeln!(f, "  start_pfn:           {}", zone.span.start)
    }

    /// Returns a CPU's pagesets for all parts of a zone, joined into one, as far as they are shown.
    fn pageset(self, place: usize, kind: ZoneKind, cpu: CpuInfo) -> PagesetSnapshot {
        let mut parts = self.parts(place, kind).map(|part| self.0.state.pageset_snapshot(part, cpu));
        let mut whole = parts.next().expect("a zone that is shown has a part");
        for part in parts {
            whole.count = whole.count.plus(part.count);
            whole.high = whole.high.plus(part.high);
            let (limits, more) = (&mut whole.limits, part.limits);
            limits.batch = limits.batch.max(more.batch);
            limits.high_min = limits.high_min.plus(more.high_min);
            limits.high_max = limits.high_max.plus(more.high_max);
        }
        whole
    }
}

/// Writes sizes and watermarks of a zone, or zeroes if there is none.
fn pages(f: &mut fmt::Formatter<'_>, zone: Option<&ZoneSnapshot>) -> fmt::Result {
    let marks = zone.map_or_else(Watermarks::default, |zone| zone.watermarks);
    let frames = |figure: fn(&ZoneSnapshot) -> PageCount| zone.map_or(PageCount::ZERO, figure);
    writeln!(f, "  pages free     {}", frames(|zone| zone.free))?;
    for (name, pages) in [
        ("boost", PageCount::ZERO),
        ("min", marks.min),
        ("low", marks.low),
        ("high", marks.high),
        ("spanned", frames(|zone| zone.span.count)),
        ("present", frames(|zone| zone.present)),
        ("managed", frames(|zone| zone.managed)),
        ("cma", PageCount::ZERO),
    ] {
        writeln!(f, "        {name:<NAME_WIDTH$} {pages}")?;
    }
    let [dma, dma32, normal, movable] = zone.map_or([PageCount::ZERO; 4], |zone| zone.reserve);
    // Because there is no device memory, the last column repeats the column before it, as in Linux.
    writeln!(f, "        protection: ({dma}, {dma32}, {normal}, {movable}, {movable})")
}

impl ZoneSnapshot {
    /// Adds a part that has higher addresses.
    ///
    /// Frames and blocks are summed. The batch and the counter threshold are the largest of all parts.
    fn join(&mut self, part: &Self) {
        let add = |sum: &mut PageCount, more: PageCount| *sum = sum.plus(more);
        let end = part.span.end();
        let count = end.offset_from(self.span.start).unwrap_or(self.span.count);
        self.span = FrameRange { start: self.span.start, count };
        add(&mut self.present, part.present);
        add(&mut self.managed, part.managed);
        add(&mut self.free, part.free);
        add(&mut self.in_pagesets, part.in_pagesets);
        add(&mut self.watermarks.min, part.watermarks.min);
        add(&mut self.watermarks.low, part.watermarks.low);
        add(&mut self.watermarks.high, part.watermarks.high);
        self.reserve.iter_mut().zip(part.reserve).for_each(|(sum, more)| add(sum, more));
        add(&mut self.pageset_limits.high_min, part.pageset_limits.high_min);
        add(&mut self.pageset_limits.high_max, part.pageset_limits.high_max);
        self.pageset_limits.batch = self.pageset_limits.batch.max(part.pageset_limits.batch);
        self.stat_threshold = self.stat_threshold.max(part.stat_threshold);
        self.free_blocks.iter_mut().zip(part.free_blocks).for_each(|(sum, more)| *sum += more);
        self.locality.add(&part.locality);
        self.counter_folds += part.counter_folds;
    }
}

/// Names of the allocated-frame counts, by kind.
const ALLOCATED: [&str; 3] = ["zonal_nr_user", "zonal_nr_cache", "zonal_nr_kernel"];
/// Names of the counts for frames freed by background, direct and node reclaim.
const RECLAIMED: [&str; 3] = ["pgsteal_kswapd", "pgsteal_direct", "zonal_pgsteal_node_reclaim"];
/// Names of the counters for NUMA events, in zones and in the machine.
const NUMA: [&str; 6] =
    ["numa_hit", "numa_miss", "numa_foreign", "numa_interleave", "numa_local", "numa_other"];
/// Names of the same counters for nodes.
const NUMASTAT: [&str; 6] =
    ["numa_hit", "numa_miss", "numa_foreign", "interleave_hit", "local_node", "other_node"];

/// Writes the counters of NUMA events with these names, each line after `indent`.
fn locality(f: &mut fmt::Formatter<'_>, of: &Locality, names: [&str; 6], indent: &str) -> fmt::Result {
    let width = if indent.is_empty() { 0 } else { 12 };
    let counts = [of.hit, of.miss, of.foreign, of.interleave_hit, of.local, of.other];
    names.iter().zip(counts).try_for_each(|(name, blocks)| writeln!(f, "{indent}{name:<width$} {blocks}"))
}

/// A text that is generated while it is written.
pub(super) struct Text<F: Fn(&mut fmt::Formatter<'_>) -> fmt::Result>(pub(super) F);

impl<F: Fn(&mut fmt::Formatter<'_>) -> fmt::Result> fmt::Display for Text<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0(f)
    }
}
