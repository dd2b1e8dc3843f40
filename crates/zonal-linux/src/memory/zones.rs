//! The memory of a pool: one mapping for each zone, and the conversion between frames and addresses.
//!
//! The number of a frame is its address divided by the page size. The conversion in both directions is therefore
//! arithmetic, and frames of different pools have different numbers.
//!
//! Related files: `memory/mapping.rs` makes the system calls, `memory/plan.rs` determines the sizes of zones,
//! `memory/huge_pages.rs` has the kinds of huge pages, and `pool/platform.rs` gives the allocator access to the contents
//! of frames.

use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

use zonal::machine::FrameRange;
use zonal::platform::FrameContents;
use zonal::units::{NodeId, Order, PageCount, Pfn, ZoneId, ZoneKind};

use super::committed::CommittedMemory;
use super::huge_pages::{HugePages, free_huge_pages, transparent_refused};
use super::mapping::{Backing, Mapping, Transparent, resident_bytes};
use super::page_sizes::HugePageSize;
use super::plan::{ZonePlan, block_bytes};
use crate::error::{PoolError, Warning, Warnings};

/// Which processes can map the memory of a pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Sharing {
    /// Only the process that built the pool.
    #[default]
    Private,
    /// Each process that gets the pool's files.
    Files,
    /// In the file of a pool that processes share.
    Pool,
}

/// Whether memory is bound to its node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Binding {
    /// Each zone is bound to the node that it belongs to.
    ToNodes,
    /// No memory is bound, because the machine has only one node or the nodes are emulated.
    None,
}

/// How zones are mapped.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MapOptions {
    pub(crate) page_bytes: u32,
    pub(crate) max_order: Order,
    pub(crate) huge_pages: HugePages,
    pub(crate) binding: Binding,
    pub(crate) sharing: Sharing,
}

/// The memory of one zone.
///
/// Invariant: `range` consists of the mapping's first `range.count` frames.
#[derive(Debug)]
pub(crate) struct ZoneMemory {
    pub(crate) node: NodeId,
    pub(crate) kind: ZoneKind,
    pub(crate) range: FrameRange,
    /// Number of frames, from the first one on, that are online when the pool is built.
    pub(crate) online: PageCount,
    pub(crate) mapping: Mapping,
    /// Whether the mapping is already populated.
    pub(crate) populated: bool,
    /// Whether the kernel was asked for huge pages of either kind.
    pub(crate) huge_pages_wanted: bool,
}

/// The first and the last unit of the kernel's memory (page or huge page) that a range overlaps, limited to the zone.
struct Parts {
    first: FrameRange,
    last: FrameRange,
}

/// All memory of a pool.
#[derive(Debug)]
pub(crate) struct PoolMemory {
    pub(super) page_bytes: usize,
    /// Zones in the planned order, ascending by node and kind.
    pub(super) zones: Box<[ZoneMemory]>,
    /// Indices into `zones`, in ascending order of the zones' addresses.
    by_address: Box<[u16]>,
    /// Whether all memory was populated before its first use. If so, memory must also be populated before it comes
    /// online.
    pub(crate) is_prefaulted: bool,
    /// Whether the zones are in the file of a shared pool.
    is_in_pool_file: bool,
    /// Counts the memory that was not populated when it was mapped, by zone.
    committed: CommittedMemory,
}

impl PoolMemory {
    /// Returns the address of a frame. Returns `None` for a frame outside this pool, and in a child made by `fork` that
    /// has no copy of the frame.
    #[inline]
    pub(crate) fn pointer(&self, frame: Pfn) -> Option<NonNull<u8>> {
        let zone = self.zone_of(frame).filter(|zone| !zone.mapping.is_gap())?;
        let offset = self.bytes(frame.offset_from(zone.range.start)?);
        // SAFETY: `zone_of` found the frame inside the zone's range, which the mapping covers.
        Some(unsafe { zone.mapping.base().add(offset) })
    }

    /// Returns the address of a frame as [`Self::pointer`] does, for a frame of the zone with this id, which is usually known.
    #[inline]
    pub(crate) fn pointer_in(&self, zone: ZoneId, frame: Pfn) -> Option<NonNull<u8>> {
        let memory = self.zones.get(zone.index()).filter(|memory| !memory.mapping.is_gap())?;
        let offset = frame.offset_from(memory.range.start).filter(|&offset| offset < memory.range.count)?;
        // SAFETY: the frame is inside the zone's range, which the mapping covers.
        Some(unsafe { memory.mapping.base().add(self.bytes(offset)) })
    }

    /// Returns the frame that contains `address`, or `None` if `address` is outside this pool.
    pub(crate) fn frame(&self, address: *const u8) -> Option<Pfn> {
        if self.is_in_pool_file {
            return self.frame_in_file(address as usize);
        }
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

    /// Maps the planned zones.
    pub(crate) fn map(
        plans: &[ZonePlan],
        options: MapOptions,
        warnings: &mut Warnings,
    ) -> Result<Self, PoolError> {
        let zones = plans.iter().map(|plan| ZoneMemory::map(plan, options, warnings));
        Ok(Self::of_zones(zones.collect::<Result<_, _>>()?, options))
    }

    pub(super) fn of_zones(zones: Box<[ZoneMemory]>, options: MapOptions) -> Self {
        let mut by_address: Box<[u16]> = (0..zones.len() as u16).collect();
        by_address.sort_by_key(|&at| zones[usize::from(at)].range.start);
        let page_bytes = options.page_bytes as usize;
        let committed = CommittedMemory::count(zones.iter().map(|zone| {
            let bytes = |frames: PageCount| frames.get() as usize * page_bytes;
            let start = zone.mapping.base().as_ptr().addr();
            (!zone.populated).then(|| (start..start + bytes(zone.range.count), bytes(zone.online) as i64))
        }));
        let is_in_pool_file = options.sharing == Sharing::Pool;
        Self { page_bytes, zones, by_address, is_prefaulted: false, is_in_pool_file, committed }
    }

    /// Returns the zones, in the planned order.
    pub(crate) fn zones(&self) -> &[ZoneMemory] {
        &self.zones
    }

    /// Returns the size of a frame in bytes.
    pub(crate) const fn page_bytes(&self) -> usize {
        self.page_bytes
    }

    /// Returns the length of `frames` in bytes.
    pub(crate) const fn bytes(&self, frames: PageCount) -> usize {
        frames.get() as usize * self.page_bytes
    }

    /// Returns the memory of `range` to the kernel. The range must be within one zone and completely offline.
    ///
    /// An explicit huge page is returned only as a whole, once all of its frames are offline. The function may
    /// therefore return memory outside `range` too. It calls `online` to determine how many frames of a range are
    /// online.
    ///
    /// # Errors
    /// When a part of the memory was not returned. The error contains the number of these frames and the reason.
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
            // The last huge page may extend beyond the end of the zone.
            let bytes = self.bytes(count).next_multiple_of(zone.mapping.unit());
            zone.mapping.discard(self.bytes(offset), bytes).map_err(|why| (range.count, why))?;
        }
        let before = start.min(range.end()).offset_from(range.start).unwrap_or(PageCount::ZERO);
        let after = range.end().offset_from(end.max(range.start)).unwrap_or(PageCount::ZERO);
        match before.plus(after).min(range.count) {
            PageCount::ZERO => Ok(()),
            kept => {
                let why = "these frames share huge pages with frames that are online; a huge page is returned once all its frames are offline";
                Err((kept, io::Error::other(why)))
            }
        }
    }

    /// Opens `range`, before it comes online, and populates it if its memory must not be populated on first use.
    ///
    /// The latter is the case for a prefaulted pool and for explicit huge pages: if the kernel's reserve of huge pages were
    /// exhausted, the first access to a frame would kill the process. The function does nothing for a range that is not
    /// within one zone or that is partly online, because such a range cannot come online.
    pub(crate) fn prepare_for_online(
        &self,
        range: FrameRange,
        online: impl Fn(FrameRange) -> PageCount,
    ) -> io::Result<()> {
        let Ok(zone) = self.zone_around(range) else { return Ok(()) };
        if online(range) > PageCount::ZERO {
            return Ok(());
        }
        let parts = self.parts(zone, range);
        let offset = parts.first.start.offset_from(zone.range.start).unwrap_or(PageCount::ZERO);
        let count = parts.last.end().offset_from(parts.first.start).unwrap_or(PageCount::ZERO);
        let bytes = self.bytes(count).next_multiple_of(zone.mapping.unit());
        if zone.online < zone.range.count {
            zone.mapping.open(self.bytes(offset), bytes)?;
        }
        if zone.comes_on_use() && !self.is_prefaulted {
            return Ok(());
        }
        let populated = zone.mapping.populate_or_touch(self.bytes(offset), bytes);
        // If only a part could be populated, that part is discarded. If the discard fails too, memory that is not used
        // stays populated.
        populated.inspect_err(|_| _ = self.discard(range, online))
    }

    /// Counts that `range`, which must be within one zone, has come online.
    pub(crate) fn count_online(&self, range: FrameRange) {
        self.count(range, self.bytes(range.count) as i64);
    }

    /// Counts that `range`, which must be within one zone, has gone offline.
    pub(crate) fn count_offline(&self, range: FrameRange) {
        self.count(range, -(self.bytes(range.count) as i64));
    }

    fn count(&self, range: FrameRange, change: i64) {
        if let Some(zone) = self.zones.iter().position(|zone| zone.range.contains(&range)) {
            self.committed.add(zone, change);
        }
    }

    /// Returns how many bytes of `range`, which must be within one zone, are in memory now: all if the kernel does not say.
    pub(crate) fn resident_bytes(&self, range: FrameRange) -> u64 {
        let (first, bytes) = (self.pointer(range.start), self.bytes(range.count));
        let resident = |start: usize| resident_bytes(start..start + bytes).unwrap_or(bytes);
        first.map_or(0, |first| resident(first.as_ptr().addr()) as u64)
    }

    fn zone_around(&self, range: FrameRange) -> io::Result<&ZoneMemory> {
        let zone = self.zone_of(range.start).filter(|zone| zone.range.contains(&range));
        Ok(zone.filter(|_| range.count > PageCount::ZERO).ok_or(io::ErrorKind::InvalidInput)?)
    }

    /// Returns the first and the last unit of the kernel's memory that `range` overlaps, limited to the zone.
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

    /// Returns the frame count of the kernel's largest page that backs the pool.
    pub(crate) fn unit_frames(&self) -> PageCount {
        let bytes = self.zones.iter().map(|zone| zone.mapping.unit()).max().unwrap_or(0);
        PageCount::new((bytes / self.page_bytes).max(1) as u64)
    }

    /// Returns the eight-byte word addresses of `count` frames from `first`.
    fn words(&self, first: Pfn, count: PageCount) -> impl Iterator<Item = NonNull<u64>> {
        let zone = self.zone_of(first).expect("the allocator only names frames it manages");
        // In a child that has no copy of the zone, the frames cannot be accessed. The result is empty there, because
        // the child can never obtain the address of such a frame.
        let there = if zone.mapping.is_gap() { 0 } else { count.get() };
        let frames = (0..there).map(move |at| first.plus(PageCount::new(at)));
        frames.flat_map(|frame| {
            let start =
                self.pointer(frame).expect("the allocator only names frames it manages").cast::<u64>();
            // SAFETY: all addresses are within one frame, which is mapped.
            (0..self.page_bytes / size_of::<u64>()).map(move |at| unsafe { start.add(at) })
        })
    }
}

// The allocator accesses only frames that no caller owns. The accesses are volatile nevertheless, because the poison
// pattern exists to detect stores by other code after a free.
impl FrameContents for PoolMemory {
    fn fill(&self, first: Pfn, count: PageCount, pattern: u64) {
        for word in self.words(first, count) {
            // SAFETY: `words` returns only mapped and aligned addresses of frames that the allocator owns.
            unsafe { word.write_volatile(pattern) };
        }
    }

    fn holds(&self, first: Pfn, count: PageCount, pattern: u64) -> bool {
        // SAFETY: `words` returns only mapped and aligned addresses of frames that the allocator owns, and every bit
        // pattern is a valid `u64`.
        self.words(first, count).all(|word| unsafe { word.read_volatile() } == pattern)
    }
}

impl ZoneMemory {
    fn map(plan: &ZonePlan, options: MapOptions, warnings: &mut Warnings) -> Result<Self, PoolError> {
        let page_bytes = options.page_bytes as usize;
        let mut explicit = None;
        for &size in options.huge_pages.explicit_sizes() {
            match explicit_mapping(size, plan, options) {
                Ok(mapping) => {
                    explicit = Some(mapping);
                    break;
                }
                Err(why) => warnings.add(no_huge_pages(size, plan, options, &why)),
            }
        }
        let populated = explicit.is_some();
        let mapping = match explicit {
            Some(mapping) => mapping,
            None => ordinary_mapping(plan, options, warnings)?,
        };
        let start = Pfn::new((mapping.base().as_ptr().expose_provenance() / page_bytes) as u64);
        let range = FrameRange { start, count: plan.frames };
        let huge_pages_wanted = options.huge_pages != HugePages::Never;
        let (node, kind, online) = (plan.node, plan.kind, plan.online);
        Ok(Self { node, kind, range, online, mapping, populated, huge_pages_wanted })
    }

    /// Returns the file that other processes can map. Returns `None` if there is none, and in a child made by `fork`.
    pub(crate) fn file(&self) -> Option<BorrowedFd<'_>> {
        self.mapping.file().filter(|_| !self.mapping.is_gap())
    }

    /// Whether the kernel provides memory for a frame at its first use, and can take it back at any time.
    pub(crate) fn comes_on_use(&self) -> bool {
        self.mapping.backing() == Backing::Ordinary
    }
}

/// Maps and populates explicit huge pages. They are populated at once because a page fault would kill the process if
/// the kernel's reserve were exhausted.
fn explicit_mapping(size: HugePageSize, plan: &ZonePlan, options: MapOptions) -> io::Result<Mapping> {
    let mapping = new_mapping(Backing::Huge(size), plan, options)?;
    if options.binding == Binding::ToNodes {
        mapping.bind(plan.node)?;
    }
    mapping.populate(0, mapping.bytes())?;
    Ok(mapping)
}

/// Returns the size of a zone, rounded up to whole huge pages.
fn bytes_in_huge_pages(size: HugePageSize, plan: &ZonePlan, options: MapOptions) -> usize {
    (plan.frames.get() as usize * options.page_bytes as usize).next_multiple_of(size.bytes())
}

fn new_mapping(backing: Backing, plan: &ZonePlan, options: MapOptions) -> io::Result<Mapping> {
    let size = match backing {
        Backing::Ordinary => HugePageSize::TwoMiB,
        Backing::Huge(size) => size,
    };
    let bytes = bytes_in_huge_pages(size, plan, options);
    let (align, name) = (
        block_bytes(options.max_order, options.page_bytes).max(size.bytes()),
        format!("zonal node {} {}", plan.node, plan.kind),
    );
    match options.sharing {
        Sharing::Files => Mapping::in_file(&name, bytes, align, backing),
        Sharing::Private | Sharing::Pool => {
            let mapping = if plan.online < plan.frames {
                let online = plan.online.get() as usize * options.page_bytes as usize;
                let mapping = Mapping::closed(bytes, align)?;
                mapping.open(0, online).map(|()| mapping)
            } else {
                Mapping::new(bytes, align, backing)
            };
            mapping.inspect(|mapping| mapping.name(&name))
        }
    }
}

fn ordinary_mapping(
    plan: &ZonePlan,
    options: MapOptions,
    warnings: &mut Warnings,
) -> Result<Mapping, PoolError> {
    let mapping = new_mapping(Backing::Ordinary, plan, options).map_err(|source| PoolError::Map {
        purpose: format!("node {} {}", plan.node, plan.kind),
        bytes: bytes_in_huge_pages(HugePageSize::TwoMiB, plan, options) as u64,
        source,
    })?;
    prepare(&mapping, plan.node, options, warnings);
    Ok(mapping)
}

/// Binds the memory of a zone in ordinary pages to its node, and asks for huge pages or forbids them.
pub(super) fn prepare(mapping: &Mapping, node: NodeId, options: MapOptions, warnings: &mut Warnings) {
    if options.binding == Binding::ToNodes {
        bind_or_warn(mapping, node, warnings);
    }
    match options.huge_pages {
        // A kernel without huge pages refuses this advice too, which has no effect on the mapping.
        HugePages::Never => mapping.advise(Transparent::Unwanted).unwrap_or(()),
        HugePages::Transparent | HugePages::Explicit | HugePages::Explicit1G => {
            let advised = mapping.advise(Transparent::Wanted);
            if let Some(reason) = transparent_refused(advised, options.sharing != Sharing::Private) {
                warnings.add(Warning::NoTransparentHugePages { reason });
            }
        }
    }
}

/// Binds `mapping` to `node`, or adds a warning that it is not bound.
pub(super) fn bind_or_warn(mapping: &Mapping, node: NodeId, warnings: &mut Warnings) {
    if let Err(why) = mapping.bind(node) {
        warnings.add(Warning::NotBound { nodes: vec![node], reason: why.to_string() });
    }
}

pub(crate) fn no_huge_pages(
    size: HugePageSize,
    plan: &ZonePlan,
    options: MapOptions,
    why: &io::Error,
) -> Warning {
    Warning::NoExplicitHugePages {
        node: plan.node,
        kind: plan.kind,
        bytes: size.bytes() as u64,
        needed: (bytes_in_huge_pages(size, plan, options) / size.bytes()) as u64,
        free: free_huge_pages(size, Some(plan.node).filter(|_| options.binding == Binding::ToNodes)),
        reason: why.to_string(),
    }
}

#[cfg(test)]
mod tests;
