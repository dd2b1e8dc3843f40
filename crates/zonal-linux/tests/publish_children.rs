//! Test of a pool that publishes itself in a program with children. It stands alone, since a child keeps the sockets of
//! all tests in its program open.

use std::io::{BufRead, BufReader};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::net;
use zonal_linux::{Pool, PublishError, publisher_has_ended};
use zonal_testing::eventually;

/// The variable whose presence makes [`publishes_until_it_is_killed`] make its child without handlers of `fork`.
const ALONE: &str = "ZONAL_TEST_CHILD_WITHOUT_HANDLERS";
/// The variable with the path at which [`publishes_until_it_is_killed`] publishes.
const PATH: &str = "ZONAL_TEST_PUBLISHES_AT";

/// A child has copies of the descriptors with which the thread is stopped.
#[test]
fn dropping_does_not_wait_for_children() {
    let directory = tempfile::tempdir().unwrap();
    let pool = Pool::builder().size(32 << 20).fake_nodes(2).build().unwrap();
    let published = pool.publish(directory.path().join("pool")).unwrap();
    let child = sleeping_child(false);
    drop(published);
    let is_running = ended(child, libc::WNOHANG) == 0;
    assert!(is_running, "the publication ended with the child");
    // SAFETY: the child exists until it is waited for.
    assert_eq!(unsafe { libc::kill(child, libc::SIGKILL) }, 0);
    assert_eq!(ended(child, 0), child);
}

/// A child of a killed program may still have its socket, at which nothing answers any more.
#[test]
fn a_child_of_a_killed_program_does_not_keep_the_path() {
    for is_alone in [false, true] {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pool");
        let mut program = Command::new(std::env::current_exe().unwrap());
        program.args(["--exact", "publishes_until_it_is_killed", "--nocapture"]).env(PATH, &path);
        if is_alone {
            program.env(ALONE, "");
        }
        let mut program = program.stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(program.stdout.take().unwrap()).lines().map_while(Result::ok);
        let child = lines.filter_map(|line| line.strip_prefix("child ")?.parse().ok()).next();
        let child: libc::pid_t = child.expect("the program published its pool and made a child");
        let connected = UnixStream::connect(&path).unwrap();
        assert!(!publisher_has_ended(&connected), "the program runs");
        let pool = Pool::builder().size(32 << 20).build().unwrap();
        let refused = pool.publish(&path).unwrap_err();
        assert!(matches!(refused, PublishError::InUse(_)), "{refused}");
        program.kill().unwrap();
        program.wait().unwrap();
        eventually("the end of the program is seen", || publisher_has_ended(&connected));
        // Without handlers of `fork`, the child has the socket, and clients fill its queue.
        let mut waiting = Vec::new();
        if is_alone {
            waiting.extend((0..150).map_while(|_| connect_at_once(&path)));
            let refused = pool.publish(&path).unwrap_err();
            assert!(matches!(refused, PublishError::InUse(_)), "{refused}");
            std::fs::remove_file(&path).unwrap();
        } else {
            let refused = UnixStream::connect(&path).unwrap_err();
            assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
        }
        let published = pool.publish(&path).unwrap();
        assert_eq!(path.metadata().unwrap().mode() & 0o777, 0o600);
        drop(published);
        // SAFETY: the child sleeps for a minute, and this process waits for no other.
        assert_eq!(unsafe { libc::kill(child, libc::SIGKILL) }, 0);
    }
}

/// Connects, or returns `None` if the queue is full.
fn connect_at_once(path: &Path) -> Option<OwnedFd> {
    let socket =
        net::socket_with(net::AddressFamily::UNIX, net::SocketType::STREAM, net::SocketFlags::NONBLOCK, None);
    let socket = socket.unwrap();
    net::connect(&socket, &net::SocketAddrUnix::new(path).unwrap()).ok().map(|()| socket)
}

/// The program of the test above.
#[test]
fn publishes_until_it_is_killed() {
    let Some(path) = std::env::var_os(PATH) else { return };
    let pool = Pool::builder().size(32 << 20).build().unwrap();
    let _published = pool.publish(path).unwrap();
    println!("\nchild {}", sleeping_child(std::env::var_os(ALONE).is_some()));
    loop {
        std::thread::park();
    }
}

/// Returns the id of a new child, which sleeps until a signal ends it. It is made by `fork`, or by the bare system call.
fn sleeping_child(is_alone: bool) -> libc::pid_t {
    let id = if is_alone {
        // SAFETY: the child only makes system calls that are async-signal-safe.
        unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) as libc::pid_t }
    } else {
        // SAFETY: as above.
        unsafe { libc::fork() }
    };
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
