//! Tests of Linux's formats. The text is compared exactly right after the start, and by its figures after the allocator
//! was used.
//!
//! `tests/formats` has the expected text at the start. The machine has a node with three kinds of zones, one of which
//! has two parts. It also has a node without memory, an offline CPU, and ids with gaps.

use std::collections::BTreeMap;
use std::convert::Infallible;

use crate::common::{Plan, World, node, run_on};
use zonal::mempolicy::Policy;
use zonal::rules::fallback_order::CpuPenalty;
use zonal::rules::pageset_tuning::PagesetTuning;
use zonal::rules::watermarks::WatermarkSettings;
use zonal::units::{CpuId, Order, ZoneKind};
use zonal::{Config, Request};

/// Frame count of the smallest zone.
const UNIT: u64 = 1 << 14;

fn world() -> World {
    run_on(0);
    let zone = |node, kind, at: u64, spanned, managed| {
        (node, kind, at * UNIT, spanned * UNIT, vec![(at * UNIT, managed * UNIT)])
    };
    let plan = Plan {
        nodes: vec![(0, vec![0, 1, 3]), (2, vec![8]), (7, vec![4])],
        distances: vec![vec![10, 20, 30], vec![20, 10, 25], vec![30, 25, 10]],
        zones: vec![
            zone(0, ZoneKind::Dma32, 1, 1, 1),
            zone(0, ZoneKind::Normal, 2, 4, 3),
            zone(0, ZoneKind::Normal, 100, 4, 4),
            zone(0, ZoneKind::Movable, 6, 2, 2),
            zone(2, ZoneKind::Normal, 8, 4, 4),
        ],
        present: [UNIT, 3 * UNIT + 100, 4 * UNIT, 2 * UNIT, 4 * UNIT].to_vec(),
        ..Plan::default()
    };
    let watermarks =
        WatermarkSettings { min_free: Some(crate::common::scenarios::pages(1000)), ..Default::default() };
    // With these settings the pageset limits do not exceed the slots of any zone.
    let config = Config { watermarks, tuning: PagesetTuning::Fixed, high_fraction: 64, ..Config::default() };
    let world = plan.build(&config);
    world.allocator.offline_cpu(CpuId::new(3)).unwrap();
    world
}

/// Allocates and frees blocks so that each figure has a different value.
fn use_it(world: &World) {
    let allocator = &world.allocator;
    let page = Request::page();
    let normal = page.zone_limit(ZoneKind::Normal);
    let bound = Policy::bind(allocator, [node(2)].into_iter().collect()).unwrap();
    let mut held = Vec::new();
    for (cpu, times, request) in [(0, 3, &page), (0, 5, &normal), (1, 2, &page.policy(&bound)), (4, 4, &page)]
    {
        run_on(cpu);
        held.extend((0..times).map(|_| allocator.alloc(request).unwrap()));
    }
    run_on(0);
    held.extend(allocator.alloc(&Request::new(Order::new(10).unwrap())));
    for block in held.drain(..2) {
        allocator.free(block.first, block.order).unwrap();
    }
}

#[track_caller]
fn check(found: &str, name: &str, expected: &str) {
    for (line, (found, expected)) in found.lines().zip(expected.lines()).enumerate() {
        assert_eq!(found, expected, "{name}:{}", line + 1);
    }
    assert_eq!(found, expected, "{name}: in length or in its last line");
}

#[test]
fn texts_to_the_letter() {
    let world = world();
    let snapshot = world.allocator.snapshot();
    check(&snapshot.zoneinfo().to_string(), "zoneinfo", include_str!("formats/zoneinfo"));
    check(&snapshot.buddyinfo().to_string(), "buddyinfo", include_str!("formats/buddyinfo"));
    check(&snapshot.vmstat().to_string(), "vmstat", include_str!("formats/vmstat"));
    let lists =
        "Fallback order for Node 0: 0 2 \nFallback order for Node 2: 2 0 \nFallback order for Node 7: 2 0 \n";
    check(&snapshot.fallback_lists().to_string(), "fallback lists", lists);
    let zeros = "numa_hit 0\nnuma_miss 0\nnuma_foreign 0\ninterleave_hit 0\nlocal_node 0\nother_node 0\n";
    let stat = |id| snapshot.numastat(node(id)).map(|stat| stat.to_string());
    assert_eq!(
        [0, 2, 7, 1].map(stat),
        [Some(zeros), Some(zeros), Some(zeros), None].map(|text| text.map(str::to_owned))
    );
}

/// Returns the figures of one zone in `/proc/zoneinfo`, in order.
fn figures(world: &World, heading: &str) -> Vec<(String, u64)> {
    let text = world.allocator.snapshot().zoneinfo().to_string();
    let (_, rest) = text.split_once(&format!("{heading}\n")).unwrap();
    let lines = rest.lines().take_while(|line| !line.starts_with("Node "));
    let figure = |line: &str| {
        let (name, value) = line.trim().rsplit_once(char::is_whitespace)?;
        Some((name.trim().to_owned(), value.parse().ok()?))
    };
    lines.filter_map(figure).collect()
}

#[test]
fn figures_of_a_machine_in_use() {
    let world = world();
    use_it(&world);
    let allocator = &world.allocator;
    let snapshot = allocator.snapshot();
    // CPU 1 allocates two pages that are bound to node 2. CPU 4 is on a node without memory, and node 2 is the nearest
    // to it.
    let of_node_2 = "numa_hit 6\nnuma_miss 0\nnuma_foreign 0\ninterleave_hit 0\nlocal_node 0\nother_node 6\n";
    assert_eq!(snapshot.numastat(node(2)).unwrap().to_string(), of_node_2);
    let of_node_0 = "numa_hit 9\nnuma_miss 0\nnuma_foreign 0\ninterleave_hit 0\nlocal_node 9\nother_node 0\n";
    assert_eq!(snapshot.numastat(node(0)).unwrap().to_string(), of_node_0);
    let vmstat = snapshot.vmstat().to_string();
    let lines =
        |name: &str, value: u64| vmstat.lines().filter(|line| *line == format!("{name} {value}")).count();
    let (accounting, events) = (allocator.accounting(), allocator.events());
    for (name, value) in [
        ("nr_free_pages", accounting.free.get()),
        ("numa_hit", 15),
        ("numa_local", 9),
        ("numa_other", 6),
        ("zonal_nr_user", accounting.allocated.get()),
        ("zonal_pageset_refills", events.refills),
    ] {
        assert_eq!(lines(name, value), 1, "{name} {value} in\n{vmstat}");
    }
    assert_eq!((accounting.allocated.get(), events.refills > 0), (12 + 1024, true));
    for (heading, ids) in [
        ("Node 0, zone    DMA32", vec![0]),
        ("Node 0, zone   Normal", vec![1, 2]),
        ("Node 0, zone  Movable", vec![3]),
        ("Node 2, zone   Normal", vec![4]),
    ] {
        let found = figures(&world, heading);
        let zones: Vec<_> = allocator.zones().filter(|zone| ids.contains(&zone.id.index())).collect();
        let sum = |figure: fn(&zonal::snapshot::ZoneSnapshot) -> u64| zones.iter().map(figure).sum::<u64>();
        let one = |name: &str| found.iter().find(|(found, _)| found == name).unwrap().1;
        assert_eq!(one("pages free"), sum(|zone| zone.free.get()), "{heading}");
        assert_eq!(one("nr_free_pages"), sum(|zone| zone.free.get()), "{heading}");
        assert_eq!(one("numa_hit"), sum(|zone| zone.locality.hit), "{heading}");
        assert_eq!(one("low"), sum(|zone| zone.watermarks.low.get()), "{heading}");
        let every = |name: &str| -> Vec<u64> {
            found.iter().filter(|(found, _)| found == name).map(|&(_, value)| value).collect()
        };
        assert_eq!(every("cpu:"), [0, 1, 4, 8]);
        let pagesets = |cpu: u64, figure: fn(&zonal::snapshot::PagesetSnapshot) -> u64| -> u64 {
            let of = |one: &zonal::snapshot::PagesetSnapshot| {
                ids.contains(&one.zone.index()) && u64::from(one.cpu.get()) == cpu
            };
            allocator.pagesets().filter(of).map(|one| figure(&one)).sum()
        };
        for (at, cpu) in [0, 1, 4, 8].into_iter().enumerate() {
            assert_eq!(every("count:")[at], pagesets(cpu, |one| one.count.get()), "{heading} CPU {cpu}");
            assert_eq!(every("high:")[at], pagesets(cpu, |one| one.high.get()), "{heading} CPU {cpu}");
            assert_eq!(every("high_min:")[at], pagesets(cpu, |one| one.limits.high_min.get()), "{heading}");
            assert_eq!(every("high_max:")[at], pagesets(cpu, |one| one.limits.high_max.get()), "{heading}");
        }
    }
}

fn files(world: &World) -> BTreeMap<String, String> {
    let mut files = BTreeMap::new();
    let keep = |path: &dyn std::fmt::Display, text: &dyn std::fmt::Display| {
        assert_eq!(files.insert(path.to_string(), text.to_string()), None, "{path} is written twice");
        Ok::<(), Infallible>(())
    };
    let Ok(()) = world.allocator.snapshot().files(keep);
    files
}

#[test]
fn files_of_a_whole_machine() {
    let world = world();
    use_it(&world);
    let files = files(&world);
    let snapshot = world.allocator.snapshot();
    assert_eq!(files["proc/zoneinfo"], snapshot.zoneinfo().to_string());
    assert_eq!(files["proc/buddyinfo"], snapshot.buddyinfo().to_string());
    assert_eq!(files["proc/vmstat"], snapshot.vmstat().to_string());
    for (path, text) in [
        ("proc/sys/vm/min_free_kbytes", "4000\n"),
        ("proc/sys/vm/watermark_scale_factor", "10\n"),
        ("proc/sys/vm/lowmem_reserve_ratio", "256\t256\t32\t0\t0\n"),
        ("proc/sys/vm/zone_reclaim_mode", "0\n"),
        ("proc/sys/vm/percpu_pagelist_high_fraction", "64\n"),
        ("proc/sys/vm/min_unmapped_ratio", "1\n"),
        ("proc/sys/vm/stat_interval", "1\n"),
        ("sys/devices/system/cpu/online", "0-1,4,8\n"),
        ("sys/devices/system/node/online", "0,2,7\n"),
        ("sys/devices/system/node/node0/cpulist", "0-1\n"),
        ("sys/devices/system/node/node7/cpulist", "4\n"),
        ("sys/devices/system/node/node2/distance", "20 10 25\n"),
        ("sys/devices/system/node/node2/numastat", &snapshot.numastat(node(2)).unwrap().to_string()),
    ] {
        assert_eq!(files[path], text, "{path}");
    }
    let managed_kib = 14 * UNIT * 4;
    assert!(files["proc/meminfo"].starts_with(&format!("MemTotal:       {managed_kib:>8} kB\nMemFree: ")));
    let of_node_2 = &files["sys/devices/system/node/node2/meminfo"];
    assert!(
        of_node_2.starts_with(&format!("Node 2 MemTotal:       {:>8} kB\n", 4 * UNIT * 4)),
        "{of_node_2}"
    );
    assert_eq!(files.len(), 16 + 3 * 4);
}

#[test]
fn fallback_orders_with_the_cpu_penalty_are_shown_as_in_a_log() {
    let of = |cpu_penalty| {
        let world = Plan::even(2, 1, UNIT).build(&Config { cpu_penalty, ..Config::default() });
        files(&world)["dmesg"].clone()
    };
    let once = "Fallback order for Node 0: 0 1 \nFallback order for Node 1: 1 0 \n";
    assert_eq!(of(CpuPenalty::Off), once);
    assert_eq!(of(CpuPenalty::On), once.repeat(2));
}

#[test]
fn writing_stops_at_the_first_error() {
    let world = world();
    let mut written = 0;
    let result = world.allocator.snapshot().files(|_, _| {
        written += 1;
        if written == 7 { Err("full") } else { Ok(()) }
    });
    assert_eq!((result, written), (Err("full"), 7));
}

#[test]
fn settings_that_changed_are_those_in_force() {
    let world = world();
    let watermarks = WatermarkSettings { min_free: None, scale_factor: 77, ..Default::default() };
    world.allocator.set_watermarks(watermarks).unwrap();
    world.allocator.set_high_fraction(9);
    world.allocator.set_node_reclaim(zonal::config::NodeReclaim::from_mode(5).unwrap());
    world.allocator.set_min_unmapped_percent(44).unwrap();
    world.allocator.set_stat_interval(zonal::config::StatInterval::from_seconds(3).unwrap());
    let files = files(&world);
    // The expected value is the square root of 16 times the memory outside movable zones in KiB, rounded down to whole
    // frames.
    let kib = (16 * 12 * UNIT * 4).isqrt() / 4 * 4;
    assert_eq!(files["proc/sys/vm/min_free_kbytes"], format!("{kib}\n"));
    assert_eq!(files["proc/sys/vm/watermark_scale_factor"], "77\n");
    assert_eq!(files["proc/sys/vm/percpu_pagelist_high_fraction"], "9\n");
    assert_eq!(files["proc/sys/vm/zone_reclaim_mode"], "5\n");
    assert_eq!(files["proc/sys/vm/min_unmapped_ratio"], "44\n");
    assert_eq!(files["proc/sys/vm/stat_interval"], "3\n");
}
