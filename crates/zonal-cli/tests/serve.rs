//! Checks `zonal serve`: where it listens, what it shows, how it ends, and what it says about bad input.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, ChildStderr, Command, Stdio};

use zonal_testing::eventually;

fn zonal(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_zonal"));
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// A program that is killed if the test fails.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Running {
    /// Sends a signal, and returns the exit code.
    fn end(&mut self, signal: &str) -> Option<i32> {
        let kill = format!("kill -{signal} {}", self.0.id());
        assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
        self.0.wait().unwrap().code()
    }
}

/// Starts a server. Returns it with the first line of its standard error, and the rest.
fn serve(arguments: &[&str]) -> (Running, String, BufReader<ChildStderr>) {
    let mut child = zonal(&[&["serve", "--interval", "0.1"], arguments].concat()).spawn().unwrap();
    let mut errors = BufReader::new(child.stderr.take().unwrap());
    let mut first = String::new();
    errors.read_line(&mut first).unwrap();
    (Running(child), first.trim_end().to_owned(), errors)
}

fn get(url: &str, path: &str) -> String {
    let host = url.strip_prefix("http://").unwrap().split('/').next().unwrap();
    let mut connection = TcpStream::connect(host).unwrap();
    write!(connection, "GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    connection.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn this_system_is_served_until_a_signal() {
    for (signal, code) in [("INT", 130), ("TERM", 0)] {
        let (mut server, url, mut errors) = serve(&["--listen", "127.0.0.1:0"]);
        assert!(url.starts_with("http://127.0.0.1:"), "{url}");
        assert!(get(&url, "/").contains("<h1>This system</h1>"));
        assert!(get(&url, "/metrics").contains("zonal_free_bytes{"));
        assert_eq!(server.end(signal), Some(code), "{signal}");
        let mut rest = String::new();
        errors.read_to_string(&mut rest).unwrap();
        assert!(rest.starts_with("zonal: serves this system until Ctrl-C"), "{rest}");
        assert_eq!(rest.lines().count(), 1, "{rest}");
    }
}

#[test]
fn a_pool_is_served_and_its_end_is_shown() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("pool");
    let at = socket.to_str().unwrap();
    let run = ["run", "pair", "--pool", "64MiB", "--fake-nodes", "2", "--threads", "1", "--seconds", "3600"];
    let mut program = Running(zonal(&[&run[..], &["--publish", at]].concat()).spawn().unwrap());
    eventually("the pool is published", || socket.exists());
    let (mut server, url, _errors) = serve(&["--pool", at, "--listen", "127.0.0.1:0"]);
    let page = get(&url, "/");
    assert!(page.contains("<h1>The pool at ") && page.contains("1 Normal"), "{page}");
    assert_eq!(program.end("INT"), Some(130));
    eventually("the end of the pool is shown", || get(&url, "/metrics").contains("\nzonal_up 0"));
    assert!(get(&url, "/").contains("Old figures."));
    assert_eq!(server.end("TERM"), Some(0));
}

#[test]
fn addresses_for_other_machines_have_a_token() {
    let (mut server, url, _errors) = serve(&["--listen", "0.0.0.0:0"]);
    let (address, token) = url.split_once("/?token=").unwrap_or_else(|| panic!("{url}"));
    let local = format!("http://127.0.0.1:{}", address.rsplit_once(':').unwrap().1);
    assert!(get(&local, "/").starts_with("HTTP/1.1 401 "));
    assert!(get(&local, &format!("/?token={token}")).starts_with("HTTP/1.1 303 "));
    assert_eq!(server.end("TERM"), Some(0));
}

#[test]
fn bad_input_exits_with_2_and_says_what_is_right() {
    let folder = tempfile::tempdir().unwrap();
    let in_folder = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    std::fs::write(in_folder("token"), "0123456789abcdef\n").unwrap();
    std::fs::set_permissions(in_folder("token"), PermissionsExt::from_mode(0o644)).unwrap();
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let in_use = other.local_addr().unwrap().to_string();
    for (arguments, texts) in [
        (["--listen", &in_use], [in_use.split(':').nth(1).unwrap(), "choose another port"]),
        (["--listen", "192.0.2.1:7070"], ["192.0.2.1", "127.0.0.1 is for this machine"]),
        (["--listen", "7070"], ["`7070`", "127.0.0.1:7070"]),
        (["--interval", "0"], ["`0`", "between 0.1 and 3600"]),
        (["--interval", "nan"], ["`nan`", "between 0.1 and 3600"]),
        (["--pool", &in_folder("none")], ["none does not exist", "--publish"]),
        (["--sysfs", &in_folder("none")], ["none/proc/zoneinfo", "No such file"]),
        (["--token-file", &in_folder("token")], ["mode 0644", "chmod 600"]),
        (["--token-file", &in_folder("none")], ["token file", "No such file"]),
    ] {
        let output = zonal(&[&["serve"], &arguments[..]].concat()).output().unwrap();
        let errors = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {errors}");
        assert_eq!(errors.lines().count(), 1, "{errors}");
        assert!(texts.iter().all(|text| errors.contains(text)), "{arguments:?}: {errors}");
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn too_few_files_are_an_error_that_names_their_limit() {
    let program = env!("CARGO_BIN_EXE_zonal");
    let command = format!("ulimit -n 8; exec '{program}' serve --listen 127.0.0.1:0");
    let output = Command::new("sh").args(["-c", &command]).output().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{errors}");
    assert!(errors.contains("Too many open files") && errors.contains("ulimit -n"), "{errors}");
    assert_eq!(errors.lines().count(), 1, "{errors}");
}
