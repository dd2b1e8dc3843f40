//! Checks the view while its source is silent, dies or returns.

use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Command;

use zonal_linux::{Order, Pool, PoolRequest};

use super::pty::Terminal;

fn pool() -> Pool {
    Pool::builder().size(64 << 20).fake_nodes(2).build().unwrap()
}

fn top(path: &Path) -> Terminal {
    Terminal::zonal(&["top", "--pool", path.to_str().unwrap(), "--interval", "0.2"])
}

#[test]
fn a_pool_that_dies_and_returns() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pool");
    let pool = pool();
    let _page = pool.alloc(&PoolRequest::page()).unwrap();
    let published = pool.publish(&path).unwrap();
    let mut terminal = top(&path);
    terminal.shows("the pool at ");
    terminal.shows("   1 Normal");
    drop(published);
    terminal.shows("no answer since");
    terminal.shows("does not exist");
    terminal.shows("retrying");
    terminal.shows("   1 Normal");
    let _published = pool.publish(&path).unwrap();
    terminal.hides("no answer since");
    terminal.keys("q");
    assert_eq!(terminal.ends(), Some(0));
}

#[test]
fn processes_that_share_a_pool_are_shown() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pool");
    let pool = Pool::builder().size(64 << 20).shared_by_descriptor().process_name("server").build().unwrap();
    let other = Pool::join_file_as(pool.shared_file().unwrap(), "worker").unwrap();
    other.alloc_raw(&PoolRequest::new(Order::new(9).unwrap())).unwrap();
    drop(other);
    let _page = pool.alloc(&PoolRequest::page()).unwrap();
    let _published = pool.publish(&path).unwrap();
    let mut terminal = top(&path);
    terminal.shows("holds     2 MiB  worker  has ended, blocks are kept");
    terminal.shows("holds     4 KiB  server");
    terminal.keys("q");
    assert_eq!(terminal.ends(), Some(0));
    let once = Command::new(env!("CARGO_BIN_EXE_zonal"))
        .args(["top", "--once", "--interval", "0.2", "--pool", path.to_str().unwrap()])
        .output()
        .unwrap();
    let once = String::from_utf8(once.stdout).unwrap();
    assert!(once.contains("ended") && once.contains("2 MiB") && once.contains("worker"), "{once}");
}

#[test]
fn a_silent_pool_delays_no_key() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pool");
    let pool = pool();
    let published = pool.publish(&path).unwrap();
    let mut terminal = top(&path);
    terminal.shows("   1 Normal");
    drop(published);
    // Connections are accepted by the kernel, and never answered.
    let _silent = UnixListener::bind(&path).unwrap();
    terminal.shows("seconds ago; waiting");
    terminal.keys("4");
    terminal.shows(">= 2M");
    terminal.keys("\x03");
    assert_eq!(terminal.ends(), Some(130));
}
