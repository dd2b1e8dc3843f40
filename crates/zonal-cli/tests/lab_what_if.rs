//! `zonal lab what-if`: answers that repeat, and questions that cannot be asked.

use std::process::{Command, Output};

use serde_json::Value;

fn what_if(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_zonal"));
    command.args(["lab", "what-if"]).args(arguments).output().unwrap()
}

#[test]
fn answers_are_documents_that_repeat_byte_for_byte() {
    let question = ["--preset", "desktop", "--workload", "exchange", "--operations", "500", "--json"];
    let [first, again] = [(); 2].map(|()| what_if(&question));
    assert!(first.status.success(), "{}", String::from_utf8_lossy(&first.stderr));
    assert_eq!(first.stdout, again.stdout);
    let found: Value = serde_json::from_slice(&first.stdout).unwrap();
    assert_eq!(found["schema"], "zonal.lab-what-if.v1");
    let rows = found["mechanisms"].as_array().unwrap();
    assert_eq!(rows.len(), 15);
    for row in rows {
        assert!(row["off"].is_f64() && row["on"].is_f64() && row["flips_with"].is_array(), "{row}");
        if row["mechanism"].as_str().unwrap().starts_with("M3") {
            assert!(row["idle"].as_str().unwrap().contains("zone_reclaim_mode"), "{row}");
        }
    }
    let text = String::from_utf8(what_if(&question[..6]).stdout).unwrap();
    let answer = found["answer"].as_str().unwrap();
    assert_eq!(text.split_whitespace().next(), answer.split_whitespace().next());
    assert!(text.contains("cannot act: node reclaim is off here"), "{text}");
}

#[test]
fn questions_without_meaning_are_refused() {
    for (arguments, wanted) in [
        (vec!["--workload", "nothing"], "programs are page-faults, first-touch, exchange, overflow"),
        (vec!["--preset", "nothing"], "nothing"),
        (vec!["--preset", "desktop", "--workload", "overflow"], "overflow: nodes "),
        (vec!["--preset", "desktop", "--capture", "c"], "cannot be used with"),
        (vec!["--machine", "/missing.json"], "/missing.json"),
        (vec!["--trace", "/missing.trace"], "/missing.trace"),
        (vec!["--operations", "0"], "`0` is not a whole number from 1 to 1000000000"),
        (vec!["--operations", "-1"], "`-1` is not a whole number from 1 to 1000000000"),
        (vec!["--operations", "99999999999999999999"], "from 1 to 1000000000"),
    ] {
        let output = what_if(&arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(error.contains(wanted), "{arguments:?}: {error}");
    }
}
