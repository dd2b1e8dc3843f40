//! A report in pages: the request with what it may use, and each zone with its marks, reserves and free blocks.
//!
//! Values that the log does not have are assumed, and every value carries its origin. Related files: `steps.rs` checks
//! a zone for a request, and `remedy.rs` changes values and checks again.

use zonal::rules::stat_threshold::stat_threshold;
use zonal::units::{NodeId, PageCount};
use zonal_model::KernelVersion;

use super::check::Origin;
use super::figures::{Figure, MigrateTypes};
use super::gfp::{Gfp, GfpFlag};
use super::report::{LogReport, LoggedKind, LoggedZone, NodeList, ReportKind};
use super::rules::{Access, HighatomicRule, PathRules};
use super::steps::serves;

/// A number of pages and its origin.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Known {
    pub(super) pages: u64,
    pub(super) from: Origin,
}

impl Known {
    const ASSUMED_NONE: Self = Self { pages: 0, from: Origin::Assumed };
}

/// Free blocks with one order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct OrderBlocks {
    pub(super) order: u8,
    pub(super) count: u64,
    pub(super) types: Option<MigrateTypes>,
}

/// A zone in pages.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct ZoneState {
    pub(super) node: NodeId,
    pub(super) kind: LoggedKind,
    pub(super) free: u64,
    /// `min` with the boost, as printed.
    pub(super) min: u64,
    pub(super) high: u64,
    pub(super) boost: Known,
    /// The lowmem reserve for the request's highest zone.
    pub(super) reserve: Known,
    /// Pages reserved for high-order atomic requests, as far as the kernel's rule subtracts them.
    pub(super) highatomic: Known,
    pub(super) cma: Known,
    pub(super) managed: u64,
    pub(super) pcp: u64,
    /// Free blocks by order, in ascending order; `None` if their line is missing or cut off.
    pub(super) blocks: Option<Vec<OrderBlocks>>,
    /// The sum that the kernel printed after the blocks.
    pub(super) blocks_total: Option<u64>,
    /// Pages by which per-CPU counters may differ from the printed count.
    pub(super) drift: u64,
    /// Microseconds between the first line and the zone's line.
    pub(super) delay: u64,
    /// Microseconds between the zone's line and that of its free blocks.
    pub(super) blocks_delay: u64,
}

/// Pages that may be freed in a microsecond: 4 GiB a second, about as fast as memory is cleared.
const PAGES_PER_MICROSECOND: u64 = 1;

impl ZoneState {
    /// Returns the pages by which the printed state may differ from the state that was checked.
    pub(super) const fn tolerance(&self) -> u64 {
        self.tolerance_after(self.delay)
    }

    /// Returns the same for the time between the zone's line and that of its free blocks.
    pub(super) const fn blocks_tolerance(&self) -> u64 {
        self.tolerance_after(self.blocks_delay)
    }

    const fn tolerance_after(&self, microseconds: u64) -> u64 {
        let freed = microseconds.saturating_mul(PAGES_PER_MICROSECOND);
        self.drift.saturating_add(self.pcp).saturating_add(freed)
    }

    /// Returns the sum of the free blocks.
    pub(super) fn blocks_sum(&self) -> Option<u64> {
        let sum = |sum: u64, blocks: &OrderBlocks| {
            sum.saturating_add(blocks.count.saturating_mul(1 << blocks.order))
        };
        self.blocks.as_ref().map(|blocks| blocks.iter().fold(0, sum))
    }
}

/// A request and what it may use.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct RequestState {
    pub(super) gfp: Gfp,
    pub(super) order: u8,
    pub(super) access: Access,
    /// Candidates for the node that `__GFP_THISNODE` names; `None` without it.
    pub(super) this_node: Option<Vec<NodeId>>,
    /// Nodes that the policy allows; `None` for all.
    pub(super) policy: Option<Vec<NodeId>>,
    /// Nodes that the cpuset allows; `None` for all.
    pub(super) cpuset: Option<Vec<NodeId>>,
    /// Whether the last check before a kill applies.
    pub(super) is_kill: bool,
}

/// A report in pages.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct State {
    pub(super) rules: PathRules,
    pub(super) is_version_known: bool,
    pub(super) is_gfp_known: bool,
    pub(super) page_kib: u64,
    pub(super) request: RequestState,
    pub(super) zones: Vec<ZoneState>,
    /// Zones with lines that lack a value.
    pub(super) cut: Vec<(NodeId, LoggedKind)>,
    /// CPUs that the log implies at least.
    pub(super) cpus: u32,
}

/// Page size if the log does not have the free blocks.
const PAGE_KIB_DEFAULT: u64 = 4;

impl State {
    /// Returns the state of a report, or `None` for one about which nothing can be decided: without a kind or with an
    /// unreadable request, a kill that a user requested, or a cgroup's limit.
    pub(super) fn of(report: &LogReport) -> Option<Self> {
        let kind = report.kind.filter(|_| !report.is_of_cgroup() && report.unreadable().is_none())?;
        let order = u8::try_from(report.request.order.unwrap_or(0)).ok()?;
        let rules = PathRules::of(report.kernel.unwrap_or(KernelVersion::NEWEST));
        let gfp = report.request.gfp.clone().unwrap_or_else(Gfp::of_user_page);
        let policy = match &report.request.nodemask {
            Some(NodeList::Only(nodes)) => Some(nodes.clone()),
            _ => None,
        };
        let request = RequestState {
            order,
            access: rules.access(&gfp, order),
            this_node: None,
            policy,
            cpuset: report.request.mems_allowed.clone(),
            is_kill: kind == ReportKind::Oom,
            gfp,
        };
        let mut state = Self {
            rules,
            is_version_known: report.kernel.is_some(),
            is_gfp_known: report.request.gfp.is_some(),
            page_kib: report.page().map_or(PAGE_KIB_DEFAULT, |page| page.0),
            request,
            zones: Vec::new(),
            cut: Vec::new(),
            cpus: report.cpu.unwrap_or(0).saturating_add(1).min(8192),
        };
        let column = Columns::of(report).place(state.request.access.zone_limit);
        for zone in &report.zones {
            match state.zone(zone, column, report.at) {
                Some(zone) => state.zones.push(zone),
                None => state.cut.push((zone.node, zone.kind)),
            }
        }
        state.request.this_node = state.one_node(report);
        Some(state)
    }

    /// Returns the nodes that may be the one of `__GFP_THISNODE`, which no kernel prints: those whose zones all refuse the
    /// request, else those without a zone that it may use.
    fn one_node(&self, report: &LogReport) -> Option<Vec<NodeId>> {
        if !self.request.gfp.has(GfpFlag::ThisNode) || self.zones.is_empty() {
            return None;
        }
        let usable = || self.zones.iter().filter(|zone| zone.kind <= self.request.access.zone_limit);
        let mut nodes: Vec<NodeId> = usable().map(|zone| zone.node).collect();
        nodes.dedup();
        let refuses = |node: &NodeId| {
            !usable().filter(|zone| zone.node == *node).any(|zone| serves(zone, &self.request))
        };
        let refusing: Vec<NodeId> = nodes.iter().copied().filter(refuses).collect();
        if !refusing.is_empty() {
            return Some(refusing);
        }
        let all = report.request.mems_allowed.iter().flatten().copied();
        let others: Vec<NodeId> = all.filter(|node| !nodes.contains(node)).collect();
        (!others.is_empty()).then_some(others)
    }

    /// Returns an amount in kB in pages.
    pub(super) const fn pages(&self, kib: u64) -> u64 {
        kib / self.page_kib
    }

    fn zone(&self, zone: &LoggedZone, column: Option<usize>, begun: Option<u64>) -> Option<ZoneState> {
        let between =
            |from: Option<u64>, to: Option<u64>| to.zip(from).map_or(0, |(to, from)| to.saturating_sub(from));
        let printed = |figure| zone.figures.get(figure).map(|kib| self.pages(kib));
        let known = |figure| {
            let pages = printed(figure);
            pages.map_or(Known::ASSUMED_NONE, |pages| Known { pages, from: Origin::Printed })
        };
        let managed = printed(Figure::Managed).or_else(|| printed(Figure::Present)).unwrap_or(0);
        let highatomic = match self.rules.highatomic {
            HighatomicRule::None => Known::ASSUMED_NONE,
            HighatomicRule::Free if printed(Figure::FreeHighatomic).is_some() => {
                known(Figure::FreeHighatomic)
            }
            HighatomicRule::Reserved | HighatomicRule::Free => known(Figure::ReservedHighatomic),
        };
        let reserve = column.and_then(|at| zone.reserve.get(at)).or_else(|| zone.reserve.last());
        let page_bytes = u32::try_from(self.page_kib.saturating_mul(1024)).unwrap_or(u32::MAX);
        let threshold = stat_threshold(self.cpus, PageCount::new(managed), page_bytes);
        let blocks = zone.blocks.as_ref().filter(|list| list.total.is_some());
        let order_of = |kib: u64| u8::try_from(self.pages(kib).max(1).ilog2()).unwrap_or(u8::MAX).min(40);
        Some(ZoneState {
            node: zone.node,
            kind: zone.kind,
            free: printed(Figure::Free)?,
            min: printed(Figure::Min)?,
            high: printed(Figure::High)?,
            boost: known(Figure::Boost),
            reserve: reserve.map_or(Known::ASSUMED_NONE, |&pages| Known {
                pages,
                from: if column.is_some() { Origin::Printed } else { Origin::Assumed },
            }),
            highatomic,
            cma: known(Figure::FreeCma),
            managed,
            pcp: printed(Figure::FreePcp).unwrap_or(0),
            blocks: blocks.map(|list| {
                let blocks = list.blocks.iter();
                let of_order = |blocks: &super::figures::FreeBlocks| OrderBlocks {
                    order: order_of(blocks.size.0),
                    count: blocks.count,
                    types: blocks.types,
                };
                blocks.map(of_order).collect()
            }),
            blocks_total: blocks.and_then(|list| list.total).map(|total| self.pages(total.0)),
            drift: u64::from(threshold) * u64::from(self.cpus),
            delay: between(begun, zone.at),
            blocks_delay: between(zone.at, zone.blocks_at),
        })
    }
}

/// The zones that the columns of `lowmem_reserve[]` stand for. They depend on the kernel's configuration.
struct Columns(Option<&'static [LoggedKind]>);

impl Columns {
    const LAYOUTS: &'static [&'static [LoggedKind]] = {
        use LoggedKind::{Device, Dma, Dma32, HighMem, Movable, Normal};
        &[
            &[Dma, Dma32, Normal, Movable, Device],
            &[Dma, Dma32, Normal, Movable],
            &[Dma, Normal, HighMem, Movable],
            &[Dma, Normal, Movable, Device],
            &[Dma32, Normal, Movable, Device],
            &[Dma, Normal, Movable],
            &[Dma32, Normal, Movable],
            &[Normal, HighMem, Movable],
            &[Normal, Movable, Device],
            &[Normal, Movable],
        ]
    };

    /// Returns the first layout that has all zones of the report, and in which no zone reserves pages from itself.
    fn of(report: &LogReport) -> Self {
        let fits = |layout: &&[LoggedKind]| {
            report.zones.iter().filter(|zone| !zone.reserve.is_empty()).all(|zone| {
                let place = layout.iter().position(|&kind| kind == zone.kind);
                let own = place.and_then(|place| zone.reserve.get(..=place));
                zone.reserve.len() == layout.len()
                    && own.is_some_and(|own| own.iter().all(|&pages| pages == 0))
            })
        };
        Self(Self::LAYOUTS.iter().copied().find(fits))
    }

    /// Returns the column for the highest zone that a request may use.
    fn place(&self, limit: LoggedKind) -> Option<usize> {
        self.0?.iter().rposition(|&kind| kind <= limit)
    }
}
