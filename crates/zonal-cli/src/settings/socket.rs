//! Asks a pool that publishes itself on a Unix socket.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde_json::Value;
use zonal_linux::PROTOCOL_VERSION;
use zonal_machine::Excerpt;

use crate::outcome::Failure;

/// Time without any answer after which the pool counts as silent. The pool serves its clients in turn.
const PATIENCE: Duration = Duration::from_secs(10);
/// Maximum length of an answer, which is far above that of a snapshot with thousands of CPUs.
const ANSWER_BYTES_MAX: u64 = 256 << 20;

/// Sends a request with the members of `request`, and returns the member of the answer that has the request's name.
pub(super) fn ask<T: DeserializeOwned>(path: &Path, name: &str, mut request: Value) -> Result<T, Failure> {
    let shown = Excerpt::name(path.display());
    request["zonal"] = PROTOCOL_VERSION.into();
    request["request"] = name.into();
    let answer = exchange(path, &request).map_err(|error| refused(&shown.to_string(), &error))?;
    let wrong =
        |why: &str| Failure::failed(format!("the program at {shown} does not answer as a pool: {why}"));
    let mut answer: Value = serde_json::from_slice(&answer).map_err(|error| wrong(&error.to_string()))?;
    if let Some(error) = answer["error"].as_str() {
        return Err(Failure::bad_input(error));
    }
    serde_json::from_value(answer[name].take()).map_err(|error| wrong(&error.to_string()))
}

fn exchange(path: &Path, request: &Value) -> io::Result<Vec<u8>> {
    let mut pool = UnixStream::connect(path)?;
    pool.set_read_timeout(Some(PATIENCE))?;
    pool.set_write_timeout(Some(PATIENCE))?;
    pool.write_all(format!("{request}\n").as_bytes())?;
    let mut answer = Vec::new();
    pool.take(ANSWER_BYTES_MAX).read_to_end(&mut answer)?;
    Ok(answer)
}

fn refused(shown: &str, error: &io::Error) -> Failure {
    match error.kind() {
        io::ErrorKind::NotFound => Failure::bad_input(format!(
            "{shown} does not exist; a program creates the socket of its pool with Pool::publish, zonal run with --publish"
        )),
        io::ErrorKind::ConnectionRefused => Failure::bad_input(format!("no pool is published at {shown}")),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => Failure::failed(format!(
            "the pool at {shown} has not answered for {} seconds",
            PATIENCE.as_secs()
        )),
        _ => Failure::failed(format!("cannot ask the pool at {shown}: {error}")),
    }
}
