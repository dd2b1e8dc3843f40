//! Limits: pages that are updated, sizes of requests, and methods.

use std::io::{BufRead, BufReader, Read, Write};

use zonal_live::serve::CLIENTS_MAX;
use zonal_live::{Sample, SimulatedSource, Source, SourceError};
use zonal_testing::eventually;

use crate::client::{Running, Step, Updates, machine, options};

#[test]
fn pages_beyond_the_limit_are_refused_until_one_closes() {
    let server = Running::of(machine(), options());
    let mut streams: Vec<_> = (0..48).map(|_| server.updates()).collect();
    let refused = server.get("/events");
    assert_eq!((refused.status, refused.header("retry-after")), (503, "10"));
    assert!(refused.body.contains("48 pages of this address are open already"), "{}", refused.body);
    // Others have the rest.
    let other = || Updates::of(server.connect_from([127, 0, 0, 2]));
    streams.extend((48..CLIENTS_MAX).map(|_| other()));
    assert!(streams.iter_mut().all(|stream| stream.status == 200 && stream.next() == Some(1)));
    assert_eq!(other().status, 503);
    assert_eq!((server.get("/").status, server.get("/metrics").status), (200, 200), "the rest is answered");
    streams.pop();
    eventually("a slot is free", || {
        server.permit(Step::Succeed);
        other().status == 200
    });
}

/// Clients that hold connections open, with a request now and then, leave places for others.
#[test]
fn idle_connections_do_not_shut_others_out() {
    let server = Running::of(machine(), options());
    let mut held = Vec::new();
    for _ in 0..300 {
        let mut connection = server.connect();
        connection.write_all(b"HEAD / HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        assert!(BufReader::new(&connection).lines().next().unwrap().unwrap().starts_with("HTTP/1.1 200 "));
        held.push(connection);
    }
    assert_eq!(server.get("/").status, 200);
    // Those that begin no request do not, either.
    held.extend((0..300).map(|_| server.connect()));
    assert_eq!(server.get("/metrics").status, 200);
}

/// A machine whose document is larger than the buffers of the kernel.
struct Large(SimulatedSource);

impl Source for Large {
    fn title(&self) -> String {
        "x".repeat(32 << 20)
    }

    fn read(&mut self) -> Result<Sample, SourceError> {
        self.0.read()
    }
}

/// All of the answer is in the server's memory long before a slow client has taken it.
#[test]
fn a_client_that_is_being_sent_an_answer_is_not_idle() {
    let server = Running::of(Box::new(Large(SimulatedSource::new(1, 1))), options());
    let mut slow = server.connect();
    slow.write_all(b"GET /snapshot.json HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = vec![0; 1000];
    slow.read_exact(&mut answer).unwrap();
    let others: Vec<_> = (0..200).map(|_| server.connect()).collect();
    assert_eq!(server.get("/metrics").status, 200);
    drop(others);
    slow.read_to_end(&mut answer).unwrap();
    assert!(answer.len() > 32 << 20, "the answer ends after {} bytes", answer.len());
}

#[test]
fn requests_that_are_too_large_are_refused() {
    let server = Running::of(machine(), options());
    let mut connection = server.connect();
    let head = format!("GET / HTTP/1.1\r\nHost: localhost\r\nX: {}\r\n\r\n", "x".repeat(64 << 10));
    // The server may close the connection before it has all bytes.
    let _ = connection.write_all(head.as_bytes());
    let mut bytes = Vec::new();
    let _ = connection.read_to_end(&mut bytes);
    let answer = String::from_utf8_lossy(&bytes);
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431 "), "{answer}");
    assert_eq!(server.get("/").status, 200);
}

#[test]
fn nothing_can_be_written() {
    let server = Running::of(machine(), options());
    for method in ["POST", "PUT", "DELETE", "PATCH"] {
        let answer =
            server.request(&format!("{method} / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n"));
        assert_eq!(answer.status, 405, "{method}");
    }
    let head = server.request("HEAD /snapshot.json HTTP/1.1\r\nHost: localhost\r\n");
    assert_eq!((head.status, head.body.as_str()), (200, ""));
}
