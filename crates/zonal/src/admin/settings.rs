//! Settings that can be changed at run time, by name or by type, and each zone's values that depend on them.
//!
//! Settings are stored in atomic cells, which all other code reads without a lock. The setters write them under the
//! lock for run-time changes, and recompute watermarks, reserves, pageset limits, thresholds and drift marks.
//!
//! Related files: `settings/table.rs` has the settings, and `admin/hotplug.rs` changes CPUs and memory.

use crate::Allocator;
use crate::config::{Config, NodeReclaim, OwnedBlocks, StatInterval, ZonelistCache};
use crate::error::ConfigError;
use crate::pageset::StackShape;
use crate::pageset::state::MachineState;
use crate::platform::Platform;
use crate::platform::lock::Held;
use crate::rules::pageset_limits::{PagesetZone, batch, largest_high_max};
use crate::rules::pageset_tuning::PagesetTuning;
use crate::rules::stat_threshold::drift_mark;
use crate::rules::watermarks::{WatermarkBasis, WatermarkSettings};
use crate::settings::{Access, Affects, Setting, SettingError, SettingValue};
use crate::units::{PageCount, ZoneKind};
use crate::zone::Zone;
use crate::zone::order_classes::OrderClasses;

/// Settings that watermarks and lowmem reserves depend on.
const WATERMARKS: [Setting; 4] =
    [Setting::MinFreeKbytes, Setting::WatermarkScaleFactor, Setting::LowmemReserveRatio, Setting::MovableMin];

impl<P: Platform> Allocator<'_, P> {
    /// Returns the configuration with the current settings.
    ///
    /// The watermarks of each zone are in [`Self::zones`].
    pub fn settings(&self) -> Config {
        self.state.current(&Setting::ALL)
    }

    /// Returns the value of a setting in [the table](crate::settings).
    ///
    /// `min_free_kbytes` is the value in force, even if it is computed from the size of the machine.
    ///
    /// # Errors
    /// [`SettingError::Unknown`], and [`SettingError::WriteOnly`] for `stat_refresh`.
    pub fn setting(&self, name: &str) -> Result<SettingValue, SettingError> {
        let setting = Setting::named(name)?;
        match self.state.shared.value(setting) {
            SettingValue::None => Err(SettingError::WriteOnly(setting)),
            SettingValue::Auto => {
                let (state, page_bytes) = (&self.state, self.state.config().page_bytes);
                let zones = state.zones.iter().map(|zone| (zone.kind, zone.managed()));
                let frames = state.current(&WATERMARKS).watermarks.basis(zones, page_bytes).min_free();
                Ok(SettingValue::Number((u128::from(frames.get()) * u128::from(page_bytes) / 1024) as u64))
            }
            value => Ok(value),
        }
    }

    /// Changes a setting in [the table](crate::settings) to the value that `text` says.
    ///
    /// The effect is that of the typed method, for example [`Allocator::set_watermarks`]. Other settings do not change,
    /// even if threads change them at the same time. As for [`Allocator::stat_refresh`], a reclaimer must not set
    /// `stat_refresh`.
    ///
    /// # Errors
    /// [`SettingError::Unknown`], [`SettingError::Value`], [`SettingError::ReadOnly`] and [`SettingError::Refused`].
    /// Nothing has changed then.
    pub fn set_setting(&self, name: &str, text: &str) -> Result<(), SettingError> {
        let setting = Setting::named(name)?;
        if setting.info().access == Access::ReadOnly {
            return Err(SettingError::ReadOnly(setting));
        }
        let value = setting.parse(text)?;
        if setting == Setting::StatRefresh {
            self.stat_refresh();
            return Ok(());
        }
        let mut config = *self.state.config();
        config.put(setting, value);
        self.state.change(&[setting], &config).map_err(|why| SettingError::Refused { setting, why })
    }

    /// Changes how `pageset.high` is tuned, and resets `high` of every pageset to its lower limit.
    ///
    /// # Errors
    /// Returns an error for a past form that is not linked, or if pagesets have fewer slots than the form needs. They have
    /// enough slots if the allocator was created with it. On error, no setting changes.
    pub fn set_tuning(&self, tuning: PagesetTuning) -> Result<(), ConfigError> {
        self.state.change(&[Setting::PagesetTuning], &Config { tuning, ..*self.state.config() })
    }

    /// Changes how the zonelist cache is used, and clears all full bits.
    ///
    /// # Errors
    /// Returns an error, and changes nothing, if `zonelist_cache` is a past form that [`Config::past`] lacks.
    pub fn set_zonelist_cache(&self, zonelist_cache: ZonelistCache) -> Result<(), ConfigError> {
        self.state.change(&[Setting::ZonelistCache], &Config { zonelist_cache, ..*self.state.config() })
    }

    /// Enables or disables node reclaim or changes its permissions, and clears all full bits, as
    /// [`Self::set_reclaim_distance`] does.
    pub fn set_node_reclaim(&self, node_reclaim: NodeReclaim) {
        self.state.store(&[Setting::ZoneReclaimMode], &Config { node_reclaim, ..*self.state.config() });
    }

    /// Changes the largest distance between a request's preferred node and a node that it may reclaim.
    ///
    /// Distances are the entries of the machine's distance table, which are at least 10. The function clears all full
    /// bits, because zones that were not reclaimed before may now be reclaimed. See
    /// [`Config::reclaim_distance`](crate::Config::reclaim_distance).
    pub fn set_reclaim_distance(&self, reclaim_distance: u8) {
        self.state.store(&[Setting::ReclaimDistance], &Config { reclaim_distance, ..*self.state.config() });
    }

    /// Changes the percentage of a node that must be reclaimable before node reclaim is attempted.
    ///
    /// The function clears all full bits, as [`Self::set_reclaim_distance`] does. See
    /// [`Config::min_unmapped_percent`](crate::Config::min_unmapped_percent).
    ///
    /// # Errors
    /// Returns an error, and changes nothing, if `min_unmapped_percent` is above 100.
    pub fn set_min_unmapped_percent(&self, min_unmapped_percent: u8) -> Result<(), ConfigError> {
        let config = Config { min_unmapped_percent, ..*self.state.config() };
        self.state.change(&[Setting::MinUnmappedRatio], &config)
    }

    /// Changes how often ticks fold the zone and node counters.
    ///
    /// The embedder must still call [`Self::tick`] once a second, because it also does other work.
    pub fn set_stat_interval(&self, stat_interval: StatInterval) {
        self.state.store(&[Setting::StatInterval], &Config { stat_interval, ..*self.state.config() });
    }

    /// Fixes `pageset.high` at a fraction of each zone, divided among its CPUs; 0 restores tuning.
    pub fn set_high_fraction(&self, high_fraction: u32) {
        self.state
            .store(&[Setting::PercpuPagelistHighFraction], &Config { high_fraction, ..*self.state.config() });
    }

    /// Changes watermarks and lowmem reserves of all zones.
    ///
    /// # Errors
    /// Returns an error, and changes nothing, if the minimum exceeds the managed frames, or the scale factor is out of range.
    pub fn set_watermarks(&self, watermarks: WatermarkSettings) -> Result<(), ConfigError> {
        self.state.change(&WATERMARKS, &Config { watermarks, ..*self.state.config() })
    }
}

impl<'m, P: Platform> MachineState<'m, P> {
    /// Waits for the lock that serialises changes. If a process died while it changed something, applies all settings again.
    pub(crate) fn lock_changes(&self) -> Held<'m, P::Lock> {
        let held = Held::wait(&self.shared.changes.0);
        held.repair_with(|| {
            self.rebuild_lists(&held);
            self.apply_settings(&held);
        });
        held
    }

    /// Returns the configuration with the current values of `settings`.
    fn current(&self, settings: &[Setting]) -> Config {
        let mut config = *self.config();
        let settings = if P::CONFIG.is_none() { settings } else { &[] };
        settings.iter().for_each(|&setting| config.put(setting, self.shared.value(setting)));
        config
    }

    /// Changes settings to their values in `to`, if these are possible on this machine.
    fn change(&self, settings: &[Setting], to: &Config) -> Result<(), ConfigError> {
        let held = self.lock_changes();
        to.check()?;
        if settings.contains(&Setting::MinFreeKbytes) {
            self.check_min_free(&to.watermarks, PageCount::ZERO)?;
        }
        // If another setting changes, `to` has the rule of the creation.
        if settings == [Setting::PagesetTuning] && to.tuning.is_past() {
            for zone in self.zones {
                let sharing = if zone.own_cpus == 0 { zone.cpus } else { zone.own_cpus };
                let needed = largest_high_max(zone.span.count, sharing, self.config().page_bytes);
                let slots = self.pagesets_of(zone).foreign_stacks.capacity(); // other pagesets have as many or more
                if slots < needed {
                    let (node, kind) = (zone.node_id, zone.kind);
                    return Err(ConfigError::PagesetSlots { node, kind, slots, needed });
                }
            }
        }
        let has_room = self.config().owned_blocks == OwnedBlocks::On;
        if settings == [Setting::OwnedBlocks] && to.owned_blocks == OwnedBlocks::On && !has_room {
            return Err(ConfigError::NoOwnedBlocks);
        }
        self.store_held(settings, to, &held);
        Ok(())
    }

    /// Changes settings to their values in `to`, all of which are possible on every machine.
    fn store(&self, settings: &[Setting], to: &Config) {
        self.store_held(settings, to, &self.lock_changes());
    }

    fn store_held(&self, settings: &[Setting], to: &Config, held: &Held<'_, P::Lock>) {
        const { assert!(P::CONFIG.is_none()) };
        settings.iter().for_each(|&setting| self.shared.store(setting, to));
        match settings[0].affects() {
            Affects::Nothing => {}
            Affects::Watermarks => self.apply_settings(held),
            Affects::Pagesets => {
                self.apply_settings(held);
                self.reset_tuning();
            }
            // Clears all full bits that scans have set, so that the next scans check all zones again.
            Affects::FullZones => {
                self.zones.iter().for_each(|zone| self.clear_full_bits(zone, OrderClasses::ALL));
                (0..self.nodes.len()).for_each(|place| self.lists.full(place).wipe());
                (0..self.nodes.len()).for_each(|place| self.recall_cpus(place));
            }
        }
    }

    /// Recomputes all values that depend on the settings, the online memory and the online CPUs, and adjusts all pagesets.
    pub(crate) fn apply_settings(&self, held: &Held<'_, P::Lock>) {
        self.recompute(held);
        self.reclamp_pagesets();
    }

    /// Recomputes all values that depend on the settings, the online memory and the online CPUs.
    pub(super) fn recompute(&self, _held: &Held<'_, P::Lock>) {
        let watermarks = self.current(&WATERMARKS).watermarks;
        let sizes = self.zones.iter().map(|zone| (zone.kind, zone.managed()));
        let basis = watermarks.basis(sizes, self.config().page_bytes);
        let online = self.online_cpus(None);
        for (place, node) in self.nodes.iter().enumerate() {
            node.set_cpus_online(self.online_cpus(Some(place)));
            let mut managed = [PageCount::ZERO; ZoneKind::COUNT];
            let zones = self.node_zones(place);
            for zone in zones {
                let of_kind = &mut managed[zone.kind.index()];
                *of_kind = of_kind.plus(zone.managed());
            }
            for zone in zones {
                let of_kind = managed[zone.kind.index()].get();
                for limit in ZoneKind::ALL {
                    // The zone's share is the whole reserve unless the node has several zones of the kind. The product needs 128
                    // bits, because reserves and zones can have 2^32 frames or more.
                    let reserve = watermarks.reserve(&managed, zone.kind, limit).get();
                    let product = u128::from(reserve) * u128::from(zone.managed().get());
                    let share = product.checked_div(of_kind.into()).unwrap_or(0) as u64;
                    zone.set_reserve(limit, PageCount::new(share));
                }
                self.apply_to_zone(zone, &basis, online);
            }
            let largest = zones.iter().map(|zone| self.rest_threshold(zone, online)).max().unwrap_or(0);
            node.counters.set_thresholds([largest; 2], self.config().counters.fold);
        }
    }

    fn apply_to_zone(&self, zone: &Zone<'_, P>, basis: &WatermarkBasis, online: u32) {
        let managed = zone.managed();
        let marks = basis.watermarks(zone.kind, managed);
        let pageset_zone = PagesetZone {
            managed,
            low: marks.low,
            node_cpus: self.nodes[zone.node].cpus_online(),
            online_cpus: online,
        };
        let high_fraction = self.shared.number(Setting::PercpuPagelistHighFraction) as u32;
        let own = pageset_zone.limits(batch(managed, self.config().page_bytes), high_fraction).ordered();
        let pagesets = self.pagesets_of(zone);
        let foreign = if self.shared.tuning().is_past() { own } else { own.on_foreign_cpu() };
        let slots = [pagesets.own_stacks, pagesets.foreign_stacks].map(StackShape::capacity);
        zone.set_pageset_limits([own, foreign], slots);
        let rest = self.rest_threshold(zone, online);
        let mark = drift_mark(online, rest, &marks);
        zone.set_watermarks(&marks, mark);
        // The threshold under pressure is smaller if drift could hide that the zone fell below `min`.
        let pressed = mark.map_or(rest, |_| self.config().counters.under_pressure(rest, online, &marks));
        zone.counters().set_thresholds([rest, pressed], self.config().counters.fold);
    }

    /// Returns the threshold of a zone's counters for `online` CPUs while background reclaim does not run.
    fn rest_threshold(&self, zone: &Zone<'_, P>, online: u32) -> u8 {
        let frames = self.config().counters.frames(zone.managed(), zone.present());
        self.config().counters.threshold(online, frames, self.config().page_bytes)
    }

    /// Returns an error if the configured minimum exceeds the managed frames of the machine and those that are to come.
    pub(super) fn check_min_free(
        &self,
        watermarks: &WatermarkSettings,
        to_come: PageCount,
    ) -> Result<(), ConfigError> {
        let managed = self.zones.iter().map(Zone::managed).sum::<PageCount>().plus(to_come);
        match watermarks.min_free {
            Some(min_free) if min_free > managed => Err(ConfigError::MinFree { min_free, managed }),
            _ => Ok(()),
        }
    }
}
