//! Checks `zonal mechanisms` as people and scripts call it: bad input, the table, the JSON document, and Ctrl-C.

use std::process::{Command, Output, Stdio};

use serde_json::Value;

fn zonal(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_zonal")).arg("mechanisms").args(arguments).output().unwrap()
}

#[test]
fn bad_input_exits_with_2_and_one_line_that_names_what_is_allowed() {
    for (arguments, right) in [
        (&["M7"][..], "mechanisms are M1 to M6"),
        (&["M1", "cache"], "mechanisms are M1 to M6"),
        (&["M"], "mechanisms are M1 to M6"),
        (&["--speed"], "--speed"),
        (&["--cpus", "0"], "allowed are 1 to 64"),
        (&["--cpus", "65"], "allowed are 1 to 64"),
        (&["--cpus=-1"], "allowed are 1 to 64"),
        (&["--rounds", "2"], "allowed are 3 to 1000"),
        (&["--rounds", "many"], "allowed are 3 to 1000"),
        (&["--seed", "x"], "--seed"),
    ] {
        let output = zonal(arguments);
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {errors}");
        assert!(output.stdout.is_empty(), "{arguments:?}");
        assert!(errors.ends_with('\n') && errors.lines().count() == 1, "{arguments:?}: {errors}");
        assert!(errors.starts_with("zonal: ") && errors.contains(right), "{arguments:?}: {errors}");
    }
}

#[test]
fn the_json_document_has_a_row_for_each_figure_of_each_variant() {
    let output = zonal(&["M5", "--json"]);
    assert_eq!(output.status.code(), Some(0));
    let rows: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    let order =
        r#"{"mechanism":"M5","variant":"assign","kind":"same","metric":"used_node_0","unit":"%","value":"#;
    assert!(String::from_utf8(output.stdout).unwrap().starts_with(&format!("[{order}")));
    for row in &rows {
        assert_eq!(row.as_object().unwrap().len(), 7, "{row}");
        assert_eq!((&row["mechanism"], &row["simulated"]), (&"M5".into(), &false.into()), "{row}");
        assert!(row["value"].is_number() && row["unit"].is_string() && row["metric"].is_string(), "{row}");
    }
    let of = |variant: &str, kind: &str| {
        rows.iter().filter(|row| row["variant"] == variant && row["kind"] == kind).count()
    };
    // The first variant is what the others are compared with. Two nodes are full, and distances equal, under all rules.
    for (variant, gains) in [("assign", 0), ("remaining", 3), ("accumulate", 3)] {
        let kinds = ["gain", "cost", "same"].map(|kind| of(variant, kind));
        assert_eq!(kinds, [gains, 0, 6 - gains], "{variant}");
    }
    assert_eq!(rows.len(), 18);
}

#[test]
fn the_seed_is_that_of_the_option() {
    let output = zonal(&["M5", "--seed", "77", "--cpus", "3", "--rounds", "3"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert!(text.split_whitespace().collect::<Vec<_>>().join(" ").contains("the same seed (77)"), "{text}");
}

#[test]
fn text_report_fits_100_columns_and_says_when_a_mechanism_matters() {
    // Mechanisms can be named in any order, and in lower case.
    let output = zonal(&["m5"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0));
    for part in [
        "M5  ",
        "(Ramakrishnan 2021)",
        "assign",
        "accumulate",
        "remaining",
        "gain",
        "same",
        "It matters when",
        "It does not matter when",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(!text.contains("M1  ") && text.lines().all(|line| line.len() <= 100), "{text}");
}

#[test]
fn ctrl_c_ends_the_measurement_and_prints_finished_mechanisms() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_zonal"));
    let arguments = ["mechanisms", "M2", "M4", "--json"];
    let mut child = command.args(arguments).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // The command handles the signal from the time at which it has more than one thread.
    while std::fs::read_dir(format!("/proc/{}/task", child.id())).unwrap().count() < 2 {
        assert!(child.try_wait().unwrap().is_none(), "it ended before the signal");
        std::thread::yield_now();
    }
    let kill = format!("kill -INT {}", child.id());
    assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
    let output = child.wait_with_output().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(130), "{errors}");
    let rows: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    assert!(rows.iter().all(|row| row["mechanism"] != "M4"), "{rows:?}");
    let last = errors.lines().last().unwrap();
    assert_eq!(last, "zonal: interrupted; the finished mechanisms are printed");
}

#[test]
fn help_lists_mechanisms_and_examples() {
    let output = zonal(&["--help"]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0));
    for part in ["M1  ", "M2  ", "M3  ", "M4  ", "M5  ", "M6  ", "Examples:", "zonal mechanisms M4 --json"] {
        assert!(text.contains(part), "{part}: {text}");
    }
}
