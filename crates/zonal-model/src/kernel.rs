//! Kernel versions and the rules that they follow.
//!
//! [`Rules::of`] is the table of the versions in which rules changed. The rules themselves are in `zonal::rules`.
//!
//! Related files: `predict.rs` of `zonal-machine` applies the rules.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

use zonal::rules::fallback_order::{CpuPenalty, FallbackRules, NodeLoad};
use zonal::rules::watermarks::MovableMin;
use zonal::settings::Setting;
use zonal_history::load_rule;

use crate::escape::Excerpt;
use crate::pageset_limits::{BatchRule, HighRule, PagesetRules};

/// A Linux version: the major and minor number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct KernelVersion {
    /// The major number.
    pub major: u16,
    /// The minor number.
    pub minor: u16,
}

impl KernelVersion {
    /// The newest version whose rules were observed in a real kernel.
    pub const NEWEST: Self = Self::new(7, 2);

    /// The versions of which kernels' values were compared with the rules.
    pub const COMPARED: [Self; 4] = [Self::new(5, 10), Self::new(6, 1), Self::new(6, 12), Self::NEWEST];
    /// The oldest version with known rules.
    pub const OLDEST: Self = Self::new(3, 0);
    /// Versions in which some releases report 0 as the lowmem reserve for kinds without frames on the node. All others
    /// repeat the reserve for the kind before. Linux: until commit eae116d1f044.
    pub(crate) const ZERO_COLUMNS: RangeInclusive<Self> = Self::new(6, 10)..=Self::new(6, 13);

    /// Checks that this version is not older than all known rules. A version newer than those follows the newest ones.
    ///
    /// # Errors
    /// [`VersionError::TooOld`].
    pub fn not_too_old(self) -> Result<Self, VersionError> {
        if self < Self::OLDEST { Err(VersionError::TooOld(self)) } else { Ok(self) }
    }

    /// Checks that there can be rules of this version.
    ///
    /// # Errors
    /// [`VersionError::NoSuchVersion`] for a version that no Linux has or will soon have, and [`VersionError::TooOld`] for one
    /// whose rules are not known.
    pub fn checked(self) -> Result<Self, VersionError> {
        /// The last minor number of each major number, from 3 on; that of the newest is not known yet.
        const LAST: [u16; 5] = [19, 20, 19, 19, 19];
        self.not_too_old()?;
        let last = LAST.get(usize::from(self.major - 3));
        if last.is_some_and(|&last| self.minor <= last) {
            Ok(self)
        } else {
            Err(VersionError::NoSuchVersion(self))
        }
    }

    /// Creates the version `major.minor`.
    #[must_use]
    pub const fn new(major: u16, minor: u16) -> Self {
        Self { major, minor }
    }
}

/// A text that is not a kernel version, or a version without rules.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum VersionError {
    /// The text does not start with two numbers.
    #[error("\"{}\" is not a kernel version; it must start with two numbers, as in 6.12 or 6.1.0-13-amd64", Excerpt::name(.0))]
    NotAVersion(String),
    /// No Linux has this version.
    #[error("there is no Linux {0}; the newest version with known rules is {newest}", newest = KernelVersion::NEWEST)]
    NoSuchVersion(KernelVersion),
    /// The version is too old.
    #[error("the rules of Linux {0} are not known; the oldest version with known rules is {oldest}", oldest = KernelVersion::OLDEST)]
    TooOld(KernelVersion),
}

impl FromStr for KernelVersion {
    type Err = VersionError;

    /// Parses the first two numbers of a release and ignores the rest: `6.18.44-fc-v595` is 6.18.
    fn from_str(text: &str) -> Result<Self, VersionError> {
        let mut parts = text.trim().split('.');
        let major = parts.next().and_then(|part| part.parse().ok());
        let minor = parts.next().and_then(|part| {
            let digits = part.bytes().take_while(u8::is_ascii_digit).count();
            part[..digits].parse().ok()
        });
        match (major, minor) {
            (Some(major), Some(minor)) => Ok(Self { major, minor }),
            _ => Err(VersionError::NotAVersion(text.chars().take(60).collect())),
        }
    }
}

impl fmt::Display for KernelVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// Whether nodes that are possible but offline have a fallback list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OfflineLists {
    /// Offline nodes have no lists.
    Skipped,
    /// Lists of offline nodes are built after the online nodes' lists, and their loads count.
    Built,
}

/// Whether a node without memory is in its own list. The rest of the list is the same.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum OwnPlace {
    /// A node is in its own list only if it has memory. Linux: since 6.7.
    #[default]
    WithMemory,
    /// Every node is first in its own list, although the entry is useless if the node has no memory. Linux: before
    /// 6.7.
    Always,
}

/// The rules of a kernel for the values that `zonal-machine` predicts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rules {
    /// The version that follows these rules.
    pub version: KernelVersion,
    /// How node load grows.
    pub node_load: NodeLoad,
    /// Whether a node without memory appears in its own list.
    pub own_place: OwnPlace,
    /// Whether offline nodes have lists.
    pub offline_lists: OfflineLists,
    /// The minimum of movable zones.
    pub movable_min: MovableMin,
    /// Whether there is `vm.watermark_scale_factor`. Without it, `low` is a quarter of `min` above it.
    pub has_scale_factor: bool,
    /// The batch of pagesets.
    pub batch: BatchRule,
    /// The bounds of a pageset's `high`.
    pub high: HighRule,
}

impl Rules {
    /// Returns the rules of a kernel version. Versions that were never observed are allowed: they follow the last
    /// change before them.
    #[must_use]
    pub fn of(version: KernelVersion) -> Self {
        let since = |major, minor| version >= KernelVersion::new(major, minor);
        Self {
            version,
            node_load: match () {
                () if since(5, 18) => NodeLoad::Accumulate,
                () if since(5, 16) => NodeLoad::AccumulateRemaining,
                // Since 2.6.23; the rules of kernels that are as old are not known.
                () => NodeLoad::Assign,
            },
            own_place: if since(6, 7) { OwnPlace::WithMemory } else { OwnPlace::Always },
            offline_lists: if since(6, 1) { OfflineLists::Built } else { OfflineLists::Skipped },
            movable_min: if since(6, 2) { MovableMin::OwnMinimum } else { MovableMin::Ordinary },
            has_scale_factor: since(4, 6),
            batch: match () {
                () if since(6, 19) => BatchRule::Managed4096,
                () if since(4, 19) => BatchRule::Managed1024,
                () => BatchRule::Managed1024Half,
            },
            high: match () {
                () if since(6, 7) => HighRule::Tuned,
                () if since(5, 14) => HighRule::LowWatermark,
                () => HighRule::SixBatches,
            },
        }
    }

    /// Whether the kernel has a setting of a machine, under its present name or an earlier one.
    #[must_use]
    pub fn has(&self, setting: Setting) -> bool {
        setting != Setting::WatermarkScaleFactor || self.has_scale_factor
    }

    /// Returns the rules by which the kernel builds its fallback orders.
    #[must_use]
    pub fn fallback(&self, cpu_penalty: CpuPenalty) -> FallbackRules {
        FallbackRules { load: load_rule(self.node_load), cpu_penalty }
    }

    /// Returns the rules by which the kernel sizes its pagesets.
    #[must_use]
    pub const fn pagesets(&self, high_fraction: u32) -> PagesetRules {
        PagesetRules { batch: self.batch, high: self.high, high_fraction }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Settings;

    #[test]
    fn versions_as_kernels_write_them() {
        for (text, major, minor) in [
            ("6.18.44-fc-v595", 6, 18),
            ("5.10", 5, 10),
            ("6.1.0-13-amd64\n", 6, 1),
            ("7.2-rc3", 7, 2),
            ("4.18.0-553.el8_10.x86_64", 4, 18),
        ] {
            assert_eq!(text.parse(), Ok(KernelVersion::new(major, minor)), "{text}");
        }
        for text in ["", "6", "six.one", "6.", "-6.1", "6.x", "99999.1"] {
            assert!(text.parse::<KernelVersion>().is_err(), "{text}");
        }
    }

    #[test]
    fn each_rule_changes_at_its_version() {
        let of = |major, minor| Rules::of(KernelVersion::new(major, minor));
        assert_eq!(of(5, 15).node_load, NodeLoad::Assign);
        assert_eq!(of(5, 16).node_load, NodeLoad::AccumulateRemaining);
        assert_eq!(of(5, 17).node_load, NodeLoad::AccumulateRemaining);
        assert_eq!(of(5, 18).node_load, NodeLoad::Accumulate);
        assert_eq!(of(5, 13).high, HighRule::SixBatches);
        assert_eq!(of(5, 14).high, HighRule::LowWatermark);
        assert_eq!(of(6, 6).high, HighRule::LowWatermark);
        assert_eq!(of(6, 7).high, HighRule::Tuned);
        assert_eq!(of(6, 6).own_place, OwnPlace::Always);
        assert_eq!(of(6, 7).own_place, OwnPlace::WithMemory);
        assert_eq!(of(6, 1).movable_min, MovableMin::Ordinary);
        assert_eq!(of(6, 2).movable_min, MovableMin::OwnMinimum);
        assert_eq!([of(3, 0), of(4, 18)].map(|rules| rules.batch), [BatchRule::Managed1024Half; 2]);
        assert_eq!([of(4, 19), of(6, 18)].map(|rules| rules.batch), [BatchRule::Managed1024; 2]);
        assert_eq!(of(6, 19).batch, BatchRule::Managed4096);
        assert_eq!(of(6, 0).offline_lists, OfflineLists::Skipped);
        for (version, has) in [(of(4, 5), false), (of(4, 6), true)] {
            let lacks = Settings::ALL.into_iter().find(|&setting| !version.has(setting));
            assert_eq!(lacks, if has { None } else { Some(Setting::WatermarkScaleFactor) });
            assert_eq!(version.has_scale_factor, has);
        }
    }

    #[test]
    fn versions_that_cannot_be_are_refused() {
        let checked =
            |major, minor| KernelVersion::new(major, minor).checked().map_err(|error| error.to_string());
        for (major, minor) in [(3, 0), (4, 4), (4, 20), (5, 19), (6, 19), (7, 2), (7, 3)] {
            assert!(checked(major, minor).is_ok(), "{major}.{minor}");
        }
        for (major, minor) in [(99, 1), (4, 21), (6, 20), (8, 0), (3, 20)] {
            assert!(checked(major, minor).unwrap_err().contains("there is no Linux"), "{major}.{minor}");
        }
        assert!(checked(2, 6).unwrap_err().contains("the oldest version with known rules is 3.0"));
    }
}
