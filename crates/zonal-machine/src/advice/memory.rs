//! Advice on zones, watermarks, pagesets and counters.

use zonal::rules::watermarks::default_min_free;
use zonal::settings::Setting;
use zonal::units::{PageCount, ZoneKind};
use zonal_model::ZoneModel;
use zonal_model::pageset_limits::HighRule;

use super::{View, info, list_first, warn, zone_name};
use crate::predict::{ZonePrediction, watermark_settings};
use crate::report::Advice;

/// Approximate upper limit of the memory that one CPU allocates and touches in a second.
const CPU_BYTES_PER_SECOND: u64 = 1 << 30;

/// Time from the wake-up of background reclaim to its start. The free frames must last at least that long.
const WAKE_MICROSECONDS: u64 = 1000;

/// A zone with less than this fraction (one part in `TINY_PART`) of its node's frames says little about the node. Every
/// PC has such a DMA zone.
const TINY_PART: u64 = 100;

/// A zone with at least this fraction (one part in `MAIN_PART`) of its node's frames serves most requests there.
const MAIN_PART: u64 = 4;

fn is_tiny(view: &View<'_>, zone: &ZoneModel) -> bool {
    zone.managed.get() < view.model.managed_of(zone.node).get() / TINY_PART
}

/// Returns the zones that make up a large part of their node. Smaller zones serve special purposes.
fn main_zones<'a>(view: &'a View<'_>) -> impl Iterator<Item = (&'a ZoneModel, &'a ZonePrediction)> {
    view.zones().filter(|(zone, _)| zone.managed.get() >= view.model.managed_of(zone.node).get() / MAIN_PART)
}

/// Returns the number of frames outside movable zones, and the number of them that the kernel keeps free.
fn reserved_pages(view: &View<'_>) -> (PageCount, PageCount) {
    let ordinary = view.model.zones.iter().filter(|zone| zone.kind != ZoneKind::Movable);
    let ordinary: PageCount = ordinary.map(|zone| zone.managed).sum();
    let set = watermark_settings(view.model, view.rules).min_free;
    (ordinary, set.unwrap_or_else(|| default_min_free(ordinary, view.model.page_bytes)))
}

/// Warns if much memory is present and not managed.
pub(super) fn present_but_not_managed(view: &View<'_>) -> Option<Advice> {
    let mut nodes = Vec::new();
    for node in view.model.online_nodes() {
        let present: PageCount = view.model.zones_of(node.id).map(|zone| zone.present).sum();
        let managed = view.model.managed_of(node.id);
        let missing = present.saturating_minus(managed);
        if missing.get() > present.get() / 10 {
            let percent = missing.get().saturating_mul(100) / present.get();
            let (present, managed) = (view.size(present), view.size(managed));
            nodes.push(format!(
                "node {} ({present} present, {managed} managed: {percent} % missing)",
                node.id
            ));
        }
    }
    if nodes.is_empty() {
        return None;
    }
    warn(format!(
        "much memory is present and not managed: {}; a balloon took it, pages of 1 GiB were reserved at boot, or the \
         kernel has not started all of it yet",
        list_first(&nodes)
    ))
}

pub(super) fn min_free_large(view: &View<'_>) -> Option<Advice> {
    let kib = view.model.settings.min_free_kib?;
    let (ordinary, kept) = reserved_pages(view);
    let percent = kept.get().saturating_mul(100).checked_div(ordinary.get())?;
    if percent <= 5 {
        return None;
    }
    warn(format!(
        "min_free_kbytes {kib} keeps {} free, which is {percent} % of the {} outside movable zones; more than 5 % \
         takes more memory from the page cache than bursts of allocation need (the kernel's default: {})",
        view.size(kept),
        view.size(ordinary),
        view.size(default_min_free(ordinary, view.model.page_bytes))
    ))
}

pub(super) fn min_free_small(view: &View<'_>) -> Option<Advice> {
    let kib = view.model.settings.min_free_kib?;
    let (ordinary, kept) = reserved_pages(view);
    let usual = default_min_free(ordinary, view.model.page_bytes);
    if kept.get() >= usual.get() / 4 {
        return None;
    }
    warn(format!(
        "min_free_kbytes {kib} keeps {} free, less than a quarter of the kernel's default of {}; atomic \
         allocations, such as for received packets, fail in bursts",
        view.size(kept),
        view.size(usual)
    ))
}

/// Warns if the low watermark is too close to min. The zones of a node are added up, because each node has one worker
/// for background reclaim.
pub(super) fn watermarks_too_close(view: &View<'_>) -> Option<Advice> {
    let page_bytes = u64::from(view.model.page_bytes);
    let (mut nodes, mut factor) = (Vec::new(), 0);
    for node in view.model.online_nodes() {
        let managed = view.model.managed_of(node.id).get();
        let zones = view.zones().filter(|(zone, _)| zone.node == node.id);
        let gaps = zones.map(|(_, of)| of.watermarks.low.saturating_minus(of.watermarks.min));
        // A file may set watermarks that are larger than any machine's memory.
        let gap = PageCount::new(gaps.fold(0, |sum: u64, gap| sum.saturating_add(gap.get())));
        let cpus = node.cpus.len() as u64;
        let burst = cpus * CPU_BYTES_PER_SECOND / 1_000_000 * WAKE_MICROSECONDS / page_bytes;
        if managed > 0 && gap.get() < burst {
            factor = factor.max(burst.saturating_mul(10_000).div_ceil(managed));
            nodes.push(format!("node {} ({} for {cpus} CPUs)", node.id, view.size(gap)));
        }
    }
    if nodes.is_empty() {
        return None;
    }
    let cure = match factor {
        _ if !view.rules.has(Setting::WatermarkScaleFactor) => {
            "a larger min_free_kbytes would avoid it".to_owned()
        }
        0..=3000 => {
            let now = view.model.settings.watermark_scale_factor;
            format!("watermark_scale_factor {factor} (now {now}) would avoid it")
        }
        _ => "no watermark_scale_factor can avoid it with so little memory".to_owned(),
    };
    warn(format!(
        "low is above min by less than a node's CPUs allocate in 1 ms at 1 GiB/s each, so background reclaim starts \
         too late and requests must reclaim directly: {}; {cure}",
        list_first(&nodes)
    ))
}

pub(super) fn pagesets_hold_too_much(view: &View<'_>) -> Option<Advice> {
    let cpus = u64::from(view.model.online_cpus());
    let mut zones = Vec::new();
    for (zone, predicted) in main_zones(view) {
        let held = predicted.limits.high_min.get().saturating_mul(cpus);
        // Other CPUs cannot allocate the frames in a pageset, so more than a quarter of a zone is too much.
        if held > zone.managed.get() / 4 {
            let percent = held.saturating_mul(100) / zone.managed.get();
            zones.push(format!(
                "{} ({cpus} CPUs x {} = {}, {percent} % of it; its low watermark is {})",
                zone_name(zone),
                view.size(predicted.limits.high_min),
                view.size(PageCount::new(held)),
                view.size(predicted.watermarks.low)
            ));
        }
    }
    if zones.is_empty() {
        return None;
    }
    let cure = match (view.rules.high, view.model.settings.high_fraction) {
        (HighRule::SixBatches, _) => "",
        (_, 0) => "; percpu_pagelist_high_fraction or lower watermarks limit them",
        _ => "; percpu_pagelist_high_fraction is set too low for so many CPUs",
    };
    warn(format!("pagesets may permanently hold a large part of a zone: {}{cure}", list_first(&zones)))
}

pub(super) fn unusable_behind_reserve(view: &View<'_>) -> Option<Advice> {
    let mut zones = Vec::new();
    // The smallest DMA zones are reserved for devices on purpose.
    for (zone, predicted) in
        view.zones().filter(|(zone, _)| zone.kind != ZoneKind::Dma || !is_tiny(view, zone))
    {
        let reserve = predicted.protection[ZoneKind::Movable.index()];
        // The watermarks may exceed the memory of the machine.
        let kept = predicted.watermarks.low.get().saturating_add(reserve.get());
        if kept >= zone.managed.get() && reserve > PageCount::ZERO {
            zones.push(format!(
                "{} ({}, reserve {} over low {})",
                zone_name(zone),
                view.size(zone.managed),
                view.size(reserve),
                view.size(predicted.watermarks.low)
            ));
        }
    }
    if zones.is_empty() {
        return None;
    }
    info(format!(
        "movable requests never get a frame from these zones, because the lowmem reserve covers all of their memory: \
         {}; a larger lowmem_reserve_ratio makes it available",
        list_first(&zones)
    ))
}

pub(super) fn tiny_zones(view: &View<'_>) -> Option<Advice> {
    let tiny = view.zones().filter(|(zone, _)| zone.kind != ZoneKind::Dma && is_tiny(view, zone));
    let tiny: Vec<String> = tiny
        .map(|(zone, _)| {
            let node = view.size(view.model.managed_of(zone.node));
            format!("{} ({} of the node's {node})", zone_name(zone), view.size(zone.managed))
        })
        .collect();
    if tiny.is_empty() {
        return None;
    }
    info(format!(
        "very small zones are soon exhausted, and then every scan checks them without success: {}; kernel data of such a node is \
         allocated elsewhere",
        list_first(&tiny)
    ))
}

pub(super) fn counters_drift(view: &View<'_>) -> Option<Advice> {
    let cpus = u64::from(view.model.online_cpus());
    let drifting = main_zones(view).filter_map(|(zone, predicted)| {
        let threshold = predicted.stat_threshold;
        let drift = cpus * u64::from(threshold);
        let gap = predicted.watermarks.low.saturating_minus(predicted.watermarks.min).get();
        (drift > gap).then(|| format!("{} ({cpus} CPUs x {threshold} = {drift} > {gap})", zone_name(zone)))
    });
    let drifting: Vec<String> = drifting.collect();
    if drifting.is_empty() {
        return None;
    }
    let cure = match view.rules.has(Setting::WatermarkScaleFactor) {
        true => "min_free_kbytes or watermark_scale_factor",
        false => "min_free_kbytes",
    };
    info(format!(
        "free-page counters can be wrong by more frames than low is above min, so checks near the watermarks sum up the \
         counters of all CPUs, which is slow: {}; a larger {cure} avoids it",
        list_first(&drifting)
    ))
}
