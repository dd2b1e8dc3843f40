//! Settings that can be changed at run time, and the values of each zone that depend on them.
//!
//! Settings are stored in atomic cells, which all other code reads without a lock. The setters write them under the
//! lock for run-time changes, and recompute watermarks, reserves, pageset limits, thresholds and drift marks.
//!
//! Related files: `config.rs` defines the possible values, and `admin/hotplug.rs` changes CPUs and memory.

use core::sync::atomic::Ordering::Relaxed;

use crate::Allocator;
use crate::config::{InvalidFree, NodeReclaim, StatInterval, ZonelistCache};
use crate::error::ConfigError;
use crate::pageset::StackShape;
use crate::pageset::state::MachineState;
use crate::platform::lock::Held;
use crate::platform::{Atomic, Platform};
use crate::rules::fallback_order::NodeLoad;
use crate::rules::pageset_limits::{PagesetRules, PagesetZone, published_high_max};
use crate::rules::pageset_tuning::PagesetTuning;
use crate::rules::stat_threshold::{CounterRules, drift_mark};
use crate::rules::watermarks::{WatermarkBasis, WatermarkSettings};
use crate::units::{PageCount, ZoneKind};
use crate::zone::Zone;
use crate::zone::counters::Thresholds;
use crate::zone::order_classes::OrderClasses;

/// The current settings, as returned by [`Allocator::settings`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings {
    /// See [`Config::node_load`](crate::Config::node_load).
    pub node_load: NodeLoad,
    /// See [`Config::tuning`](crate::Config::tuning).
    pub tuning: PagesetTuning,
    /// See [`Config::high_fraction`](crate::Config::high_fraction).
    pub high_fraction: u32,
    /// See [`Config::counters`](crate::Config::counters).
    pub counters: CounterRules,
    /// See [`Config::stat_interval`](crate::Config::stat_interval).
    pub stat_interval: StatInterval,
    /// See [`Config::zonelist_cache`](crate::Config::zonelist_cache).
    pub zonelist_cache: ZonelistCache,
    /// See [`Config::node_reclaim`](crate::Config::node_reclaim).
    pub node_reclaim: NodeReclaim,
    /// See [`Config::reclaim_distance`](crate::Config::reclaim_distance).
    pub reclaim_distance: u8,
    /// See [`Config::min_unmapped_percent`](crate::Config::min_unmapped_percent).
    pub min_unmapped_percent: u8,
    /// See [`Config::invalid_free`](crate::Config::invalid_free).
    pub invalid_free: InvalidFree,
}

impl<P: Platform> Allocator<'_, P> {
    /// Returns the current settings.
    ///
    /// The watermarks of each zone are in [`Self::zones`].
    pub fn settings(&self) -> Settings {
        Settings {
            node_load: self.state.node_load,
            tuning: self.state.shared.tuning(),
            high_fraction: self.state.shared.high_fraction(),
            counters: self.state.counters,
            stat_interval: self.state.shared.stat_interval(),
            zonelist_cache: self.state.shared.zonelist_cache(),
            node_reclaim: self.state.shared.node_reclaim(),
            reclaim_distance: self.state.shared.reclaim_distance(),
            min_unmapped_percent: self.state.shared.min_unmapped_percent(),
            invalid_free: self.state.invalid_free,
        }
    }

    /// Changes how `pageset.high` is tuned, and resets `high` of every pageset to its lower limit.
    ///
    /// # Errors
    /// Returns an error for [`PagesetTuning::DepthPublished`] if pagesets have fewer slots than the upper limit of
    /// that rule. They have enough slots if the allocator was created with that rule. On error, no setting changes.
    pub fn set_tuning(&self, tuning: PagesetTuning) -> Result<(), ConfigError> {
        let held = self.state.shared.change();
        if tuning == PagesetTuning::DepthPublished {
            self.state.zones.iter().try_for_each(|zone| self.state.check_slots(zone))?;
        }
        self.state.shared.settings.0.tuning.store(tuning as u64, Relaxed);
        self.state.apply_settings(&held);
        self.state.reset_tuning();
        Ok(())
    }

    /// Changes how the zonelist cache is used, and clears all full bits.
    pub fn set_zonelist_cache(&self, mode: ZonelistCache) {
        let _held = self.state.shared.change();
        self.state.shared.settings.0.zonelist_cache.store(mode as u64, Relaxed);
        self.state.forget_full_zones();
    }

    /// Enables or disables node reclaim or changes its permissions, and clears all full bits, as
    /// [`Self::set_reclaim_distance`] does.
    pub fn set_node_reclaim(&self, mode: NodeReclaim) {
        let _held = self.state.shared.change();
        self.state.shared.settings.0.node_reclaim.store(u64::from(mode.mode()), Relaxed);
        self.state.forget_full_zones();
    }

    /// Changes the largest distance between a request's preferred node and a node that it may reclaim.
    ///
    /// Distances are the entries of the machine's distance table, which are at least 10. The function clears all full
    /// bits, because zones that were not reclaimed before may now be reclaimed. See
    /// [`Config::reclaim_distance`](crate::Config::reclaim_distance).
    pub fn set_reclaim_distance(&self, distance: u8) {
        let _held = self.state.shared.change();
        self.state.shared.settings.0.reclaim_distance.store(u64::from(distance), Relaxed);
        self.state.forget_full_zones();
    }

    /// Changes the percentage of a node that must be reclaimable before node reclaim is attempted.
    ///
    /// The function clears all full bits, as [`Self::set_reclaim_distance`] does. See
    /// [`Config::min_unmapped_percent`](crate::Config::min_unmapped_percent).
    ///
    /// # Errors
    /// Returns an error, and changes nothing, if `percent` is above 100.
    pub fn set_min_unmapped_percent(&self, percent: u8) -> Result<(), ConfigError> {
        if percent > 100 {
            return Err(ConfigError::Percent(percent));
        }
        let _held = self.state.shared.change();
        self.state.shared.settings.0.min_unmapped_percent.store(u64::from(percent), Relaxed);
        self.state.forget_full_zones();
        Ok(())
    }

    /// Changes how often ticks fold the zone and node counters.
    ///
    /// The embedder must still call [`Self::tick`] once a second, because it also does other work.
    pub fn set_stat_interval(&self, interval: StatInterval) {
        let _held = self.state.shared.change();
        self.state.shared.settings.0.stat_interval.store(u64::from(interval.seconds()), Relaxed);
    }

    /// Fixes `pageset.high` at a fraction of each zone, divided among its CPUs; 0 restores tuning.
    pub fn set_high_fraction(&self, fraction: u32) {
        let held = self.state.shared.change();
        self.state.shared.settings.0.high_fraction.store(u64::from(fraction), Relaxed);
        self.state.apply_settings(&held);
        self.state.reset_tuning();
    }

    /// Changes watermarks and lowmem reserves of all zones.
    ///
    /// # Errors
    /// Returns an error, and changes nothing, if the minimum exceeds the managed frames.
    pub fn set_watermarks(&self, watermarks: WatermarkSettings) -> Result<(), ConfigError> {
        self.state.change_watermarks(|all| *all = watermarks)
    }
}

impl<'m, P: Platform> MachineState<'m, P> {
    /// Returns an error if the pagesets of a zone have too few slots for the published rule.
    fn check_slots(&self, zone: &Zone<'_, P>) -> Result<(), ConfigError> {
        let pagesets = self.pagesets_of(zone);
        let cpus = match zone.own_cpus {
            0 => self.cpus.iter().filter(|cpu| cpu.exists()).count(),
            cpus => cpus,
        };
        let needed = published_high_max(zone.span.count, cpus, self.page_bytes);
        let shapes = [(zone.own_cpus != 0).then_some(pagesets.own_stacks), Some(pagesets.foreign_stacks)];
        match shapes.into_iter().flatten().map(StackShape::capacity).min() {
            Some(slots) if slots < needed => {
                Err(ConfigError::PagesetSlots { node: zone.node_id, kind: zone.kind, slots, needed })
            }
            _ => Ok(()),
        }
    }

    /// Applies `change` to the current watermarks and lowmem reserves, as [`Self::set_watermarks`] does.
    pub(super) fn change_watermarks(
        &self,
        change: impl FnOnce(&mut WatermarkSettings),
    ) -> Result<(), ConfigError> {
        let held = self.shared.change();
        let mut watermarks = self.shared.watermarks();
        change(&mut watermarks);
        self.check_min_free(&watermarks, PageCount::ZERO)?;
        self.shared.set_watermarks(&watermarks);
        self.apply_settings(&held);
        Ok(())
    }

    /// Recomputes all values that depend on the settings, the online memory and the online CPUs.
    pub(crate) fn apply_settings(&self, _held: &Held<'_, P::Lock>) {
        let watermarks = self.shared.watermarks();
        let sizes = self.zones.iter().map(|zone| (zone.kind, zone.managed()));
        let basis = watermarks.basis(sizes, self.page_bytes);
        let online = self.online_cpus(None);
        for (place, node) in self.nodes.iter().enumerate() {
            node.set_cpus_online(self.online_cpus(Some(place)));
            let mut managed = [PageCount::ZERO; ZoneKind::COUNT];
            let zones = &self.zones[node.first_zone..][..node.zone_count];
            for zone in zones {
                let of_kind = &mut managed[zone.kind.index()];
                *of_kind = of_kind.plus(zone.managed());
            }
            for zone in zones {
                let of_kind = managed[zone.kind.index()];
                for limit in ZoneKind::ALL {
                    let reserve = watermarks.reserve(&managed, zone.kind, limit);
                    let reserve = share_of_part(reserve, zone.managed(), of_kind);
                    zone.cells.rules.0.reserve[limit.index()].store(reserve.get(), Relaxed);
                }
                self.apply_to_zone(zone, &basis, online);
            }
            let largest = zones.iter().map(|zone| self.rest_threshold(zone, online)).max().unwrap_or(0);
            let thresholds = Thresholds { rest: largest, pressed: largest };
            node.counters.set_thresholds(thresholds, self.counters.fold);
        }
        self.reclamp_pagesets();
    }

    fn apply_to_zone(&self, zone: &Zone<'_, P>, basis: &WatermarkBasis, online: u32) {
        let rules = &zone.cells.rules.0;
        let managed = zone.managed();
        let marks = basis.watermarks(zone.kind, managed);
        rules.min.store(marks.min.get(), Relaxed);
        rules.low.store(marks.low.get(), Relaxed);
        rules.high.store(marks.high.get(), Relaxed);
        let pageset_zone = PagesetZone {
            managed,
            low: marks.low,
            node_cpus: self.nodes[zone.node].cpus_online(),
            online_cpus: online,
        };
        let high_fraction = self.shared.settings.0.high_fraction.load(Relaxed) as u32;
        let limits = PagesetRules { high_fraction, ..PagesetRules::default() };
        let own = limits.limits(&pageset_zone, self.page_bytes).ordered();
        rules.batch.store(own.batch.get(), Relaxed);
        let pagesets = self.pagesets_of(zone);
        let stacks = [pagesets.own_stacks, pagesets.foreign_stacks];
        let published = self.shared.tuning() == PagesetTuning::DepthPublished;
        let foreign = if published { own } else { own.on_foreign_cpu() };
        for (at, limits) in [own, foreign].into_iter().enumerate() {
            let slots = stacks[at].capacity();
            rules.high_min[at].store(limits.high_min.min(slots).get(), Relaxed);
            rules.high_max[at].store(limits.high_max.min(slots).get(), Relaxed);
        }
        let rest = self.rest_threshold(zone, online);
        let mark = drift_mark(online, rest, &marks);
        rules.drift_mark.store(mark.map_or(0, PageCount::get), Relaxed);
        // The threshold under pressure is smaller if drift could hide that the zone fell below `min`.
        let pressed = mark.map_or(rest, |_| self.counters.under_pressure(rest, online, &marks));
        zone.counters().set_thresholds(Thresholds { rest, pressed }, self.counters.fold);
    }

    /// Returns the threshold of a zone's counters for `online` CPUs while background reclaim does not run.
    fn rest_threshold(&self, zone: &Zone<'_, P>, online: u32) -> u8 {
        let frames = self.counters.frames(zone.managed(), zone.present());
        self.counters.threshold(online, frames, self.page_bytes)
    }
}

/// Returns the share that a zone of `managed` frames has in the lowmem reserve of its kind.
///
/// The node has `of_kind` frames of that kind. The share is the whole reserve unless the node has several zones of
/// the kind.
const fn share_of_part(reserve: PageCount, managed: PageCount, of_kind: PageCount) -> PageCount {
    match of_kind.get() {
        0 => PageCount::ZERO,
        // The product needs 128 bits, because reserves and zones can have 2^32 frames or more.
        all => PageCount::new((reserve.get() as u128 * managed.get() as u128 / all as u128) as u64),
    }
}

impl<'m, P: Platform> MachineState<'m, P> {
    /// Clears all full bits that scans have set, so that the next scans check all zones again.
    fn forget_full_zones(&self) {
        self.zones.iter().for_each(|zone| self.clear_full_bits(zone, OrderClasses::ALL));
        self.lists.lists.iter().for_each(|list| list.full.wipe());
        self.recall_all_cpus();
    }

    /// Returns an error if the configured minimum exceeds the managed frames of the machine and those that are to come.
    pub(crate) fn check_min_free(
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

    /// Switches the zones of a node to the counter thresholds under pressure, because background reclaim of the node
    /// starts.
    pub(crate) fn pressure_begins(&self, node: usize) {
        self.node_zones(node).iter().for_each(|zone| zone.counters().pressure_begins());
    }

    /// Switches the zones of a node back to the normal counter thresholds.
    pub(crate) fn pressure_ends(&self, node: usize) {
        self.node_zones(node).iter().for_each(|zone| zone.counters().pressure_ends());
    }
}
