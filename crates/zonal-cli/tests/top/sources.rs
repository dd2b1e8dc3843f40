//! Checks the view while its source is silent, dies or returns.

use std::os::unix::net::UnixListener;
use std::path::Path;

use zonal_linux::{Pool, PoolRequest};

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
