//! Checks `--once`, `--json`, and the errors of wrong input.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;
use zonal_linux::Pool;

fn zonal(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_zonal"));
    command.arg("top").args(arguments).env_remove("COLUMNS").output().unwrap()
}

fn text(arguments: &[&str]) -> String {
    let output = zonal(&[&["--interval", "0.1"], arguments].concat());
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn json(arguments: &[&str]) -> Value {
    serde_json::from_str(&text(&[arguments, &["--json"]].concat())).unwrap()
}

/// Returns the exit code and the message.
fn refused(arguments: &[&str]) -> (Option<i32>, String) {
    let output = zonal(arguments);
    assert!(output.stdout.is_empty(), "{arguments:?}");
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(errors.lines().count(), 1, "{errors}");
    (output.status.code(), errors)
}

const ZONEINFO: &str = "\
Node 0, zone   Normal
  pages free     500
        min      10
        low      20
        high     30
        managed  1000
    cpu: 0
              count: 5
              high:  60
              batch: 7
Node 2, zone  Movable
  pages free     15
        min      10
        low      20
        high     30
        managed  3000
";

fn tree(zoneinfo: &str) -> tempfile::TempDir {
    let root = tempfile::tempdir().unwrap();
    fs::create_dir(root.path().join("proc")).unwrap();
    fs::write(root.path().join("proc/zoneinfo"), zoneinfo).unwrap();
    root
}

fn at(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn this_system_as_text() {
    let text = text(&["--once"]);
    assert!(text.starts_with("this system; rates over 0."), "{text}");
    for part in ["\nZones\n", "\nNodes\n", "\nFree blocks\n", "\nCounters\n", "foreign/s", "frames"] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
}

#[test]
fn this_system_as_a_document() {
    let document = json(&["--system"]);
    assert_eq!(document["schema"], "zonal.top.v1");
    assert_eq!(document["source"], "this system");
    let sample = &document["sample"];
    let zone = &sample["zones"][0];
    for field in ["node", "managed", "free", "min", "low", "high", "in_pagesets"] {
        assert!(zone[field].is_u64(), "{field} in {zone}");
    }
    assert!(sample["pagesets"][0]["batch"].is_u64() && sample["page_bytes"].is_u64());
    assert!(sample["totals"].is_object() && sample["nodes"][0]["id"].is_u64());
    let rates = &document["rates"];
    assert!(rates["seconds"].as_f64() >= Some(0.1), "{rates}");
    let lengths = |part: &Value| part.as_array().map(Vec::len);
    assert_eq!(lengths(&rates["zones"]), lengths(&sample["zones"]));
    assert_eq!(lengths(&rates["pagesets"]), lengths(&sample["pagesets"]));
}

#[test]
fn a_pool_and_some_of_its_nodes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pool");
    let pool = Pool::builder().size(64 << 20).fake_nodes(4).build().unwrap();
    let _published = pool.publish(&path).unwrap();
    let all = json(&["--pool", at(&path)]);
    assert!(all["sample"]["program"].as_str().unwrap().ends_with(&format!("({})", std::process::id())));
    assert_eq!(all["sample"]["nodes"].as_array().unwrap().len(), 4);
    let some = json(&["--pool", at(&path), "--node", "1", "--node", "2-3"]);
    let nodes: Vec<_> =
        some["sample"]["zones"].as_array().unwrap().iter().map(|zone| &zone["node"]).collect();
    assert_eq!(nodes, [1, 2, 3]);
    assert!(some["rates"]["totals"]["refills"].is_number());
    let (code, errors) = refused(&["--pool", at(&path), "--node", "4", "--once"]);
    assert_eq!(code, Some(2));
    assert!(errors.contains("--node: node 4 does not exist; the nodes are 0-3"), "{errors}");
}

#[test]
fn trees_without_some_files() {
    let root = tree(ZONEINFO);
    let text = text(&["--sysfs", at(root.path()), "--once"]);
    assert!(text.contains("< low") && text.contains("Movable"), "{text}");
    for name in ["buddyinfo", "vmstat", "pagetypeinfo"] {
        let note = text.lines().find(|line| line.starts_with("note: ") && line.contains(name));
        assert!(note.is_some(), "{name} is not in {text}");
    }
    let document = json(&["--sysfs", at(root.path())]);
    assert_eq!(document["sample"]["zones"][1]["free"], 15);
    assert_eq!(document["sample"]["missing"].as_array().unwrap().len(), 3);
    assert_eq!(document["sample"]["totals"], serde_json::json!({}));
}

#[test]
fn wrong_input_exits_with_2_and_says_what_to_do() {
    let root = tree("nothing\n");
    let absent = root.path().join("socket");
    let file = root.path().join("proc/zoneinfo");
    for (arguments, right) in [
        (&["--interval", "0.01", "--once"][..], "`0.01` is not an interval; allowed are 0.1 to 3600 seconds"),
        (&["--interval", "NaN", "--once"], "`NaN` is not an interval"),
        (&["--node", "3-1", "--once"], "descending range; write 1-3"),
        (&["--system", "--pool", "x", "--once"], "cannot be used with"),
        (&["--pool", at(&absent), "--once"], "Pool::publish"),
        (&["--pool", at(&file), "--once"], "is not a socket"),
        (&["--sysfs", at(root.path()), "--once"], "has no zone with memory"),
        (&["--sysfs", "/nonexistent", "--once"], "cannot read /nonexistent/proc/zoneinfo"),
        (&[], "standard output is not a terminal; --once prints one reading as text, and --json"),
    ] {
        let (code, errors) = refused(arguments);
        assert_eq!(code, Some(2), "{errors}");
        assert!(errors.contains(right), "{right} is not in {errors}");
    }
}
