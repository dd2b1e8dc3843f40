//! Tests of explanations: what a request would do, and what it did.

use crate::common::scenarios::{Random, Scripted, order, with_min};
use crate::common::{Plan, TestPlatform, World, node, repeats, run_on};
use zonal::config::{NodeReclaim, ZonelistCache};
use zonal::error::AllocError;
use zonal::explain::{Exclusion, Outcome, ReclaimStep, Step, ZoneName};
use zonal::mempolicy::Policy;
use zonal::request::{Block, Urgency};
use zonal::rules::watermarks::Watermark;
use zonal::units::{PageCount, Pfn, ZoneKind};
use zonal::{Config, NodeMask, Request};

fn explained(world: &World, request: &Request<'_>) -> (Option<ZoneName>, Vec<Step>) {
    let mut steps = Vec::new();
    let served = world.allocator.explain(request, |step| steps.push(step)).unwrap();
    (served, steps)
}

fn recorded(world: &World, request: &Request<'_>) -> (Result<Block, AllocError>, Vec<Step>) {
    let mut steps = Vec::new();
    let block = world.allocator.alloc_explained(request, |step| steps.push(step));
    (block, steps)
}

/// Returns the outcomes in a list of steps, by node.
fn outcomes(steps: &[Step]) -> Vec<(u16, Watermark, Outcome)> {
    let zone = |step: &Step| match *step {
        Step::Zone { zone, watermark, outcome } => Some((zone.node.get(), watermark, outcome)),
        _ => None,
    };
    steps.iter().filter_map(zone).collect()
}

fn lines(steps: &[Step]) -> String {
    steps.iter().map(|step| format!("{step}\n")).collect()
}

/// Everything that an explanation must not change.
fn state(world: &World) -> String {
    let allocator = &world.allocator;
    let pagesets: Vec<_> = allocator.pagesets().collect();
    format!(
        "{:?} {:?} {:?} {pagesets:?}",
        allocator.events(),
        allocator.zones().collect::<Vec<_>>(),
        allocator.nodes().collect::<Vec<_>>()
    )
}

/// Returns a request with random properties.
fn random_request<'r>(
    random: &mut Random,
    policies: &'r [Policy<'r, TestPlatform>],
    mask: &'r NodeMask,
) -> Request<'r> {
    let mut request = Request::new(order([0, 0, 0, 0, 1, 3, 5, 9][random.below(8) as usize]));
    if random.below(3) == 0 {
        request = request.policy(&policies[random.below(policies.len() as u64) as usize]);
    }
    if random.below(6) == 0 {
        request = request.allowed(mask);
    }
    if random.below(6) == 0 {
        request = request.urgency([Urgency::High, Urgency::Atomic][random.below(2) as usize]);
    }
    if random.below(8) == 0 {
        request = request.this_node();
    }
    if random.below(8) == 0 {
        request = request.below(Pfn::new(6000 + random.below(12_000)));
    }
    request
}

/// How many explanations named a zone, walked past one, or named none.
#[derive(Default)]
struct Seen {
    predicted: u64,
    far: u64,
    unserved: u64,
}

/// Explains a request, makes it, and compares the two. Returns the block.
fn hold_against(world: &World, request: &Request<'_>, seen: &mut Seen) -> Option<Block> {
    let (served, steps) = explained(world, request);
    let (block, real) = recorded(world, request);
    let both = || format!("{}\n{}", lines(&steps), lines(&real));
    let drained = |step: &Step| matches!(step, Step::PagesetsDrained { frames } if *frames > PageCount::ZERO);
    match (served, &block) {
        (Some(zone), Ok(block)) => {
            seen.predicted += 1;
            seen.far += u64::from(outcomes(&steps).len() > 1);
            assert_eq!(zone.id, block.zone, "{}", both());
        }
        (Some(zone), Err(error)) => panic!("{zone} would serve, but {error}\n{}", both()),
        (None, Ok(_)) => assert!(steps.iter().any(drained) && real.iter().any(drained), "{}", both()),
        (None, Err(_)) => seen.unserved += 1,
    }
    block.ok()
}

fn fill_at_random(mode: ZonelistCache, seed: u64, seen: &mut Seen) {
    let mut random = Random(seed * 7919 + 1);
    let world = Plan::even(4, 2, 2048).build(&Config { zonelist_cache: mode, ..with_min(120) });
    let mask: NodeMask = [1, 3].map(node).into_iter().collect();
    let (allocator, order) = (&world.allocator, [node(3), node(1)]);
    let policies = [
        Policy::local(),
        Policy::preferred(allocator, node(2)).unwrap(),
        Policy::bind(allocator, mask).unwrap(),
        Policy::interleave(allocator, mask).unwrap(),
        Policy::preferred_many(allocator, &order).unwrap(),
    ];
    let mut held: Vec<Block> = Vec::new();
    for _ in 0..400 {
        run_on(random.below(8) as u32);
        if random.below(200) == 0 {
            world.controls.advance_ms(400);
        }
        if random.below(3) == 0 && !held.is_empty() {
            for _ in 0..random.below(64).min(held.len() as u64) {
                let block = held.swap_remove(random.below(held.len() as u64) as usize);
                allocator.free(block.first, block.order).unwrap();
            }
        }
        let request = random_request(&mut random, &policies, &mask);
        let before = state(&world);
        _ = explained(&world, &request);
        assert_eq!(before, state(&world), "an explanation changes nothing");
        held.extend((0..=random.below(40)).filter_map(|_| hold_against(&world, &request, seen)));
    }
    held.drain(..).for_each(|block| allocator.free(block.first, block.order).unwrap());
    world.check();
}

/// Fills a machine at random, and holds every explanation against the request that follows.
#[test]
fn the_explained_zone_serves_the_request() {
    let mut seen = Seen::default();
    let seeds = repeats(2, 5);
    for seed in 0..seeds {
        for mode in [
            ZonelistCache::On,
            ZonelistCache::Published,
            ZonelistCache::CacheFirst,
            ZonelistCache::Original,
            ZonelistCache::Off,
        ] {
            fill_at_random(mode, seed, &mut seen);
        }
    }
    let Seen { predicted, far, unserved } = seen;
    assert!(
        predicted > 10_000 * seeds && far > 1000 * seeds && unserved > 200 * seeds,
        "{predicted} {far} {unserved}"
    );
}

#[test]
fn each_zone_has_its_reason() {
    let world = Plan::even(4, 1, 4096).build(&Config { zonelist_cache: ZonelistCache::On, ..with_min(400) });
    run_on(0);
    world.leave_free(0, 20);
    world.leave_free(1, 20);
    let mask: NodeMask = [0, 1, 2].map(node).into_iter().collect();
    let request = Request::page().allowed(&mask);
    let (served, steps) = explained(&world, &request);
    assert_eq!(served.unwrap().node, node(2));
    let low = world.zone(0).watermarks.low.get();
    let below = Outcome::Below { short_by: PageCount::new(low + 1 - 20), is_reserved: false };
    let expected =
        [(0, Watermark::Low, below), (1, Watermark::Low, below), (2, Watermark::Low, Outcome::Serves)];
    assert_eq!(outcomes(&steps), expected);
    // The request itself reports the same steps, and marks the zones as full. Its successor skips node 1.
    assert_eq!(recorded(&world, &request).1, steps);
    world.controls.advance_ms(10);
    let (_, steps) = explained(&world, &request);
    assert!(matches!(outcomes(&steps)[1], (1, Watermark::Low, Outcome::MarkedFull { .. })), "{steps:?}");
    let others: NodeMask = [2, 3].map(node).into_iter().collect();
    world.allocator.drain_pagesets(); // the CPU's pageset of node 2 would serve
    let (_, steps) = explained(&world, &Request::page().allowed(&others));
    assert_eq!(outcomes(&steps)[0].2, Outcome::NotAllowed(Exclusion::Node));
    let text: Vec<String> = steps.iter().map(Step::to_string).collect();
    assert_eq!(text[0], "zone Normal of node 0: excluded by the policy or the allowed nodes");
    assert_eq!(text.last().unwrap(), "zone Normal of node 2: serves, above `low`");
}

#[test]
fn what_comes_after_the_scans_is_named() {
    let world = Plan::even(1, 1, 4096).build(&with_min(100)).leak();
    run_on(0);
    let pages = world.alloc_all(&Request::page().urgency(Urgency::Reserve));
    let (served, steps) = explained(world, &Request::page());
    assert_eq!(served, None);
    assert!(steps.contains(&Step::BackgroundWoken));
    assert!(steps.contains(&Step::WouldReclaim { has_reclaimable: false }), "{steps:?}");
    assert!(matches!(steps.last(), Some(Step::PagesetsDrained { .. })));
    let (_, steps) = explained(world, &Request::page().no_wait());
    assert!(!steps.iter().any(|step| matches!(step, Step::WouldReclaim { .. })));
    let (failed, steps) = recorded(world, &Request::page());
    assert!(failed.is_err());
    assert!(steps.contains(&Step::DirectReclaim { freed: PageCount::ZERO }), "{steps:?}");
    world.free(pages);
}

#[test]
fn node_reclaim_is_explained() {
    let mut plan = Plan::even(2, 1, 4096);
    plan.nodes[1].1.clear();
    let world = plan.build(&Config { node_reclaim: NodeReclaim::ON, ..with_min(400) });
    run_on(0);
    world.leave_free(0, 20);
    let steps_of = |steps: Vec<Step>| {
        let reclaim = |(_, _, outcome)| if let Outcome::Reclaim(step) = outcome { Some(step) } else { None };
        outcomes(&steps).into_iter().filter_map(reclaim).collect::<Vec<_>>()
    };
    assert_eq!(steps_of(explained(&world, &Request::page()).1), [ReclaimStep::TooFew]);
    assert_eq!(steps_of(explained(&world, &Request::page().no_wait()).1), [ReclaimStep::NotTried]);
    let barren = Scripted::new(1 << 20, |_, _| 0);
    world.controls.set_reclaimer(barren.clone());
    assert_eq!(steps_of(explained(&world, &Request::page()).1), [ReclaimStep::WouldRun]);
    assert_eq!(barren.calls(), 0, "nothing was reclaimed");
    assert_eq!(steps_of(recorded(&world, &Request::page()).1), [ReclaimStep::Nothing]);
    assert_eq!(steps_of(explained(&world, &Request::new(order(1))).1), [ReclaimStep::FailedRecently]);
}

#[test]
fn zones_beyond_the_limits_are_not_allowed() {
    let mut plan = Plan::even(1, 1, 4096);
    plan.zones.push((0, ZoneKind::Movable, 16_384, 4096, vec![(16_384, 4096)]));
    let world = plan.build(&with_min(100));
    run_on(0);
    let (_, steps) = explained(&world, &Request::page().zone_limit(ZoneKind::Normal));
    let first = Outcome::NotAllowed(Exclusion::ZoneLimit);
    assert_eq!(
        outcomes(&steps).into_iter().map(|(_, _, outcome)| outcome).collect::<Vec<_>>(),
        [first, Outcome::Serves]
    );
    let (_, steps) = explained(&world, &Request::page().below(Pfn::new(8192)));
    assert_eq!(outcomes(&steps)[0].2, Outcome::NotAllowed(Exclusion::AddressLimit));
    let empty = NodeMask::EMPTY;
    let error = world.allocator.explain(&Request::page().allowed(&empty), |_| ()).unwrap_err();
    assert_eq!(error, AllocError::NoNodeInPolicy);
}
