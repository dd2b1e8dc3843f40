//! Checks that experiments with very many entries are refused or read in linear time. With quadratic comparisons,
//! each test would take minutes.

use std::fmt::Write as _;
use std::sync::mpsc;
use std::time::Duration;

use zonal_lab::experiment::{FileError, Plan, Source, load};

const SMALL: &str = include_str!("data/small.toml");
const FIGURES: &str = include_str!("data/small.csv");
const MACHINE: &str = include_str!("data/small.json");

fn load_files(experiment: &str, figures: &str) -> Result<Plan, FileError> {
    let directory = tempfile::tempdir().unwrap();
    for (name, text) in [("small.toml", experiment), ("small.csv", figures), ("small.json", MACHINE)] {
        std::fs::write(directory.path().join(name), text).unwrap();
    }
    load(&Source::File(directory.path().join("small.toml")))
}

/// Runs `work` on a separate thread and fails after one minute, which is far more than the linear work of these tests
/// needs.
fn in_time<R: Send + 'static>(work: impl FnOnce() -> R + Send + 'static) -> R {
    let (sender, done) = mpsc::channel();
    std::thread::spawn(move || sender.send(work()));
    done.recv_timeout(Duration::from_secs(60)).expect("it ends within a minute, without a panic")
}

fn changed(old: &str, new: &str) -> String {
    assert!(SMALL.contains(old), "{old}");
    SMALL.replacen(old, new, 1)
}

fn refused(text: &str) -> String {
    load_files(text, FIGURES).unwrap_err().problem
}

/// Returns the concatenation of `count` entries. `entry` creates an entry from its index.
fn many(count: usize, entry: impl Fn(usize) -> String) -> String {
    (0..count).map(entry).collect()
}

#[test]
fn lists_have_limits() {
    in_time(try_lists_have_limits);
}

fn try_lists_have_limits() {
    let values = many(100_000, |at| format!("{at}.5, "));
    let axis = changed("cpus = [1, 8]", &format!("fault_ns = [{values}]"));
    assert_eq!(refused(&axis), "`fault_ns` has 100000 entries; the maximum is 4096");
    let axes = changed("cpus = [1, 8]", &many(5000, |at| format!("a{at} = 1\n")));
    assert_eq!(refused(&axes), "`cases` has 5001 entries; the maximum is 256");
    let only = changed("only = { cpus = 1 }", &format!("only = {{ cpus = [{values}] }}"));
    assert_eq!(refused(&only), "`cpus` has 100000 entries; the maximum is 4096");
    let fields = changed("gib_each = 0.004", &many(5000, |at| format!("a{at} = 1\n")));
    assert_eq!(refused(&fields), "`workload` has 5002 entries; the maximum is 256");
    let metrics =
        changed("metrics = [\"wall\"]", &format!("metrics = [{}]", many(300, |at| format!("'{at}',"))));
    assert_eq!(refused(&metrics), "`metrics` has 300 entries; the maximum is 256");
    // Name of the list, number of entries to add, text of an entry, resulting number of entries, and maximum.
    let lists: [(&str, usize, &str, usize, usize); 4] = [
        ("variant", 100_000, "name = 'v'\nrole = 'ours'", 100_002, 256),
        ("parameter", 50_000, "name = 'hardware.hit_ns'\nwhy = ''", 50_002, 256),
        ("part", 5000, "machine = 'small.json'\nname = 'p'\nworkload = { kind = 'hog' }", 5002, 256),
        ("part.case", 100_000, "threads = 2", 100_002, 4096),
    ];
    for (list, count, entry, all, most) in lists {
        let entries =
            many(count, |at| format!("[[{list}]]\n{}\n", entry.replacen("'\n", &format!("{at}'\n"), 1)));
        // A case in the file belongs to the part before it.
        let text = changed("[[variant]]", &format!("{entries}[[variant]]"));
        let key = list.rsplit('.').next().unwrap();
        assert_eq!(refused(&text), format!("`{key}` has {all} entries; the maximum is {most}"));
    }
}

#[test]
fn names_have_a_limit() {
    in_time(try_names_have_a_limit);
}

fn try_names_have_a_limit() {
    let long = "n".repeat(201);
    for (old, new, field) in [
        ("name = \"small\"", format!("name = \"{long}\""), "name"),
        ("name = \"touch\"", format!("name = \"{long}\""), "name"),
        ("name = \"before\"", format!("name = \"{long}\""), "name"),
        ("name = \"hardware.memory_ns\"", format!("name = \"{long}\""), "name"),
        ("case = \"one\"", format!("case = \"{long}\""), "`case`"),
        ("cpus = [1, 8]", format!("cpus = [\"{long}\"]"), "`cpus`"),
        ("cpus = [1, 8]", format!("{long} = 1"), "the name of a column"),
    ] {
        assert_eq!(
            refused(&changed(old, &new)),
            format!("{field} has 201 bytes; the maximum is 200"),
            "{old}"
        );
    }
}

#[test]
fn a_table_of_figures_is_read_once() {
    in_time(try_a_table_of_figures_is_read_once);
}

fn try_a_table_of_figures_is_read_once() {
    let mut figures = FIGURES.to_owned();
    let lines = FIGURES.lines().count();
    for at in 0..60_000 {
        writeln!(figures, "touch,1,on,,before,metric{at},s,1").unwrap();
    }
    let plan = load_files(SMALL, &figures).unwrap();
    assert!(plan.has_published());
    let twice = format!("{figures}touch,1,on,,before,metric7,s,1\n");
    let error = load_files(SMALL, &twice).unwrap_err();
    assert_eq!(error.problem, format!("the same figure as in line {}; figures must be unique", lines + 8));
    assert_eq!(error.line, Some(lines + 60_001));
    for at in 0..6000 {
        writeln!(figures, "touch,1,on,,before,more{at},s,1").unwrap();
    }
    let error = load_files(SMALL, &figures).unwrap_err();
    assert_eq!(error.problem, "more than 65536 figures; split the experiment");
    let columns = many(5000, |at| format!("column{at},")) + FIGURES.split_once('\n').unwrap().1;
    let error = load_files(SMALL, &columns).unwrap_err();
    assert_eq!(error.problem, "5004 columns of cases; the maximum is 256");
}

/// Returns a machine file of `bytes` bytes, most of which are spaces.
fn machine_of(bytes: usize) -> String {
    MACHINE.replacen('{', &format!("{{{}", " ".repeat(bytes - MACHINE.len())), 1)
}

/// Returns an experiment with one part for each of `machines`.
fn parts(machines: impl IntoIterator<Item = String>) -> String {
    let (head, _) = SMALL.split_once("[[part]]").unwrap();
    let variant = "[[variant]]\nname = 'v'\nrole = 'ours'\n";
    let part = |(at, machine): (usize, String)| {
        format!(
            "[[part]]\nname = 'p{at}'\nmachine = '{machine}'\n[part.workload]\nkind = 'first-touch'\ncpus = 1\n\
             gib_each = 0.001\nfault_ns = 1.0\nuser_ns = 1.0\n"
        )
    };
    head.to_owned() + &machines.into_iter().enumerate().map(part).collect::<String>() + variant
}

#[test]
fn a_machine_file_is_read_once_however_it_is_spelled() {
    let directory = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(directory.path().join(name), text).unwrap();
    let load_file = || load(&Source::File(directory.path().join("small.toml")));
    write("m.json", &machine_of(40 << 20));
    write(
        "small.toml",
        &parts(
            (0..128).flat_map(|at| {
                [format!("{}m.json", "./".repeat(at)), format!(".{}m.json", "/".repeat(at + 1))]
            }),
        ),
    );
    assert_eq!(load_file().unwrap().runs.len(), 256);
    // The number of distinct machine files is not limited, but their total size is.
    write("n.json", &machine_of(30 << 20));
    write("small.toml", &parts(["m.json", "n.json"].map(str::to_owned)));
    let error = load_file().unwrap_err();
    assert!(
        error
            .problem
            .ends_with("n.json: with this file the machine files of the experiment exceed 64 MiB, the limit"),
        "{error}"
    );
    assert_eq!(error.line, Some(18));
}

#[test]
fn filters_match_a_table_in_one_pass() {
    let columns = 24;
    let names = many(columns, |at| format!("c{at},"));
    let row = format!("{}before,m,s,1\n", "0,".repeat(columns));
    let table = format!("{names}variant,metric,unit,value\n") + &row.repeat(60_000);
    let zeros = |count: usize| "0,".repeat(count);
    let only = |zeros: &str| {
        format!("only = {{ {} }}", many(columns, |at| format!("c{at} = [{zeros}1],")).trim_end_matches(','))
    };
    let filter = changed("only = { workload = [\"touch\", \"hog\"] }", &only(&zeros(169)));
    let figures = table.clone();
    let error = in_time(move || load_files(&filter, &figures)).unwrap_err();
    assert!(error.problem.starts_with("it has a value in a column that the case does not have"), "{error}");
    let filter = changed("only = { workload = [\"touch\", \"hog\"] }", &only(&zeros(170)));
    assert_eq!(
        load_files(&filter, &table).unwrap_err().problem,
        "`only` has 4104 entries; the maximum is 4096"
    );
}

#[test]
fn names_in_tables_have_a_limit() {
    let long = "n".repeat(201);
    for (at, name) in ["variant", "metric", "unit"].into_iter().enumerate() {
        let mut cells = ["before", "wall", "s"];
        cells[at] = &long;
        let table = format!("{FIGURES}touch,1,off,,{},0.02\n", cells.join(","));
        let error = load_files(SMALL, &table).unwrap_err();
        assert_eq!(error.problem, format!("the {name} has 201 bytes; the maximum is 200"));
    }
    let metrics = changed("metrics = [\"wall\"]", &format!("metrics = [\"{long}\"]"));
    assert_eq!(refused(&metrics), "a name in `metrics` has 201 bytes; the maximum is 200");
}

/// Checks names that differ only in their last characters, so that comparing them takes as long as possible.
#[test]
fn metrics_match_a_table_in_one_pass() {
    let name = |at: usize| format!("{}{at:05}", "m".repeat(40));
    let rows = many(60_000, |at| format!("touch,1,on,,before,{},s,1\n", name(at)));
    let table = FIGURES.replace("touch,1,on,,before,wall,s,0.02\n", "") + &rows;
    let metrics = many(256, |at| format!("'touch.{}',", name(59_999 - at)));
    let text = changed("metrics = [\"wall\"]", &format!("metrics = [{metrics}]"));
    let plan = in_time(move || load_files(&text, &table)).unwrap();
    assert_eq!(plan.calibration.unwrap().rows.rows().len(), 256);
}

/// Returns a machine file of `nodes` nodes, each with one zone and four CPUs.
fn wide_machine(nodes: usize) -> String {
    let distances = |from: usize| many(nodes, |to| format!("\"{to}\":{},", if from == to { 10 } else { 20 }));
    let node = |id: usize| {
        let cpus: Vec<usize> = (4 * id..4 * id + 4).collect();
        format!(
            "{{\"id\":{id},\"cpus\":{cpus:?},\"distances\":{{{}}}}},",
            distances(id).trim_end_matches(',')
        )
    };
    let zone = |id: usize| {
        let start = id * 4096;
        format!(
            "{{\"node\":{id},\"kind\":\"Normal\",\"start\":{start},\"spanned\":4096,\"present\":4096,\"managed\":4096}},"
        )
    };
    let (nodes, zones) = (many(nodes, node), many(nodes, zone));
    format!(
        "{{\"schema\":\"zonal.machine-file.v1\",\"name\":\"w\",\"page_bytes\":4096,\"nodes\":[{}],\"zones\":[{}]}}",
        nodes.trim_end_matches(','),
        zones.trim_end_matches(',')
    )
}

/// Checks the maximum number of runs on a machine with many nodes. A run's memory must still depend on its settings.
#[test]
fn machines_are_prepared_once_for_all_runs() {
    let directory = tempfile::tempdir().unwrap();
    let axes = format!(
        "[part.cases]\nfault_ns = [{}]\nhardware.cache_lines = [64, 128]\n",
        many(1024, |at| format!("{at}.5,"))
    );
    let other = "[[variant]]\nname = 'w'\nrole = 'ours'\n[variant.config]\ntuning = 'depth-published'\nfree_areas = 'one'\n";
    let text = parts(["w.json".to_owned()]).replace("[[variant]]", &format!("{axes}{other}[[variant]]"));
    std::fs::write(directory.path().join("w.json"), wide_machine(1024)).unwrap();
    std::fs::write(directory.path().join("small.toml"), text).unwrap();
    let file = directory.path().join("small.toml");
    let plan = in_time(move || load(&Source::File(file))).unwrap();
    let bytes: Vec<u64> = plan.runs[..4].iter().map(|run| run.host_bytes).collect();
    assert_eq!(plan.runs.len(), 4096);
    assert_ne!(bytes[0], bytes[1], "settings of pagesets decide the metadata");
    assert_eq!([bytes[2] - bytes[0], bytes[3] - bytes[1]], [4096 * 64 * 8; 2]);
}
