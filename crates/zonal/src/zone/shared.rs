//! State shared by all zones and nodes: settings, the lock that serialises changes, versions of zonelists, totals of
//! the machine.
//!
//! Settings are read on every path, and setters write them under the lock of changes. Related file: `admin/settings.rs`
//! sets the settings and recomputes the values that depend on them.

use core::sync::atomic::Ordering::Relaxed;

use crate::config::{Config, NodeReclaim, OwnedBlocks, ZonelistCache};
use crate::platform::cells::all_zero;
use crate::platform::{Atomic, Platform};
use crate::rules::pageset_tuning::PagesetTuning;
use crate::settings::{NamedRule, Setting, SettingValue, SettingValues};
use crate::units::ZoneKind;
use crate::zone::counters::TOTAL_CELLS;

/// Words of a node mask.
const MASK_WORDS: usize = crate::units::MAX_NODES / 64;
/// The cell of a setting that has no number.
const AUTO: u64 = u64::MAX;

all_zero! {
    /// State shared by the whole allocator.
    #[repr(C)]
    pub(crate) struct SharedCells<P> {
        /// Settings, which every path reads and only setters write.
        pub(crate) settings: (line {SettingsCells<P>}),
        /// Serialises changes at run time.
        pub(crate) changes: (line lock),
        /// Versions of the zonelists.
        pub(crate) lists_current: u64,
        pub(crate) lists_begun: u64,
        /// Totals of all nodes' counters, if the configuration enables machine totals.
        pub(crate) machine_totals: (line [u64; TOTAL_CELLS]),
        /// Nodes with memory online.
        pub(crate) memory_nodes: (line [u64; MASK_WORDS]),
        /// Processes whose blocks outlive them, a bit each.
        pub(crate) keeping: u64,
    }
}

all_zero! {
    #[repr(C)]
    pub(crate) struct SettingsCells<P> {
        /// The setting with a number for each zone kind. With these four numbers before them, the settings that requests
        /// read are on one cache line.
        per_kind: [u64; ZoneKind::COUNT],
        /// All other settings, ordered as in [`Setting::ALL`].
        values: [u64; Setting::ALL.len()],
        /// Number of requests so far, counted only while fault injection is on.
        requests: u64,
    }
}

// Loads and stores of settings are relaxed, because each setting is independent. A request that still uses an old value
// behaves like a request made a moment earlier.
impl<P: Platform> SharedCells<P> {
    /// Returns how `pageset.high` is tuned.
    #[inline]
    pub(crate) fn tuning(&self) -> PagesetTuning {
        P::CONFIG.map_or_else(|| self.rule(), |config| config.tuning)
    }

    /// Returns how the zonelist cache is used.
    pub(crate) fn zonelist_cache(&self) -> ZonelistCache {
        P::CONFIG.map_or_else(|| self.rule(), |config| config.zonelist_cache)
    }

    /// Whether CPUs may take blocks to own.
    pub(crate) fn owns_blocks(&self) -> bool {
        P::CONFIG.map_or_else(|| self.rule(), |config| config.owned_blocks) == OwnedBlocks::On
    }

    #[inline]
    fn rule<R: NamedRule>(&self) -> R {
        R::RULES.get(self.number(R::SETTING) as usize).copied().unwrap_or_default()
    }

    /// Returns the mode of node reclaim.
    pub(crate) fn node_reclaim(&self) -> NodeReclaim {
        let mode = self.number(Setting::ZoneReclaimMode) as u32;
        NodeReclaim::from_mode(mode).unwrap_or_default() // only valid modes are stored
    }

    /// Returns the value of a setting whose values are numbers.
    #[inline]
    pub(crate) fn number(&self, setting: Setting) -> u64 {
        let stored = || self.settings.0.values[setting as usize].load(Relaxed);
        P::CONFIG.map_or_else(stored, |config| config.get(setting).number().unwrap_or(AUTO))
    }

    /// Returns the value of a setting.
    pub(crate) fn value(&self, setting: Setting) -> SettingValue {
        if let Some(config) = P::CONFIG {
            return config.get(setting);
        }
        let number = self.number(setting);
        match setting.info().values {
            SettingValues::NumberOrAuto { .. } if number == AUTO => SettingValue::Auto,
            SettingValues::Number { .. } | SettingValues::NumberOrAuto { .. } => SettingValue::Number(number),
            SettingValues::Names(names) => SettingValue::Name(names[number as usize]),
            SettingValues::PerKind => SettingValue::PerKind(
                self.settings.0.per_kind.each_ref().map(|cell| cell.load(Relaxed) as u32),
            ),
            SettingValues::Any => SettingValue::None,
        }
    }

    /// Stores the value that a setting has in `config`.
    pub(crate) fn store(&self, setting: Setting, config: &Config) {
        let number = match (config.get(setting), setting.info().values) {
            (SettingValue::Number(number), _) => number,
            (SettingValue::Name(name), SettingValues::Names(names)) => {
                names.iter().position(|other| *other == name).unwrap_or_default() as u64
            }
            (SettingValue::PerKind(numbers), _) => {
                let cells = self.settings.0.per_kind.iter().zip(numbers);
                return cells.for_each(|(cell, number)| cell.store(number.into(), Relaxed));
            }
            _ => AUTO,
        };
        self.settings.0.values[setting as usize].store(number, Relaxed);
    }

    /// Returns the number of this request; the first request has number 1.
    pub(crate) fn next_request(&self) -> u64 {
        self.settings.0.requests.fetch_add(1, Relaxed).wrapping_add(1) // relaxed: numbers only have to be distinct
    }
}
