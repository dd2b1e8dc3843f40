//! `zonal trace replay`: documents that repeat byte for byte, and options that have no meaning together.
//!
//! Related files: `trace.rs` records, and has the commands that both use.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::trace::{error, info, number, recorded, zonal};

fn replay(options: &[&str], folder: &Path) -> Value {
    let run = || {
        let output = zonal(&[&["trace", "replay", "t.trace", "--json"], options].concat(), folder);
        assert!(output.status.success(), "{options:?}: {}", error(&output));
        output.stdout
    };
    let first = run();
    assert_eq!(first, run(), "{options:?}: two runs differ");
    let document: Value = serde_json::from_slice(&first).unwrap();
    assert_eq!(document["schema"], "zonal.trace-replay.v1");
    document
}

#[test]
fn replays_are_documents_that_repeat_byte_for_byte() {
    let Some((folder, _)) = recorded() else { return };
    let folder = folder.path();
    let kernel = replay(&["--rules", "kernel", "--huge-pages", "3"], folder);
    assert_eq!((&kernel["rules"], &kernel["from_seconds"]), (&"kernel".into(), &1.0.into()));
    let header = zonal_trace::TraceReader::open(&folder.join("t.trace")).unwrap().header().clone();
    assert_eq!(kernel["kernel"].as_str(), header.kernel.as_deref());
    let cpus = kernel["cpus"].as_array().unwrap();
    assert_eq!(cpus.len(), header.cpus.len());
    for cpu in cpus {
        for figure in [&cpu["refilled"], &cpu["drained"]] {
            assert!(figure["predicted"].is_u64() && figure["traced"].is_u64(), "{cpu}");
        }
    }
    for moment in kernel["huge_pages"].as_array().unwrap() {
        assert!(number(&moment["before"]) <= number(&moment["after_at_most"]), "{moment}");
        assert!(number(&moment["after_at_most"]) <= 3, "{moment}");
    }
    let ours = replay(&["--tuning", "fixed", "--tuning", "depth", "--seed", "7"], folder);
    assert!(ours["lost"].is_u64() && ours["has_recorded_cpus"].is_boolean(), "{ours}");
    let rows = ours["rows"].as_array().unwrap();
    let tunings: Vec<&str> = rows.iter().map(|row| row["tuning"].as_str().unwrap()).collect();
    assert_eq!(tunings, ["fixed", "depth"]);
    let requests = number(&info("t.trace", folder)["requests"]["allocations"]);
    for row in rows {
        assert_eq!(number(&row["served"]) + number(&row["failed"]), requests);
    }
    let text = zonal(&["trace", "replay", "t.trace"], folder);
    let text = String::from_utf8(text.stdout).unwrap();
    assert!(["depth", "stepwise", "fixed"].iter().all(|tuning| text.contains(tuning)), "{text}");
}

#[test]
fn replays_refuse_what_has_no_meaning() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("text"), "some text\n").unwrap();
    for (arguments, wanted) in [
        (vec!["text"], "does not begin with the line"),
        (vec!["text", "--rules", "kernel"], "does not begin with the line"),
        (
            vec!["text", "--rules", "kernel", "--tuning", "fixed"],
            "--tuning has no meaning with --rules kernel",
        ),
        (vec!["text", "--rules", "kernel", "--machine", "m"], "--machine has no meaning with --rules kernel"),
        (vec!["text", "--huge-pages", "4"], "--huge-pages has no meaning with --rules ours"),
        (vec!["text", "--machine", "missing"], "missing"),
        (vec!["text", "--tuning", "slow"], "invalid value 'slow'"),
        (vec!["text", "--rules", "kernel", "--huge-pages", "0"], "from 1 to 1099511627776"),
        (vec!["text", "--seed", "-1"], "`-1` is not a whole number from 0 to 18446744073709551615"),
        (vec!["text", "--rules", "-1"], "[possible values: ours, kernel]"),
    ] {
        let output = zonal(&[vec!["trace", "replay"], arguments.clone()].concat(), folder.path());
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", error(&output));
        assert!(error(&output).contains(wanted), "{arguments:?}: {}", error(&output));
    }
}
