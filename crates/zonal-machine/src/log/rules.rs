//! The checks of Linux's allocation path as one table, in the order of the path, and what changed between versions.
//!
//! Sources: Linux `mm/page_alloc.c` and its history; `Documentation/admin-guide/sysctl/vm.rst`. Related files: `decide.rs`
//! applies the rules to a report.

use zonal_model::KernelVersion;

use super::gfp::{Gfp, GfpFlag};
use super::report::LoggedKind;

/// Declares the checks with their names and what they require.
macro_rules! checks {
    ($($rule:ident $name:literal $requires:literal,)*) => {
        /// A check that a zone must pass to serve a request.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
        pub enum Rule {
            $(#[doc = $requires] $rule,)*
        }

        impl Rule {
            /// All checks, in the order of the path.
            pub const ALL: &'static [Self] = &[$(Self::$rule,)*];

            /// Returns the name in tables and documents.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$rule => $name,)* }
            }

            /// Returns what the rule requires.
            #[must_use]
            pub const fn requires(self) -> &'static str {
                match self { $(Self::$rule => $requires,)* }
            }
        }
    };
}

checks! {
    CgroupLimit "cgroup-limit" "usage and the request fit into the cgroup's limit",
    ZoneLimit "zone-limit" "the zone is at or below the highest zone of the gfp mask",
    ThisNode "this-node" "the node is the one that `__GFP_THISNODE` names; the log does not print it",
    Policy "policy" "the memory policy allows the node",
    Cpuset "cpuset" "the cpuset allows the node, or does not bind the request",
    Order "order" "free pages, less those that the block's other pages take, are above zero",
    Mark "mark" "they are above `min` without its boost, reduced for urgent requests",
    Boost "boost" "they are above `min` with its boost",
    Reserve "lowmem-reserve" "they are above that and the lowmem reserve for the request's highest zone",
    Highatomic "highatomic" "so are they without the pages reserved for high-order atomic requests",
    Cma "cma" "so are they without CMA pages, for requests that are not movable",
    Block "block" "a free block is large enough and has a usable migratetype",
    LastCheck "last-check" "before a kill, the same check at `high`, without any of these pages",
    Counts "counts" "the free blocks add up to their printed sum and agree with `free`",
    Totals "totals" "the zones' free pages agree with the total in `Mem-Info`",
}

/// The largest order for which the kernel retries, and kills.
pub(super) const COSTLY_ORDER: u8 = 3;

/// Which requests reduce the mark most, besides those with `__GFP_HIGH`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Harder {
    /// Those with `__GFP_ATOMIC`: 4.4 to 6.2. Before, those with `__GFP_HIGH` that may not wait, which is the same.
    Atomic,
    /// Those with `__GFP_HIGH` that may not wait: from 6.3 on.
    HighWithoutWait,
}

/// Which pages `reserved_highatomic` removes from those that count.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum HighatomicRule {
    /// There is no such reserve: before 4.4.
    None,
    /// The whole reserve.
    Reserved,
    /// Its free pages: from 6.12 on.
    Free,
}

/// The rules of a kernel version for the allocation path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PathRules {
    /// The version.
    pub version: KernelVersion,
    /// Whether the rules were compared with what such a kernel did.
    pub is_observed: bool,
    harder: Harder,
    /// Whether urgent requests for single pages ignore the boost: from 5.9 on.
    ignores_boost: bool,
    pub(super) highatomic: HighatomicRule,
}

/// The oldest version of which this workspace has observations.
const OBSERVED_SINCE: KernelVersion = KernelVersion::new(5, 10);

impl PathRules {
    /// Returns the rules of a version.
    #[must_use]
    pub fn of(version: KernelVersion) -> Self {
        let since = |major, minor| version >= KernelVersion::new(major, minor);
        Self {
            version,
            is_observed: version >= OBSERVED_SINCE && version <= KernelVersion::NEWEST,
            harder: if since(6, 3) { Harder::HighWithoutWait } else { Harder::Atomic },
            ignores_boost: since(5, 9),
            highatomic: match () {
                () if since(6, 12) => HighatomicRule::Free,
                () if since(4, 4) => HighatomicRule::Reserved,
                () => HighatomicRule::None,
            },
        }
    }

    /// Returns what the request may use under these rules.
    #[must_use]
    pub const fn access(&self, gfp: &Gfp, order: u8) -> Access {
        let high = gfp.has(GfpFlag::High);
        let waits = gfp.has(GfpFlag::DirectReclaim);
        let reserves = !gfp.has(GfpFlag::NoMemAlloc);
        let harder = reserves
            && match self.harder {
                Harder::Atomic => gfp.has(GfpFlag::Atomic),
                Harder::HighWithoutWait => high && !waits,
            };
        // From 6.3 on, any request that may not wait counts the reserve as free, but only these may take its blocks.
        let counts_highatomic = match self.harder {
            Harder::Atomic => harder,
            Harder::HighWithoutWait => high || (!waits && reserves),
        };
        Access {
            zone_limit: gfp.zone_limit(),
            mark: match (gfp.has(GfpFlag::MemAlloc) && reserves, high, harder) {
                (true, ..) => MarkShare::None,
                (_, true, true) => MarkShare::ThreeEighths,
                (_, true, false) => MarkShare::Half,
                (_, false, true) => MarkShare::ThreeQuarters,
                (_, false, false) => MarkShare::Whole,
            },
            ignores_boost: self.ignores_boost
                && order == 0
                && (harder || (high && matches!(self.harder, Harder::HighWithoutWait))),
            counts_highatomic,
            takes_highatomic: harder,
            counts_cma: gfp.has(GfpFlag::Movable),
            ignores_cpuset: harder || !gfp.has(GfpFlag::HardWall),
        }
    }
}

/// The share of `min` that a request must leave free.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MarkShare {
    /// All of it.
    Whole,
    /// `__GFP_ATOMIC` without `__GFP_HIGH`.
    ThreeQuarters,
    /// `__GFP_HIGH`.
    Half,
    /// `GFP_ATOMIC`: half, and a quarter of that less.
    ThreeEighths,
    /// `__GFP_MEMALLOC`: marks do not count.
    None,
}

impl MarkShare {
    /// Returns the share of a mark, with the kernel's own rounding.
    #[must_use]
    pub const fn of(self, mark: u64) -> u64 {
        let half = mark - mark / 2;
        match self {
            Self::Whole => mark,
            Self::ThreeQuarters => mark - mark / 4,
            Self::Half => half,
            Self::ThreeEighths => half - half / 4,
            Self::None => 0,
        }
    }

    /// Returns the share in eighths.
    #[must_use]
    pub const fn eighths(self) -> u64 {
        match self {
            Self::Whole => 8,
            Self::ThreeQuarters => 6,
            Self::Half => 4,
            Self::ThreeEighths => 3,
            Self::None => 0,
        }
    }
}

/// What a request may use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Access {
    /// The highest zone.
    pub zone_limit: LoggedKind,
    /// The share of `min` that must stay free.
    pub mark: MarkShare,
    /// Whether the boost does not count.
    pub ignores_boost: bool,
    /// Whether pages reserved for high-order atomic requests count as free.
    pub counts_highatomic: bool,
    /// Whether it may take these blocks.
    pub takes_highatomic: bool,
    /// Whether CMA pages count as free.
    pub counts_cma: bool,
    /// Whether the cpuset does not bind it.
    pub ignores_cpuset: bool,
}

impl Rule {
    /// Whether the rule keeps a request out of a zone whatever the zone has.
    pub(super) const fn excludes(self) -> bool {
        matches!(self, Self::ZoneLimit | Self::ThisNode | Self::Policy | Self::Cpuset)
    }
}

impl Access {
    /// Returns the letters of the migratetypes whose blocks the request may take.
    #[must_use]
    pub const fn block_types(&self) -> &'static str {
        match (self.counts_cma, self.takes_highatomic) {
            (true, true) => "UMECH",
            (true, false) => "UMEC",
            (false, true) => "UMEH",
            (false, false) => "UME",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access(gfp: &str, version: (u16, u16), order: u8) -> Access {
        let gfp = Gfp::parse(gfp).unwrap();
        PathRules::of(KernelVersion::new(version.0, version.1)).access(&gfp, order)
    }

    #[test]
    fn shares_of_a_mark_round_as_the_kernel_does() {
        let shares = [
            MarkShare::Whole,
            MarkShare::ThreeQuarters,
            MarkShare::Half,
            MarkShare::ThreeEighths,
            MarkShare::None,
        ];
        assert_eq!(shares.map(|share| share.of(101)), [101, 76, 51, 39, 0]);
        assert_eq!(shares.map(|share| share.of(0)), [0; 5]);
    }

    #[test]
    fn rules_change_at_their_versions() {
        let user = "0x140dca(GFP_HIGHUSER_MOVABLE|__GFP_ZERO)";
        assert_eq!(access(user, (6, 1), 0).mark, MarkShare::Whole);
        assert_eq!(access(user, (6, 1), 0).block_types(), "UMEC");
        // Requests for the kernel's own use may leave the cpuset.
        assert!(
            !access(user, (6, 1), 0).ignores_cpuset && access("0xcc0(GFP_KERNEL)", (6, 1), 0).ignores_cpuset
        );
        let atomic = "0x820(GFP_ATOMIC)";
        for version in [(4, 4), (6, 1), (6, 12)] {
            assert_eq!(access(atomic, version, 0).mark, MarkShare::ThreeEighths, "{version:?}");
            assert!(access(atomic, version, 0).ignores_cpuset);
        }
        assert!(!access(atomic, (5, 8), 0).ignores_boost && access(atomic, (5, 9), 0).ignores_boost);
        assert!(!access(atomic, (5, 9), 1).ignores_boost);
        let no_wait = "0x800(GFP_NOWAIT)";
        assert!(
            !access(no_wait, (6, 2), 0).counts_highatomic && access(no_wait, (6, 3), 0).counts_highatomic
        );
        assert_eq!(access(no_wait, (6, 3), 0).mark, MarkShare::Whole);
        assert_eq!(access("0x1(__GFP_MEMALLOC)", (6, 1), 0).mark, MarkShare::None);
        assert_eq!(access("0x1(__GFP_MEMALLOC|__GFP_NOMEMALLOC)", (6, 1), 0).mark, MarkShare::Whole);
        let of = |major, minor| PathRules::of(KernelVersion::new(major, minor));
        assert_eq!(of(4, 3).highatomic, HighatomicRule::None);
        assert_eq!(of(6, 11).highatomic, HighatomicRule::Reserved);
        assert_eq!(of(6, 12).highatomic, HighatomicRule::Free);
        assert!(!of(4, 18).is_observed && of(5, 10).is_observed && !of(99, 1).is_observed);
    }
}
