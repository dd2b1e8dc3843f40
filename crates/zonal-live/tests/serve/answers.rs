//! The page, the document and the headers of answers.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hmac_sha256::Hash;
use zonal_live::SimulatedSource;

use crate::client::{Running, Step, machine, options};

/// Maximum update size for a machine with 64 zones and 128 CPUs.
const UPDATE_BYTES_MAX: usize = 300 << 10;

fn between<'t>(text: &'t str, start: &str, end: &str) -> &'t str {
    text.split_once(start).unwrap().1.split_once(end).unwrap().0
}

#[test]
fn the_page_allows_only_its_own_style_and_script() {
    let server = Running::of(machine(), options());
    server.step(Step::Succeed);
    let answer = server.get("/");
    assert_eq!((answer.status, answer.header("content-type")), (200, "text/html; charset=utf-8"));
    let policy = answer.header("content-security-policy");
    for (kind, text) in [
        ("style", between(&answer.body, "<style>", "</style>")),
        ("script", between(&answer.body, "<script>", "</script>")),
    ] {
        let hash = STANDARD.encode(Hash::hash(text.as_bytes()));
        assert!(policy.contains(&format!("{kind}-src 'sha256-{hash}';")), "{kind}: {policy}");
    }
    for part in ["default-src 'none'", "connect-src 'self'", "frame-ancestors 'none'", "form-action 'none'"] {
        assert!(policy.contains(part), "{part}: {policy}");
    }
    assert!(!policy.contains("unsafe"));
    // What the policy forbids does not occur, and nothing is loaded.
    let body = answer.body.replace("http://www.w3.org/", "");
    for text in [" style=", " onclick=", " onload=", "<img", "<iframe", "http://", "https://"] {
        assert!(!body.contains(text), "{text}");
    }
    for section in
        ["Zones and watermarks", "Last 60 seconds", "Locality", "Pagesets", "Fragmentation", "Counters"]
    {
        assert!(body.contains(section), "{section}");
    }
}

#[test]
fn all_answers_have_the_headers_that_protect_them() {
    let server = Running::of(machine(), options());
    for path in ["/", "/metrics", "/snapshot.json", "/nothing"] {
        let answer = server.get(path);
        assert_eq!(answer.status, if path == "/nothing" { 404 } else { 200 });
        for (name, value) in [
            ("cache-control", "no-store"),
            ("x-content-type-options", "nosniff"),
            ("referrer-policy", "no-referrer"),
            ("cross-origin-opener-policy", "same-origin"),
            ("cross-origin-resource-policy", "same-origin"),
            ("cross-origin-embedder-policy", "require-corp"),
        ] {
            assert_eq!(answer.header(name), value, "{path}");
        }
        assert!(answer.header("content-security-policy").starts_with("default-src 'none'"), "{path}");
    }
    assert!(server.get("/nothing").body.starts_with("There is no /nothing. There are /, /metrics"));
}

#[test]
fn the_document_has_the_sample_and_its_rates() {
    let server = Running::of(machine(), options());
    server.step(Step::Succeed);
    let answer = server.get("/snapshot.json");
    assert_eq!(answer.header("content-type"), "application/json");
    let document = answer.json();
    assert_eq!(document["schema"], "zonal.serve.v1");
    assert_eq!(document["title"], "a simulated machine with 2 nodes");
    assert_eq!(document["sample"]["zones"].as_array().unwrap().len(), 2);
    assert_eq!(document["rates"]["totals"]["refills"], 4000.0);
    assert_eq!(document["reads"], 2);
}

#[test]
fn updates_of_large_machines_are_bounded() {
    for (nodes, cpus_per_node) in [(64, 2), (200, 1)] {
        let server = Running::of(Box::new(SimulatedSource::new(nodes, cpus_per_node)), options());
        (0..30).for_each(|_| server.permit(Step::Succeed));
        zonal_testing::eventually("a history", || server.reads() == 32);
        let page = server.get("/").body;
        let size = between(&page, "<div id=\"live\">", "<footer>").len();
        println!("{nodes} zones, {} CPUs: {size} bytes", nodes * cpus_per_node);
        assert!(size < UPDATE_BYTES_MAX, "{nodes}: {size}");
        assert_eq!(page.contains("64 of 200 zones are shown"), nodes == 200);
        assert!(page.contains("neighbouring CPU"), "CPUs are merged");
    }
}
