//! Tests of pools that publish themselves, through their sockets.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::thread;

use serde_json::{Value, json};
use tempfile::TempDir;
use zonal::snapshot::Events;
use zonal_linux::{Access, Pool, PoolRequest, PublishError, Setting, SettingValues, StallShares};
use zonal_testing::Edges;

fn pool() -> Pool {
    Pool::builder().size(32 << 20).fake_nodes(2).build().unwrap()
}

fn place() -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("pool");
    (directory, path)
}

fn ask_line(path: &Path, line: &[u8]) -> Value {
    let mut client = UnixStream::connect(path).unwrap();
    client.write_all(line).unwrap();
    let mut answer = String::new();
    BufReader::new(client).read_line(&mut answer).unwrap();
    serde_json::from_str(&answer).unwrap()
}

fn ask(path: &Path, request: &Value) -> Value {
    ask_line(path, format!("{request}\n").as_bytes())
}

fn set(path: &Path, name: &str, value: &str) -> Value {
    ask(path, &json!({ "zonal": 1, "request": "set", "name": name, "value": value }))
}

#[test]
fn clients_read_and_change_settings() {
    let (_directory, path) = place();
    let pool = pool();
    let _published = pool.publish(&path).unwrap();
    let all = ask(&path, &json!({ "zonal": 1, "request": "settings" }));
    let row = |name: &str| {
        let rows = all["settings"].as_array().unwrap();
        rows.iter().find(|row| row["name"] == name).unwrap().clone()
    };
    assert_eq!(row("zone_reclaim_mode")["value"], "0");
    assert_eq!(row("zone_reclaim_mode")["allowed"], "a number from 0 to 7");
    assert_eq!(
        (row("stat_refresh")["value"].clone(), row("stat_refresh")["access"].clone()),
        (Value::Null, "write-only".into())
    );
    assert_eq!(
        set(&path, "zone_reclaim_mode", "5")["set"],
        json!({ "name": "zone_reclaim_mode", "value": "5" })
    );
    assert_eq!(pool.setting("zone_reclaim_mode").unwrap().to_string(), "5");
    let error = set(&path, "zone_reclaim_mode", "8");
    assert_eq!(error["error"], "zone_reclaim_mode cannot be `8`; allowed: a number from 0 to 7");
    assert_eq!(pool.setting("zone_reclaim_mode").unwrap().to_string(), "5");
}

/// Clients and the program itself can set every setting alike, and see the same errors.
#[test]
fn clients_set_every_row_of_the_table_as_the_program_does() {
    let (_directory, path) = place();
    let pool = pool();
    let _published = pool.publish(&path).unwrap();
    for setting in Setting::ALL.into_iter().filter(|setting| setting.info().access != Access::WriteOnly) {
        let info = setting.info();
        let names: &[&str] = if let SettingValues::Names(names) = info.values { names } else { &[] };
        let Edges { right, wrong } = Edges::of(info.values.range(), names);
        for text in right.iter().chain(&wrong) {
            let own = pool.set_setting(info.name, text);
            let value = pool.setting(info.name).unwrap().to_string();
            let answer = set(&path, info.name, text);
            match own {
                Ok(()) => assert_eq!(answer["set"], json!({ "name": info.name, "value": value })),
                Err(error) => assert_eq!(answer["error"], error.to_string()),
            }
            assert!(answer["set"].is_null() || !wrong.contains(text), "{answer}");
        }
    }
}

#[test]
fn the_snapshot_has_the_state_of_the_pool() {
    let (_directory, path) = place();
    let pool = pool();
    let _published = pool.publish(&path).unwrap();
    let pages: Vec<_> = (0..1000).map(|_| pool.alloc(&PoolRequest::page()).unwrap()).collect();
    let state = ask(&path, &json!({ "zonal": 1, "request": "snapshot" }))["snapshot"].clone();
    let sum = |member: &str| {
        state["zones"].as_array().unwrap().iter().map(|zone| zone[member].as_u64().unwrap()).sum::<u64>()
    };
    assert_eq!(sum("managed"), pool.accounting().managed.get());
    assert_eq!(sum("managed") - sum("free") - sum("in_pagesets"), 1000);
    let count = |pageset: &Value| pageset["count"].as_u64().unwrap();
    assert_eq!(state["pagesets"].as_array().unwrap().iter().map(count).sum::<u64>(), sum("in_pagesets"));
    assert_eq!(state["nodes"][1]["fallback_order"], json!([1, 0]));
    assert_eq!(state["schema"], "zonal.snapshot.v1");
    for member in ["managed", "free", "in_pagesets"] {
        assert_eq!(state["accounting"][member], sum(member), "{member}");
    }
    assert_eq!(state["accounting"]["allocated"], 1000);
    let readable = ask(&path, &json!({ "zonal": 1, "request": "settings" }))["settings"].clone();
    for setting in readable.as_array().unwrap() {
        let name = setting["name"].as_str().unwrap();
        assert_eq!(state["settings"].get(name).unwrap_or(&Value::Null), &setting["value"], "{name}");
    }
    drop(pages);
}

/// Returns a snapshot, and the pool's events and stalled shares, which did not change while it was made.
fn steady_snapshot(pool: &Pool, path: &Path) -> (Value, Events, Vec<StallShares>) {
    let own = || {
        let shares = pool.topology().nodes().iter().map(|node| pool.stall_shares(node.id).unwrap());
        (pool.events(), shares.collect::<Vec<_>>())
    };
    loop {
        let (events, shares) = own();
        let state = ask(path, &json!({ "zonal": 1, "request": "snapshot" }))["snapshot"].clone();
        if own() == (events, shares.clone()) {
            return (state, events, shares);
        }
    }
}

#[test]
fn the_snapshot_has_events_distances_orders_and_stalled_shares() {
    let (_directory, path) = place();
    let pool = Pool::builder().size(32 << 20).fake_nodes(3).build().unwrap();
    let _published = pool.publish(&path).unwrap();
    let mut pages = Vec::new();
    while let Ok(page) = pool.alloc(&PoolRequest::page()) {
        pages.push(page);
    }
    pages.drain(..2000);
    let (state, events, shares) = steady_snapshot(&pool, &path);
    for (name, own) in [
        ("probes", events.probes),
        ("marks", events.marks),
        ("wipes", events.wipes),
        ("background_wakes", events.background_wakes),
        ("direct_stalls", events.direct_stalls),
        ("failures", events.failures),
        ("refills", events.refills),
        ("drains", events.drains),
    ] {
        assert_eq!(state["events"][name], own, "{name}");
    }
    assert!(events.probes > 0 && events.refills > 0 && events.drains > 0, "{events:?}");
    let nodes = pool.topology().nodes();
    assert_eq!(state["nodes"].as_array().unwrap().len(), nodes.len());
    for ((node, found), own) in nodes.iter().zip(state["nodes"].as_array().unwrap()).zip(shares) {
        let order: Vec<_> = pool.fallback_order(node.id).iter().map(|node| node.get()).collect();
        assert_eq!(found["fallback_order"], json!(order));
        for (to, distance) in nodes.iter().zip(&node.distances) {
            assert_eq!(found["distances"][to.id.to_string()], json!(distance), "{} to {}", node.id, to.id);
        }
        assert_eq!(found["distances"].as_object().unwrap().len(), nodes.len());
        let StallShares { last_10s, last_60s, last_300s } = own;
        let own = json!({ "last_10s": last_10s, "last_60s": last_60s, "last_300s": last_300s });
        assert_eq!(found["stalled"], own);
    }
    drop(pages);
}

#[test]
fn bad_requests_are_answered_with_what_is_wrong() {
    let (_directory, path) = place();
    let pool = pool();
    let _published = pool.publish(&path).unwrap();
    for (request, expected) in [
        (b"hello\n".to_vec(), "the request is not JSON"),
        (
            b"{\"request\": \"settings\"}\n".to_vec(),
            "the version of the request is null; this program knows 1",
        ),
        (b"{\"zonal\": 2, \"request\": \"settings\"}\n".to_vec(), "version of the request is 2"),
        (b"[1]\n".to_vec(), "version"),
        (
            b"{\"zonal\": 1, \"request\": \"stop\"}\n".to_vec(),
            "\"stop\" is not a request; requests are settings, set, snapshot, explain, recent and join",
        ),
        (b"{\"zonal\": 1, \"request\": \"set\", \"name\": 3}\n".to_vec(), "`name` is 3; it must be a text"),
        (vec![b'['; 16 << 10], "longer than 16384 bytes"),
        (vec![0xff, b'\n'], "not JSON"),
    ] {
        let answer = ask_line(&path, &request);
        let error = answer["error"].as_str().unwrap_or_default();
        assert!(error.contains(expected), "{answer}");
    }
    assert_eq!(set(&path, "stat_interval", "2")["set"]["value"], "2", "others are served afterwards");
}

/// Clients that send nothing, send without an end, or read nothing delay others but end.
#[test]
fn silent_clients_do_not_stop_the_service() {
    let (_directory, path) = place();
    let pool = pool();
    let published = pool.publish(&path).unwrap();
    let silent = UnixStream::connect(&path).unwrap();
    let mut unfinished = UnixStream::connect(&path).unwrap();
    unfinished.write_all(b"{\"zonal\"").unwrap();
    let mut deaf = UnixStream::connect(&path).unwrap();
    deaf.write_all(b"{\"zonal\": 1, \"request\": \"snapshot\"}\n").unwrap();
    drop(UnixStream::connect(&path).unwrap());
    thread::scope(|scope| {
        let served = (0..4).map(|_| scope.spawn(|| set(&path, "stat_interval", "3")));
        for client in served.collect::<Vec<_>>() {
            assert_eq!(client.join().unwrap()["set"]["value"], "3");
        }
    });
    drop(published);
    drop((silent, unfinished, deaf));
    assert_eq!(pool.setting("stat_interval").unwrap().to_string(), "3");
}

#[test]
fn the_socket_belongs_to_its_user_and_is_removed() {
    let (_directory, path) = place();
    let pool = pool();
    let published = pool.publish(&path).unwrap();
    assert_eq!(fs::symlink_metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(published.path(), path);
    let second = pool.publish(&path).unwrap_err();
    assert!(matches!(second, PublishError::InUse(_)), "{second}");
    drop(published);
    assert!(!path.exists());
}

#[test]
fn only_sockets_that_ended_programs_left_are_replaced() {
    let (directory, path) = place();
    let pool = pool();
    drop(UnixListener::bind(&path).unwrap());
    drop(pool.publish(&path).unwrap());
    fs::write(&path, "precious").unwrap();
    let refused = pool.publish(&path).unwrap_err();
    assert!(matches!(refused, PublishError::NotASocket(_)), "{refused}");
    assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
    let target = directory.path().join("target");
    drop(UnixListener::bind(&target).unwrap());
    let link = directory.path().join("link");
    std::os::unix::fs::symlink(&target, &link).unwrap();
    assert!(matches!(pool.publish(&link).unwrap_err(), PublishError::NotASocket(_)));
    assert!(target.exists());
    for missing in [directory.path().join("none/pool"), directory.path().join("x".repeat(200))] {
        let refused = pool.publish(&missing).unwrap_err();
        assert!(matches!(refused, PublishError::Socket { .. }), "{refused}");
    }
}

/// A file that replaced the socket is not removed.
#[test]
fn another_file_at_the_path_is_left_alone() {
    let (_directory, path) = place();
    let published = pool().publish(&path).unwrap();
    fs::remove_file(&path).unwrap();
    fs::write(&path, "precious").unwrap();
    drop(published);
    assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
}

#[test]
fn a_pool_lives_as_long_as_its_publication() {
    let (_directory, path) = place();
    let pool = pool();
    let published = pool.publish(&path).unwrap();
    drop(pool);
    assert_eq!(set(&path, "stat_interval", "4")["set"]["value"], "4");
    drop(published);
    assert!(UnixStream::connect(&path).is_err());
}

/// Waits until the program at the other end has read all that was sent.
fn until_read(client: &UnixStream) {
    let mut left = 1;
    while left > 0 {
        // SAFETY: the call writes one number, and the descriptor is open.
        assert_eq!(unsafe { libc::ioctl(client.as_raw_fd(), libc::TIOCOUTQ, &raw mut left) }, 0);
        thread::yield_now();
    }
}

/// The thread waits for the end of the pause in order to answer, so the publication must not wait for the answer.
#[test]
fn a_publication_can_end_while_threads_are_paused() {
    let (_directory, path) = place();
    let pool = pool();
    let published = pool.publish(&path).unwrap();
    let mut client = UnixStream::connect(&path).unwrap();
    let request = b"{\"zonal\": 1, \"request\": \"set\", \"name\": \"stat_interval\", \"value\": \"9\"}\n";
    pool.with_threads_paused(|_| {
        client.write_all(request).unwrap();
        until_read(&client);
        drop(published);
    });
    let mut answer = String::new();
    BufReader::new(client).read_line(&mut answer).unwrap();
    assert_eq!(answer, "", "the request was not served");
    assert_ne!(pool.setting("stat_interval").unwrap().to_string(), "9");
}

#[test]
fn a_relative_path_does_not_depend_on_later_directories() {
    let (directory, path) = place();
    let before = std::env::current_dir().unwrap();
    std::env::set_current_dir(&directory).unwrap();
    let published = pool().publish("pool").unwrap();
    std::env::set_current_dir(before).unwrap();
    assert_eq!(published.path(), path);
    drop(published);
    assert!(!path.exists(), "the socket stays");
}
