//! Tests of requests that a published pool keeps because they failed, stalled, or were served elsewhere, and tests of
//! explanations that clients get.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread;

use serde_json::{Value, json};
use tempfile::TempDir;
use zonal_linux::{
    CpuId, Events, Frames, NodeId, Order, PageCount, PageKind, Pool, PoolRequest, ReclaimRequest, Reclaimer,
    Topology,
};

/// A pool with the memory and the CPUs of two emulated nodes.
fn pool() -> Pool {
    let topology = Topology::fake(2).unwrap().with_emulated_cpus();
    Pool::builder().size(32 << 20).topology(topology).build().unwrap()
}

fn node(id: u16) -> NodeId {
    NodeId::new(id).unwrap()
}

/// A CPU of node 0.
fn first_cpu(pool: &Pool) -> CpuId {
    pool.topology().nodes()[0].cpus[0]
}

fn place() -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("pool");
    (directory, path)
}

fn ask(path: &Path, request: &Value) -> Value {
    let mut client = UnixStream::connect(path).unwrap();
    client.write_all(format!("{request}\n").as_bytes()).unwrap();
    let mut answer = String::new();
    BufReader::new(client).read_line(&mut answer).unwrap();
    serde_json::from_str(&answer).unwrap()
}

fn recent(path: &Path) -> Value {
    ask(path, &json!({ "zonal": 1, "request": "recent" }))["recent"].clone()
}

/// Returns the requests that are kept, and how many ever were.
fn kept(path: &Path) -> (Vec<Value>, u64) {
    let found = recent(path);
    (found["requests"].as_array().unwrap().clone(), found["total"].as_u64().unwrap())
}

fn explain(path: &Path, members: Value) -> Value {
    let mut request = members;
    (request["zonal"], request["request"]) = (1.into(), "explain".into());
    ask(path, &request)
}

/// Allocates as long as possible.
fn fill(pool: &Pool, request: &PoolRequest<'_>) -> Vec<Frames> {
    std::iter::from_fn(|| pool.alloc(request).ok()).collect()
}

fn names(steps: &Value) -> Vec<&str> {
    steps.as_array().unwrap().iter().map(|step| step["step"].as_str().unwrap()).collect()
}

#[test]
fn a_request_that_failed_is_kept_with_its_steps() {
    let (_directory, path) = place();
    let pool = pool();
    let _acting = pool.act_as(first_cpu(&pool)).unwrap();
    let _published = pool.publish(&path).unwrap();
    assert_eq!(kept(&path), (vec![], 0));
    let held = fill(&pool, &PoolRequest::page().no_wait());
    let (_, before) = kept(&path);
    pool.alloc(&PoolRequest::new(Order::new(4).unwrap()).kind(PageKind::Kernel).no_wait()).unwrap_err();
    let (requests, total) = kept(&path);
    assert_eq!(total, before + 1);
    let failed = requests.last().unwrap();
    let request = json!({
        "cpu": first_cpu(&pool).get(), "node": 0, "preferred": 0, "order": 4, "frames": 16, "kind": "kernel",
        "urgency": "normal", "zone_limit": "Movable", "may_reclaim": false,
    });
    assert_eq!((&failed["request"], &failed["served_by"]), (&request, &Value::Null));
    assert_eq!(failed["stalled_us"], 0);
    // A scan that passes over marked zones tries all zones once more.
    let mut steps = names(&failed["steps"]);
    steps.dedup();
    assert_eq!(steps, ["zone", "background-woken", "zone", "pagesets-drained", "zone"], "{failed}");
    let first = &failed["steps"][0];
    assert_eq!((&first["zone"]["node"], &first["mark"]), (&json!(0), &json!("low")));
    assert!(first["outcome"] == "below" && first["short_by"].as_u64() > Some(0), "{first}");
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_millis() as u64;
    let at = failed["at_ms"].as_u64().unwrap();
    assert!(at <= now && now - at < 3_600_000, "{at} and {now}");
    drop(held);
}

#[test]
fn requests_that_another_node_served_are_kept_once_for_each_refill() {
    let (_directory, path) = place();
    let pool = pool();
    let _acting = pool.act_as(first_cpu(&pool)).unwrap();
    let held = fill(&pool, &PoolRequest::page().this_node().no_wait());
    let _published = pool.publish(&path).unwrap();
    let refills = pool.events().refills;
    let pages: Vec<_> = (0..500).map(|_| pool.alloc(&PoolRequest::page().no_wait()).unwrap()).collect();
    let refills = pool.events().refills - refills;
    assert!(pages.iter().all(|page| page.node() == node(1)));
    let (requests, total) = kept(&path);
    assert!(total > 0 && total < 500 && total >= refills, "{total} for {refills} refills");
    for request in &requests {
        assert_eq!((&request["request"]["preferred"], &request["served_by"]["node"]), (&json!(0), &json!(1)));
        let last = request["steps"].as_array().unwrap().last().unwrap();
        assert_eq!((&last["outcome"], &last["zone"]), (&json!("serves"), &request["served_by"]));
        let first = &request["steps"][0];
        assert!(first["outcome"] == "below" || first["outcome"] == "marked-full", "{first}");
    }
    // A request whose policy chose the node is where it should be.
    let bound = pool.bind([node(1)].into_iter().collect()).unwrap();
    drop(pool.alloc(&PoolRequest::new(Order::new(5).unwrap()).policy(&bound).zeroed()).unwrap());
    assert_eq!(kept(&path).1, total);
    drop((held, pages));
}

/// A cache of pages, which frees the oldest ones.
#[derive(Default)]
struct Cache(Mutex<Vec<Frames>>);

impl Reclaimer for Cache {
    fn count(&self, _request: &ReclaimRequest) -> PageCount {
        PageCount::new(self.0.lock().unwrap().len() as u64)
    }

    fn reclaim(&self, request: &ReclaimRequest) -> PageCount {
        let mut pages = self.0.lock().unwrap();
        let count = pages.len().min(request.target.get() as usize);
        let freed: Vec<_> = pages.drain(..count).collect();
        drop(pages);
        PageCount::new(freed.len() as u64)
    }
}

#[test]
fn a_request_that_stalled_is_kept_with_its_time() {
    let (_directory, path) = place();
    let pool = pool();
    let _acting = pool.act_as(first_cpu(&pool)).unwrap();
    let cache = Arc::new(Cache::default());
    *cache.0.lock().unwrap() = fill(&pool, &PoolRequest::page().kind(PageKind::Cache).no_wait());
    let _published = pool.publish(&path).unwrap();
    // Background reclaim runs in the pool's threads.
    let page = pool.with_threads_paused(|_| {
        let _registered = pool.register_reclaimer(&cache);
        pool.alloc(&PoolRequest::new(Order::new(1).unwrap()).this_node()).unwrap()
    });
    let (requests, total) = kept(&path);
    assert_eq!((requests.len(), total), (1, 1));
    let stalled = &requests[0];
    assert_eq!(
        (&stalled["served_by"]["node"], &stalled["request"]["may_reclaim"]),
        (&json!(0), &json!(true))
    );
    assert!(names(&stalled["steps"]).contains(&"direct-reclaim"), "{stalled}");
    assert!(stalled["stalled_us"].as_u64() > Some(0), "{stalled}");
    drop(page);
}

#[test]
fn the_last_256_of_many_requests_are_kept() {
    let (_directory, path) = place();
    let pool = pool();
    let _published = pool.publish(&path).unwrap();
    let block = PoolRequest::new(Order::new(0).unwrap()).no_wait();
    for count in 1..=300 {
        pool.alloc_contiguous(&block, PageCount::new(1_000_000 + count)).unwrap_err();
    }
    let (requests, total) = kept(&path);
    assert_eq!((requests.len(), total), (256, 300));
    let counts = requests.iter().map(|request| request["request"]["frames"].as_u64().unwrap());
    assert!(counts.eq(1_000_045..=1_000_300));
}

#[test]
fn a_pool_keeps_nothing_while_it_is_not_published() {
    let (_directory, path) = place();
    let pool = pool();
    let fail = || drop(pool.alloc_contiguous(&PoolRequest::page(), PageCount::new(1 << 30)).unwrap_err());
    fail();
    let published = pool.publish(&path).unwrap();
    assert_eq!(kept(&path), (vec![], 0));
    fail();
    assert_eq!(kept(&path).1, 1);
    drop(published);
    fail();
    let _published = pool.publish(&path).unwrap();
    assert_eq!(kept(&path).1, 1, "the earlier publication's request stays, others were not kept");
}

/// Threads whose requests fail or go elsewhere write while a client reads. Each request that it reads is whole.
#[test]
fn clients_read_while_threads_write() {
    let (_directory, path) = place();
    let pool = pool();
    let _published = pool.publish(&path).unwrap();
    let ends = AtomicBool::new(false);
    let held = fill(&pool, &PoolRequest::page().no_wait());
    let first = pool.events().failures;
    thread::scope(|scope| {
        for thread in 0..4_u8 {
            let (pool, ends) = (&pool, &ends);
            scope.spawn(move || {
                let order = Order::new(thread + 3).unwrap();
                let request = PoolRequest::new(order).kind(PageKind::ALL[usize::from(thread) % 3]).no_wait();
                while !ends.load(Relaxed) {
                    pool.alloc(&request).unwrap_err();
                }
            });
        }
        let mut seen = [0; 4];
        while seen.contains(&0) || kept(&path).1 < 5000 {
            for found in kept(&path).0.iter().filter(|found| found["request"]["order"] != 0) {
                let request = &found["request"];
                let order = request["order"].as_u64().unwrap();
                assert_eq!(request["frames"], 1 << order, "{found}");
                assert_eq!(request["kind"], ["user", "cache", "kernel"][(order as usize - 3) % 3], "{found}");
                assert!(
                    found["served_by"].is_null() && !found["steps"].as_array().unwrap().is_empty(),
                    "{found}"
                );
                seen[order as usize - 3] += 1;
            }
        }
        ends.store(true, Relaxed);
    });
    assert!(pool.events().failures - first >= 4000);
    drop(held);
    assert_eq!(pool.verify().unwrap().allocated, PageCount::ZERO);
}

#[test]
fn clients_get_explanations_of_the_present_state() {
    let (_directory, path) = place();
    let pool = pool();
    let _published = pool.publish(&path).unwrap();
    let served = |members: Value| explain(&path, members)["explain"]["served_by"]["node"].clone();
    for node in [0, 1] {
        assert_eq!(served(json!({ "node": node })), node, "the node's own memory");
        assert_eq!(served(json!({ "node": 0, "policy": { "mode": "preferred", "nodes": [node] } })), node);
        assert_eq!(served(json!({ "node": 0, "policy": { "mode": "bind", "nodes": [node] } })), node);
        assert_eq!(served(json!({ "node": 0, "cpuset": [node] })), node);
        let weights = json!([u8::from(node == 0), u8::from(node == 1)]);
        let weighted = json!({ "mode": "weighted", "nodes": [0, 1], "weights": weights });
        assert_eq!(served(json!({ "node": 0, "policy": weighted })), node);
        let many = json!({ "mode": "preferred-many", "nodes": [node, 1 - node] });
        assert_eq!(served(json!({ "node": 0, "order": 4, "policy": many })), node);
    }
    let acting = pool.act_as(first_cpu(&pool)).unwrap();
    let held = fill(&pool, &PoolRequest::page().this_node().no_wait());
    // An equal request marks the full zone.
    let other = pool.alloc(&PoolRequest::page().no_wait()).unwrap();
    drop(acting);
    // Background reclaim, which the full node woke, counts its rounds meanwhile.
    let counted = || {
        let (rounds, wakes) = (0, 0);
        (Events { background_rounds: rounds, background_wakes: wakes, ..pool.events() }, pool.accounting())
    };
    let before = counted();
    let found = explain(&path, json!({ "order": 0, "policy": { "mode": "local" }, "urgency": "normal" }));
    let found = &found["explain"];
    assert_eq!((&found["node"], &found["served_by"]["node"]), (&json!(0), &json!(1)), "{found}");
    assert_eq!(found["program"]["pid"], std::process::id());
    let steps = explain(&path, json!({ "order": 1 }));
    let steps = &steps["explain"]["steps"];
    assert_eq!(steps[0]["zone"]["node"], 0, "{steps}");
    assert_eq!(counted(), before, "nothing was allocated or counted");
    drop((held, other));
}

/// A reclaimer may wait for a lock that the program holds while it ends the publication.
#[test]
fn explanations_call_no_reclaimer() {
    struct Never;
    impl Reclaimer for Never {
        fn count(&self, _request: &ReclaimRequest) -> PageCount {
            panic!("it is not called")
        }
        fn reclaim(&self, _request: &ReclaimRequest) -> PageCount {
            panic!("it is not called")
        }
    }
    let (_directory, path) = place();
    let pool = pool();
    let held = fill(&pool, &PoolRequest::page().no_wait());
    let _published = pool.publish(&path).unwrap();
    let would = |path: &Path| {
        let found = explain(path, json!({}))["explain"].clone();
        assert_eq!(found["served_by"], Value::Null, "{found}");
        let steps = found["steps"].as_array().unwrap().clone();
        steps.iter().find(|step| step["step"] == "would-reclaim").unwrap()["has_reclaimable"].clone()
    };
    pool.with_threads_paused(|_| ());
    assert_eq!(would(&path), false);
    pool.set_setting("zone_reclaim_mode", "1").unwrap();
    let _registered = pool.register_reclaimer(&Arc::new(Never));
    assert_eq!(would(&path), true);
    assert_eq!(pool.reclaimer_panics(), 0);
    drop(held);
}

#[test]
fn bad_members_are_answered_with_what_is_right() {
    let (_directory, path) = place();
    let pool = pool();
    let _published = pool.publish(&path).unwrap();
    let (all, weights) = ((0..1024).collect::<Vec<u16>>(), vec![255; 1024]);
    let largest = json!({ "mode": "weighted", "nodes": all, "weights": weights });
    for (members, right) in [
        (json!({ "cpuset": all, "policy": largest }), "`cpuset`: the pool has no node 2"),
        (json!({ "node": 7 }), "node 7 does not exist; the pool has nodes 0-1"),
        (json!({ "node": "0" }), "`node` is \"0\"; it must be the number of a node, from 0 to 1023"),
        (json!({ "node": 70_000 }), "from 0 to 1023"),
        (json!({ "node": -1 }), "`node` is -1"),
        (json!({ "order": 99 }), "`order` is 99; it must be a number from 0 to 18"),
        (json!({ "order": 1.5 }), "`order` is 1.5"),
        (json!({ "order": 12 }), "order 12 is too large; the largest is 10"),
        (json!({ "urgency": "huge" }), "`urgency` is \"huge\"; it must be normal, high, atomic or reserve"),
        (json!({ "cpuset": [] }), "`cpuset` is []; it must be a list with at least one node"),
        (json!({ "cpuset": 1 }), "`cpuset` is 1"),
        (json!({ "cpuset": [0, "1"] }), "`cpuset[]` is \"1\"; it must be the number of a node"),
        (json!({ "cpuset": [5] }), "`cpuset`: the pool has no node 5"),
        (json!({ "policy": "bind:0" }), "`policy.nodes` is null"),
        (
            json!({ "policy": { "mode": "best", "nodes": [0] } }),
            "`policy.mode` is \"best\"; it must be local,",
        ),
        (json!({ "policy": { "mode": "bind", "nodes": [9] } }), "`policy.nodes`: the pool has no node 9"),
        (json!({ "policy": { "mode": "preferred", "nodes": [0, 1] } }), "a list with one node"),
        (
            json!({ "policy": { "mode": "weighted", "nodes": [0, 1], "weights": [1] } }),
            "`policy.weights` is [1]; it must be 2 numbers from 0 to 255",
        ),
        (
            json!({ "policy": { "mode": "weighted", "nodes": [0], "weights": [0] } }),
            "`policy`: all weights are 0",
        ),
        (
            json!({ "policy": { "mode": "bind", "nodes": [0] }, "cpuset": [1] }),
            "no node in both the request's policy and its allowed nodes",
        ),
    ] {
        let answer = explain(&path, members);
        let error = answer["error"].as_str().unwrap_or_default();
        assert!(error.contains(right), "{answer}");
    }
    let no_cpus = Pool::builder().size(64 << 20).fake_nodes(64).build();
    if let Ok(pool) = no_cpus
        && pool.topology().nodes()[63].cpus.is_empty()
    {
        let path = path.with_extension("other");
        let _published = pool.publish(&path).unwrap();
        let answer = explain(&path, json!({ "node": 63 }));
        let error = answer["error"].as_str().unwrap_or_default();
        assert!(error.contains("node 63 has no CPUs; node"), "{answer}");
        let found = explain(&path, json!({}));
        assert!(found["explain"]["served_by"].is_object(), "{found}");
    }
}
