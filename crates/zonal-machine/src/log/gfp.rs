//! The flags of a request (`gfp_mask`), by name or, in kernels before 4.6, by bits.
//!
//! Names and meanings: Linux `Documentation/core-api/memory-allocation.rst` and `include/linux/gfp_types.h`. Related
//! files: `rules.rs` derives from the flags what a request may use.

use super::figures::NUMBER_MAX;
use super::report::LoggedKind;
use zonal_model::KernelVersion;

/// Declares the properties of requests.
macro_rules! properties {
    ($($(#[$doc:meta])* $flag:ident,)*) => {
        /// A property of a request.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum GfpFlag {
            $($(#[$doc])* $flag,)*
        }
    };
}

properties! {
    /// Zone DMA only.
    Dma,
    /// Zones up to DMA32.
    Dma32,
    /// Zones up to HighMem, or Normal where there is none.
    HighMem,
    /// Movable: zones up to Movable, and CMA pages.
    Movable,
    /// May reclaim memory itself, and wait.
    DirectReclaim,
    /// May use half of `min`.
    High,
    /// May not wait, and may use more of `min` (kernels 4.4 to 6.2).
    Atomic,
    /// May use all memory.
    MemAlloc,
    /// May not use reserves.
    NoMemAlloc,
    /// Fails early.
    NoRetry,
    /// Fails only after long retries, and without a kill.
    RetryMayFail,
    /// Never fails.
    NoFail,
    /// One node only.
    ThisNode,
    /// Stays within the cpuset.
    HardWall,
}

/// The flags of a request.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Gfp {
    /// The mask, if the log has it.
    pub mask: Option<u64>,
    /// The names, as printed.
    pub names: String,
    flags: u32,
}

/// Names that stand for several flags, and what they stand for.
const NAMES: &[(&str, &[GfpFlag])] = {
    use GfpFlag::{
        Atomic, DirectReclaim, Dma, Dma32, HardWall, High, HighMem, MemAlloc, Movable, NoFail, NoMemAlloc,
        NoRetry, RetryMayFail, ThisNode,
    };
    &[
        ("GFP_KERNEL", &[DirectReclaim]),
        ("GFP_KERNEL_ACCOUNT", &[DirectReclaim]),
        ("GFP_TEMPORARY", &[DirectReclaim]),
        ("GFP_NOFS", &[DirectReclaim]),
        ("GFP_NOIO", &[DirectReclaim]),
        ("GFP_USER", &[DirectReclaim, HardWall]),
        ("GFP_HIGHUSER", &[DirectReclaim, HighMem, HardWall]),
        ("GFP_HIGHUSER_MOVABLE", &[DirectReclaim, HighMem, Movable, HardWall]),
        ("GFP_TRANSHUGE", &[DirectReclaim, HighMem, Movable, NoMemAlloc, HardWall]),
        ("GFP_TRANSHUGE_LIGHT", &[HighMem, Movable, NoMemAlloc, HardWall]),
        ("GFP_ATOMIC", &[High, Atomic]),
        ("GFP_NOWAIT", &[]),
        ("GFP_DMA", &[Dma]),
        ("GFP_DMA32", &[Dma32]),
        ("__GFP_DMA", &[Dma]),
        ("__GFP_DMA32", &[Dma32]),
        ("__GFP_HIGHMEM", &[HighMem]),
        ("__GFP_MOVABLE", &[Movable]),
        ("__GFP_DIRECT_RECLAIM", &[DirectReclaim]),
        ("__GFP_RECLAIM", &[DirectReclaim]),
        ("__GFP_HIGH", &[High]),
        ("__GFP_ATOMIC", &[Atomic]),
        ("__GFP_MEMALLOC", &[MemAlloc]),
        ("__GFP_NOMEMALLOC", &[NoMemAlloc]),
        ("__GFP_NORETRY", &[NoRetry]),
        ("__GFP_RETRY_MAYFAIL", &[RetryMayFail]),
        ("__GFP_REPEAT", &[RetryMayFail]),
        ("__GFP_NOFAIL", &[NoFail]),
        ("__GFP_THISNODE", &[ThisNode]),
        ("__GFP_HARDWALL", &[HardWall]),
    ]
};

/// Characters of the names that are kept.
const NAMES_MAX: usize = 400;

impl Gfp {
    /// Reads `0x140dca(GFP_HIGHUSER_MOVABLE|__GFP_ZERO)`, or the mask alone.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let digits = text.strip_prefix("0x")?;
        let end = digits.find(|letter: char| !letter.is_ascii_hexdigit()).unwrap_or(digits.len());
        let mask = u64::from_str_radix(&digits[..end], 16).ok().filter(|&mask| mask <= NUMBER_MAX)?;
        let names = digits[end..].strip_prefix('(').and_then(|rest| rest.split(')').next());
        let names: String = names.unwrap_or_default().chars().take(NAMES_MAX).collect();
        let mut gfp = Self { mask: Some(mask), flags: 0, names };
        let names = gfp.names.clone();
        for name in names.split('|') {
            let known = NAMES.iter().find(|(known, _)| *known == name);
            known.iter().flat_map(|(_, flags)| flags.iter()).for_each(|&flag| gfp.set(flag));
        }
        Some(gfp)
    }

    /// Returns the flags for user memory, which is what nearly every killing request wants.
    pub(super) fn of_user_page() -> Self {
        let mut gfp = Self { names: "GFP_HIGHUSER_MOVABLE".to_owned(), ..Self::default() };
        [GfpFlag::DirectReclaim, GfpFlag::HighMem, GfpFlag::Movable, GfpFlag::HardWall]
            .into_iter()
            .for_each(|flag| gfp.set(flag));
        gfp
    }

    /// Adds the flags of a mask that was printed without names. Four bits are the same in all kernels; those for waiting
    /// changed in 4.4.
    pub(super) fn decode_bits(&mut self, kernel: KernelVersion) {
        let (Some(mask), true) = (self.mask, self.names.is_empty()) else { return };
        let wait = if kernel < KernelVersion::new(4, 4) { 0x10 } else { 0x40_0000 };
        let bits = [
            (0x1, GfpFlag::Dma),
            (0x2, GfpFlag::HighMem),
            (0x4, GfpFlag::Dma32),
            (0x8, GfpFlag::Movable),
            (0x20, GfpFlag::High),
            (0x2_0000, GfpFlag::HardWall),
            (wait, GfpFlag::DirectReclaim),
        ];
        bits.into_iter().filter(|(bit, _)| mask & bit != 0).for_each(|(_, flag)| self.set(flag));
        if self.has(GfpFlag::High) && !self.has(GfpFlag::DirectReclaim) {
            self.set(GfpFlag::Atomic);
        }
    }

    const fn set(&mut self, flag: GfpFlag) {
        self.flags |= 1 << flag as u32;
    }

    /// Whether the request has the property.
    #[must_use]
    pub const fn has(&self, flag: GfpFlag) -> bool {
        self.flags >> flag as u32 & 1 == 1
    }

    /// Returns the highest zone that the request may use.
    #[must_use]
    pub const fn zone_limit(&self) -> LoggedKind {
        if self.has(GfpFlag::Dma) {
            LoggedKind::Dma
        } else if self.has(GfpFlag::Dma32) {
            LoggedKind::Dma32
        } else if self.has(GfpFlag::HighMem) && self.has(GfpFlag::Movable) {
            LoggedKind::Movable
        } else if self.has(GfpFlag::HighMem) {
            LoggedKind::HighMem
        } else {
            LoggedKind::Normal
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_give_the_zone_limit_and_whether_the_request_may_wait() {
        for (text, limit, waits) in [
            ("0x140dca(GFP_HIGHUSER_MOVABLE|__GFP_COMP|__GFP_ZERO)", LoggedKind::Movable, true),
            ("0x500cc2(GFP_HIGHUSER|__GFP_ACCOUNT)", LoggedKind::HighMem, true),
            ("0xcc1(GFP_KERNEL|GFP_DMA)", LoggedKind::Dma, true),
            ("0xc04(GFP_NOIO|GFP_DMA32)", LoggedKind::Dma32, true),
            ("0x820(GFP_ATOMIC), nodemask=(null)", LoggedKind::Normal, false),
            ("0x800(GFP_NOWAIT)", LoggedKind::Normal, false),
        ] {
            let gfp = Gfp::parse(text).unwrap();
            assert_eq!((gfp.zone_limit(), gfp.has(GfpFlag::DirectReclaim)), (limit, waits), "{text}");
        }
        assert!(Gfp::parse("0x820(GFP_ATOMIC)").unwrap().has(GfpFlag::Atomic));
        for text in ["", "0x", "820", "0xfffffffffffffffff", "(GFP_KERNEL)"] {
            assert_eq!(Gfp::parse(text), None, "{text}");
        }
    }

    #[test]
    fn bits_of_old_kernels() {
        for (mask, version, waits, high) in [
            ("0x24201ca", (4, 4), true, false),
            ("0x2080020", (4, 4), false, true),
            ("0xd0", (4, 1), true, false),
            ("0x20", (4, 1), false, true),
        ] {
            let mut gfp = Gfp::parse(mask).unwrap();
            gfp.decode_bits(KernelVersion::new(version.0, version.1));
            assert_eq!((gfp.has(GfpFlag::DirectReclaim), gfp.has(GfpFlag::High)), (waits, high), "{mask}");
        }
    }
}
