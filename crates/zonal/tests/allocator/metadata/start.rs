//! Tests that the start fails with a specific error for each kind of invalid machine description, setting and buffer.

use core::mem::MaybeUninit;

use crate::common::{Plan, TestPlatform, node, order, range, run_on};
use zonal::config::Hardening;
use zonal::error::ConfigError;
use zonal::layout::{BufferRequest, Place};
use zonal::machine::{NodeDescription, TopologyError, ZoneDescription};
use zonal::rules::stat_threshold::{CounterRules, ThresholdRule};
use zonal::rules::watermarks::WatermarkSettings;
use zonal::units::{CpuId, PageCount, Pfn, ZoneKind};
use zonal::{Allocator, Buffer, Config, Layout, Machine, Request};

const FRAMES: u64 = 4096;

fn platform() -> TestPlatform {
    TestPlatform::default()
}

fn refused(plan: &Plan, error: TopologyError) {
    let result = plan.try_build(&Config::default(), platform());
    assert_eq!(result.err(), Some(ConfigError::Topology(error)), "{error}");
    assert!(!error.to_string().is_empty());
}

fn changed(change: impl FnOnce(&mut Plan)) -> Plan {
    let mut plan = Plan::even(3, 2, FRAMES);
    change(&mut plan);
    plan
}

#[test]
fn nodes_distances_and_cpus() {
    use TopologyError as E;
    refused(&Plan::default(), E::NoNodes);
    let crowd = changed(|plan| {
        plan.nodes = vec![(0, vec![]); 1025];
        plan.distances = vec![vec![10]; 1025];
    });
    refused(&crowd, E::TooManyNodes(1025));
    refused(&changed(|plan| plan.nodes[2].0 = 1), E::NodesNotAscending(node(1)));
    refused(&changed(|plan| plan.nodes[0].0 = 2), E::NodesNotAscending(node(1)));
    let row = |given| E::DistanceRow { row: node(1), given, needed: 3 };
    refused(&changed(|plan| plan.distances[1] = vec![20, 10]), row(2));
    refused(&changed(|plan| plan.distances[1] = vec![20, 10, 20, 20]), row(4));
    for distance in [0, 9, 11, 255] {
        let error = E::Diagonal { node: node(2), distance };
        refused(&changed(|plan| plan.distances[2][2] = distance), error);
    }
    let error = E::DistanceTooSmall { row: node(2), column: node(0), distance: 9 };
    refused(&changed(|plan| plan.distances[2][0] = 9), error);
    refused(&changed(|plan| plan.nodes[1].1.push(5)), E::CpuTwice(CpuId::new(5)));
    refused(&changed(|plan| plan.nodes[1].1.push(3)), E::CpuTwice(CpuId::new(3)));
    // These are all valid: asymmetric distances, another node as near as the CPU's own node, and ids with gaps.
    let odd = changed(|plan| {
        plan.distances = vec![vec![10, 10, 255], vec![200, 10, 20], vec![21, 11, 10]];
        plan.nodes[2].0 = 1023;
        plan.zones[2].0 = 1023;
    });
    odd.build(&Config::default()).allocator.verify().unwrap();
}

#[test]
fn zones_and_ranges() {
    use TopologyError as E;
    let kind = ZoneKind::Normal;
    refused(&changed(|plan| plan.zones.clear()), E::NoZones);
    refused(&changed(|plan| plan.zones[2].0 = 7), E::ZoneOfUnknownNode(node(7)));
    refused(&changed(|plan| plan.zones.swap(0, 1)), E::ZonesNotAscending(node(0), kind));
    let overlap = E::ZonesOverlap { frame: Pfn::new(2 * FRAMES), node: node(1) };
    refused(&changed(|plan| plan.zones[0].3 += 1), overlap);
    let start = 2 * FRAMES;
    let bad = |(first, count)| {
        let (range, span) = (range(first, count), range(start, FRAMES));
        E::BadRange { node: node(1), kind, range, span }
    };
    let ranges = [
        (vec![(start - 1, 1)], 0),
        (vec![(start, FRAMES + 1)], 0),
        (vec![(start, 0)], 0),
        (vec![(start, u64::MAX)], 0),
        (vec![(start, 2), (start + 1, 1)], 1),
        (vec![(start + 5, 2), (start, 1)], 1),
        (vec![(start + FRAMES, 1)], 0),
    ];
    for (ranges, refused_at) in ranges {
        let error = bad(ranges[refused_at]);
        refused(&changed(|plan| plan.zones[1].4 = ranges), error);
    }
    refused(&changed(|plan| plan.present = vec![FRAMES; 2]), E::PresentCount { given: 2, needed: 3 });
    for present in [FRAMES - 1, FRAMES + 1, 0, u64::MAX] {
        let [managed, most] = [PageCount::new(FRAMES); 2];
        let error = E::BadPresent { node: node(1), kind, present: PageCount::new(present), managed, most };
        refused(&changed(|plan| plan.present = vec![FRAMES, present, FRAMES]), error);
        assert!(error.to_string().contains(&present.to_string()), "{error}");
    }
    // Memory that may come online later is not counted as present when the allocator starts.
    let later = |present| {
        changed(|plan| {
            plan.zones[1].4 = vec![(start, FRAMES / 2)];
            plan.hotplug = vec![(start + FRAMES - 10, 10)];
            plan.present = vec![FRAMES, present, FRAMES];
        })
    };
    let [managed, present, most] = [FRAMES / 2, FRAMES - 9, FRAMES - 10].map(PageCount::new);
    refused(&later(FRAMES - 9), E::BadPresent { node: node(1), kind, present, managed, most });
    assert!(later(FRAMES - 10).try_build(&Config::default(), platform()).is_ok());
    let span = |start, count| E::BadSpan { node: node(2), kind, span: range(start, count) };
    let with_span = |start, count| changed(|plan| plan.zones[2] = (2, kind, start, count, vec![]));
    refused(&with_span(start + 5, 0), span(start + 5, 0));
    refused(&with_span(u64::MAX - 10, 100), span(u64::MAX - 10, 100));
    refused(&with_span(1 << 40, (1 << 32) + 1), E::ZoneTooLarge(node(2), kind));
    refused(&with_span((1 << 40) + 1, 1 << 32), E::ZoneTooLarge(node(2), kind));
}

#[test]
fn settings_out_of_bounds() {
    let refused = |config: Config, error: ConfigError| {
        assert_eq!(Plan::even(1, 1, FRAMES).try_build(&config, platform()).err(), Some(error), "{error}");
        assert!(!error.to_string().is_empty());
    };
    let base = Config::default();
    for page_bytes in [0, 1, 2048, 4095, 4097, 12_288, u32::MAX] {
        refused(Config { page_bytes, ..base }, ConfigError::PageBytes(page_bytes));
    }
    for max_order in [0, 9].map(order) {
        refused(Config { max_order, ..base }, ConfigError::MaxOrder(max_order));
    }
    refused(Config { min_unmapped_percent: 101, ..base }, ConfigError::Percent(101));
    for scale_factor in [0, 3001] {
        let watermarks = WatermarkSettings { scale_factor, ..base.watermarks };
        refused(Config { watermarks, ..base }, ConfigError::ScaleFactor(scale_factor));
    }
    for threshold in [0, 126, 255] {
        let rules = CounterRules { threshold: ThresholdRule::Fixed(threshold), ..CounterRules::default() };
        refused(Config { counters: rules, ..base }, ConfigError::CounterThreshold(threshold));
    }
    let quarantine = PageCount::new((1 << 20) + 1);
    let hardening = Hardening { quarantine, ..Hardening::default() };
    refused(Config { hardening, ..base }, ConfigError::Quarantine(quarantine));
    let min_free = PageCount::new(FRAMES + 1);
    let watermarks = WatermarkSettings { min_free: Some(min_free), ..WatermarkSettings::default() };
    refused(
        Config { watermarks, ..base },
        ConfigError::MinFree { min_free, managed: PageCount::new(FRAMES) },
    );
}

#[test]
fn every_page_size_and_largest_order_work() {
    run_on(0);
    for page_bytes in (12..32).map(|log| 1 << log) {
        for max_order in (10..=18).map(order) {
            let config = Config { page_bytes, max_order, ..Config::default() };
            let mut plan = Plan::even(1, 1, 1 << 18);
            if max_order.get() % 3 == 0 {
                plan.zones[0].2 -= 777; // a span that is not aligned
                plan.zones[0].3 += 777;
            }
            let a = plan.build(&config).allocator;
            for order in (0..=max_order.get()).map(order) {
                if let Ok(block) = a.alloc(&Request::new(order)) {
                    a.free(block.first, order).unwrap();
                }
            }
            a.drain_pagesets();
            assert_eq!(a.verify().unwrap().free, PageCount::new(1 << 18));
        }
    }
}

/// Returns a buffer with `bytes` bytes of garbage that starts `skew` bytes after a multiple of 64.
fn skewed(bytes: usize, skew: usize) -> Buffer<'static> {
    let all = Box::leak(vec![MaybeUninit::new(0x5a_u8); bytes + 128].into_boxed_slice());
    let lead = all.as_ptr().align_offset(64);
    Buffer::uninit(&mut all[lead + skew..][..bytes])
}

fn start_with(supply: impl FnMut(BufferRequest) -> Option<Buffer<'static>>) -> Result<u64, ConfigError> {
    run_on(0);
    let (cpus, memory) = ([CpuId::new(0)], range(FRAMES, FRAMES));
    let nodes = [NodeDescription { id: node(5), cpus: &cpus, distances: &[10] }];
    let managed = [memory];
    let zones = [ZoneDescription { node: node(5), kind: ZoneKind::Dma, span: memory, managed: &managed }];
    let machine = Machine::new(&nodes, &zones).unwrap();
    let allocator = Allocator::new(platform(), &machine, &Config::default(), supply)?;
    let blocks: Vec<_> = std::iter::from_fn(|| allocator.alloc(&Request::page().no_wait()).ok()).collect();
    assert!(blocks.len() > 3000);
    blocks.iter().for_each(|block| allocator.free(block.first, block.order).unwrap());
    allocator.drain_pagesets();
    assert_eq!(allocator.verify().unwrap().free, PageCount::new(FRAMES));
    Ok(allocator.metadata_bytes())
}

#[test]
fn missing_small_and_misaligned_buffers_are_refused() {
    let mut requests = Vec::new();
    let total = start_with(|request| {
        requests.push(request);
        Some(skewed(request.bytes, 0))
    });
    assert_eq!(total, Ok(requests.iter().map(|request| request.bytes as u64).sum()));
    let places: Vec<Place> = requests.iter().map(|request| request.place).collect();
    assert_eq!(places, [Place::Shared, Place::Local, Place::Node(node(5))]);
    for BufferRequest { place, bytes } in requests {
        let bad = |supplied: Option<usize>| {
            let result = start_with(|request| match supplied {
                _ if request.place != place => Some(skewed(request.bytes, 0)),
                Some(supplied) => Some(skewed(supplied, 0)),
                None => None,
            });
            let supplied = supplied.unwrap_or(0);
            assert_eq!(result, Err(ConfigError::Buffer { needed: bytes, supplied }));
        };
        bad(None);
        [0, 1, bytes / 2, bytes - 1].into_iter().for_each(|supplied| bad(Some(supplied)));
    }
    for skew in [1, 2, 4, 8, 31, 32, 33, 63] {
        start_with(|request| Some(skewed(request.bytes, skew))).unwrap();
        start_with(|request| Some(skewed(request.bytes + skew, skew))).unwrap();
    }
}

#[test]
fn the_layout_asks_for_the_buffers_before_there_is_an_allocator() {
    let (cpus, memory) = ([CpuId::new(0)], range(FRAMES, FRAMES));
    let nodes = [NodeDescription { id: node(0), cpus: &cpus, distances: &[10] }];
    let zones = [ZoneDescription { node: node(0), kind: ZoneKind::Normal, span: memory, managed: &[] }];
    let hotplug = [memory];
    let machine = Machine::new(&nodes, &zones).unwrap().with_hotplug(&hotplug).unwrap();
    let layout = Layout::new(&machine, &Config::default()).unwrap();
    let expected: Vec<BufferRequest> = layout.requests::<TestPlatform>().collect();
    let mut asked = Vec::new();
    let a = Allocator::new(platform(), &machine, &Config::default(), |request| {
        asked.push(request);
        Some(skewed(request.bytes, 0))
    });
    assert_eq!(asked, expected);
    let a = a.unwrap();
    assert!(a.alloc(&Request::page()).is_err());
    a.online_memory(memory).unwrap();
    assert!(a.alloc(&Request::page()).is_ok());
}
