//! Runs the command of any argument that names a path to read, within limits of time and memory.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Command, Stdio};

use zonal_testing::eventually;

use crate::common::paths::PathArgument;

/// KiB of address space that a command gets, and seconds after which it is killed.
const LIMITS: &str = "ulimit -v 1048576; exec timeout -s KILL 120 \"$@\"";

/// Runs the command of an argument with the path `at`; its output goes to files in `folder`. Returns its exit code, or 0 for
/// a server that answered, and all that it printed or served.
pub(crate) fn run(path: &PathArgument, at: &Path, folder: &Path) -> (i32, String) {
    let is_server = path.command == ["serve"];
    let more: &[&str] = match path.command[..] {
        ["serve"] => &["--listen", "127.0.0.1:0", "--per-cpu-metrics"],
        ["top"] => &["--once", "--interval", "0.1"],
        ["set"] => &["zone_reclaim_mode=1"],
        ["run"] => &["pair", "--pool", "16MiB", "--threads", "1", "--seconds", "0.01"],
        _ => &[],
    };
    let arguments = ["-c", LIMITS, "sh", env!("CARGO_BIN_EXE_zonal")];
    let mut command = Command::new("sh");
    command.args(arguments).args(path.before()).arg(at).args(more).current_dir(folder);
    // A pipe that is not read would stop the command.
    let [output, errors] = ["output", "errors"].map(|name| folder.join(name));
    command
        .stdin(Stdio::null())
        .stdout(File::create(&output).unwrap())
        .stderr(File::create(&errors).unwrap());
    let mut child = command.spawn().unwrap();
    let mut answers = String::new();
    if is_server {
        let mut status = None;
        eventually("the server listens or ends", || {
            status = child.try_wait().unwrap();
            status.is_some() || fs::read_to_string(&errors).unwrap().contains('\n')
        });
        let text = fs::read_to_string(&errors).unwrap();
        if let Some(host) = text.lines().next().and_then(|url| url.strip_prefix("http://")) {
            let host = host.trim_end_matches('/');
            answers = ["/", "/snapshot.json", "/metrics"].map(|page| get(host, page)).concat();
            // `timeout` passes the signal on.
            assert!(Command::new("kill").arg(child.id().to_string()).status().unwrap().success());
        }
    }
    let code = child.wait().unwrap().code().unwrap_or(-1);
    let texts = [errors, output].map(|file| fs::read_to_string(file).unwrap());
    (code, texts.concat() + &answers)
}

fn get(host: &str, page: &str) -> String {
    let mut connection = TcpStream::connect(host).unwrap();
    write!(connection, "GET {page} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    connection.read_to_end(&mut answer).unwrap();
    assert!(answer.starts_with(b"HTTP/1.1 200"), "{page}: {}", String::from_utf8_lossy(&answer));
    String::from_utf8(answer).unwrap()
}
