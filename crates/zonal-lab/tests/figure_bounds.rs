//! Every figure of an experiment has bounds, and a run within them needs no more memory for taking longer.

use std::sync::atomic::AtomicBool;

use zonal::Config;
use zonal_lab::experiment::{FileError, Plan, Source, load};
use zonal_lab::hands::Hands;
use zonal_lab::sim::{Hardware, SimulatedMachine};
use zonal_lab::workload::{FirstTouch, Program};
use zonal_machine::preset;

/// An experiment around a part's tables.
const FRAME: &str = "name = 'bounds'\ntitle = 'x'\n[[variant]]\nname = 'ours'\nrole = 'ours'\n\
                     [[part]]\nmachine = 'quad-10-12-32'\n";

/// Figures of hardware, and of each kind of workload, that are fit to run.
const HARDWARE: &str = "hit_ns = 1.0\nmemory_ns = 1.0\noverlap = 1.0\ntransfer_ns = 1.0\nremote_step = 1.0\n\
    distance_weight = 1.0\natomic_transactions = 1.0\nrefusal_limit = 1.0\nports = 1\nretry_power = 1.0\nlist_work_ns = 1.0\n\
    cpu_gb_s = 1.0\nnode_gb_s = 1.0\ndisk_mb_s = 1.0\ndisk_request_ms = 1.0\ninterrupt_ns = 1.0\n\
    cache_lines = 4096\n";
const WORKLOADS: [&str; 11] = [
    "kind = 'first-touch'\ncpus = 1\ngib_each = 0.1\nfault_ns = 1.0\nuser_ns = 1.0\n",
    "kind = 'hog'\nthreads = 1\nmem_gb = 0.1\nrounds = 1.0\nshared_map = 1\nfault_ns = 1.0\nstride = 4096\n\
     store_ns = 1.0\nunmap_ns = 1.0\n",
    "kind = 'page-faults'\nprocesses = 1\nmib_each = 1.0\nseconds = 0.1\nwarm_up = 0.05\nfault_ns = 1.0\n\
     unmap_ns = 1.0\nlru_batch = 15\nlru_ns = 1.0\n",
    "kind = 'build'\njobs = 1\njob_mib = 1.0\ncompute_ns = 1.0\nbuild_pages = 1.0\nseconds = 0.1\nwarm_up = 0.05\n\
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
    "kind = 'overflow'\nnodes = 2\nburst_pages = 1\npause_ms = 1.0\nfault_ns = 1.0\nbreath_pages = 1\n\
     breath_ms = 1.0\nseconds = 0.1\nwarm_up = 0.05\n",
];

fn load_tables(hardware: &str, workload: &str) -> Result<Plan, FileError> {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("bounds.toml");
    let text = format!("{FRAME}[part.hardware]\n{hardware}[part.workload]\n{workload}");
    std::fs::write(&file, text).unwrap();
    load(&Source::File(file))
}

/// Loads with each figure of `table` at values far out; `load` gets the table that has one.
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
fn no_figure_is_taken_that_nothing_bounds() {
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
    assert_eq!(error.problem, "files: makes 11000000 files in all; at most 1e7 can be simulated");
}

/// A second for each page, 9 hours in all: with a word for each slice of that time, 150 GiB of the host's memory.
#[test]
fn a_long_run_needs_no_more_memory_than_a_short_one() {
    let machine = SimulatedMachine { model: preset("quad-10-12-32").unwrap(), hardware: Hardware::default() };
    for cpus in [1, 2] {
        let program = FirstTouch { cpus, gib_each: 0.125, fault_ns: 1e9, user_ns: 0.0 };
        program.check(&machine).unwrap();
        let run = |sim: &zonal_lab::sim::Simulation<'_, '_>| {
            program.run(&Hands::new(sim), &AtomicBool::new(false)).unwrap()
        };
        let outcome = machine.simulate(&Config::default(), 1, run).unwrap();
        assert!((32_768.0..33_000.0).contains(&outcome.seconds), "{}", outcome.seconds);
    }
}
