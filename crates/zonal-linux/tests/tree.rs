//! Checks that a pool's state, written as files of `/proc` and `/sys`, is read back as the machine of the pool.

use std::path::Path;

use zonal::rules::pageset_tuning::PagesetTuning;
use zonal::units::{Order, PageCount, ZoneKind};
use zonal::{Config, config::NodeReclaim};
use zonal_linux::{Pool, PoolRequest};
use zonal_machine::output::Replace;
use zonal_machine::{Capture, KernelVersion, MachineModel, Rules, capture, explain, preset, write_tree};

const MIB: u64 = 1 << 20;

/// Allocates blocks on every CPU, so that the figures are not zero.
fn use_it(pool: &Pool) -> Vec<zonal_linux::Frames> {
    let cpus: Vec<_> = pool.topology().nodes().iter().flat_map(|node| node.cpus.clone()).collect();
    let mut held = Vec::new();
    for (round, cpu) in cpus.into_iter().enumerate() {
        let _acting = pool.topology().has_emulated_cpus().then(|| pool.act_as(cpu).unwrap());
        let orders = [0, 0, 2, 9].map(|order| Order::new(order).unwrap());
        held.extend(orders.iter().filter_map(|&order| pool.alloc(&PoolRequest::new(order)).ok()));
        held.swap_remove(round % held.len());
    }
    held
}

fn written_and_read(pool: &Pool, root: &Path) -> Capture {
    write_tree(pool.snapshot(), root, Replace::Own).unwrap();
    capture(root).unwrap()
}

/// Checks that all figures read back equal the pool's own report.
fn check(pool: &Pool, model: &MachineModel) {
    let observed = model.observed.as_ref().unwrap();
    assert_eq!(u64::from(model.page_bytes), pool.page_bytes() as u64);
    let nodes: Vec<_> = pool.topology().nodes().iter().map(|n| (n.id, &n.cpus, &n.distances)).collect();
    assert_eq!(model.nodes.iter().map(|n| (n.id, &n.cpus, &n.distances)).collect::<Vec<_>>(), nodes);
    let zones: Vec<_> =
        pool.zones().map(|z| (z.node, z.kind, z.span.start, z.span.count, z.managed)).collect();
    let read: Vec<_> = model.zones.iter().map(|z| (z.node, z.kind, z.start, z.spanned, z.managed)).collect();
    assert_eq!(read, zones);
    assert_eq!(observed.zones.len(), zones.len());
    for (zone, read) in pool.zones().zip(&observed.zones) {
        let place = format!("node {} {}", zone.node, zone.kind);
        assert_eq!((read.node, read.kind), (zone.node, zone.kind));
        let marks = [read.min, read.low, read.high].map(Option::unwrap);
        assert_eq!(marks, [zone.watermarks.min, zone.watermarks.low, zone.watermarks.high], "{place}");
        let protection = read.protection.unwrap();
        assert_eq!((&protection[..ZoneKind::COUNT], protection[4]), (&zone.reserve[..], zone.reserve[3]));
        let limits = (read.batch.unwrap(), read.pageset_high_min.unwrap(), read.pageset_high_max.unwrap());
        let most = |figure: fn(&zonal::snapshot::PagesetSnapshot) -> PageCount| {
            let of_zone = pool.pagesets().filter(|pageset| pageset.zone == zone.id);
            of_zone.map(|pageset| figure(&pageset)).max().unwrap()
        };
        let largest = (most(|p| p.limits.batch), most(|p| p.limits.high_min), most(|p| p.limits.high_max));
        assert_eq!(limits, largest, "{place}");
        assert_eq!(read.stat_threshold, Some(zone.stat_threshold), "{place}");
    }
    for node in pool.topology().nodes() {
        assert_eq!(observed.fallback_order[&node.id], pool.fallback_order(node.id), "node {}", node.id);
    }
    assert_eq!(observed.kernel, Some(KernelVersion::new(6, 12)));
}

/// Checks that the pool follows the same rules as a kernel on such a machine. Exceptions are bounds of `pageset.high`
/// that are specific to this allocator: on CPUs of other nodes, and where the metadata has no more slots.
fn check_rules(model: &MachineModel) {
    let report = explain(model, &Rules::of(KernelVersion::new(6, 12)));
    assert!(report.checks.len() > 7 * model.zones.len(), "{} checks", report.checks.len());
    for check in report.checks.iter().filter(|check| !check.same) {
        assert!(check.what.starts_with("pageset_high_"), "{}: {check:?}", model.name);
    }
}

#[test]
fn files_of_emulated_machines_are_read_back() {
    for name in ["desktop", "quad-10-12-32", "cxl4", "epyc8-nps4"] {
        let model = preset(name).unwrap();
        let size = 64 * MIB * model.nodes.len() as u64;
        let pool = Pool::builder().machine(&model).unwrap().size(size).build().unwrap();
        let held = use_it(&pool);
        let directory = tempfile::tempdir().unwrap();
        let Capture { model, notes, .. } = written_and_read(&pool, directory.path());
        assert_eq!(notes, [""; 0], "{name}");
        check(&pool, &model);
        check_rules(&model);
        drop(held);
    }
}

#[test]
fn files_with_changed_settings_are_read_back() {
    let config = Config {
        tuning: PagesetTuning::Fixed,
        high_fraction: 100,
        node_reclaim: NodeReclaim::from_mode(3).unwrap(),
        min_unmapped_percent: 7,
        watermarks: zonal::rules::watermarks::WatermarkSettings {
            min_free: Some(PageCount::new(700)),
            scale_factor: 55,
            lowmem_reserve_ratio: [256, 64, 32, 0],
            ..Default::default()
        },
        ..Config::default()
    };
    let pool = Pool::builder().size(192 * MIB).fake_nodes(3).config(config).build().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let Capture { model, .. } = written_and_read(&pool, directory.path());
    check(&pool, &model);
    assert_eq!(model.settings.min_free_kib, Some(2800));
    assert_eq!(model.settings.watermark_scale_factor, 55);
    assert_eq!(model.settings.lowmem_reserve_ratio, [256, 64, 32, 0, 0]);
    assert_eq!(model.settings.zone_reclaim_mode, 3);
    assert_eq!(model.settings.high_fraction, 100);
    assert_eq!(model.settings.min_unmapped_percent, 7);
    check_rules(&model);
    // The second set of files replaces the first.
    let held = use_it(&pool);
    let Capture { model: again, .. } = written_and_read(&pool, directory.path());
    check(&pool, &again);
    drop(held);
}

#[test]
fn files_of_this_machine_are_read_back() {
    let pool = Pool::builder().size(64 * MIB).build().unwrap();
    let held = use_it(&pool);
    let directory = tempfile::tempdir().unwrap();
    let Capture { model, .. } = written_and_read(&pool, directory.path());
    check(&pool, &model);
    drop(held);
}

#[test]
fn error_names_a_folder_that_cannot_be_written() {
    let pool = Pool::builder().size(16 * MIB).build().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("file");
    std::fs::write(&file, "").unwrap();
    let error = write_tree(pool.snapshot(), &file, Replace::Own).unwrap_err().to_string();
    assert!(error.starts_with(&format!("cannot write {}: Not a directory", file.display())), "{error}");
}
