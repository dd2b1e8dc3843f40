//! Checks `zonal settings` and `zonal set` as people and scripts call them, with a pool of this process.

use std::process::{Command, Output};

use serde_json::Value;
use zonal_linux::Pool;

fn zonal(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_zonal")).args(arguments).env_remove("COLUMNS").output().unwrap()
}

fn text(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[test]
fn the_table_has_all_settings() {
    let table = text(&zonal(&["settings"]));
    assert_eq!(table.lines().next().unwrap().split_whitespace().next(), Some("setting"));
    for setting in zonal_linux::Setting::ALL {
        assert!(table.lines().any(|line| line.starts_with(setting.info().name)), "{setting}: {table}");
    }
    let document: Value = serde_json::from_str(&text(&zonal(&["settings", "--json"]))).unwrap();
    assert_eq!((&document["schema"], &document["pool"]), (&"zonal.settings.v1".into(), &Value::Null));
    assert_eq!(document["settings"].as_array().unwrap().len(), zonal_linux::Setting::ALL.len());
}

#[test]
fn settings_of_a_running_pool_are_shown_and_changed() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("pool");
    let at = path.to_str().unwrap();
    let pool = Pool::builder().size(32 << 20).fake_nodes(1).build().unwrap();
    let _published = pool.publish(&path).unwrap();
    let set = zonal(&[
        "set",
        "--pool",
        at,
        "zone_reclaim_mode=1",
        "stat_refresh=1",
        "lowmem_reserve_ratio=1 2 3 4",
    ]);
    assert_eq!(text(&set), "zone_reclaim_mode = 1\nstat_refresh done\nlowmem_reserve_ratio = 1 2 3 4\n");
    assert_eq!(pool.setting("zone_reclaim_mode").unwrap().to_string(), "1");
    let document: Value = serde_json::from_str(&text(&zonal(&["settings", "--pool", at, "--json"]))).unwrap();
    let value = |name: &str| {
        let rows = document["settings"].as_array().unwrap();
        rows.iter().find(|row| row["name"] == name).unwrap()["value"].clone()
    };
    assert_eq!(value("lowmem_reserve_ratio"), "1 2 3 4");
    assert_eq!(value("stat_refresh"), Value::Null);
    let document: Value =
        serde_json::from_str(&text(&zonal(&["set", "--pool", at, "stat_interval=7", "--json"]))).unwrap();
    assert_eq!((&document["schema"], &document["set"][0]["value"]), (&"zonal.set.v1".into(), &"7".into()));

    // The pool refuses what only it can check, and the message says what has been changed before.
    let output = zonal(&["set", "--pool", at, "stat_interval=8", "min_free_kbytes=1048576"]);
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{errors}");
    assert!(
        errors.contains("min_free_kbytes was not changed")
            && errors.contains("changed before: stat_interval"),
        "{errors}"
    );
}

#[test]
fn bad_input_exits_with_2_and_one_line_and_changes_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("pool");
    let at = path.to_str().unwrap();
    let pool = Pool::builder().size(32 << 20).fake_nodes(1).build().unwrap();
    let _published = pool.publish(&path).unwrap();
    let file = directory.path().join("file");
    std::fs::write(&file, "text").unwrap();
    for (arguments, right) in [
        (&["set", "--pool", at, "stat_interval=3", "zone_reclaim_mode=8"][..], "a number from 0 to 7"),
        (&["set", "--pool", at, "stat_interval"], "NAME=VALUE"),
        (&["set", "--pool", at, "stat_intervall=1"], "the nearest name is stat_interval"),
        (&["set", "--pool", at, "node_load=assign"], "cannot be changed at run time"),
        (&["set", "--pool", at], "NAME=VALUE"),
        (&["set", "stat_interval=3"], "--pool"),
        (&["set", "--pool", "/none/pool", "stat_interval=3"], "/none/pool does not exist"),
        (&["settings", "--pool", file.to_str().unwrap()], "is not a socket"),
    ] {
        let output = zonal(arguments);
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {errors}");
        assert!(output.stdout.is_empty(), "{arguments:?}");
        assert!(errors.lines().count() == 1 && errors.contains(right), "{arguments:?}: {errors}");
    }
    assert_eq!(pool.setting("stat_interval").unwrap().to_string(), "1");
}

#[test]
fn a_program_that_is_not_a_pool_is_an_error() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("pool");
    let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let server = std::thread::spawn(move || {
        use std::io::{Read, Write};
        let (mut client, _) = listener.accept().unwrap();
        let _ = client.read(&mut [0; 100]).unwrap();
        client.write_all(b"HTTP/1.1 400\n").unwrap();
    });
    let output = zonal(&["settings", "--pool", path.to_str().unwrap()]);
    server.join().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert!(errors.contains("does not answer as a pool"), "{errors}");
}
