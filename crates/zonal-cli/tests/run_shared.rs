//! Checks `zonal run --shared`: processes that share a pool, some of which are killed.

use std::fs;
use std::process::{Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use zonal_testing::eventually;

fn zonal(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_zonal")).args(arguments).output().unwrap()
}

/// Returns the JSON document of a short run with these arguments on a small shared pool.
fn json(arguments: &[&str]) -> Value {
    let short = ["--shared", "--pool", "64MiB", "--threads", "1", "--json"];
    let output = zonal(&[&["run"], arguments, &short].concat());
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {errors}");
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn nothing_is_lost_when_processes_are_killed() {
    for workload in ["orders", "batch-random"] {
        let result = json(&[workload, "--processes", "3", "--seconds", "3", "--kill-every", "0.1"]);
        assert_eq!(result["schema"], "zonal.run.v1");
        let shared = &result["shared"];
        assert_eq!((&result["workload"], &shared["processes"]), (&workload.into(), &3.into()));
        assert!(shared["killed"].as_u64().unwrap() > 2, "{result}");
        assert!(shared["recovered_frames"].as_u64().unwrap() > 0, "{result}");
        assert!((0.0..60e3).contains(&shared["recovery_ms_max"].as_f64().unwrap()), "{result}");
        assert_eq!((&shared["frames_lost"], &shared["frames_twice"]), (&0.into(), &0.into()));
        assert!(result["pairs"].as_u64().unwrap() > 0, "{result}");
        assert_eq!(result["accounting"]["allocated"], 0);
        assert_eq!((&result["accounting"]["balanced"], &result["fault"]), (&true.into(), &Value::Null));
    }
}

#[test]
fn every_workload_runs_in_two_processes() {
    let workloads = ["pair", "batch", "repeat", "random", "handoff", "fill", "touch"];
    for workload in workloads {
        let result = json(&[workload, "--seconds", "0.1"]);
        let shared = &result["shared"];
        assert_eq!((&shared["processes"], &shared["killed"]), (&2.into(), &0.into()));
        assert_eq!(result["accounting"]["balanced"], true, "{workload}");
    }
}

#[test]
fn the_text_names_processes_and_deaths() {
    let arguments = ["run", "pair", "--shared", "--pool", "64MiB", "--seconds", "0.1", "--threads", "1"];
    let output = zonal(&arguments);
    let text = String::from_utf8(output.stdout).unwrap();
    for part in [
        "pair: 2 processes with 1 thread each",
        "0 killed, about 0 frames",
        "no frame lost, none held twice\n",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

/// As the kernel does when memory runs out. Such a process leaves no message.
#[test]
fn a_process_that_is_killed_from_outside_is_named_with_the_signal() {
    let arguments = ["run", "pair", "--shared", "--pool", "64MiB", "--seconds", "60", "--threads", "1"];
    let mut command = Command::new(env!("CARGO_BIN_EXE_zonal"));
    let run = command.args(arguments).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let file = format!("/proc/{0}/task/{0}/children", run.id());
    let children = || -> Vec<i32> {
        let text = fs::read_to_string(&file).unwrap();
        text.split_whitespace().map(|id| id.parse().unwrap()).collect()
    };
    eventually("the processes start", || children().len() == 2);
    let killed = children()[1];
    kill_process(Pid::from_raw(killed).unwrap(), Signal::KILL).unwrap();
    let output = run.wait_with_output().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert!(
        errors.contains(&format!("process {killed} of the run was killed from outside, by signal 9")),
        "{errors}"
    );
}

#[test]
fn unsuitable_options_are_refused_with_what_would_be_right() {
    let cases: [(&[&str], &str); 7] = [
        (&["--processes", "2"], "--shared"),
        (&["--kill-every", "1"], "--shared"),
        (&["--shared", "--processes", "0"], "allowed are 1 to 63"),
        (&["--shared", "--processes", "64"], "allowed are 1 to 63"),
        (&["--shared", "--kill-every", "0"], "seconds above 0"),
        (&["--shared", "--fake-nodes", "2"], "use the nodes of this machine"),
        (&["--shared", "--owned-blocks", "on"], "use --owned-blocks off"),
    ];
    for (arguments, right) in cases {
        let output = zonal(&[&["run", "pair"], arguments].concat());
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {errors}");
        assert!(errors.lines().count() == 1 && errors.contains(right), "{arguments:?}: {errors}");
    }
}
