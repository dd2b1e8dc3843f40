//! Checks that every number in an experiment file has bounds, and that the memory of a run does not grow with its
//! duration.

use std::num::NonZeroUsize;
use std::sync::atomic::AtomicBool;

use zonal::Config;
use zonal_lab::experiment::{Failure, FileError, Options, Plan, Source, load, run};
use zonal_lab::sim::{Hardware, SimulatedMachine};
use zonal_lab::system::System;
use zonal_lab::workload::{FirstTouch, Placement, Program};
use zonal_machine::preset;

/// The parts of an experiment file that surround a part's tables.
const FRAME: &str = "name = 'bounds'\ntitle = 'x'\n[[variant]]\nname = 'ours'\nrole = 'ours'\n\
                     [[part]]\nmachine = 'quad-10-12-32'\n";

/// Valid hardware costs. The constants below are valid settings for each kind of workload.
const HARDWARE: &str = "hit_ns = 1.0\nmemory_ns = 1.0\noverlap = 1.0\ntransfer_ns = 1.0\nremote_step = 1.0\n\
    distance_weight = 1.0\natomic_transactions = 1.0\nrefusal_limit = 1.0\nports = 1\nretry_power = 1.0\nlist_work_ns = 1.0\n\
    lock_work_ns = 1.0\ncpu_gb_s = 1.0\nnode_gb_s = 1.0\ndisk_mb_s = 1.0\ndisk_request_ms = 1.0\ninterrupt_ns = 1.0\n\
    cache_lines = 4096\ncache_ways = 8\n";
const WORKLOADS: [&str; 11] = [
    "kind = 'first-touch'\ncpus = 1\ngib_each = 0.1\nfault_ns = 1.0\nuser_ns = 1.0\n",
    "kind = 'hog'\nthreads = 1\nmem_gb = 0.1\nrounds = 1.0\nshared_map = 1\nfault_ns = 1.0\nstride = 4096\n\
     store_ns = 1.0\nunmap_ns = 1.0\n",
    "kind = 'page-faults'\nprocesses = 1\nmib_each = 1.0\nseconds = 0.1\nwarm_up = 0.05\nfault_ns = 1.0\n\
     unmap_ns = 1.0\nlru_batch = 15\nlru_ns = 1.0\nown_lists = 1\n",
    "kind = 'build'\njobs = 1\ncore_gain = 1.5\njob_mib = 1.0\ncompute_ns = 1.0\nbuild_pages = 1.0\nseconds = 0.1\nwarm_up = 0.05\n\
     fault_ns = 1.0\nunmap_ns = 1.0\nlru_batch = 15\nlru_ns = 1.0\n",
    "kind = 'exchange'\npairs = 1\nburst = 1\nsend_ns = 1.0\nreceive_ns = 1.0\nwake_ns = 1.0\nmoves_pct = 1.0\n\
     seconds = 0.1\nwarm_up = 0.05\n",
    "kind = 'stream'\ncpu_nodes = [0]\nmemory_nodes = [0]\narray_mib = 1.0\n",
    "kind = 'fallback-list'\nnode = 0\nposition = 0\n",
    "kind = 'file-writers'\nthreads = 1\nfiles = 1\nfile_kib = 64\nloops = 1\ncreate_ms = 1.0\nmetadata_kib = 1.0\n\
     page_ns = 1.0\nscan_ns = 1.0\ninode_pressure = 1.0\n",
    "kind = 'copies'\nfiles = 1\nfile_mib = 1.0\ncopies = 1\nnetwork_mb_s = 1.0\npage_ns = 1.0\nscan_ns = 1.0\n\
     inode_pressure = 1.0\n",
    "kind = 'mapped-writer'\nmapping_gib = 1.0\nsimulated_gib = 1.0\nresident_mib = 1.0\nseconds = 1.0\n\
     page_ns = 1.0\nscan_ns = 1.0\n",
    "kind = 'overflow'\nnodes = 2\nburst_pages = 1\npause_ms = 1.0\nfault_ns = 1.0\nchurn_pages = 1\n\
     churn_ms = 1.0\nseconds = 0.1\nwarm_up = 0.05\n",
];

fn load_tables(hardware: &str, workload: &str) -> Result<Plan, FileError> {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("bounds.toml");
    let text = format!("{FRAME}[part.hardware]\n{hardware}[part.workload]\n{workload}");
    std::fs::write(&file, text).unwrap();
    load(&Source::File(file))
}

/// Loads `table` once for each of its numbers and each extreme value that replaces the number. `load` receives the
/// modified table.
fn check_each(table: &str, load: impl Fn(&str) -> Result<Plan, FileError>) {
    load(table).unwrap();
    for line in table.lines() {
        let (field, value) = line.split_once(" = ").unwrap();
        let wrong: &[&str] = match value {
            _ if value.contains('.') => &["1e300", "1e17", "-1.0", "inf", "nan"],
            _ if value.parse::<u64>().is_ok() => &["4294967295", "9223372036854775807", "-1"],
            _ => continue,
        };
        for value in wrong {
            let error = load(&table.replace(line, &format!("{field} = {value}")));
            let error = error.err().unwrap_or_else(|| panic!("{field} = {value} is taken: {table}"));
            assert!(error.file.ends_with("bounds.toml") && error.line.is_some(), "{error}");
            assert!(error.problem.contains(field), "{field} = {value}: {error}");
        }
    }
}

#[test]
fn every_figure_has_bounds() {
    check_each(HARDWARE, |hardware| load_tables(hardware, WORKLOADS[0]));
    for workload in WORKLOADS {
        check_each(workload, |workload| load_tables(HARDWARE, workload));
    }
}

#[test]
fn errors_name_value_and_bounds() {
    let slow = HARDWARE.replace("cpu_gb_s = 1.0", "cpu_gb_s = 1e-300");
    let error = load_tables(&slow, WORKLOADS[0]).unwrap_err();
    assert_eq!(error.problem, "cpu_gb_s = 1e-300, must be a number from 0.001 to 1e6");
    let slow = WORKLOADS[1].replace("store_ns = 1.0", "store_ns = 2e9");
    let error = load_tables(HARDWARE, &slow).unwrap_err();
    assert_eq!(error.problem, "store_ns: is 2e9, must be a number from 0 to 1e9");
    let many =
        WORKLOADS[7].replace("files = 1\n", "files = 1000000\n").replace("loops = 1\n", "loops = 11\n");
    let error = load_tables(HARDWARE, &many).unwrap_err();
    assert_eq!(error.problem, "files: makes 11000000 files in all; the maximum is 1e7");
}

/// Checks that the allocator works with all settings that the lab accepts.
#[test]
fn allocator_settings_are_refused_or_run() {
    let keys = [
        "min_free_kbytes",
        "watermark_scale_factor",
        "high_fraction",
        "reclaim_distance",
        "min_unmapped_ratio",
        "stat_interval",
        "node_reclaim",
        "counters.threshold",
    ];
    for (key, value) in keys.iter().flat_map(|key| {
        ["0", "1", "255", "4294967295", "9223372036854775807", "-1"].map(|value| (key, value))
    }) {
        let hardware = format!("{HARDWARE}[part.config]\n{key} = {value}\n");
        match load_tables(
            &hardware,
            "kind = 'first-touch'\ncpus = 1\ngib_each = 0.001\nfault_ns = 1.0\nuser_ns = 1.0",
        ) {
            Err(error) => {
                let key = key.rsplit('.').next().unwrap();
                assert!(error.problem.contains(key), "{key} = {value}: {error}");
            }
            Ok(plan) => {
                let options = Options { seed: 1, jobs: NonZeroUsize::MIN, memory_bytes: u64::MAX };
                let results = run(&plan, &options, |_| (), &AtomicBool::new(false));
                // A machine cannot serve any request if its whole memory is reserved.
                let is_done = match &results {
                    Ok(results) => results.missing == 0,
                    Err(failure) => failure.to_string().contains("has too little memory for the processes"),
                };
                assert!(is_done, "{key} = {value}: {results:?}");
            }
        }
    }
}

#[test]
fn runs_have_limits_of_operations_and_memory() {
    let long = WORKLOADS[2].replace("seconds = 0.1", "seconds = 1e6");
    let error = load_tables(HARDWARE, &long).unwrap_err();
    assert_eq!(error.problem, "workload: about 5e11 page operations; the maximum is 1e11");
    let directory = tempfile::tempdir().unwrap();
    let load_machine = |machine: &str, workload: &str| {
        std::fs::write(directory.path().join("m.json"), machine).unwrap();
        let file = directory.path().join("bounds.toml");
        let text = format!("{}[part.workload]\n{workload}", FRAME.replace("quad-10-12-32", "m.json"));
        std::fs::write(&file, text).unwrap();
        load(&Source::File(file)).map(|_| ()).map_err(|error| error.problem)
    };
    let small = include_str!("data/small.json");
    let touch = WORKLOADS[0].replace("0.1", "0.01");
    assert_eq!(load_machine(small, &touch), Ok(()));
    // Zones of any size. The replaced text has the start and the spanned, present and managed frames of the last
    // zone.
    let zone = |start: u64, pages: u64| {
        let old = "\"start\": 98304, \"spanned\": 32768, \"present\": 32768, \"managed\": 32256";
        assert!(small.contains(old), "{small}");
        small.replace(
            old,
            &format!("\"start\": {start}, \"spanned\": {pages}, \"present\": {pages}, \"managed\": {pages}"),
        )
    };
    assert_eq!(
        load_machine(&zone(1 << 36, 32768), &touch).unwrap_err(),
        "machine: small has frame 68719509503; frames must be below 68719476736"
    );
    let large = load_machine(&zone(1 << 20, (1 << 36) - (1 << 20)), &touch).unwrap_err();
    assert!(large.starts_with("machine: needs ") && large.ends_with("the maximum is 64 GiB"), "{large}");
    let files = load_machine(&zone(1 << 30, 32768), WORKLOADS[8]).unwrap_err();
    assert_eq!(files, "the page cache: of machine small spans 1073774592 frames; the maximum is 268435456");
}

/// Checks a run of 9 hours in total, with one second per page. If the bandwidth slices of this whole time were stored
/// in one word each, the run would need 150 GiB.
#[test]
fn a_long_run_needs_no_more_memory_than_a_short_one() {
    let machine = SimulatedMachine { model: preset("quad-10-12-32").unwrap(), hardware: Hardware::default() };
    for cpus in [1, 2] {
        let program =
            FirstTouch { cpus, gib_each: 0.125, fault_ns: 1e9, user_ns: 0.0, policy: Placement::Local };
        program.check(&machine).unwrap();
        let play = |sim: &zonal_lab::sim::Simulation<'_, '_>| {
            program.run(&System::new(sim), &AtomicBool::new(false)).unwrap()
        };
        let outcome = machine.simulate(&Config::default(), 1, play).unwrap();
        assert!((32_768.0..33_000.0).contains(&outcome.seconds), "{}", outcome.seconds);
    }
}

/// Loads an experiment with `workload` on a machine with one zone of `frames` frames.
fn load_on(frames: u64, workload: &str) -> Result<Plan, FileError> {
    let directory = tempfile::tempdir().unwrap();
    let machine = format!(
        r#"{{"schema":"zonal.machine-file.v1","name":"m","page_bytes":4096,
        "nodes":[{{"id":0,"cpus":[0,1],"distances":{{"0":10}}}}],
        "zones":[{{"node":0,"kind":"Normal","start":0,"spanned":{frames},"present":{frames},"managed":{frames}}}]}}"#
    );
    std::fs::write(directory.path().join("m.json"), machine).unwrap();
    let file = directory.path().join("bounds.toml");
    let text = format!("{}[part.workload]\n{workload}", FRAME.replace("quad-10-12-32", "m.json"));
    std::fs::write(&file, text).unwrap();
    load(&Source::File(file))
}

/// Checks programs that hold nearly all frames of a machine, and the host memory that each program adds to its run:
/// 16 bytes for each block.
#[test]
fn blocks_held_by_programs_count_as_host_memory() {
    const MOST: u64 = 1 << 20;
    let gib = |workload: usize, old: &str, new: &str| {
        assert!(WORKLOADS[workload].contains(old), "{old}");
        WORKLOADS[workload].replacen(old, new, 1)
    };
    let small = [
        gib(1, "mem_gb = 0.1", "mem_gb = 0.001"),
        gib(2, "mib_each = 1.0", "mib_each = 0.01"),
        gib(3, "job_mib = 1.0", "job_mib = 0.01"),
        gib(5, "array_mib = 1.0", "array_mib = 0.1"),
    ];
    let large = [
        gib(1, "mem_gb = 0.1", "mem_gb = 3.99"),
        gib(2, "mib_each = 1.0", "mib_each = 4000"),
        gib(3, "job_mib = 1.0", "job_mib = 4000"),
        gib(5, "array_mib = 1.0", "array_mib = 1300"),
    ];
    for (small, large) in small.iter().zip(large) {
        let bytes = [small, &large].map(|workload| load_on(MOST, workload).unwrap().runs[0].host_bytes);
        let held = bytes[1] - bytes[0];
        assert!((MOST * 15..=MOST * 16).contains(&held), "{held}: {large}");
    }
    // A page cache has an entry for each frame, and each file has a list of its pages.
    let cache = load_on(MOST, WORKLOADS[8]).unwrap().runs[0].host_bytes;
    let touch = load_on(MOST, &WORKLOADS[0].replace("0.1", "0.001")).unwrap().runs[0].host_bytes;
    assert!(cache > touch + MOST * 20, "{cache}, {touch}");
    let vast = gib(1, "mem_gb = 0.1", "mem_gb = 16000");
    let error = load_on(1 << 32, &vast).unwrap_err();
    assert!(error.problem.starts_with("workload: needs "), "{error}");
    assert!(error.problem.ends_with("GiB of the host's memory; the maximum is 64 GiB"), "{error}");
}

#[test]
fn runs_that_exceed_host_memory_are_not_started() {
    let plan = load_on(1 << 20, &WORKLOADS[1].replace("mem_gb = 0.1", "mem_gb = 0.5")).unwrap();
    let needed = plan.runs[0].host_bytes;
    let run_within = |memory_bytes| {
        let options = Options { seed: 1, jobs: NonZeroUsize::MIN, memory_bytes };
        run(&plan, &options, |_| (), &AtomicBool::new(false))
    };
    assert_eq!(run_within(needed).unwrap().missing, 0);
    let failure = run_within(needed - 1).unwrap_err();
    let Failure::Memory { experiment, run, needed: reported, available } = &failure else {
        panic!("{failure}")
    };
    assert_eq!((&**experiment, &**run, *reported, *available), ("bounds", "ours", needed, needed - 1));
    assert!(failure.to_string().contains("of this host's memory"), "{failure}");
}

/// Checks that the units of metrics, which tables of figures are compared with, are known before a run.
#[test]
fn units_of_figures_are_known_before_a_run() {
    for workload in WORKLOADS {
        let plan = load_tables("", workload).unwrap();
        let options = Options { seed: 1, jobs: NonZeroUsize::MIN, memory_bytes: u64::MAX };
        let results = run(&plan, &options, |_| (), &AtomicBool::new(false)).unwrap();
        assert!(!results.rows.is_empty(), "{workload}");
        for row in &results.rows {
            assert_eq!(plan.runs[0].workload.unit_of(&row.metric), Some(&*row.unit), "{}", row.metric);
        }
    }
}
