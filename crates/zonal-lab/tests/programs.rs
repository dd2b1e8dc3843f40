//! Runs programs on small machines and compares the results with values computed from the settings.

use std::sync::atomic::AtomicBool;

use zonal::Config;
use zonal::config::ZonelistCache;
use zonal::rules::fallback_order::NodeLoad;
use zonal::rules::pageset_tuning::PagesetTuning;
use zonal::units::{NodeId, PageCount};
use zonal_lab::checks::panic_text;
use zonal_lab::experiment::silence_faults;
use zonal_lab::outcome::Outcome;
use zonal_lab::sim::{Hardware, RunError, SimulatedMachine};
use zonal_lab::system::System;
use zonal_lab::workload::{
    Build, Exchange, FallbackList, FirstTouch, Hog, MappedWriter, NamedProgram, Overflow, PageFaults,
    Placement, Program, Stream, Together, Workload,
};
use zonal_machine::preset;

fn run(machine: &str, hardware: Hardware, config: &Config, program: &dyn Program) -> Outcome {
    let machine = SimulatedMachine { model: preset(machine).unwrap(), hardware };
    program.check(&machine).unwrap();
    let outcome = machine.simulate(config, 1, |sim| {
        let system = System::new(sim);
        program.run(&system, &AtomicBool::new(false)).unwrap()
    });
    outcome.unwrap()
}

#[track_caller]
fn near(outcome: &Outcome, metric: &str, expected: f64, percent: f64) {
    let found = outcome.get(metric).unwrap();
    assert!((found / expected - 1.0).abs() <= percent / 100.0, "{metric}: {found}, not {expected}");
}

/// Returns a configuration with one lock per zone, as for frames in linked lists.
fn lists(tuning: PagesetTuning) -> Config {
    Config { tuning, free_area_min: PageCount::new(1 << 30), ..Config::default() }
}

#[test]
fn a_page_costs_fault_zeroing_and_program() {
    let program =
        FirstTouch { cpus: 4, gib_each: 0.05, fault_ns: 1000.0, user_ns: 500.0, policy: Placement::Local };
    let hardware = Hardware { cpu_gb_s: 4.096, node_gb_s: 0.0, ..Hardware::default() };
    let outcome = run("quad-10-12-32", hardware, &Config::default(), &program);
    let pages = 0.05 * f64::from(1 << 30) / 4096.0;
    // A page takes 1 us for fault handling and 1 us for zeroing; the allocator adds a little time.
    near(&outcome, "sys", 4.0 * pages * 2.0e-6, 5.0);
    near(&outcome, "user", 4.0 * pages * 0.5e-6, 0.1);
    near(&outcome, "wall", outcome.get("min_wall").unwrap(), 1.0);
}

#[test]
fn pages_go_to_the_preferred_nodes_in_order() {
    let touched = |policy: &str, gib_each| {
        let policy = Placement::try_from(policy.to_owned()).unwrap();
        let program = FirstTouch { cpus: 1, gib_each, fault_ns: 1.0, user_ns: 1.0, policy };
        let machine =
            SimulatedMachine { model: preset("quad-10-12-32").unwrap(), hardware: Hardware::default() };
        program.check(&machine).unwrap();
        let allocated = machine.simulate(&Config::default(), 1, |sim| {
            program.run(&System::new(sim), &AtomicBool::new(false)).unwrap();
            sim.allocator.nodes().map(|node| node.allocated[0].get()).collect::<Vec<_>>()
        });
        allocated.unwrap()
    };
    let pages = 0.25 * f64::from(1 << 18);
    assert_eq!(touched("local", 0.25), [pages as u64, 0, 0, 0]);
    assert_eq!(touched("preferred-many:3,1", 0.25), [0, 0, 0, pages as u64]);
    assert_eq!(touched("preferred-many:1,3", 0.25), [0, pages as u64, 0, 0]);
    assert_eq!(touched("bind:2", 0.25), [0, 0, pages as u64, 0]);
}

#[test]
fn scans_probe_full_nodes_unless_the_cache_remembers_them() {
    let program = Hog {
        threads: 2,
        mem_gb: 20.0,
        rounds: 1.0,
        shared_map: 0,
        fault_ns: 1000.0,
        stride: 4096,
        store_ns: 100.0,
        unmap_ns: 100.0,
    };
    let with = |zonelist_cache| {
        let past = zonal_history::PAST;
        let config = Config { zonelist_cache, tuning: PagesetTuning::Fixed, past, ..Config::default() };
        run("altix28", Hardware::default(), &config, &program).events["probes"]
    };
    let (off, original, on) =
        (with(ZonelistCache::Off), with(ZonelistCache::Original), with(ZonelistCache::On));
    // 20 GB fill 5 nodes and part of a sixth node. The scans for 1.2 million pages pass up to five full zones each.
    assert!(off > 4_000_000 && original < off * 6 / 10 && on < original / 10, "{off} {original} {on}");
}

const OVERFLOW: Overflow = Overflow {
    nodes: 4,
    burst_pages: 512,
    pause_ms: 1.0,
    fault_ns: 250.0,
    churn_pages: 0,
    churn_ms: 1.0,
    seconds: 0.01,
    warm_up: 0.0,
};

#[test]
fn operations_in_no_time_are_not_counted() {
    let outcome = run("quad-10-12-32", Hardware::default(), &Config::default(), &OVERFLOW);
    assert!(outcome.operations > 0 && outcome.operations.is_multiple_of(2 * 512), "{}", outcome.operations);
    assert_eq!(outcome.events["failures"], 0);
}

/// A zone is marked full once for all orders in past forms. Nodes must be filled with small blocks nevertheless, which is
/// visible once the full bits have expired.
#[test]
fn full_nodes_are_full_in_every_mode_of_the_cache() {
    let program = Overflow { pause_ms: 50.0, seconds: 1.9, warm_up: 1.2, ..OVERFLOW };
    for zonelist_cache in [ZonelistCache::On, ZonelistCache::Published, ZonelistCache::Jackson2006] {
        let past = zonal_history::PAST;
        let config = Config { zonelist_cache, tuning: PagesetTuning::Fixed, past, ..Config::default() };
        let outcome = run("quad-10-12-32", Hardware::default(), &config, &program);
        assert!(outcome.get("nearer").unwrap() < 1.0, "{zonelist_cache:?}: {:?}", outcome.metrics);
    }
}

#[test]
fn page_faults_saturate_the_lock_until_pagesets_are_as_deep_as_the_load() {
    let program = PageFaults {
        processes: 8,
        mib_each: 64.0,
        seconds: 9.0,
        warm_up: 6.0,
        fault_ns: 20_000.0,
        unmap_ns: 0.0,
        lru_batch: 15,
        lru_ns: 0.0,
        own_lists: 0,
    };
    let hardware = Hardware { list_work_ns: 5000.0, transfer_ns: 0.0, ..Hardware::default() };
    let with = |tuning| run("desktop", hardware.clone(), &lists(tuning), &program);
    let (fixed, depth) = (with(PagesetTuning::Fixed), with(PagesetTuning::Depth));
    // Each page is moved twice under the same lock, for 5 us each time.
    near(&fixed, "throughput", 4096.0 / 10_000.0, 10.0);
    // A process waits for the lock whenever it neither handles a fault (20 us a page) nor holds the lock (10 us).
    let pages_a_second = fixed.get("throughput").unwrap() * 1e9 / 4096.0;
    near(&fixed, "zone_lock_contention", 100.0 * (1.0 - 30e-6 * pages_a_second / 8.0), 2.0);
    assert!(depth.get("zone_lock_contention").unwrap() < 5.0, "{:?}", depth.metrics);
    assert!(depth.get("throughput").unwrap() > 3.0 * fixed.get("throughput").unwrap());
    let high = depth.series.iter().find(|series| series.name.starts_with("high")).unwrap();
    assert!(high.points.last().unwrap().1 > high.points[0].1 + 1000.0, "{:?}", high.points.last());
}

#[test]
fn build_time_follows_from_its_pages() {
    let program = Build {
        jobs: 4,
        core_gain: None,
        job_mib: 4.0,
        compute_ns: 8000.0,
        build_pages: 1e6,
        seconds: 0.4,
        warm_up: 0.1,
        fault_ns: 1000.0,
        unmap_ns: 500.0,
        lru_batch: 15,
        lru_ns: 0.0,
    };
    let hardware = Hardware { cpu_gb_s: 8.192, node_gb_s: 0.0, ..Hardware::default() };
    let outcome = run("desktop", hardware, &Config::default(), &program);
    // A page takes 8 + 1 + 0.5 + 0.5 us on 4 CPUs; the allocator adds a little time.
    near(&outcome, "build_time", 1e6 * 10.0e-6 / 4.0, 6.0);
    assert!(outcome.get("zone_lock_contention").unwrap() < 1.0);
}

#[test]
fn a_waiting_job_leaves_its_core_to_the_other_hyperthread() {
    let build_time = |core_gain| {
        let program = Build {
            jobs: 2,
            core_gain,
            job_mib: 4.0,
            compute_ns: 50_000.0,
            build_pages: 1e6,
            seconds: 4.0,
            warm_up: 1.0,
            fault_ns: 1.0,
            unmap_ns: 0.0,
            lru_batch: 15,
            lru_ns: 0.0,
        };
        let hardware = Hardware { list_work_ns: 20_000.0, cpu_gb_s: 1000.0, ..Hardware::default() };
        let outcome = run("desktop", hardware, &lists(PagesetTuning::Fixed), &program);
        (outcome.get("build_time").unwrap(), outcome.get("zone_lock_contention").unwrap() / 100.0)
    };
    let (alone, waited) = build_time(None);
    assert!(waited > 0.02, "{waited}");
    assert_eq!(build_time(Some(2.0)).0, alone);
    // Half of the core's throughput is one hyperthread's; while the other waits, it has all of it.
    let (shared, waited) = build_time(Some(1.0));
    let expected = alone * (1.0 - waited);
    assert!((shared / expected - 1.0).abs() < 0.03, "{shared} {expected} {alone}");
}

#[test]
fn processes_with_lists_of_their_own_do_not_wait_for_them() {
    let waits = |own_lists| {
        let program = PageFaults {
            processes: 8,
            mib_each: 4.0,
            seconds: 0.2,
            warm_up: 0.1,
            fault_ns: 500.0,
            unmap_ns: 0.0,
            lru_batch: 15,
            lru_ns: 500.0,
            own_lists,
        };
        run("desktop", Hardware::default(), &Config::default(), &program).get("lruvec_lock").unwrap()
    };
    assert!(waits(0) > 30.0 && waits(1) == 0.0, "{} {}", waits(0), waits(1));
}

#[test]
fn pairs_reach_the_sequential_rate() {
    let program = Exchange {
        pairs: 4,
        burst: 10,
        send_ns: 5000.0,
        receive_ns: 3000.0,
        wake_ns: 10_000.0,
        moves_pct: 10.0,
        seconds: 0.3,
        warm_up: 0.1,
    };
    let outcome = run("desktop", Hardware::default(), &Config::default(), &program);
    // A burst takes 8 us for each of ten pages and 10 us for each wake-up, of which there are two; the allocator adds a
    // little time.
    near(&outcome, "throughput", 4.0 * 10.0 * 4096.0 / 100.0, 7.0);
    near(&outcome, "cpu_idle", 60.0, 4.0);
}

/// A kernel ends with threads that stream alone, after the others have ended. For how long they do depends on the order
/// in which the threads reach memory after a barrier, and so on each cache hit before. As in STREAM itself, only the best
/// of some rounds is compared. The time of a hit makes the rounds differ, and has no other effect on streaming.
#[test]
fn stream_has_the_bandwidth_of_the_nodes_that_hold_its_arrays() {
    let hardware = Hardware { cpu_gb_s: 20.0, node_gb_s: 50.0, distance_weight: 0.0, ..Hardware::default() };
    let round = |node_load, hit| {
        let hardware = Hardware { hit_ns: hit * hardware.hit_ns, ..hardware.clone() };
        let config = Config { node_load, past: zonal_history::PAST, ..Config::default() };
        let program = Stream { cpu_nodes: vec![2, 3], memory_nodes: vec![0, 1], array_mib: 8.0 };
        run("quad-10-12-32", hardware, &config, &program)
    };
    for (node_load, expected) in [(NodeLoad::Assign, 50e3), (NodeLoad::Accumulate, 100e3)] {
        let rounds = [0.97, 0.99, 1.01, 1.03].map(|hit| round(node_load, hit));
        for kernel in ["copy", "scale", "add", "triad"] {
            let best = rounds
                .iter()
                .max_by(|one, other| one.get(kernel).unwrap().total_cmp(&other.get(kernel).unwrap()));
            near(best.unwrap(), kernel, expected, 3.0);
        }
    }
}

#[test]
fn positions_in_fallback_lists() {
    let order = |node_load, node| -> Vec<f64> {
        let config = Config { node_load, past: zonal_history::PAST, ..Config::default() };
        let place = |position| {
            let program = FallbackList { node, position };
            run("quad-10-12-32", Hardware::default(), &config, &program).get("node").unwrap()
        };
        (0..4).map(place).collect()
    };
    assert_eq!(order(NodeLoad::Assign, 3), [3.0, 2.0, 0.0, 1.0]);
    assert_eq!(order(NodeLoad::Accumulate, 3), [3.0, 2.0, 1.0, 0.0]);
}

#[test]
fn programs_refuse_unsuitable_machines() {
    let machine = SimulatedMachine { model: preset("desktop").unwrap(), hardware: Hardware::default() };
    let refused = |program: &dyn Program| program.check(&machine).unwrap_err();
    let touch =
        |cpus| FirstTouch { cpus, gib_each: 0.1, fault_ns: 1.0, user_ns: 1.0, policy: Placement::Local };
    assert_eq!(refused(&touch(0)).field, "cpus");
    let many = refused(&touch(9));
    assert!(many.problem.contains("9 threads") && many.problem.contains("8 CPUs"), "{}", many.problem);
    assert_eq!(refused(&FirstTouch { fault_ns: f64::NAN, ..touch(1) }).field, "fault_ns");
    let policy = Placement::try_from("preferred-many:0,9".to_owned()).unwrap();
    let error = refused(&FirstTouch { policy, ..touch(1) });
    assert!(error.field == "policy" && error.problem.contains("node 9 does not exist"), "{error:?}");
    let stream = Stream { cpu_nodes: vec![0], memory_nodes: vec![7], array_mib: 1.0 };
    assert_eq!(refused(&stream).field, "memory_nodes");
    assert_eq!(refused(&FallbackList { node: 0, position: 1 }).field, "position");
}

#[test]
fn a_time_limited_mapped_writer_reports_only_completed_work() {
    let writer = |mapping_gib, simulated_gib, seconds| MappedWriter {
        mapping_gib,
        simulated_gib,
        resident_mib: 0.0,
        seconds,
        page_ns: 500.0,
        scan_ns: 150.0,
    };
    let run = |program| run("quad-10-12-32", Hardware::default(), &Config::default(), &program);
    let whole = run(writer(0.5, 0.5, None)).get("elapsed_s").unwrap();
    // The writer finishes before its time limit. The rest of the mapping must not be extrapolated.
    let done = run(writer(8.0, 0.5, Some(10.0 * whole)));
    near(&done, "elapsed_s", whole, 0.1);
    near(&done, "written_mib_s", 512.0 / whole, 0.1);
    // The writer stores a quarter of the pages in a quarter of the time.
    let stopped = run(writer(0.5, 0.5, Some(whole / 4.0)));
    near(&stopped, "elapsed_s", whole / 4.0, 0.1);
    near(&stopped, "written_mib_s", 512.0 / whole, 1.0);
    assert!(stopped.get("slowest_store_ms").unwrap() > 0.0005);
}

/// Returns the outcome of programs that run at the same time.
fn together(
    machine: &str,
    hardware: Hardware,
    programs: &[(&str, std::ops::Range<u64>, Workload)],
) -> Outcome {
    let programs = programs.iter().map(|(name, cpus, workload)| NamedProgram {
        name: (*name).to_owned(),
        on_cpus: cpus.clone().collect(),
        workload: workload.clone(),
    });
    run(machine, hardware, &Config::default(), &Together { programs: programs.collect() })
}

fn streaming(cpu_nodes: &[u16], memory_nodes: &[u16]) -> Workload {
    Workload::Stream(Stream {
        cpu_nodes: cpu_nodes.into(),
        memory_nodes: memory_nodes.into(),
        array_mib: 8.0,
    })
}

/// Checks that programs share what they both use, and only that.
#[test]
fn programs_at_the_same_time_share_bandwidth() {
    let hardware =
        || Hardware { cpu_gb_s: 20.0, node_gb_s: 40.0, distance_weight: 0.0, ..Hardware::default() };
    let alone = run("quad-10-12-32", hardware(), &Config::default(), streaming(&[0], &[2]).program());
    near(&alone, "copy", 40_000.0, 5.0);
    let apart = [("a", 0..16, streaming(&[0], &[2])), ("b", 16..32, streaming(&[1], &[3]))];
    let apart = together("quad-10-12-32", hardware(), &apart);
    near(&apart, "a.copy", 40_000.0, 5.0);
    near(&apart, "b.copy", 40_000.0, 5.0);
    let shared = [("a", 0..16, streaming(&[0], &[2])), ("b", 16..32, streaming(&[1], &[2]))];
    let shared = together("quad-10-12-32", hardware(), &shared);
    // The programs do not begin and end at exactly the same time.
    near(&shared, "a.copy", 20_000.0, 10.0);
    near(&shared, "b.copy", 20_000.0, 10.0);
}

/// Checks programs of different lengths, whose threads are measured by their own ids.
#[test]
fn programs_at_the_same_time_have_figures_of_their_own() {
    let touch = |cpus, fault_ns| {
        let policy = Placement::Local;
        Workload::FirstTouch(FirstTouch { cpus, gib_each: 0.01, fault_ns, user_ns: 500.0, policy })
    };
    let programs = [("long", 0..16, touch(4, 10_000.0)), ("short", 16..48, touch(8, 1000.0))];
    let outcome = together("quad-10-12-32", Hardware::default(), &programs);
    let pages = 0.01 * f64::from(1 << 30) / 4096.0;
    near(&outcome, "long.user", 4.0 * pages * 0.5e-6, 0.1);
    near(&outcome, "short.user", 8.0 * pages * 0.5e-6, 0.1);
    let alone = |cpus, fault_ns| {
        run("quad-10-12-32", Hardware::default(), &Config::default(), touch(cpus, fault_ns).program())
    };
    near(&outcome, "long.wall", alone(4, 10_000.0).get("wall").unwrap(), 2.0);
    near(&outcome, "short.wall", alone(8, 1000.0).get("wall").unwrap(), 2.0);
    assert_eq!(outcome.seconds, outcome.get("long.wall").unwrap());
}

#[test]
fn one_of_several_programs_may_use_files() {
    let writer = MappedWriter {
        mapping_gib: 0.02,
        simulated_gib: 0.02,
        resident_mib: 0.0,
        seconds: Some(1.0),
        page_ns: 500.0,
        scan_ns: 150.0,
    };
    let policy = Placement::Local;
    let touch = FirstTouch { cpus: 4, gib_each: 0.01, fault_ns: 1000.0, user_ns: 500.0, policy };
    let programs =
        [("files", 0..4, Workload::MappedWriter(writer)), ("touch", 4..8, Workload::FirstTouch(touch))];
    let outcome = together("quad-10-12-32", Hardware::default(), &programs);
    assert!(outcome.get("files.written_mib_s").unwrap() > 0.0 && outcome.get("touch.wall").unwrap() > 0.0);
    assert!(
        outcome.series.iter().any(|series| series.name.starts_with("files: free")),
        "{:?}",
        outcome.series.len()
    );
}

/// Checks that a failure of one program ends the others.
#[test]
fn a_fault_in_one_program_ends_all() {
    silence_faults();
    let touch = |gib_each| {
        Workload::FirstTouch(FirstTouch {
            cpus: 4,
            gib_each,
            fault_ns: 100.0,
            user_ns: 1.0,
            policy: Placement::Bind(vec![NodeId::new(0).unwrap()]),
        })
    };
    let programs = [("small", 0..8, touch(0.1)), ("large", 8..16, touch(2.0))];
    let failed = std::panic::catch_unwind(|| together("altix28", Hardware::default(), &programs));
    let failed = failed.unwrap_err();
    assert!(panic_text(&*failed).contains("the machine has too little memory for the processes"));
    let stop = AtomicBool::new(true);
    let machine = SimulatedMachine { model: preset("altix28").unwrap(), hardware: Hardware::default() };
    let programs = programs.map(|(name, cpus, workload)| NamedProgram {
        name: name.to_owned(),
        on_cpus: cpus.collect(),
        workload,
    });
    let together = Together { programs: programs.into() };
    let stopped = machine.simulate(&Config::default(), 1, |sim| together.run(&System::new(sim), &stop));
    assert_eq!(stopped.unwrap().unwrap_err(), RunError::Interrupted);
}
