//! Limits: pages that are updated, sizes of requests, and methods.

use std::io::{BufRead, BufReader, Read, Write};

use zonal_live::serve::CLIENTS_MAX;
use zonal_testing::eventually;

use crate::client::{Running, Step, machine, options};

#[test]
fn pages_beyond_the_limit_are_refused_until_one_closes() {
    let server = Running::of(machine(), options());
    let mut streams: Vec<_> = (0..CLIENTS_MAX).map(|_| server.updates()).collect();
    assert!(streams.iter_mut().all(|stream| stream.status == 200 && stream.next() == Some(1)));
    let refused = server.get("/events");
    assert_eq!((refused.status, refused.header("retry-after")), (503, "10"));
    assert!(refused.body.contains("64 pages are open already"), "{}", refused.body);
    assert_eq!((server.get("/").status, server.get("/metrics").status), (200, 200), "the rest is answered");
    streams.pop();
    eventually("a slot is free", || {
        server.permit(Step::Succeed);
        server.updates().status == 200
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
