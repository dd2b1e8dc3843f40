//! Checks `zonal lab` as people and scripts call it: bad input, the JSON documents, files, and Ctrl-C.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;

fn zonal(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_zonal")).arg("lab").args(arguments).output().unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Returns the path of an experiment with two small cases and two variants.
fn small() -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../zonal-lab/tests/data/small.toml").display().to_string()
}

/// Copies the small experiment to its own directory, with `old` replaced by `new`.
fn small_with(old: &str, new: &str) -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    for name in ["small.toml", "small.csv", "small.json"] {
        let text = std::fs::read_to_string(Path::new(&small()).with_file_name(name)).unwrap();
        let text = if name == "small.toml" { text.replacen(old, new, 1) } else { text };
        std::fs::write(directory.path().join(name), text).unwrap();
    }
    let file = directory.path().join("small.toml");
    (directory, file)
}

#[test]
fn bad_input_exits_with_2_and_one_line_that_names_what_is_allowed() {
    let small = &*small();
    let cases: [(&[&str], &str); 12] = [
        (&["run"], "were not provided"),
        (&["run", "nosuch"], "zoned-counters-2006, "),
        (&["run", "nosuch.toml"], "nosuch.toml: cannot be read: No such file"),
        (&["run", small, "--variant", "later"], "small has no variant `later`; it has before, after"),
        (&["run", small, "--case", "cpus"], "as in cpus=4 or cpus=4,16"),
        (&["run", small, "--case", "cpus=3"], "cpus is one of 1, 8"),
        (&["run", small, "--case", "colour=8"], "small has no such case"),
        (&["run", small, small], "two experiments have the name small"),
        (&["run", small, "--jobs", "0"], "allowed are 1 to"),
        (&["run", small, "--seed", "x"], "--seed"),
        (&["paint"], "paint"),
        (&["list", "--speed"], "--speed"),
    ];
    for (arguments, right) in cases {
        let output = zonal(arguments);
        let errors = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {errors}");
        assert!(output.stdout.is_empty(), "{arguments:?}");
        assert_eq!(errors.lines().count(), 1, "{arguments:?}: {errors}");
        assert!(errors.starts_with("zonal: ") && errors.contains(right), "{arguments:?}: {errors}");
    }
}

#[test]
fn a_bad_file_is_named_with_its_line_before_anything_runs() {
    let (directory, file) = small_with("threads = 8", "threads = 9");
    let out = directory.path().join("out");
    let arguments = ["run", &small(), file.to_str().unwrap(), "--out", out.to_str().unwrap()];
    let output = zonal(&arguments);
    assert_eq!(output.status.code(), Some(2));
    let expected = format!("zonal: {}:49: threads: 9 threads, each pinned", file.display());
    assert!(stderr(&output).starts_with(&expected), "{}", stderr(&output));
    assert!(!out.exists());
}

#[test]
fn list_names_every_experiment() {
    let output = zonal(&["list", "--json"]);
    assert_eq!(output.status.code(), Some(0));
    let list: Value = serde_json::from_slice(&output.stdout).unwrap();
    let counters = &list.as_array().unwrap().iter().find(|one| one["name"] == "zoned-counters-2006").unwrap();
    assert_eq!((&counters["machines"][0], &counters["runs"]), (&"altix512".into(), &28.into()));
    assert_eq!(counters["variants"][0]["role"], "baseline");
    let text = String::from_utf8(zonal(&["list"]).stdout).unwrap();
    for one in list.as_array().unwrap() {
        assert!(
            text.contains(one["name"].as_str().unwrap()) && text.contains(one["title"].as_str().unwrap())
        );
    }
}

#[test]
fn runs_write_what_they_print_and_are_reproducible() {
    let directory = tempfile::tempdir().unwrap();
    let run = |jobs: &str, out: &str| {
        let out = directory.path().join(out);
        let out = out.to_str().unwrap();
        let output =
            zonal(&["run", &small(), "--out", out, "--jobs", jobs, "--seed", "3", "--json", "--no-spread"]);
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        let file = std::fs::read(Path::new(out).join("small/result.json")).unwrap();
        let (printed, mut written): (Value, Value) =
            (serde_json::from_slice(&output.stdout).unwrap(), serde_json::from_slice(&file).unwrap());
        // The schema identifier is only in a standalone document, and not in the elements of a document with several
        // experiments.
        assert_eq!(written.as_object_mut().unwrap().remove("schema"), Some("zonal.lab.v1".into()));
        assert_eq!(printed, Value::Array(vec![written]));
        file
    };
    let first = run("1", "a");
    assert_eq!(run("2", "b"), first);
    let document: Value = serde_json::from_slice(&first).unwrap();
    assert_eq!((&document["experiment"], &document["seed"]), (&"small".into(), &3.into()));
    let rows = document["rows"].as_array().unwrap();
    let count = |metric: &str| rows.iter().filter(|row| row["metric"] == metric).count();
    assert_eq!((count("wall"), count("real")), (8, 4));
    for row in rows {
        for key in ["workload", "variant", "metric", "unit", "predicted", "published", "error_pct"] {
            assert!(row.get(key).is_some(), "{key} of {row}");
        }
    }
}

#[test]
fn table_compares_predictions_with_published_figures() {
    let directory = tempfile::tempdir().unwrap();
    let out = directory.path().to_str().unwrap();
    let output =
        zonal(&["run", &small(), "--out", out, "--variant", "before", "--case", "cpus=1,8", "--no-spread"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        text.starts_with("small: A small machine\nmade up\nmachine small; seed 1; 4 of 4 runs completed\n"),
        "{text}"
    );
    let header = text.lines().find(|line| line.contains("  figure  ")).unwrap();
    let words: Vec<&str> = header.split_whitespace().collect();
    let expected =
        ["workload", "cpus", "config.node_reclaim", "figure", "unit", "before", "published", "error", "as"];
    assert_eq!(words, expected);
    let rows = |figure: &str| text.lines().filter(|line| line.contains(figure)).count();
    assert_eq!((rows(" wall  "), rows(" min_wall ")), (4, 4), "{text}");
    assert!(text.contains("\ncalibrated on wall of one process\n"), "{text}");
    assert!(text.contains("\nlargest error of fitted figures: "), "{text}");
    assert!(text.contains("\nlargest error of all other figures: "), "{text}");
    let written =
        format!("written to {}: result.json, report.html, ", directory.path().join("small").display());
    assert!(text.contains(&written), "{text}");
}

#[test]
fn a_failed_run_is_an_error_on_one_line_that_names_the_run() {
    let (directory, file) = small_with("gib_each = 0.004", "gib_each = 0.25");
    let out = directory.path().join("out");
    let output = zonal(&["run", file.to_str().unwrap(), "--out", out.to_str().unwrap(), "--seed", "7"]);
    let errors = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert_eq!(errors.lines().count(), 1, "{errors}");
    assert!(errors.starts_with("zonal: experiment small, workload = touch, cpus = 8, "), "{errors}");
    assert!(errors.contains(", seed 7: operation "), "{errors}");
    assert!(!out.exists());
}

#[test]
fn a_failed_experiment_keeps_the_results_of_earlier_ones() {
    let (directory, file) = small_with("gib_each = 0.004", "gib_each = 0.25");
    let text = std::fs::read_to_string(&file).unwrap().replacen("name = \"small\"", "name = \"fails\"", 1);
    std::fs::write(&file, text).unwrap();
    let out = directory.path().join("out");
    let files = [&small(), file.to_str().unwrap()];
    let output = zonal(&["run", files[0], files[1], "--out", out.to_str().unwrap(), "--json"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("experiment fails"), "{}", stderr(&output));
    let printed: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&printed[0]["experiment"], printed.as_array().unwrap().len()), (&"small".into(), 1));
}

#[test]
fn ctrl_c_keeps_the_results_of_completed_runs() {
    // One more part with two runs, which take hours.
    let endless = "[[part]]\nname = \"endless\"\nmachine = \"small.json\"\n[part.workload]\nkind = \"page-faults\"\n\
        processes = 8\nmib_each = 1.0\nseconds = 3e3\nwarm_up = 1.0\nfault_ns = 100.0\nunmap_ns = 100.0\n\
        lru_batch = 15\nlru_ns = 10.0\n\n[[variant]]";
    let (directory, file) = small_with("[[variant]]", endless);
    let out = directory.path().join("out");
    let arguments = ["lab", "run", file.to_str().unwrap(), "--out", out.to_str().unwrap(), "--jobs", "1"];
    let mut command = Command::new(env!("CARGO_BIN_EXE_zonal"));
    let child = command.args(arguments).arg("--json").stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = child.unwrap();
    // The command handles the signal from the time at which it has more than one thread.
    while std::fs::read_dir(format!("/proc/{}/task", child.id())).unwrap().count() < 2 {
        if child.try_wait().unwrap().is_some() {
            panic!("ended before the signal: {}", stderr(&child.wait_with_output().unwrap()));
        }
        std::thread::yield_now();
    }
    let kill = format!("kill -INT {}", child.id());
    assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{}", stderr(&output));
    let errors = stderr(&output);
    let last = errors.lines().last().unwrap();
    assert!(last.starts_with("zonal: interrupted; ") && last.contains(" of 14 runs completed"), "{errors}");
    let printed: Value = serde_json::from_slice(&output.stdout).unwrap();
    for document in printed.as_array().unwrap() {
        assert!(document["missing_runs"].as_u64().unwrap() >= 2, "{document}");
    }
}

#[test]
fn the_example_file_runs() {
    let example = zonal(&["example"]);
    assert_eq!(example.status.code(), Some(0));
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("mine.toml");
    std::fs::write(&file, example.stdout).unwrap();
    let out = directory.path().to_str().unwrap();
    let output =
        zonal(&["run", file.to_str().unwrap(), "--case", "cpus=1", "--no-spread", "--out", out, "--json"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let printed: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(printed[0]["experiment"], "example");
    let rows = printed[0]["rows"].as_array().unwrap();
    assert_eq!(rows.iter().filter(|row| row["metric"] == "wall").count(), 2);
}

/// An experiment as a new user would write it. The longer checks run it with its spread, which is that of 25 runs.
const NEW_USER: &str = r#"
name = "mine"
title = "Pagesets for a web server and a database on one machine"
[question]
text = "Do tuned pagesets make them faster?"
[[part]]
machine = "quad-10-12-32"
[[part.program]]
name = "web"
on_cpus = "0-7,16-23,32-39,48-55"
kind = "exchange"
pairs = 16
burst = 8
send_ns = 3000.0
receive_ns = 3000.0
wake_ns = 20000.0
moves_pct = 1.0
seconds = 0.003
warm_up = 0.001
[[part.program]]
name = "database"
on_cpus = "8-15,24-31,40-47,56-63"
kind = "page-faults"
processes = 32
mib_each = 1.0
seconds = 0.003
warm_up = 0.001
fault_ns = 1500.0
unmap_ns = 450.0
lru_batch = 15
lru_ns = 20.0
[[variant]]
name = "fixed"
role = "baseline"
config.tuning = "fixed"
[[variant]]
name = "ours"
role = "ours"
config.tuning = "depth"
"#;

/// Runs an experiment of a new user: two programs on a machine with 4 nodes of 16 CPUs, with the costs of a
/// server, and two ways of adjusting pagesets. Its answer survives seeds and costs, or says that nothing differs.
#[test]
fn an_experiment_of_a_new_user_ends_in_a_sentence_that_lasts() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("mine.toml");
    std::fs::write(&file, NEW_USER).unwrap();
    let out = directory.path().to_str().unwrap();
    let is_deep = std::env::var_os("ZONAL_DEEPER").is_some();
    let spread = if is_deep { "--spread" } else { "--no-spread" };
    let output = zonal(&["run", file.to_str().unwrap(), "--out", out, spread]);
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let first = text.split("\n\n").next().unwrap().replace('\n', " ");
    assert!(first.contains("Do tuned pagesets make them faster? "), "{text}");
    let document = std::fs::read(directory.path().join("mine/result.json")).unwrap();
    let document: Value = serde_json::from_slice(&document).unwrap();
    let answer = &document["answer"];
    assert!(first.contains(answer["text"].as_str().unwrap().split(": ").next().unwrap()), "{first} {answer}");
    for program in ["web", "database"] {
        let name = format!("{program}.throughput");
        let rows = document["rows"].as_array().unwrap();
        let row = rows.iter().find(|row| row["metric"] == *name && row["variant"] == "ours").unwrap();
        assert!(row["predicted"].as_f64().unwrap() > 0.0, "{row}");
        assert_eq!(row["spread"][0].as_f64().is_some_and(|least| least > 0.0), is_deep, "{row}");
    }
    if !is_deep {
        return;
    }
    assert_eq!(
        (&answer["survives"], answer["flips"].as_array().unwrap().len()),
        (&true.into(), 0),
        "{answer}"
    );
    assert!(first.contains("The answer is the same with 5 seeds and "), "{first}");
    for cost in ["hardware.transfer_ns", "hardware.hit_ns", "workload.send_ns", "workload.fault_ns"] {
        assert!(text.contains(&format!("{cost} −20 %")) && text.contains(&format!("{cost} +20 %")), "{text}");
    }
}

#[test]
fn files_of_ones_own_have_a_spread_unless_it_takes_long() {
    let directory = tempfile::tempdir().unwrap();
    let out = directory.path().to_str().unwrap();
    let run = |more: &[&str]| {
        let output = zonal(&[&["run", &small(), "--case", "case=one", "--out", out], more].concat());
        assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
        (String::from_utf8(output.stdout.clone()).unwrap(), stderr(&output))
    };
    assert!(run(&[]).0.contains("seed 5"));
    assert!(!run(&["--no-spread"]).0.contains("seed 5"));
    let output = zonal(&["run", &small(), "--spread", "--no-spread"]);
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
}

#[test]
fn shown_experiments_are_files_to_run() {
    let text = String::from_utf8(zonal(&["show", "fallback-order-2021"]).stdout).unwrap();
    assert!(text.contains("\n# hardware.memory_ns = 90\n"), "{text}");
    assert!(
        text.contains("\n# config.node_load = assign assign, remaining remaining, accumulate accumulate\n")
    );
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("mine.toml");
    std::fs::write(&file, text).unwrap();
    let (file, out) = (file.to_str().unwrap(), directory.path().to_str().unwrap());
    let output = zonal(&["run", file, "--case", "workload=order", "--out", out, "--no-spread"]);
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    let again = String::from_utf8(zonal(&["show", file]).stdout).unwrap();
    assert!(again.contains("# hardware.memory_ns = 90"), "{again}");
    for (wrong, reason) in [("all", "show one by its name"), ("nosuch", "there is no experiment")] {
        let output = zonal(&["show", wrong]);
        assert!(output.status.code() == Some(2) && stderr(&output).contains(reason), "{}", stderr(&output));
    }
}

#[test]
fn each_kind_of_workload_has_an_example() {
    for kind in ["exchange", "programs"] {
        let text = String::from_utf8(zonal(&["example", kind]).stdout).unwrap();
        assert!(text.contains("kind = \"exchange\"") && text.contains("moves_pct = 1.0"), "{text}");
    }
    let output = zonal(&["example", "paint"]);
    let errors = stderr(&output);
    assert!(output.status.code() == Some(2) && errors.contains("exchange"), "{errors}");
}

/// Runs `zonal lab run` within resource limits that the shell sets.
fn zonal_within(limits: &str, arguments: &[&str]) -> Output {
    let script = format!("{limits}; exec \"$0\" lab run \"$@\"");
    let mut command = Command::new("sh");
    command.args(["-c", &script, env!("CARGO_BIN_EXE_zonal")]).args(arguments).output().unwrap()
}

/// Checks programs that need lists of several gigabytes, and a program with ten million files.
#[test]
fn a_program_that_exhausts_host_memory_is_an_error() {
    let directory = tempfile::tempdir().unwrap();
    let machine = |frames: u64| {
        format!(
            r#"{{"schema":"zonal.machine-file.v1","name":"m","page_bytes":4096,
            "nodes":[{{"id":0,"cpus":[0,1],"distances":{{"0":10}}}}],"zones":[{{"node":0,"kind":"Normal","start":0,
            "spanned":{frames},"present":{frames},"managed":{frames}}}]}}"#
        )
    };
    let head =
        "name = 'held'\ntitle = 't'\n[[variant]]\nname = 'v'\nrole = 'ours'\n[[part]]\nmachine = 'm.json'\n";
    let hog = "kind = 'hog'\nthreads = 1\nmem_gb = 1000\nrounds = 1\nshared_map = 0\nfault_ns = 200.0\n\
               stride = 4096\nstore_ns = 1.0\nunmap_ns = 1.0\n";
    let faults = "kind = 'page-faults'\nprocesses = 1\nmib_each = 1000000\nseconds = 1e3\nwarm_up = 1\n\
                  fault_ns = 1.0\nunmap_ns = 1.0\nlru_batch = 15\nlru_ns = 0.0\n";
    let files = "kind = 'file-writers'\nthreads = 1000\nfiles = 10000\nfile_kib = 4\nloops = 1\ncreate_ms = 1.0\n\
                 metadata_kib = 1.0\npage_ns = 1.0\nscan_ns = 1.0\ninode_pressure = 1.0\n";
    for (workload, frames, kib) in
        [(hog, 1 << 28, 3_000_000), (faults, 1 << 28, 3_000_000), (files, 1 << 23, 700_000)]
    {
        std::fs::write(directory.path().join("m.json"), machine(frames)).unwrap();
        let file = directory.path().join("held.toml");
        std::fs::write(&file, format!("{head}[part.workload]\n{workload}")).unwrap();
        let out = directory.path().join("out");
        let output = zonal_within(
            &format!("ulimit -v {kib}"),
            &[file.to_str().unwrap(), "--out", out.to_str().unwrap()],
        );
        let errors = stderr(&output);
        assert_eq!(output.status.code(), Some(1), "{errors}");
        assert_eq!(errors.lines().count(), 1, "{errors}");
        assert!(errors.starts_with("zonal: experiment held, v") && errors.contains("memory"), "{errors}");
    }
}

/// Checks a limit with which files can be created but not a single byte can be written, as on a full disk.
#[test]
fn results_are_printed_even_if_they_cannot_be_written() {
    let directory = tempfile::tempdir().unwrap();
    let out = directory.path().to_str().unwrap();
    let full = "trap '' XFSZ; ulimit -f 0";
    let run = [&small(), "--variant", "after", "--case", "cpus=1", "--out", out];
    let output = zonal_within(full, &run);
    let (text, errors) = (String::from_utf8_lossy(&output.stdout), stderr(&output));
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert!(errors.contains("cannot write ") && errors.contains("result.json"), "{errors}");
    assert!(text.contains("wall") && !text.contains("written to"), "{text}");
    let output = zonal_within(full, &[&run[..], &["--json"]].concat());
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((output.status.code(), document[0]["experiment"].as_str()), (Some(1), Some("small")));
}

/// Runs the command as another user if this user may write into every folder.
#[test]
fn unwritable_result_directories_are_refused_before_any_run() {
    const UNPRIVILEGED: u32 = 65_534;
    let (directory, file) = small_with("", "");
    let out = directory.path().join("closed");
    std::fs::create_dir(&out).unwrap();
    for (path, mode) in [(&out, 0o555), (&directory.path().to_owned(), 0o755)] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    }
    let is_superuser = std::fs::write(out.join("any"), "").is_ok();
    for place in [out.clone(), out.join("deeper/still")] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_zonal"));
        command.args(["lab", "run"]).args([&*file, Path::new("--out"), &place]);
        if is_superuser {
            command.uid(UNPRIVILEGED);
        }
        let output = match command.output() {
            Err(error) if is_superuser => {
                return zonal_testing::skipped!("nobody else can run zonal: {error}");
            }
            output => output.unwrap(),
        };
        let errors = stderr(&output);
        assert_eq!((output.status.code(), output.stdout.len()), (Some(2), 0), "{errors}");
        assert!(errors.contains("cannot write ") && errors.contains("Permission denied"), "{errors}");
    }
}

#[test]
fn published_figures_that_are_not_simulated_give_one_note() {
    let (directory, file) = small_with("", "");
    let table = file.with_file_name("small.csv");
    let more: String = (0..1000).map(|at| format!("touch,1,off,,after,hunter{at},s,1\n")).collect();
    let before = std::fs::read_to_string(&table).unwrap();
    std::fs::write(&table, format!("{before}{more}")).unwrap();
    let out = directory.path().join("out");
    let output = zonal(&["run", file.to_str().unwrap(), "--out", out.to_str().unwrap()]);
    let first = before.lines().count() + 1;
    let note = format!(
        "zonal: note: small: 1000 published figures are not simulated; the first is in line {first} of their table"
    );
    assert_eq!((stderr(&output).trim_end(), output.status.code()), (&*note, Some(0)));
}
