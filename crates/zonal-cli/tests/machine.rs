//! Checks `zonal machine` as scripts use it: exit codes, one JSON document, and errors of one line.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;
use zonal_machine::{Rules, Settings};

fn machine(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_zonal")).arg("machine").args(args).output().unwrap()
}

fn oracle(name: &str) -> String {
    let crates: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    crates.join("zonal-machine/tests/oracle").join(name).display().to_string()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[test]
fn text_report_of_a_captured_machine_in_full() {
    let file = oracle("linux-7.2-quad-movable.json");
    let output = machine(&["--file", &file, "--check"]);
    let shown = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{shown}");
    assert!(shown.contains("60 of 60 values"), "{shown}");
    assert!(shown.contains("Rules of Linux 7.2 (its own kernel)"), "{shown}");
    assert_eq!(text(&output.stderr), "");
}

#[test]
fn a_check_prints_differences_and_exits_with_1() {
    let file = oracle("linux-6.1-quad-low.json");
    let output = machine(&["--file", &file, "--check", "--rules", "5.10"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stdout).contains("fallback_order node 3      3 2 0 1    3 2 1 0"));
    // A difference is a failure only with `--check`.
    assert_eq!(machine(&["--file", &file, "--rules", "5.10"]).status.code(), Some(0));
    let output = machine(&["--file", &file, "--check", "--node-load", "assign"]);
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn a_check_accepts_values_computed_at_boot() {
    let file = oracle("../boot_memory/linux-6.12-quad-initrd.json");
    let output = machine(&["--file", &file, "--check"]);
    let shown = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{shown}");
    for line in [
        "Checks: 18 of 34 values that its kernel reported are predicted exactly\n",
        "        16 as computed at boot, 0 differ\n",
        "  as at boot             computed now       observed\n",
        "  min node 3 DMA32       6231               5829\n",
    ] {
        assert!(shown.contains(line), "{line:?} is not in:\n{shown}");
    }
    // Sentences are wrapped, so they are compared word by word.
    let words = shown.split_whitespace().collect::<Vec<_>>().join(" ");
    for sentence in [
        "when it had at least 13286 frames (51.9 MiB) fewer (at most 13941; watermarks are rounded): 1842 frames",
        "such as the initial file system, was released to these zones later.",
        "writing vm.watermark_scale_factor (even the same value) recomputes the watermarks",
    ] {
        assert!(words.contains(sentence), "{sentence:?} is not in:\n{shown}");
    }
    let output = machine(&["--file", &file, "--check", "--json"]);
    assert_eq!(output.status.code(), Some(0));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let checks = report["checks"].as_array().unwrap();
    let count = |field: &str| checks.iter().filter(|check| check[field] == true).count();
    assert_eq!((checks.len(), count("same"), count("as_at_boot")), (34, 18, 16));
    assert_eq!(report["at_boot"]["explained"], 16);
    assert_eq!(report["at_boot"]["zones"][1]["node"], 3);
    // With another rule for node load, the fallback orders differ, which fewer frames at boot cannot explain.
    let output = machine(&["--file", &file, "--check", "--node-load", "assign"]);
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stdout));
    // This change of one number is not explained by any zone sizes at boot.
    let mut changed: Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    changed["observed"]["zones"][2]["low"] = 8018.into();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("changed.json");
    std::fs::write(&path, changed.to_string()).unwrap();
    let output = machine(&["--file", path.to_str().unwrap(), "--check"]);
    let shown = text(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{shown}");
    assert!(!shown.contains("at boot") && shown.contains("low node 1 DMA32       7806"), "{shown}");
}

#[test]
fn a_machine_whose_check_fails_is_not_exported() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("out.json");
    let out = path.to_str().unwrap();
    // In the first case there is nothing to check; in the second case a check differs.
    let file = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../zonal-machine/tests/oracle/linux-6.1-quad-node2-cpuonly.json"
    );
    for (source, code) in [(&["--preset", "desktop"][..], 2), (&["--file", file, "--node-load", "assign"], 1)]
    {
        let output = machine(&[source, &["--check", "--export", out]].concat());
        assert_eq!((output.status.code(), path.exists()), (Some(code), false), "{}", text(&output.stderr));
        assert!(
            code == 2 || text(&output.stderr).contains("not written: a check differs"),
            "{}",
            text(&output.stderr)
        );
        assert_eq!(machine(&[source, &["--export", out]].concat()).status.code(), Some(0));
        std::fs::remove_file(&path).unwrap();
    }
    let output = machine(&["--file", file, "--check", "--export", out]);
    assert_eq!((output.status.code(), path.exists()), (Some(0), true), "{}", text(&output.stderr));
}

#[test]
fn machine_file_without_zones_is_bad_input() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("empty.json");
    let empty = r#"{"name": "e", "page_bytes": 4096, "nodes": [{"id": 0, "cpus": [0], "distances": {"0": 10}}], "zones": []}"#;
    std::fs::write(&path, empty).unwrap();
    let output = machine(&["--file", path.to_str().unwrap()]);
    let message = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{message}");
    assert!(message.contains("empty.json: zones: there is no zone; at least one is needed"), "{message}");
}

#[test]
fn json_is_one_document_in_the_agreed_shape() {
    let output = machine(&["--preset", "quad-10-12-32", "--json"]);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(output.stdout.starts_with(br#"{"schema":"zonal.machine.v1","name":"#));
    assert_eq!(report["nodes"][3]["fallback_order"], serde_json::json!([3, 2, 1, 0]));
    assert_eq!(report["balance"][0]["times_nth"], serde_json::json!([1, 1, 1]));
    assert_eq!(report["zones"][0]["kind"], "DMA");
    assert_eq!(report["zones"][0]["protection"].as_array().unwrap().len(), 5);
    assert_eq!(report["checks"], serde_json::json!([]));
    assert_eq!(report["advice"][0]["severity"], "info");
}

#[test]
fn impossible_machines_are_errors_on_one_line() {
    let directory = tempfile::tempdir().unwrap();
    let empty = directory.path().display().to_string();
    for (args, expected) in [
        (vec!["--file", "/no/such.json"], "cannot read /no/such.json"),
        (vec!["--preset", "nosuch"], "presets are: desktop, quad-10-12-32"),
        (vec!["--preset", "desktop", "--check"], "nothing to check"),
        (vec!["--sysfs", &empty], "name the directory with the machine's proc and sys"),
        (vec!["--preset", "desktop", "--export", "/no/such/file"], "cannot write /no/such/file"),
    ] {
        let output = machine(&args);
        let message = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {message}");
        let last = message.lines().last().unwrap();
        assert!(last.contains(expected), "{args:?}: {message}");
        assert_eq!(text(&output.stdout), "");
    }
    for args in [vec!["--rules", "new"], vec!["--live", "--preset", "desktop"], vec!["--node-load", "none"]] {
        assert_eq!(machine(&args).status.code(), Some(2), "{args:?}");
    }
}

#[test]
fn exported_machine_files_give_the_same_report() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("out.json").display().to_string();
    for source in [["--file", &oracle("linux-6.12-sgi28-fattree.json")], ["--preset", "cxl4"]] {
        let first = machine(&[source[0], source[1], "--export", &file, "--json"]);
        assert_eq!(first.status.code(), Some(0));
        let again = machine(&["--file", &file, "--json"]);
        assert_eq!(text(&first.stdout), text(&again.stdout));
    }
}

#[test]
fn machine_without_arguments_explains_this_machine() {
    let (silent, live) = (machine(&["--json"]), machine(&["--live", "--json"]));
    assert_eq!(silent.status.code(), Some(0), "{}", text(&silent.stderr));
    let nodes = |output: &Output| serde_json::from_slice::<Value>(&output.stdout).unwrap()["nodes"].clone();
    assert_eq!(nodes(&silent), nodes(&live));
}

/// Checks a limit with which no byte can be written, as on a full disk. The arguments are valid, so the exit code is
/// 1.
#[test]
fn a_failed_write_of_an_export_exits_with_1() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("machine.json");
    let script = "trap '' XFSZ; ulimit -f 0; exec \"$0\" machine --preset desktop --export \"$1\"";
    let mut command = Command::new("sh");
    let output = command.args(["-c", script, env!("CARGO_BIN_EXE_zonal")]).arg(&file).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), file.exists()), (Some(1), false), "{errors}");
    assert!(errors.contains("cannot write ") && errors.lines().count() == 1, "{errors}");
}

#[test]
fn changes_are_compared_in_one_table() {
    let arguments = ["--preset", "quad-10-12-32", "--without", "3"];
    let output = machine(&arguments);
    let shown = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{shown}");
    assert!(
        shown.contains("node 2 fallback order") && shown.contains("2 3 0 1") && shown.contains("2 0 1"),
        "{shown}"
    );
    let output = machine(&[&arguments[..], &["--json"]].concat());
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    let nodes = |when: &str| document[when]["nodes"].as_array().map(Vec::len);
    assert_eq!((nodes("before"), nodes("after")), (Some(4), Some(3)));
}

#[test]
fn rules_without_evidence_are_marked_and_impossible_ones_refused() {
    let rules = |version| machine(&["--preset", "quad-10-12-32", "--rules", version]);
    let shown = |version| String::from_utf8(rules(version).stdout).unwrap();
    assert!(shown("4.4").contains("All values are assumed: no kernel 4.4 was compared with these rules"));
    assert!(!shown("6.12").contains("assumed"));
    for (version, why) in
        [("2.6", "the oldest version"), ("99.1", "there is no Linux 99.1"), ("4.21", "4.21")]
    {
        let output = rules(version);
        let errors = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(2) && errors.contains(why), "{version}: {errors}");
    }
}

/// Runs `--set` with a version's rules, and returns the exit code and the errors.
fn set(version: &str, assignment: &str) -> (Option<i32>, String) {
    let output = machine(&["--preset", "quad-10-12-32", "--rules", version, "--set", assignment]);
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

#[test]
fn settings_that_a_version_lacks_cannot_be_set() {
    for version in ["3.0", "4.5", "4.6", "5.13", "7.2"] {
        let rules = Rules::of(version.parse().unwrap());
        for setting in Settings::ALL {
            let info = setting.info();
            let (code, errors) = set(version, &format!("{}={}", info.name, info.default));
            let wanted = if rules.has(setting) { Some(0) } else { Some(2) };
            assert_eq!(code, wanted, "{version}: {errors}");
            assert!(
                code == Some(0) || errors.contains(&format!("Linux {version} does not have")),
                "{errors}"
            );
        }
    }
    for (value, code) in [("0", Some(0)), ("1", Some(2)), ("7", Some(2)), ("8", Some(0))] {
        let (found, errors) = set("7.2", &format!("percpu_pagelist_high_fraction={value}"));
        assert_eq!(found, code, "{errors}");
        assert!(code == Some(0) || errors.contains("kernels accept 0 and numbers from 8"), "{errors}");
    }
}

#[test]
fn changes_that_kernels_do_not_know_are_refused() {
    for (change, why) in [
        (&["--set", "zonelist_cache=off"][..], "Linux 7.2 does not have zonelist_cache"),
        (&["--without", "9"], "node 9 is not a node"),
        (&["--without", "3", "--check"], "--check is about the machine as it is"),
    ] {
        let output = machine(&[&["--preset", "quad-10-12-32"], change].concat());
        let errors = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(2) && errors.contains(why), "{change:?}: {errors}");
    }
}
