//! Checks `zonal run --publish`: the pool's settings can be shown and changed while the workload runs.

use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::thread;

use serde_json::Value;

fn zonal(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_zonal")).args(arguments).output().unwrap()
}

/// Starts a run that lasts until it is interrupted, and waits until its pool is published.
fn start(socket: &str) -> Child {
    let run = ["run", "pair", "--pool", "64MiB", "--fake-nodes", "2", "--threads", "1", "--seconds", "3600"];
    let mut command = Command::new(env!("CARGO_BIN_EXE_zonal"));
    command.args([&run[..], &["--json", "--publish", socket]].concat());
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    while zonal(&["settings", "--pool", socket]).status.code() != Some(0) {
        assert!(child.try_wait().unwrap().is_none(), "the run ended before its pool was published");
        thread::yield_now();
    }
    child
}

/// Ends the run as Ctrl-C does, and returns its document.
fn interrupt(child: Child) -> Value {
    let kill = format!("kill -INT {}", child.id());
    assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn settings_change_while_the_workload_runs() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.zonal");
    let at = path.to_str().unwrap();
    let child = start(at);
    let set = zonal(&["set", "--pool", at, "zone_reclaim_mode=5", "pageset_tuning=stepwise"]);
    let text = String::from_utf8(set.stdout).unwrap();
    assert_eq!(text, "zone_reclaim_mode = 5\npageset_tuning = stepwise\n");
    let document: Value =
        serde_json::from_slice(&zonal(&["settings", "--pool", at, "--json"]).stdout).unwrap();
    let rows = document["settings"].as_array().unwrap();
    let value = |name: &str| &rows.iter().find(|row| row["name"] == name).unwrap()["value"];
    assert_eq!((value("zone_reclaim_mode"), value("pageset_tuning")), (&"5".into(), &"stepwise".into()));
    let result = interrupt(child);
    assert_eq!(result["accounting"]["balanced"], true);
    assert_eq!(result["settings"]["zone_reclaim_mode"], 5);
    assert_eq!(result["settings"]["tuning"], "stepwise");
    assert!(!path.exists(), "the socket is removed after Ctrl-C");
}

#[test]
fn the_socket_is_removed_when_the_run_ends() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.zonal");
    let at = path.to_str().unwrap();
    let output = zonal(&["run", "pair", "--pool", "64MiB", "--seconds", "0.05", "--publish", at]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(!path.exists());
}

#[test]
fn sockets_that_cannot_be_created_exit_with_2_and_name_the_path() {
    let folder = tempfile::tempdir().unwrap();
    let in_folder = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    std::fs::write(in_folder("file"), "precious").unwrap();
    for (path, right) in [
        (in_folder("file"), "is not a socket"),
        (in_folder(&"x".repeat(120)), "at most 107"),
        (in_folder("none/run.zonal"), "No such file or directory"),
    ] {
        let output = zonal(&["run", "pair", "--pool", "64MiB", "--seconds", "0.05", "--publish", &path]);
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{errors}");
        assert!(output.stdout.is_empty());
        let shown = &path[..folder.path().as_os_str().len()];
        let line = errors.lines().last().unwrap();
        assert!(line.contains("--publish: ") && line.contains(shown) && line.contains(right), "{errors}");
    }
    assert!(Path::new(&in_folder("file")).exists());
    assert_eq!(std::fs::read_to_string(in_folder("file")).unwrap(), "precious");
}
