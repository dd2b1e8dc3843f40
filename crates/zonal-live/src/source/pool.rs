//! A program's pool that publishes itself on a Unix socket.
//!
//! Each question is one connection: a line of JSON to the program, and a line back. The names of the members are those
//! of `zonal-linux`, `publish/answer.rs`; members that are not known here are ignored.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use zonal_linux::PROTOCOL_VERSION;

use super::{Clock, Source, SourceError};
use crate::sample::{Counter, Locality, Node, PagesetSample, Sample, Totals, ZoneSample};

/// Time without any answer after which the pool counts as silent. The pool serves its clients in turn.
const PATIENCE: Duration = Duration::from_secs(10);
/// Maximum length of an answer, which is far above that of a snapshot with thousands of CPUs.
const ANSWER_BYTES_MAX: u64 = 256 << 20;

/// A published pool.
#[derive(Debug)]
pub struct PoolSource {
    path: PathBuf,
    clock: Clock,
}

impl PoolSource {
    /// Opens the socket at `path` when it reads.
    #[must_use]
    pub fn new(path: PathBuf) -> Self {
        Self { path, clock: Clock::start() }
    }
}

impl Source for PoolSource {
    fn title(&self) -> String {
        format!("the pool at {}", super::shown(&self.path))
    }

    fn read(&mut self) -> Result<Sample, SourceError> {
        let found: Snapshot = ask(&self.path, "snapshot", Value::Object(serde_json::Map::new()))?;
        let mut sample = found.sample();
        self.clock.stamp(&mut sample);
        Ok(sample)
    }
}

/// Sends a request with the members of `request`, and returns the member of the answer that has the request's name.
///
/// # Errors
/// When the program cannot be asked, or refuses.
pub fn ask<T: DeserializeOwned>(path: &Path, name: &str, mut request: Value) -> Result<T, SourceError> {
    request["zonal"] = PROTOCOL_VERSION.into();
    request["request"] = name.into();
    let answer = exchange(path, &request).map_err(|error| refused(path, error))?;
    let wrong = |why: String| SourceError::NotAPool { path: path.to_path_buf(), why };
    let mut answer: Answer<'_> = serde_json::from_slice(&answer).map_err(|error| wrong(error.to_string()))?;
    if let Some(error) = answer.remove("error") {
        let error: String = serde_json::from_str(error.get()).map_err(|error| wrong(error.to_string()))?;
        return Err(SourceError::Refused(error));
    }
    let part = answer.remove(name).ok_or_else(|| wrong(format!("the answer has no member {name}")))?;
    serde_json::from_str(part.get()).map_err(|error| wrong(error.to_string()))
}

/// The members of an answer, which are not parsed until their types are known.
type Answer<'a> = std::collections::BTreeMap<String, &'a serde_json::value::RawValue>;

fn exchange(path: &Path, request: &Value) -> io::Result<Vec<u8>> {
    let mut pool = UnixStream::connect(path)?;
    pool.set_read_timeout(Some(PATIENCE))?;
    pool.set_write_timeout(Some(PATIENCE))?;
    pool.write_all(format!("{request}\n").as_bytes())?;
    let mut answer = Vec::new();
    pool.take(ANSWER_BYTES_MAX).read_to_end(&mut answer)?;
    Ok(answer)
}

fn refused(path: &Path, why: io::Error) -> SourceError {
    let path = path.to_path_buf();
    match why.kind() {
        io::ErrorKind::NotFound => SourceError::NoSocket(path),
        io::ErrorKind::ConnectionRefused => SourceError::NoPool(path),
        io::ErrorKind::PermissionDenied => SourceError::Denied(path),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
            SourceError::Silent { path, seconds: PATIENCE.as_secs() }
        }
        _ => SourceError::Exchange { path, why },
    }
}

/// The state of a pool, as it travels.
#[derive(Deserialize)]
struct Snapshot {
    program: Option<Program>,
    page_bytes: u64,
    events: Events,
    nodes: Vec<WireNode>,
    zones: Vec<WireZone>,
    pagesets: Vec<WirePageset>,
}

#[derive(Deserialize)]
struct Program {
    pid: u64,
    name: String,
}

#[derive(Deserialize)]
struct Events {
    probes: u64,
    marks: u64,
    wipes: u64,
    node_reclaim_no_scan: u64,
    node_reclaim_full: u64,
    node_reclaim_some: u64,
    node_reclaim_success: u64,
    background_wakes: u64,
    background_reclaimed: u64,
    direct_stalls: u64,
    direct_reclaimed: u64,
    direct_ns: u64,
    retired: u64,
    failures: u64,
    refills: u64,
    drains: u64,
    remote_drains: u64,
}

#[derive(Deserialize)]
struct WireNode {
    id: u64,
    allocated: Allocated,
    stalled: Option<Stalled>,
}

#[derive(Deserialize)]
struct Allocated {
    user: u64,
    cache: u64,
    kernel: u64,
}

/// In hundredths of a percent.
#[derive(Deserialize)]
struct Stalled {
    last_10s: u64,
}

#[derive(Deserialize)]
struct WireZone {
    id: u64,
    node: u64,
    kind: String,
    managed: u64,
    free: u64,
    in_pagesets: u64,
    retired: u64,
    watermarks: Watermarks,
    stat_threshold: u64,
    free_blocks: Vec<u64>,
    locality: WireLocality,
    #[serde(default)]
    reserve: Vec<u64>,
}

#[derive(Deserialize)]
struct Watermarks {
    min: u64,
    low: u64,
    high: u64,
}

#[derive(Deserialize)]
struct WireLocality {
    hit: u64,
    miss: u64,
    foreign: u64,
    interleave_hit: u64,
    local: u64,
    other: u64,
}

#[derive(Deserialize)]
struct WirePageset {
    zone: u64,
    cpu: u64,
    count: u64,
    high: u64,
    batch: u64,
    refills: u64,
    drains: u64,
    remote_drains: u64,
}

impl Snapshot {
    fn sample(self) -> Sample {
        let ids: Vec<u64> = self.zones.iter().map(|zone| zone.id).collect();
        let pageset = |one: WirePageset| {
            let zone = ids.iter().position(|&id| id == one.zone)?;
            Some(PagesetSample {
                zone,
                cpu: one.cpu,
                count: one.count,
                high: one.high,
                batch: one.batch,
                refills: Some(one.refills),
                drains: Some(one.drains.saturating_add(one.remote_drains)),
            })
        };
        let mut pagesets: Vec<_> = self.pagesets.into_iter().filter_map(pageset).collect();
        pagesets.sort_by_key(|pageset| (pageset.zone, pageset.cpu));
        Sample {
            program: self.program.map(|program| format!("{} ({})", program.name, program.pid)),
            page_bytes: self.page_bytes,
            nodes: self.nodes.into_iter().map(WireNode::sample).collect(),
            zones: self.zones.into_iter().map(WireZone::sample).collect(),
            pagesets,
            totals: self.events.totals(),
            ..Sample::default()
        }
    }
}

impl Events {
    fn totals(&self) -> Totals {
        let mut totals = Totals::default();
        let kinds = [self.node_reclaim_full, self.node_reclaim_some, self.node_reclaim_success];
        let attempts = kinds.into_iter().fold(self.node_reclaim_no_scan, u64::saturating_add);
        let values = [
            (Counter::Refills, self.refills),
            (Counter::Drains, self.drains),
            (Counter::RemoteDrains, self.remote_drains),
            (Counter::BackgroundWakes, self.background_wakes),
            (Counter::BackgroundReclaimed, self.background_reclaimed),
            (Counter::DirectStalls, self.direct_stalls),
            (Counter::DirectReclaimed, self.direct_reclaimed),
            (Counter::DirectNs, self.direct_ns),
            (Counter::NodeReclaims, attempts),
            (Counter::NodeReclaimSuccesses, self.node_reclaim_success),
            (Counter::Failures, self.failures),
            (Counter::Probes, self.probes),
            (Counter::Marks, self.marks),
            (Counter::Wipes, self.wipes),
            (Counter::Retired, self.retired),
        ];
        values.into_iter().for_each(|(counter, value)| totals.set(counter, value));
        totals
    }
}

impl WireNode {
    fn sample(self) -> Node {
        let Allocated { user, cache, kernel } = self.allocated;
        Node {
            id: self.id,
            allocated: Some([user, cache, kernel]),
            stalled_percent: self.stalled.map(|stalled| stalled.last_10s as f64 / 100.0),
            ..Node::default()
        }
    }
}

impl WireZone {
    fn sample(self) -> ZoneSample {
        let WireLocality { hit, miss, foreign, interleave_hit, local, other } = self.locality;
        ZoneSample {
            node: self.node,
            kind: self.kind,
            managed: self.managed,
            free: self.free,
            in_pagesets: self.in_pagesets,
            min: self.watermarks.min,
            low: self.watermarks.low,
            high: self.watermarks.high,
            reserve: self.reserve,
            free_blocks: self.free_blocks,
            free_by_type: Vec::new(),
            locality: Some(Locality { hit, miss, foreign, interleave_hit, local, other }),
            stat_threshold: Some(self.stat_threshold),
            retired: Some(self.retired),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;
    use std::thread;

    use super::*;
    use zonal_linux::Pool;

    #[test]
    fn a_pool_that_publishes_itself() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pool");
        let pool = Pool::builder().size(64 << 20).fake_nodes(2).build().unwrap();
        let held: Vec<_> = (0..100).map(|_| pool.alloc(&zonal_linux::PoolRequest::page()).unwrap()).collect();
        let _published = pool.publish(&path).unwrap();
        let sample = PoolSource::new(path).read().unwrap();
        assert_eq!(sample.page_bytes, 4096);
        let program = sample.program.unwrap();
        assert!(program.ends_with(&format!("({})", std::process::id())), "{program}");
        assert!(sample.zones.iter().all(|zone| zone.reserve.len() == 4));
        assert_eq!(sample.nodes.iter().map(|node| node.id).collect::<Vec<_>>(), [0, 1]);
        let used: u64 = sample.zones.iter().map(ZoneSample::used).sum();
        assert!(used >= held.len() as u64, "{used}");
        let locality = sample.zones.iter().filter_map(|zone| zone.locality);
        let hits: u64 = locality.map(|locality| locality.hit).sum();
        assert!(hits >= 100, "{hits}");
        assert!(sample.totals.get(Counter::Refills) > Some(0));
        assert!(sample.zones.iter().all(|zone| zone.free_blocks.len() > 10 && zone.high > zone.min));
        assert!(sample.pagesets.iter().any(|pageset| pageset.count > 0 && pageset.zone < sample.zones.len()));
    }

    #[test]
    fn what_is_not_a_pool_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pool");
        let read = || PoolSource::new(path.clone()).read().unwrap_err();
        assert!(matches!(read(), SourceError::NoSocket(_)));
        for (answer, why) in [
            ("hello\n", "expected value"),
            ("{\"zonal\": 1}\n", "no member snapshot"),
            ("{\"zonal\": 1, \"snapshot\": {\"page_bytes\": 1}}\n", "missing field"),
            ("{\"zonal\": 1, \"error\": \"no such request\"}\n", "no such request"),
            ("", "EOF"),
        ] {
            let listener = UnixListener::bind(&path).unwrap();
            let server = thread::spawn(move || {
                let (mut client, _) = listener.accept().unwrap();
                assert!(client.read(&mut [0; 1000]).unwrap() > 0);
                client.write_all(answer.as_bytes()).unwrap();
            });
            let error = read().to_string();
            server.join().unwrap();
            assert!(error.contains(why), "{answer}: {error}");
            assert!(matches!(read(), SourceError::NoPool(_)), "the socket that an ended program left");
            std::fs::remove_file(&path).unwrap();
        }
    }
}
