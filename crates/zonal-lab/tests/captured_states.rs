//! Checks experiments that start from a captured state.

use std::path::Path;

use zonal_lab::experiment::{BUILT_IN, Source, load_on};
use zonal_lab::system::System;
use zonal_machine::state::{CapturedState, Sample, ZoneSample};

#[test]
fn experiments_run_on_a_captured_machine_as_full_as_it_was() {
    let model = zonal_machine::preset("desktop").unwrap();
    let zones = model.zones.iter().map(|zone| {
        // Single frames and 2 MiB blocks; the rest is in use.
        let free_blocks = vec![7, 0, 0, 0, 0, 0, 0, 0, 0, zone.managed.get() >> 11];
        let free = 7 + (free_blocks[9] << 9);
        ZoneSample {
            node: zone.node.get().into(),
            kind: zone.kind.name().to_owned(),
            managed: zone.managed.get(),
            free,
            free_blocks,
            ..ZoneSample::default()
        }
    });
    let sample = Sample { zones: zones.collect(), ..Sample::default() };
    let free: u64 = sample.zones.iter().map(|zone| zone.free).sum();
    let captured = CapturedState { model, sample, cgroup: None, whole_gib: Vec::new() };
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/own.toml");
    let mut plan = load_on(&Source::File(own), &captured).unwrap();
    assert_eq!(plan.machines.len(), 1);
    let run = plan.runs.remove(0);
    let seen = run.machine().simulate(&run.config, 1, |sim| {
        let system = System::new(sim);
        let blocks = system.occupy(run.before.as_ref().unwrap(), run.config.max_order);
        let frames: u64 = blocks.iter().map(|block| block.order.pages().get()).sum();
        assert_eq!(frames, system.held());
        let now: u64 = sim.allocator.zones().map(|zone| zone.free.get()).sum();
        blocks.iter().for_each(|block| system.free(block));
        system.check_accounting();
        now
    });
    assert_eq!(seen.unwrap(), free);
    let published = load_on(&Source::BuiltIn(&BUILT_IN[0]), &captured).unwrap_err();
    assert!(published.to_string().contains("belong to its own machines"), "{published}");
}
