//! Test of a pool that publishes itself in a program with children. It stands alone, since a child keeps the sockets
//! of all tests of its program open.

use zonal_linux::Pool;

/// A child has copies of the descriptors with which the thread is stopped.
#[test]
fn dropping_does_not_wait_for_children() {
    let directory = tempfile::tempdir().unwrap();
    let pool = Pool::builder().size(32 << 20).fake_nodes(2).build().unwrap();
    let published = pool.publish(directory.path().join("pool")).unwrap();
    let child = sleeping_child();
    drop(published);
    let is_running = ended(child, libc::WNOHANG) == 0;
    assert!(is_running, "the publication ended with the child");
    // SAFETY: the child exists until it is waited for.
    assert_eq!(unsafe { libc::kill(child, libc::SIGKILL) }, 0);
    assert_eq!(ended(child, 0), child);
}

/// Returns the id of a new child, which sleeps until a signal ends it.
fn sleeping_child() -> libc::pid_t {
    // SAFETY: the child only makes system calls that are async-signal-safe.
    let id = unsafe { libc::fork() };
    if id == 0 {
        // SAFETY: the signal ends the child, so that a test that waits for it fails after a minute.
        unsafe { libc::alarm(60) };
        loop {
            // SAFETY: the call waits for a signal.
            unsafe { libc::pause() };
        }
    }
    id
}

/// Waits for a child as `options` say. Returns its id if it has ended.
fn ended(child: libc::pid_t, options: libc::c_int) -> libc::pid_t {
    // SAFETY: the call waits for a child of this process, and stores no status.
    unsafe { libc::waitpid(child, std::ptr::null_mut(), options) }
}
