//! Checks that LLFree's C interface is called right, on a library that stands in for LLFree, and that other files are
//! refused.

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use zonal::units::PageCount;
use zonal_bench::{Bench, Entry, LlfreeError, Workload, llfree};
use zonal_testing::skipped;

/// Returns the path of the library `llfree/library.rs`, an example of this package.
fn library() -> PathBuf {
    let program = std::env::current_exe().expect("the test has a file");
    let folder = program.parent().and_then(|deps| deps.parent()).expect("the target's folder");
    folder.join("examples/libllfree_double.so")
}

fn open(path: &Path) -> Result<Entry, LlfreeError> {
    // SAFETY: the library has the interface, and the other files have no functions with its names.
    unsafe { llfree(path) }
}

/// Returns the path of the C library, which this program uses.
fn c_library() -> PathBuf {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("the maps of a process");
    let mut paths = maps.lines().filter_map(|line| line.split_whitespace().nth(5));
    PathBuf::from(paths.rfind(|path| path.contains("libc.so")).expect("a C library"))
}

#[test]
fn every_workload_runs_on_a_library_with_the_interface() {
    let path = library();
    if !path.exists() {
        return skipped!("{} is built when all tests of the package are", path.display());
    }
    let workloads: Vec<Workload> = Workload::ALL.into_iter().filter(|one| *one != Workload::Touch).collect();
    let bench = Bench {
        workloads: workloads.clone(),
        threads: [1, 2].map(|count| NonZeroUsize::new(count).unwrap()).to_vec(),
        rounds: NonZeroUsize::MIN,
        round_time: Duration::from_nanos(1),
        warm_up: Duration::ZERO,
        frames: PageCount::new(1 << 14),
        seed: 1,
    };
    let report = bench.run(&[open(&path).unwrap()], &AtomicBool::new(false), |_| ()).unwrap();
    assert_eq!(report.skipped, []);
    let rows = report.rows.iter().map(|row| (row.workload, row.threads.get()));
    assert!(rows.eq(workloads.into_iter().flat_map(|workload| [(workload, 1), (workload, 2)])));
    for row in report.rows {
        assert_eq!((&*row.contender, &*row.version), ("llfree", "libllfree_double.so"));
        assert!(row.failed == 0.0 || row.workload == Workload::Orders, "{row:?}");
    }
}

#[test]
fn a_pool_that_the_library_refuses_is_skipped_with_its_error() {
    let path = library();
    if !path.exists() {
        return skipped!("{} is built when all tests of the package are", path.display());
    }
    let plan = zonal_bench::Plan {
        workload: Workload::Pair,
        threads: NonZeroUsize::MIN,
        duration: Duration::from_nanos(1),
        warm_up: Duration::ZERO,
        seed: 1,
        pages: PageCount::new(511),
        latencies: zonal_bench::Latencies::Off,
    };
    assert_eq!(open(&path).unwrap().run_once(&plan).unwrap_err(), "it refuses 511 frames with error 2");
}

#[test]
fn files_that_are_not_llfree_are_refused_with_what_they_lack() {
    let message = |path: &Path| open(path).unwrap_err().to_string();
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let ends = [
        (
            PathBuf::from("no/such/file.so"),
            "there is no such file; name a shared library with LLFree's C interface",
        ),
        (package.to_owned(), "this is a folder; name a shared library with LLFree's C interface"),
        (
            c_library(),
            "it lacks llfree_metadata_size, llfree_init, llfree_get, llfree_put, llfree_stats, llfree_change_tree; \
             LLFree's C interface (llfree.h) has them",
        ),
    ];
    for (path, end) in ends {
        assert_eq!(message(&path), format!("{}: {end}", path.display()));
    }
    let text = message(&package.join("Cargo.toml"));
    assert!(text.contains("Cargo.toml: it cannot be loaded as a shared library: "), "{text}");
}
