//! Checks `zonal explain --pool`, with and without `--recent`, on pools that the tests publish.

use std::io::{Read, Write};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::thread;

use serde_json::{Value, json};
use tempfile::TempDir;
use zonal_linux::{ActingCpu, Frames, Order, PageCount, Pool, PoolRequest, Publication, Topology};

fn zonal(socket: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_zonal"));
    command.args(["explain", "--pool"]).arg(socket).args(arguments).env_remove("COLUMNS").output().unwrap()
}

fn text(socket: &Path, arguments: &[&str]) -> String {
    let output = zonal(socket, arguments);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn document(socket: &Path, arguments: &[&str]) -> Value {
    serde_json::from_str(&text(socket, &[arguments, &["--json"]].concat())).unwrap()
}

/// The one line of a failure, and its exit code.
fn refused(output: Output) -> (Option<i32>, String) {
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(output.stdout.is_empty() && errors.lines().count() == 1, "{errors}");
    (output.status.code(), errors)
}

/// A published pool of two emulated nodes, whose test acts as a CPU of node 0.
struct Published {
    _acting: ActingCpu,
    _publication: Publication,
    pool: Pool,
    path: PathBuf,
    _folder: TempDir,
}

fn publish() -> Published {
    let topology = Topology::fake(2).unwrap().with_emulated_cpus();
    let pool = Pool::builder().size(32 << 20).topology(topology).build().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pool");
    let publication = pool.publish(&path).unwrap();
    let acting = pool.act_as(pool.topology().nodes()[0].cpus[0]).unwrap();
    Published { _acting: acting, _publication: publication, pool, path, _folder: folder }
}

fn fill(pool: &Pool, request: &PoolRequest<'_>) -> Vec<Frames> {
    std::iter::from_fn(|| pool.alloc(request).ok()).collect()
}

fn zone(node: u16) -> Value {
    json!({ "node": node, "kind": "Normal" })
}

#[test]
fn a_running_pool_explains_the_state_that_it_has() {
    let Published { pool, path, .. } = &publish();
    let found = document(path, &["--node", "1", "--policy", "preferred-many:1,0", "--order", "2"]);
    assert_eq!((&found["schema"], &found["served_by"]), (&json!("zonal.explain.v1"), &zone(1)));
    let request = json!({
        "node": 1, "order": 2, "policy": "preferred-many:1,0", "cpuset": null, "urgency": "normal",
        "fill": [], "reclaimable": [],
    });
    assert_eq!(found["request"], request);
    let machine = found["machine"].as_str().unwrap();
    assert!(machine.contains(&format!("({}), pool {}", std::process::id(), pool.number())), "{machine}");

    let held = fill(pool, &PoolRequest::page().this_node().no_wait());
    let arguments = ["--order", "9"];
    let block = pool.alloc(&PoolRequest::new(Order::new(9).unwrap()).no_wait()).unwrap();
    let found = document(path, &arguments);
    assert_eq!((&found["request"]["node"], &found["served_by"]), (&json!(0), &zone(1)), "{found}");
    assert_eq!(found["steps"][0]["outcome"], "below");
    let found = text(path, &arguments);
    let words = found.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("a request for 512 frames from node 0, policy local"), "{found}");
    assert!(words.contains("node 1 Normal low serves"), "{found}");
    assert!(found.ends_with("node 1 Normal serves the request.\n"), "{found}");
    let found = document(path, &["--policy", "weighted:0=1,1=0", "--cpuset", "0", "--urgency", "high"]);
    assert_eq!(found["request"]["policy"], "weighted:0=1,1=0");
    assert_eq!((&found["request"]["urgency"], &found["request"]["cpuset"]), (&json!("high"), &json!([0])));
    drop((held, block));
}

#[test]
fn the_last_requests_of_a_pool_are_shown_with_their_reasons() {
    let Published { pool, path, .. } = &publish();
    let none = text(path, &["--recent"]);
    assert!(none.ends_with("than the preferred one, since it is published\n"), "{none}");
    assert_eq!(document(path, &["--recent"])["requests"], json!([]));

    pool.alloc_contiguous(&PoolRequest::page().no_wait(), PageCount::new(1_234_567)).unwrap_err();
    let held = fill(pool, &PoolRequest::page().this_node().no_wait());
    let before = document(path, &["--recent"])["total"].as_u64().unwrap();
    let page = pool.alloc(&PoolRequest::page().no_wait()).unwrap();
    let found = document(path, &["--recent"]);
    assert_eq!((found["total"].as_u64(), &found["schema"]), (Some(before + 1), &json!("zonal.explain.v1")));
    let requests = found["requests"].as_array().unwrap();
    assert_eq!(
        (&requests[0]["request"]["frames"], &requests[0]["served_by"]),
        (&json!(1_234_567), &json!(null))
    );
    let drained = &requests[0]["steps"][0];
    assert_eq!((&drained["zone"], &drained["outcome"]), (&Value::Null, &json!("drain-pagesets")));
    let elsewhere = requests.last().unwrap();
    assert_eq!((&elsewhere["served_by"], &elsewhere["request"]["preferred"]), (&zone(1), &json!(0)));
    let steps = elsewhere["steps"].as_array().unwrap();
    assert_eq!(steps[0]["zone"], zone(0));
    let serves =
        json!({ "zone": zone(1), "outcome": "serves", "mark": "low", "short_by": null, "detail": null });
    assert_eq!(steps.last(), Some(&serves));

    let shown = text(path, &["--recent"]);
    assert!(shown.contains(&format!("{} requests that failed, stalled,", before + 1)), "{shown}");
    let lines: Vec<&str> = shown.lines().skip(2).collect();
    assert!(lines[0].ends_with("  1234567 user frames from node 0, no reclaim: failed"), "{shown}");
    assert!(lines[1].starts_with("    pagesets with 0 frames are drained"), "{shown}");
    let [.., request, steps] = lines[..] else { panic!("{shown}") };
    assert!(request.ends_with("  1 user frame from node 0, no reclaim: served by node 1 Normal"), "{shown}");
    assert!(steps.starts_with("    node 0 Normal (low): "), "{shown}");
    assert!(steps.ends_with("; node 1 Normal (low): serves"), "{shown}");
    drop((held, page));
}

#[test]
fn more_requests_than_a_pool_keeps_are_counted() {
    let Published { pool, path, .. } = &publish();
    for _ in 0..300 {
        pool.alloc_contiguous(&PoolRequest::page().no_wait(), PageCount::new(1 << 30)).unwrap_err();
    }
    let shown = text(path, &["--recent"]);
    assert!(shown.contains("the last 256 of 300 requests"), "{shown}");
    assert_eq!(shown.lines().filter(|line| line.contains("1073741824 user frames")).count(), 256);
}

#[test]
fn bad_requests_exit_with_2_and_one_line() {
    let Published { path, .. } = &publish();
    for (arguments, right) in [
        (&["--node", "7"][..], "node 7 does not exist; the pool has nodes 0-1"),
        (&["--policy", "bind:9"], "the pool has no node 9"),
        (&["--cpuset", "5"], "the pool has no node 5"),
        (&["--policy", "bind:0", "--cpuset", "1"], "no node in both"),
        (&["--order", "11"], "order from 0 to 10"),
        (&["--fill", "0=50"], "cannot be used with"),
        (&["--without", "0"], "cannot be used with"),
        (&["--set", "zone_reclaim_mode=1"], "cannot be used with"),
        (&["--live"], "cannot be used with"),
        (&["--recent", "--node", "0"], "cannot be used with"),
        (&["--recent", "--order", "0"], "cannot be used with"),
    ] {
        let (code, errors) = refused(zonal(path, arguments));
        assert!(code == Some(2) && errors.contains(right), "{arguments:?}: {errors}");
    }
    let alone = Command::new(env!("CARGO_BIN_EXE_zonal")).args(["explain", "--recent"]).output().unwrap();
    let (code, errors) = refused(alone);
    assert!(code == Some(2) && errors.contains("--pool"), "{errors}");
}

#[test]
fn what_is_not_a_pool_of_this_version_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pool");
    let both = [&[][..], &["--recent"]];
    for arguments in both {
        let (code, errors) = refused(zonal(&path, arguments));
        assert!(code == Some(2) && errors.contains("does not exist"), "{errors}");
    }
    std::fs::write(&path, "text").unwrap();
    for arguments in both {
        let (code, errors) = refused(zonal(&path, arguments));
        assert!(code == Some(2) && errors.contains("is not a socket"), "{errors}");
    }
    std::fs::remove_file(&path).unwrap();
    let program = r#""program": { "pid": 1, "name": "x", "pool": 1 }"#;
    let step = |step: &str| {
        format!(
            r#"{{ "zonal": 1, "explain": {{ {program}, "node": 0, "steps": [{step}], "served_by": null }} }}"#
        )
    };
    for (answer, exit, right) in [
        (
            r#"{ "zonal": 1, "error": "\"explain\" is not a request; requests are settings, set and snapshot" }"#.into(),
            2,
            "\"explain\" is not a request",
        ),
        (r#"{ "zonal": 2, "explain": {} }"#.into(), 1, "the version of its answers is not 1"),
        (r#"{ "zonal": 1, "explain": {} }"#.into(), 1, "missing field"),
        ("\u{1b}[2J".to_owned(), 1, "does not answer as a pool"),
        (step(r#"{ "step": "dance" }"#), 1, "unknown variant `dance`"),
        (step(r#"{ "step": "near", "zone": { "id": 9999, "node": 0, "kind": "Normal" } }"#), 1, "9999 is not a zone"),
        (step(r#"{ "step": "near", "zone": { "id": 0, "node": 5000, "kind": "Normal" } }"#), 1, "5000 is not a node"),
        (step(r#"{ "step": "near", "zone": { "id": 0, "node": 0, "kind": "Odd" } }"#), 1, "`Odd` is not a kind of zone"),
    ] {
        let listener = UnixListener::bind(&path).unwrap();
        let server = thread::spawn(move || {
            let (mut client, _) = listener.accept().unwrap();
            assert!(client.read(&mut [0; 1000]).unwrap() > 0);
            client.write_all(format!("{answer}\n").as_bytes()).unwrap();
        });
        let (code, errors) = refused(zonal(&path, &[]));
        server.join().unwrap();
        assert!(code == Some(exit) && errors.contains(right) && !errors.contains('\u{1b}'), "{errors}");
        std::fs::remove_file(&path).unwrap();
    }
}

/// Names and kinds of a program reach the terminal without characters that control it.
#[test]
fn texts_of_a_program_are_escaped() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pool");
    let listener = UnixListener::bind(&path).unwrap();
    let answer = json!({ "zonal": 1, "recent": {
        "program": { "pid": 1, "name": "a\u{1b}[2Jb\nc", "pool": 1 },
        "total": 1,
        "requests": [{
            "at_ms": u64::MAX, "served_by": null, "stalled_us": u64::MAX, "steps": [], "steps_left_out": u64::MAX,
            "request": {
                "cpu": 0, "node": 0, "preferred": null, "order": 0, "frames": u64::MAX, "kind": "\u{1b}]0;x\u{7}",
                "urgency": "\n\n", "zone_limit": "", "may_reclaim": true,
            },
        }],
    } });
    let server = thread::spawn(move || {
        for _ in 0..2 {
            let (mut client, _) = listener.accept().unwrap();
            assert!(client.read(&mut [0; 1000]).unwrap() > 0);
            client.write_all(format!("{answer}\n").as_bytes()).unwrap();
        }
    });
    for arguments in [&["--recent"][..], &["--recent", "--json"]] {
        let shown = text(&path, arguments);
        let controls = shown.chars().filter(|&letter| letter.is_control() && letter != '\n');
        assert_eq!(controls.count(), 0, "{shown:?}");
    }
    server.join().unwrap();
}
