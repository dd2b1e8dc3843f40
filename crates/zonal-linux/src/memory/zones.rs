//! The memory of a pool: one mapping for each zone, and the way between frames and addresses.
//!
//! A frame's number is its address divided by the page size: both ways are arithmetic, and frames
//! of different pools never look alike. Neighbours: `mapping.rs` talks to the kernel, `plan.rs`
//! says how large zones are, `pool/platform.rs` shows frame contents to the allocator.

use std::io;
use std::ptr::NonNull;

use zonal::machine::FrameRange;
use zonal::platform::FrameContents;
use zonal::units::{NodeId, Order, PageCount, Pfn, ZoneKind};

use super::mapping::{Backing, Mapping, Transparent};
use super::page_sizes::HUGE_PAGE_BYTES;
use super::plan::ZonePlan;
use super::promised::Promised;
use crate::error::{PoolError, Warning, Warnings};

/// Zones start aligned for blocks of at least this order: the core's metadata of a zone begins there.
const ALIGN_ORDER: u8 = 12;

/// Which huge pages back a pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum HugePages {
    /// None, not even where the kernel would use them unasked.
    Never,
    /// Those that the kernel puts together by itself.
    #[default]
    Transparent,
    /// Those of the kernel's reserve (`vm.nr_hugepages`), taken at once; transparent ones where the
    /// reserve does not suffice, with a [`Warning`].
    ///
    /// A child made by `fork` gets no copy of them: the reserve is promised to its parent alone. Any access there
    /// ends the child by `SIGSEGV`, [`Pool::ptr_of`](crate::Pool::ptr_of) gives `None`, and taking frames as
    /// memory panics. Handles may be dropped. In children made past the C library's `fork`, by `_Fork` or the
    /// bare system call, and in those that may have no more addresses (`RLIMIT_AS` was lowered), the addresses of
    /// frames that are held already may come to be of other memory. A handler for
    /// children that the program set up (`pthread_atfork`) before its first such pool must not map memory that it
    /// keeps: where that takes the place of the pool's, the child is ended.
    Explicit,
}

/// Whether memory is bound to its node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Binding {
    /// Zones lie on the nodes they belong to.
    ToNodes,
    /// There is nothing to choose: one node, or emulated ones.
    None,
}

/// How zones are to be mapped.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Manner {
    pub(crate) page_bytes: u32,
    pub(crate) max_order: Order,
    pub(crate) huge_pages: HugePages,
    pub(crate) binding: Binding,
}

/// One zone's memory. Invariant: `range` covers the mapping's first `range.count` pages.
#[derive(Debug)]
pub(crate) struct ZoneMemory {
    pub(crate) node: NodeId,
    pub(crate) kind: ZoneKind,
    pub(crate) range: FrameRange,
    pub(crate) mapping: Mapping,
    /// Whether the mapping has been backed already.
    pub(crate) populated: bool,
}

/// Where a range begins and ends, in whole pieces of the kernel's memory within its zone.
struct Parts {
    first: FrameRange,
    last: FrameRange,
}

/// All memory of a pool.
#[derive(Debug)]
pub(crate) struct PoolMemory {
    page_bytes: usize,
    /// As planned: ascending by node and kind.
    zones: Box<[ZoneMemory]>,
    /// Places in `zones`, ascending by address.
    by_address: Box<[u16]>,
    /// Whether all was backed before use, and what comes back is to be, too.
    pub(crate) is_prefaulted: bool,
    /// Of what is not backed from the start.
    _promised: Promised,
}

impl PoolMemory {
    /// Address of a frame of this pool; `None` in a child made by `fork` that has no copy of it.
    #[inline]
    pub(crate) fn pointer(&self, frame: Pfn) -> Option<NonNull<u8>> {
        let zone = self.zone_of(frame).filter(|zone| !zone.mapping.is_gap())?;
        let offset = self.bytes(frame.offset_from(zone.range.start)?);
        // SAFETY: `zone_of` found the frame inside the zone's range, which the mapping covers.
        Some(unsafe { zone.mapping.base().add(offset) })
    }

    /// The frame that holds `address`.
    pub(crate) fn frame(&self, address: *const u8) -> Option<Pfn> {
        let frame = Pfn::new((address as usize / self.page_bytes) as u64);
        self.zone_of(frame).map(|_| frame)
    }

    #[inline]
    fn zone_of(&self, frame: Pfn) -> Option<&ZoneMemory> {
        let start = |at: u16| self.zones[usize::from(at)].range.start;
        let last = self.by_address.partition_point(|&at| start(at) <= frame).checked_sub(1)?;
        let zone = &self.zones[usize::from(self.by_address[last])];
        (frame < zone.range.end()).then_some(zone)
    }

    /// Maps what is planned.
    pub(crate) fn map(
        plans: &[ZonePlan],
        manner: Manner,
        warnings: &mut Warnings,
    ) -> Result<Self, PoolError> {
        let zones = plans.iter().map(|plan| ZoneMemory::map(plan, manner, warnings));
        let zones: Box<[_]> = zones.collect::<Result<_, _>>()?;
        let mut by_address: Box<[u16]> = (0..zones.len() as u16).collect();
        by_address.sort_by_key(|&at| zones[usize::from(at)].range.start);
        let page_bytes = manner.page_bytes as usize;
        let unbacked = zones.iter().filter(|zone| !zone.populated);
        let _promised = Promised::count(unbacked.map(|zone| {
            let start = zone.mapping.base().as_ptr().addr();
            start..start + zone.range.count.get() as usize * page_bytes
        }));
        Ok(Self { page_bytes, zones, by_address, is_prefaulted: false, _promised })
    }

    /// The zones, as planned.
    pub(crate) fn zones(&self) -> &[ZoneMemory] {
        &self.zones
    }

    /// Bytes of a frame.
    pub(crate) const fn page_bytes(&self) -> usize {
        self.page_bytes
    }

    /// Length of `frames` in bytes.
    pub(crate) const fn bytes(&self, frames: PageCount) -> usize {
        frames.get() as usize * self.page_bytes
    }

    /// Gives the memory behind `range` to the kernel: it lies in one zone, and all of it is offline.
    ///
    /// Explicit huge pages go as a whole, once nothing in them is online: `online` says how many frames of a
    /// range are. What goes may so be more than `range`.
    ///
    /// # Errors
    /// How many frames the kernel keeps, and why.
    pub(crate) fn discard(
        &self,
        range: FrameRange,
        online: impl Fn(FrameRange) -> PageCount,
    ) -> Result<(), (PageCount, io::Error)> {
        let zone = self.zone_around(range).map_err(|why| (range.count, why))?;
        let parts = self.parts(zone, range);
        let is_gone = |part: &FrameRange| online(*part) == PageCount::ZERO;
        let (first, last) = (is_gone(&parts.first), is_gone(&parts.last));
        let start = if first { parts.first.start } else { parts.first.end() };
        let end = if last { parts.last.end() } else { parts.last.start };
        if start < end {
            let offset = start.offset_from(zone.range.start).unwrap_or(PageCount::ZERO);
            let count = end.offset_from(start).unwrap_or(PageCount::ZERO);
            // The last huge page may be larger than what is left of the zone.
            let bytes = self.bytes(count).next_multiple_of(zone.mapping.unit());
            zone.mapping.discard(self.bytes(offset), bytes).map_err(|why| (range.count, why))?;
        }
        let before = start.min(range.end()).offset_from(range.start).unwrap_or(PageCount::ZERO);
        let after = range.end().offset_from(end.max(range.start)).unwrap_or(PageCount::ZERO);
        match before.plus(after).min(range.count) {
            PageCount::ZERO => Ok(()),
            kept => {
                let why = "they lie in huge pages with others that are online; these pages go when all do";
                Err((kept, io::Error::other(why)))
            }
        }
    }

    /// Takes memory for `range`, which lies in one zone, from the kernel, where it would not come by itself, or too
    /// late: a reserve of huge pages that has run out would end the process at the first access. Does nothing
    /// for a range that cannot come online.
    pub(crate) fn mark_allocated_again(
        &self,
        range: FrameRange,
        online: impl Fn(FrameRange) -> PageCount,
    ) -> io::Result<()> {
        let Ok(zone) = self.zone_around(range) else { return Ok(()) };
        let comes_by_itself = zone.mapping.backing() == Backing::Ordinary && !self.is_prefaulted;
        if comes_by_itself || online(range) > PageCount::ZERO {
            return Ok(());
        }
        let parts = self.parts(zone, range);
        let offset = parts.first.start.offset_from(zone.range.start).unwrap_or(PageCount::ZERO);
        let count = parts.last.end().offset_from(parts.first.start).unwrap_or(PageCount::ZERO);
        let bytes = self.bytes(count).next_multiple_of(zone.mapping.unit());
        let populated = zone.mapping.populate_or_touch(self.bytes(offset), bytes);
        // All or nothing; should this fail too, memory that nobody uses stays.
        populated.inspect_err(|_| _ = self.discard(range, online))
    }

    fn zone_around(&self, range: FrameRange) -> io::Result<&ZoneMemory> {
        let zone = self.zone_of(range.start).filter(|zone| zone.range.contains(&range));
        Ok(zone.filter(|_| range.count > PageCount::ZERO).ok_or(io::ErrorKind::InvalidInput)?)
    }

    /// The first and the last piece of the kernel's memory that `range` has a part of.
    fn parts(&self, zone: &ZoneMemory, range: FrameRange) -> Parts {
        let frames = (zone.mapping.unit() / self.page_bytes).max(1) as u64;
        let part = |frame: Pfn| {
            let offset = frame.offset_from(zone.range.start).unwrap_or(PageCount::ZERO).get();
            let start = PageCount::new(offset / frames * frames);
            let count = PageCount::new(frames).min(zone.range.count.saturating_minus(start));
            FrameRange { start: zone.range.start.plus(start), count }
        };
        Parts { first: part(range.start), last: part(Pfn::new(range.end().get() - 1)) }
    }

    /// Addresses of the eight-byte words of `count` frames from `first`.
    fn words(&self, first: Pfn, count: PageCount) -> impl Iterator<Item = NonNull<u64>> {
        let zone = self.zone_of(first).expect("the allocator only names frames it manages");
        // What a child has no copy of nobody can see, and is never handed out as memory.
        let there = if zone.mapping.is_gap() { 0 } else { count.get() };
        let frames = (0..there).map(move |at| first.plus(PageCount::new(at)));
        frames.flat_map(|frame| {
            let start =
                self.pointer(frame).expect("the allocator only names frames it manages").cast::<u64>();
            // SAFETY: the words of one frame, which is mapped.
            (0..self.page_bytes / size_of::<u64>()).map(move |at| unsafe { start.add(at) })
        })
    }
}

// The allocator asks only about frames that it holds itself. Accesses are volatile all the same:
// finding somebody's store after free is what the poison is for.
impl FrameContents for PoolMemory {
    fn fill(&self, first: Pfn, count: PageCount, pattern: u64) {
        for word in self.words(first, count) {
            // SAFETY: mapped and aligned; see above.
            unsafe { word.write_volatile(pattern) };
        }
    }

    fn holds(&self, first: Pfn, count: PageCount, pattern: u64) -> bool {
        // SAFETY: mapped, aligned, and any bytes are a number; see above.
        self.words(first, count).all(|word| unsafe { word.read_volatile() } == pattern)
    }
}

impl ZoneMemory {
    fn map(plan: &ZonePlan, manner: Manner, warnings: &mut Warnings) -> Result<Self, PoolError> {
        let page_bytes = manner.page_bytes as usize;
        let bytes = (plan.frames.get() as usize * page_bytes).next_multiple_of(HUGE_PAGE_BYTES);
        let align = (1_usize << manner.max_order.get().max(ALIGN_ORDER)) * page_bytes;
        let mut explicit = None;
        if manner.huge_pages == HugePages::Explicit {
            explicit = explicit_mapping(bytes, align, plan, manner)
                .map_err(|why| warnings.add(no_huge_pages(plan, bytes, manner, &why)))
                .ok();
        }
        let populated = explicit.is_some();
        let mapping = match explicit {
            Some(mapping) => mapping,
            None => ordinary_mapping(bytes, align, plan, manner, warnings)?,
        };
        mapping.name(&format!("zonal node {} {}", plan.node, plan.kind));
        let start = Pfn::new((mapping.base().as_ptr().expose_provenance() / page_bytes) as u64);
        let range = FrameRange { start, count: plan.frames };
        Ok(Self { node: plan.node, kind: plan.kind, range, mapping, populated })
    }
}

/// Taken at once: a reserve that runs out under a page fault would kill the process.
fn explicit_mapping(bytes: usize, align: usize, plan: &ZonePlan, manner: Manner) -> io::Result<Mapping> {
    let mapping = Mapping::new(bytes, align, Backing::Huge)?;
    if manner.binding == Binding::ToNodes {
        mapping.bind(plan.node)?;
    }
    mapping.populate(0, bytes)?;
    Ok(mapping)
}

fn ordinary_mapping(
    bytes: usize,
    align: usize,
    plan: &ZonePlan,
    manner: Manner,
    warnings: &mut Warnings,
) -> Result<Mapping, PoolError> {
    let purpose = || format!("node {} {}", plan.node, plan.kind);
    let mapping = Mapping::new(bytes, align, Backing::Ordinary).map_err(|source| PoolError::Map {
        purpose: purpose(),
        bytes: bytes as u64,
        source,
    })?;
    if manner.binding == Binding::ToNodes {
        bind_or_warn(&mapping, plan.node, warnings);
    }
    match manner.huge_pages {
        // A kernel without huge pages also refuses to be told not to use them.
        HugePages::Never => mapping.advise(Transparent::Unwanted).unwrap_or(()),
        HugePages::Transparent | HugePages::Explicit => {
            if let Some(reason) = transparent_refused(mapping.advise(Transparent::Wanted)) {
                warnings.add(Warning::NoTransparentHugePages { reason });
            }
        }
    }
    Ok(mapping)
}

/// Binds `mapping` to `node`, or says that it is not.
pub(super) fn bind_or_warn(mapping: &Mapping, node: NodeId, warnings: &mut Warnings) {
    if let Err(why) = mapping.bind(node) {
        warnings.add(Warning::NotBound { nodes: vec![node], reason: why.to_string() });
    }
}

/// Why advice for transparent huge pages has no effect, if so: refused, or switched off.
fn transparent_refused(advised: io::Result<()>) -> Option<String> {
    if let Err(why) = advised {
        return Some(why.to_string());
    }
    let file = "/sys/kernel/mm/transparent_hugepage/enabled";
    let setting = std::fs::read_to_string(file).ok()?;
    setting.contains("[never]").then(|| format!("{file} says never"))
}

fn no_huge_pages(plan: &ZonePlan, bytes: usize, manner: Manner, why: &io::Error) -> Warning {
    Warning::NoExplicitHugePages {
        node: plan.node,
        kind: plan.kind,
        needed: (bytes / HUGE_PAGE_BYTES) as u64,
        free: free_huge_pages(Some(plan.node).filter(|_| manner.binding == Binding::ToNodes)),
        reason: why.to_string(),
    }
}

/// Huge pages of the kernel's reserve that are free, on a node or on all; `None` where the kernel does not say.
pub(crate) fn free_huge_pages(node: Option<NodeId>) -> Option<u64> {
    let dir = node.map_or("/sys/kernel/mm".into(), |node| format!("/sys/devices/system/node/node{node}"));
    let free = std::fs::read_to_string(format!("{dir}/hugepages/hugepages-2048kB/free_hugepages"));
    free.ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory(frames: &[u64], huge_pages: HugePages) -> (PoolMemory, Vec<Warning>) {
        let plan = |(at, &frames): (usize, &u64)| ZonePlan {
            node: NodeId::new(at as u16).unwrap(),
            kind: ZoneKind::Normal,
            frames: PageCount::new(frames),
        };
        let plans: Vec<_> = frames.iter().enumerate().map(plan).collect();
        let manner =
            Manner { page_bytes: 4096, max_order: Order::DEFAULT_MAX, huge_pages, binding: Binding::None };
        let mut warnings = Warnings::default();
        let memory = PoolMemory::map(&plans, manner, &mut warnings).unwrap();
        (memory, warnings.into_vec())
    }

    #[test]
    fn frames_and_addresses_both_ways() {
        let (memory, _) = memory(&[100, 5000, 3], HugePages::Never);
        for zone in memory.zones() {
            assert!(zone.range.start.is_aligned_to(Order::DEFAULT_MAX));
            for at in [0, zone.range.count.get() - 1] {
                let frame = zone.range.start.plus(PageCount::new(at));
                let pointer = memory.pointer(frame).unwrap().as_ptr();
                assert_eq!(memory.frame(pointer), Some(frame));
                assert_eq!(memory.frame(pointer.wrapping_add(4095)), Some(frame));
            }
            assert_eq!(memory.pointer(zone.range.end()), None);
            let before = Pfn::new(zone.range.start.get() - 1);
            assert!(
                memory.zones().iter().any(|other| other.range.end() == zone.range.start)
                    || memory.pointer(before).is_none()
            );
        }
        assert_eq!(memory.frame(std::ptr::null()), None);
        assert_eq!(memory.pointer(Pfn::new(u64::MAX)), None);
    }

    #[test]
    fn contents_are_filled_compared_and_discarded() {
        let (memory, _) = memory(&[64, 64], HugePages::Never);
        let range = memory.zones()[1].range;
        let (first, count) = (range.start, PageCount::new(3));
        assert!(memory.holds(first, range.count, 0));
        memory.fill(first, count, 0x5a5a);
        assert!(memory.holds(first, count, 0x5a5a));
        assert!(!memory.holds(first, PageCount::new(4), 0x5a5a));
        let none = |_| PageCount::ZERO;
        memory.discard(FrameRange { start: first, count: PageCount::new(1) }, none).unwrap();
        assert!(memory.holds(first, PageCount::new(1), 0) && !memory.holds(first, count, 0));
        assert!(memory.discard(FrameRange { start: first, count: PageCount::new(65) }, none).is_err());
        assert!(memory.discard(FrameRange { start: first, count: PageCount::ZERO }, none).is_err());
    }

    #[test]
    fn a_missing_reserve_is_a_warning_and_works() {
        let (memory, warnings) = memory(&[1 << 20], HugePages::Explicit);
        if memory.zones()[0].populated {
            zonal_testing::skipped!("this machine has 2048 huge pages in reserve");
            return;
        }
        assert!(warnings.iter().any(|one| matches!(one, Warning::NoExplicitHugePages { needed: 2048, .. })));
        memory.fill(memory.zones()[0].range.start, PageCount::new(1), 1);
    }

    /// A node that this machine does not have is refused by the kernel itself.
    #[test]
    fn memory_that_cannot_be_bound_is_a_warning_and_works() {
        let plan = ZonePlan {
            node: NodeId::new(1023).unwrap(),
            kind: ZoneKind::Normal,
            frames: PageCount::new(100),
        };
        let mut manner = Manner {
            page_bytes: 4096,
            max_order: Order::DEFAULT_MAX,
            huge_pages: HugePages::Never,
            binding: Binding::ToNodes,
        };
        for huge_pages in [HugePages::Never, HugePages::Explicit] {
            manner.huge_pages = huge_pages;
            let mut warnings = Warnings::default();
            let memory = PoolMemory::map(&[plan], manner, &mut warnings).unwrap();
            memory.fill(memory.zones()[0].range.start, PageCount::new(100), 1);
            let not_bound =
                |one: &Warning| matches!(one, Warning::NotBound { nodes, .. } if *nodes == [plan.node]);
            assert!(warnings.into_vec().iter().any(not_bound), "{huge_pages:?}");
        }
    }
}
