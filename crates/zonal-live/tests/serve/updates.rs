//! Updates: one reading and one rendering per tick, failures, and the end of the server.

use std::time::Duration;

use zonal_live::serve::ServeOptions;
use zonal_testing::eventually;

use crate::client::{Running, Step, Updates, machine, options};

fn metric(server: &Running, name: &str) -> f64 {
    let text = server.get("/metrics").body;
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {name}: {text}")).parse().unwrap()
}

/// Reads some ticks with a number of clients, all of which see the last one.
fn ticks_with(clients: usize) {
    const TICKS: u64 = 5;
    let server = Running::of(machine(), options());
    // One address may not have fifty.
    let connect = |at: usize| server.connect_from([127, 0, 0, 1 + (at % 2) as u8]);
    let mut streams: Vec<_> = (0..clients).map(|at| Updates::of(connect(at))).collect();
    assert!(streams.iter_mut().all(|stream| stream.next() == Some(1)), "the state at once");
    for tick in 2..=TICKS {
        server.permit(Step::Succeed);
        assert!(streams.iter_mut().all(|stream| stream.next() == Some(tick)), "{tick}");
    }
    assert_eq!(metric(&server, "zonal_live_clients"), clients as f64);
    assert_eq!(metric(&server, "zonal_live_reads_total"), TICKS as f64);
    assert_eq!(metric(&server, "zonal_live_renders_total"), TICKS as f64, "rendered once for all clients");
    // One more reading waits for its step.
    eventually("the next reading has begun", || server.reads() == TICKS + 1);
    drop(streams);
}

#[test]
fn one_client_causes_one_reading_per_tick() {
    ticks_with(1);
}

#[test]
fn fifty_clients_cause_one_reading_per_tick() {
    ticks_with(50);
}

#[test]
fn without_clients_nothing_is_rendered() {
    let server = Running::of(machine(), options());
    (0..3).for_each(|_| server.step(Step::Succeed));
    assert_eq!(metric(&server, "zonal_live_renders_total"), 0.0);
    (0..3).for_each(|_| assert_eq!(server.get("/").status, 200));
    assert_eq!(metric(&server, "zonal_live_renders_total"), 1.0);
}

#[test]
fn clients_that_leave_are_noticed() {
    let server = Running::of(machine(), options());
    let mut stream = server.updates();
    assert_eq!(stream.next(), Some(1));
    drop(stream);
    eventually("the stream has ended", || {
        server.permit(Step::Succeed);
        metric(&server, "zonal_live_clients") == 0.0
    });
}

#[test]
fn a_source_that_fails_is_shown_and_recovers() {
    let server = Running::of(machine(), options());
    server.step(Step::Succeed);
    assert!(server.get("/metrics").body.contains("zonal_free_bytes{node=\"0\",zone=\"Normal\"}"));
    server.step(Step::Fail);
    let page = server.get("/").body;
    assert!(
        page.contains("Old figures.") && page.contains("no pool is published at /run/&lt;pool&gt;"),
        "{page}"
    );
    let metrics = server.get("/metrics").body;
    assert!(metrics.contains("\nzonal_up 0") && !metrics.contains("zonal_free_bytes"), "{metrics}");
    let document = server.get("/snapshot.json").json();
    assert!(document["problem"].as_str().unwrap().contains("/run/<pool>"), "{document}");
    assert!(document["rates"].is_null() && document["sample"]["zones"].is_array());
    assert_eq!(metric(&server, "zonal_live_failed_reads_total"), 1.0);
    server.step(Step::Succeed);
    assert!(!server.get("/").body.contains("Old figures."));
    assert_eq!(metric(&server, "zonal_up"), 1.0);
    assert!(server.get("/snapshot.json").json()["problem"].is_null());
}

/// The second reading waits for its step.
#[test]
fn a_reading_that_does_not_end_is_shown() {
    let patience = Duration::from_millis(20);
    let server = Running::of(machine(), ServeOptions { patience, ..options() });
    eventually("the metrics say it", || metric(&server, "zonal_up") == 0.0);
    let mut stream = server.updates();
    assert_eq!(stream.next(), Some(1));
    eventually("the page says it", || {
        let page = server.get("/").body;
        let since = "Old figures.</strong> No answer since <time datetime=\"2023-11-14T22:13:21Z\">";
        page.contains(since) && page.contains("the newest reading has not ended")
    });
    assert!(server.get("/snapshot.json").json()["problem"].is_string());
    server.permit(Step::Succeed);
    while stream.next() != Some(2) {}
    assert_eq!(server.get("/snapshot.json").json()["reads"], 2);
}

#[test]
fn the_end_of_the_server_ends_streams() {
    let server = Running::of(machine(), options());
    let mut stream = server.updates();
    assert_eq!(stream.next(), Some(1));
    let address = server.address;
    drop(server); // joins its thread
    assert_eq!(stream.next(), None);
    let again = Running::of(machine(), ServeOptions { listen: address, ..options() });
    assert_eq!(again.updates().next(), Some(1), "a server can start again at once on the same port");
}
