//! Checks `zonal bench` as people and scripts call it: bad input, the JSON documents, the chart, and Ctrl-C.

use std::process::{Command, Output, Stdio};

use serde_json::Value;

const WORKLOADS: [&str; 8] =
    ["pair", "batch", "batch-random", "repeat", "random", "handoff", "orders", "fill"];
const PEERS: [&str; 5] =
    ["frame-alloc", "buddy_system_allocator", "bitmap-allocator", "buddy-slab-allocator", "talc"];
/// Pages from the kernel, which are compared like peers.
const KERNEL_PAGES: [&str; 2] = ["kernel-mmap", "kernel-memfd"];
/// Options that make a bench short.
const SHORT: [&str; 8] = ["--pool", "64MiB", "--seconds", "0.001", "--rounds", "2", "--warm-up", "0.001"];

fn zonal(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_zonal")).arg("bench").args(arguments).output().unwrap()
}

/// Returns the JSON document that a bench with these arguments prints.
fn json(arguments: &[&str]) -> Vec<Value> {
    let output = zonal(&[arguments, &["--json"]].concat());
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {errors}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Whether `object` has exactly these keys, in any order.
fn has_keys(object: &Value, mut promised: Vec<&str>) -> bool {
    promised.sort_unstable();
    object.as_object().unwrap().keys().eq(promised)
}

fn text<'a>(row: &'a Value, key: &str) -> &'a str {
    row[key].as_str().unwrap_or_else(|| panic!("{key} of {row}"))
}

fn number(row: &Value, key: &str) -> f64 {
    row[key].as_f64().unwrap_or_else(|| panic!("{key} of {row}"))
}

#[test]
fn bad_input_exits_with_2_and_one_line_that_names_what_is_allowed() {
    let cases: [(&[&str], &str); 20] = [
        (&["paint"], "workloads are pair, batch, batch-random, repeat"),
        (&["touch"], "workloads are pair, batch, batch-random, repeat"),
        (&["pair", "figures"], "`zonal bench figures` measures the rest"),
        (&["--peer", "dlmalloc"], "peers are frame-alloc, buddy_system_allocator, bitmap-allocator, "),
        (&["--threads", "0"], "allowed are 1 to"),
        (&["--threads", "1,x"], "allowed are 1 to"),
        (&["--rounds", "0"], "allowed are 1 to"),
        (&["--rounds", "-1"], "allowed are 1 to"),
        (&["--seconds", "0"], "seconds above 0"),
        (&["--pool", "1GB"], "write 1GiB or 1G"),
        (&["--pool", "1000TiB"], "or less"),
        (&["--pool", "4K"], "or more"),
        (&["--speed", "5"], "--speed"),
        (&["figures", "pair"], "groups are fragmentation, scans, starts, metadata"),
        (&["figures", "--peer", "dlmalloc"], "peers are frame-alloc"),
        (&["figures", "--pool", "0"], "use 64MiB or more"),
        (&["figures", "--peer", "kernel-mmap"], "`kernel-mmap` has no figures"),
        (&["--llfree", "no/such.so"], "--llfree: no/such.so: there is no such file; name a shared library"),
        (&["--llfree", "."], "this is a folder; name a shared library with LLFree's C interface"),
        (&["--llfree", "Cargo.toml"], "--llfree: Cargo.toml: it cannot be loaded as a shared library: "),
    ];
    for (arguments, right) in cases {
        let output = zonal(arguments);
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {errors}");
        assert!(output.stdout.is_empty(), "{arguments:?}");
        let mistake = errors.lines().last().unwrap();
        let before = errors.lines().filter(|line| !line.starts_with("zonal: warning: ")).count();
        assert_eq!(before, 1, "{arguments:?}: {errors}");
        assert!(mistake.starts_with("zonal: ") && mistake.contains(right), "{arguments:?}: {errors}");
    }
}

#[cfg(not(feature = "c-peers"))]
#[test]
fn a_peer_missing_from_the_build_is_an_error_that_says_how_to_build_it() {
    for peer in ["mimalloc", "jemalloc"] {
        let output = zonal(&["--peer", peer]);
        assert_eq!(output.status.code(), Some(2));
        let errors = String::from_utf8(output.stderr).unwrap();
        assert!(errors.contains("cargo build --profile dist --features c-peers"), "{errors}");
    }
}

#[test]
fn the_json_document_has_a_row_for_each_allocator_on_each_workload() {
    let rows = json(&SHORT);
    let promised = [
        "workload",
        "threads",
        "allocator",
        "version",
        "ns_per_pair_median",
        "ns_per_pair_min",
        "ns_per_pair_max",
        "instructions_per_pair",
        "ratio_to_zonal",
        "ratio_to_floor",
        "ratio_to_floor_exact",
        "rounds",
    ];
    for workload in WORKLOADS {
        let rows: Vec<&Value> = rows.iter().filter(|row| row["workload"] == workload).collect();
        let mut allocators: Vec<&str> = rows.iter().map(|row| text(row, "allocator")).collect();
        allocators.retain(|name| !matches!(*name, "mimalloc" | "jemalloc"));
        let floors: &[&str] = match (workload, allocators.contains(&"floor-rseq")) {
            ("orders", _) => &[],
            (_, true) => &["floor-rseq", "floor-exact", "floor-spin", "model"],
            (_, false) => &["floor-spin"], // restartable sequences are not available
        };
        let kernel = match workload {
            "orders" => &[],
            "random" => &KERNEL_PAGES[1..],
            _ => &KERNEL_PAGES,
        };
        assert_eq!(
            allocators,
            [&["harness", "exchange", "zonal", "zonal-locked"], floors, &PEERS, kernel].concat(),
            "{workload}"
        );
        for row in rows {
            assert!(has_keys(row, promised.to_vec()), "{row}");
            assert_eq!((row["threads"].as_u64(), row["rounds"].as_u64()), (Some(1), Some(2)), "{row}");
            let [min, median, max] =
                ["min", "median", "max"].map(|which| number(row, &format!("ns_per_pair_{which}")));
            assert!(0.0 < min && min <= median && median <= max, "{row}");
            assert!(number(row, "ratio_to_zonal") > 0.0, "{row}");
            assert_eq!(row["ratio_to_floor"].is_null(), workload == "orders", "{row}");
            let compared = floors.contains(&"floor-exact") && row["allocator"] != "zonal-locked";
            assert_eq!(row["ratio_to_floor_exact"].is_number(), compared, "{row}");
            assert!(row["instructions_per_pair"].is_null() || number(row, "instructions_per_pair") > 1.0);
            assert!(text(row, "version").split('.').count() == 3, "{row}");
        }
    }
}

#[test]
fn ratios_of_zonal_and_floors_to_themselves_are_one() {
    let rows = json(&[&["pair", "--peer", "none"], &SHORT[..]].concat());
    let of = |name: &str| rows.iter().find(|row| row["allocator"] == name).unwrap();
    assert_eq!(number(of("zonal"), "ratio_to_zonal"), 1.0);
    let floor =
        if rows.iter().any(|row| row["allocator"] == "floor-rseq") { "floor-rseq" } else { "floor-spin" };
    assert_eq!(number(of(floor), "ratio_to_floor"), 1.0);
    assert!(number(of("zonal"), "ratio_to_floor") > 1.0);
    if floor == "floor-rseq" {
        assert_eq!(number(of("floor-exact"), "ratio_to_floor_exact"), 1.0);
    }
}

#[test]
fn workloads_threads_and_peers_can_be_chosen() {
    let rows =
        json(&[&["handoff", "pair", "pair", "--threads", "2,1", "--peer", PEERS[2]], &SHORT[..]].concat());
    let found: Vec<(&str, u64)> = rows
        .iter()
        .filter(|row| row["allocator"] == PEERS[2])
        .map(|row| (text(row, "workload"), row["threads"].as_u64().unwrap()))
        .collect();
    assert_eq!(found, [("handoff", 1), ("handoff", 2), ("pair", 1), ("pair", 2)]);
    assert!(!rows.iter().any(|row| row["allocator"] == PEERS[0]));
}

#[test]
fn text_report_has_a_table_a_legend_and_skipped_peers() {
    let folder = tempfile::tempdir().unwrap();
    let chart = folder.path().join("bench.svg");
    let output = zonal(&[&["pair", "orders", "--svg", chart.to_str().unwrap()], &SHORT[..]].concat());
    assert_eq!(output.status.code(), Some(0));
    let text = String::from_utf8(output.stdout).unwrap();
    let parts = [
        "Pools of 64 MiB, 2 rounds of 0.001 s after a warm-up of 0.001 s, seed 1, threads not pinned",
        "CPU time per pair",
        "pair, 1 thread: one frame out, one back",
        "x floor",
        "frame-alloc             0.1.0",
        "skipped on orders: ",
        "allocates single frames only",
    ];
    for part in parts {
        assert!(text.contains(part), "{part}: {text}");
    }
    // Progress is shown only on terminals.
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(errors.lines().all(|line| line.starts_with("zonal: warning: ")), "{errors}");
    assert!(std::fs::read_to_string(chart).unwrap().contains("orders, 1 thread"));
}

#[test]
fn uncounted_instructions_are_reported() {
    let output = zonal(&[&["pair", "--peer", "none", "--json"], &SHORT[..]].concat());
    let rows: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    let said = errors.contains("zonal: note: instructions are not counted: ");
    assert_eq!(rows[0]["instructions_per_pair"].is_null(), said, "{errors}");
}

#[test]
fn ctrl_c_ends_the_bench_and_prints_finished_measurements() {
    let arguments =
        ["bench", "pair", "--pool", "64MiB", "--seconds", "0.001", "--rounds", "100000", "--json"];
    let mut command = Command::new(env!("CARGO_BIN_EXE_zonal"));
    let child = command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // The command handles the signal from the time at which it has more than one thread.
    while std::fs::read_dir(format!("/proc/{}/task", child.id())).unwrap().count() < 2 {
        std::thread::yield_now();
    }
    let kill = format!("kill -INT {}", child.id());
    assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130));
    let rows: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    assert!(rows.iter().all(|row| number(row, "rounds") < 100_000.0));
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(errors.ends_with("zonal: interrupted; the finished measurements are printed\n"), "{errors}");
}

#[test]
fn figures_have_units_and_goals() {
    let rows = json(&["figures", "starts", "metadata", "--peer", "none"]);
    let names: Vec<&str> = rows.iter().map(|row| text(row, "figure")).collect();
    assert_eq!(names, ["start_1_gib", "start_64_gib", "start_1024_gib", "start_4_gib_in_4_tib", "metadata"]);
    assert!(has_keys(&rows[0], vec!["figure", "allocator", "value", "unit"]), "{}", rows[0]);
    assert!(has_keys(&rows[3], vec!["figure", "allocator", "value", "unit", "goal"]), "{}", rows[3]);
    assert!(has_keys(&rows[3]["goal"], vec!["kind", "must", "aim", "reached"]), "{}", rows[3]);
    for row in &rows {
        assert!(number(row, "value") > 0.0 && !text(row, "unit").is_empty(), "{row}");
    }
}

#[test]
fn fragmentation_is_measured_for_peers_and_the_ideal() {
    let rows = json(&["figures", "fragmentation", "--pool", "64MiB", "--peer", PEERS[2]]);
    for figure in ["free_after_orders", "taken_after_orders", "recovered"] {
        let of = |name: &str| {
            let is_it = |row: &&Value| row["figure"] == figure && row["allocator"] == name;
            number(rows.iter().find(is_it).unwrap_or_else(|| panic!("no {figure} of {name}")), "value")
        };
        assert!(of("zonal") <= of("ideal") && of(PEERS[2]) <= of("ideal"), "{figure}");
        assert!((8.0..=32.0).contains(&of("ideal")), "{figure} of 32 blocks");
    }
}

#[test]
fn help_lists_workloads_peers_and_examples() {
    let output = zonal(&["--help"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0));
    for part in WORKLOADS.iter().chain(&PEERS).chain(&KERNEL_PAGES).chain(&[
        "floor-rseq",
        "floor-exact",
        "Examples:",
        "figures",
        "--llfree",
    ]) {
        assert!(text.contains(part), "{part}: {text}");
    }
}
