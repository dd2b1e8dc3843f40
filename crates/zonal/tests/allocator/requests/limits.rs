//! Tests of values at their limits: frames at the end of 64-bit frame numbers, zones with as many frames as 32 bits can
//! number, and settings and ids that no machine has.

use crate::common::scenarios::{order, pages};
use crate::common::zeroed::ZeroBytes;
use crate::common::{Plan, TestPlatform, node, range, run_on};
use zonal::error::{AllocError, ConfigError, FreeError};
use zonal::machine::{FrameRange, NodeDescription, TopologyError, ZONE_FRAMES_MAX, ZoneDescription};
use zonal::platform::one_thread::OneThread;
use zonal::request::{PageKind, Urgency};
use zonal::rules::watermarks::WatermarkSettings;
use zonal::units::{CpuId, MAX_CPUS, Order, PageCount, Pfn, ZoneKind};
use zonal::{Allocator, Block, Config, Layout, Machine, Request};

const FRAMES: u64 = 1 << 15;

/// Starts of [`FRAMES`]-frame spans: at 0, at the end of 52-bit and 64-bit frame numbers, and where offsets of 32 bits
/// would wrap.
const STARTS: [u64; 7] = [
    0,
    (1 << 32) - FRAMES / 2,
    1 << 32,
    (1 << 52) - FRAMES,
    (1 << 52) - 1,
    u64::MAX - FRAMES - 4321,
    u64::MAX - FRAMES,
];

fn at(start: u64, count: u64) -> Plan {
    let mut plan = Plan::even(1, 1, FRAMES);
    plan.zones = vec![(0, ZoneKind::Normal, start, count, vec![(start, count)])];
    plan
}

#[test]
fn every_frame_of_spans_at_the_lowest_and_highest_numbers_is_allocated_and_freed() {
    run_on(0);
    for start in STARTS {
        let world = at(start, FRAMES).build(&Config::default());
        let a = &world.allocator;
        let span = range(start, FRAMES);
        for at in [0, 3, 5, 10].map(order) {
            let request = Request::new(at).urgency(Urgency::Reserve);
            let blocks = world.alloc_all(&request);
            assert!(blocks.iter().all(|block| block.first.is_aligned_to(at)), "{start:#x}");
            assert!(
                blocks
                    .iter()
                    .all(|block| { span.contains(&FrameRange { start: block.first, count: at.pages() }) })
            );
            let lost = u64::from(at.get() > 0 && !start.is_multiple_of(1024)) * 2 * at.pages().get();
            assert!(blocks.len() as u64 >= (FRAMES - lost) >> at.get(), "order {at} from {start:#x}");
            a.verify().unwrap();
            world.free(blocks);
        }
        a.drain_pagesets();
        let accounting = a.verify().unwrap();
        assert_eq!((accounting.free, accounting.allocated), (pages(FRAMES), PageCount::ZERO));
        a.offline_memory(span).unwrap();
        a.verify().unwrap();
        a.online_memory(span).unwrap();
        assert_eq!(a.verify().unwrap(), accounting);
    }
}

/// Frees of frames outside the zone are refused, also if their distance from it exceeds 32 bits.
#[test]
fn frames_far_from_every_zone_are_refused() {
    run_on(0);
    for start in STARTS {
        let world = at(start, FRAMES).build(&Config::default());
        let block = world.allocator.alloc(&Request::page()).unwrap();
        let far = [1_u64 << 32, 1 << 33, 1 << 52, 1 << 63, FRAMES];
        let around = far
            .iter()
            .flat_map(|far| [block.first.get().wrapping_add(*far), block.first.get().wrapping_sub(*far)]);
        let strange = around.chain([start.wrapping_sub(1), start + FRAMES, u64::MAX, 0]);
        for frame in strange.filter(|frame| !(start..start + FRAMES).contains(frame)).map(Pfn::new) {
            for at in [0, 1, 10, 18].map(order) {
                assert_eq!(world.allocator.free(frame, at), Err(FreeError::NotManaged(frame)), "{start:#x}");
            }
            assert_eq!(world.allocator.free_bulk(&[frame]).unwrap_err().error, FreeError::NotManaged(frame));
            assert_eq!(world.allocator.span_of(frame), None);
            assert!(world.allocator.online_memory(range(frame.get(), 1)).is_err());
            assert!(world.allocator.offline_memory(range(frame.get(), u64::MAX)).is_err());
        }
        world.free([block]);
        world.check();
    }
}

#[test]
fn zones_are_as_large_as_offsets_reach_and_no_larger() {
    let nodes = [NodeDescription { id: node(0), cpus: &[], distances: &[10] }];
    let most = ZONE_FRAMES_MAX;
    let spans = [
        (0, most, true),
        (0, most + 1, false),
        (3 << 18, most, true),
        (1, most - 1, true),
        (1, most, false),
        ((1 << 18) - 1, most - (1 << 18) + 1, true),
        (u64::MAX - most + 1, most - 1, true),
        (u64::MAX - most, most, false),
        (0, u64::MAX, false),
    ];
    for (start, count, fits) in spans {
        let zone = ZoneDescription {
            node: node(0),
            kind: ZoneKind::Normal,
            span: range(start, count),
            managed: &[],
        };
        let machine = Machine::new(&nodes, core::slice::from_ref(&zone));
        if !fits {
            assert_eq!(machine.unwrap_err(), TopologyError::ZoneTooLarge(node(0), ZoneKind::Normal));
            continue;
        }
        for max_order in [10, 18].map(order) {
            let layout = Layout::new(machine.as_ref().unwrap(), &Config { max_order, ..Config::default() });
            let bytes: Vec<u64> =
                layout.unwrap().requests::<TestPlatform>().map(|request| request.bytes as u64).collect();
            let each = bytes.iter().sum::<u64>() as f64 / count as f64;
            assert!((1.0..1.5).contains(&each), "{each} bytes a frame for {count} from {start:#x}");
        }
    }
}

/// The zone sizes from which the crate's documentation promises these figures.
#[test]
fn metadata_takes_few_bytes_a_frame_from_the_documented_sizes_on() {
    const MIB: u64 = 1 << 8; // in frames
    for cpus in [1, 2, 3, 8, 16, 64, 128, 256, 512] {
        let ids: Vec<CpuId> = (0..cpus).map(CpuId::new).collect();
        let nodes = [NodeDescription { id: node(0), cpus: &ids, distances: &[10] }];
        let bytes_a_frame = |frames: u64| {
            let span = range(1 << 20, frames);
            let zone = ZoneDescription { node: node(0), kind: ZoneKind::Normal, span, managed: &[span] };
            let machine = Machine::new(&nodes, core::slice::from_ref(&zone)).unwrap();
            let layout = Layout::new(&machine, &Config::default()).unwrap();
            layout.requests::<TestPlatform>().map(|request| request.bytes as f64).sum::<f64>() / frames as f64
        };
        for factor in [1, 2, 3, 5, 16] {
            let small = factor * (512 * MIB).max(64 * MIB * u64::from(cpus));
            assert!(bytes_a_frame(small) <= 1.65, "{} for {small} frames, {cpus} CPUs", bytes_a_frame(small));
            let large = factor * (2048 * MIB).max(512 * MIB * u64::from(cpus));
            assert!(bytes_a_frame(large) < 1.5, "{} for {large} frames, {cpus} CPUs", bytes_a_frame(large));
        }
    }
}

#[test]
fn cpu_ids_have_a_limit() {
    let build = |cpu: usize| {
        let cpus = [CpuId::new(cpu as u32)];
        let span = range(0, 1);
        let zones = [ZoneDescription { node: node(0), kind: ZoneKind::Normal, span, managed: &[] }];
        let nodes = [NodeDescription { id: node(0), cpus: &cpus, distances: &[10] }];
        Machine::new(&nodes, &zones).map(|machine| machine.cpu_ids())
    };
    assert_eq!(build(MAX_CPUS - 1), Ok(MAX_CPUS));
    for id in [MAX_CPUS, u32::MAX as usize] {
        assert_eq!(build(id), Err(TopologyError::CpuTooLarge(CpuId::new(id as u32))));
    }
}

#[test]
fn settings_beyond_every_machine_are_bounded_or_refused() {
    run_on(0);
    for free_area_min in [0, 1, 4097, 1 << 32, (1 << 32) + 1, 1 << 63, (1 << 63) + 1, u64::MAX] {
        let config = Config { free_area_min: PageCount::new(free_area_min), ..Config::default() };
        let world = Plan::even(1, 2, FRAMES).build(&config);
        let blocks = world.alloc_all(&Request::new(order(9)));
        assert!(blocks.len() > 50, "regions of {free_area_min}");
        world.check();
        world.free(blocks);
    }
    for min_free in [FRAMES + 1, 1 << 52, u64::MAX] {
        let min_free = pages(min_free);
        let watermarks = WatermarkSettings { min_free: Some(min_free), ..WatermarkSettings::default() };
        let config = Config { watermarks, ..Config::default() };
        let refused = at(0, FRAMES).try_build(&config, TestPlatform::default()).err();
        assert_eq!(refused, Some(ConfigError::MinFree { min_free, managed: pages(FRAMES) }));
    }
    // With the largest scale factor, most requests find the zone below its watermarks.
    let watermarks = WatermarkSettings {
        scale_factor: 3000,
        lowmem_reserve_ratio: [1; 4],
        ..WatermarkSettings::default()
    };
    let world = at(0, FRAMES).build(&Config { watermarks, ..Config::default() });
    let blocks = world.alloc_all(&Request::page());
    assert!(blocks.len() as u64 + 100 > FRAMES * 9 / 10, "only `min` keeps frames back");
    world.free(blocks);
    world.check();
}

#[test]
fn orders_beyond_the_largest_are_refused_whatever_the_frame() {
    let world = at(u64::MAX - FRAMES, FRAMES).build(&Config::default());
    for at in (11..=18).map(order) {
        let error = AllocError::OrderTooLarge { order: at, max: Order::DEFAULT_MAX };
        assert_eq!(world.allocator.alloc(&Request::new(at)), Err(error));
        let last = Pfn::new(u64::MAX - 1);
        assert_eq!(world.allocator.free(last, at), Err(FreeError::NotAllocated(last)));
    }
    assert_eq!(Order::holding(PageCount::new(u64::MAX)), None);
    world.check();
}

/// Calls `then` with an allocator for one node that spans `span`. The span is divided into as many zones as necessary,
/// and `managed` is its memory.
fn with_span(span: FrameRange, managed: &[FrameRange], then: impl FnOnce(&Allocator<'_, OneThread>)) {
    let nodes = [NodeDescription { id: node(0), cpus: &[CpuId::new(0)], distances: &[10] }];
    let spans: Vec<FrameRange> = span.zone_spans().collect();
    let of_parts: Vec<Vec<FrameRange>> = (spans.iter())
        .map(|part| managed.iter().filter_map(|range| range.intersection(part)).collect())
        .collect();
    let zones: Vec<_> = (spans.iter().zip(&of_parts))
        .map(|(&span, managed)| ZoneDescription { node: node(0), kind: ZoneKind::Normal, span, managed })
        .collect();
    let machine = Machine::new(&nodes, &zones).unwrap();
    let config = Config { max_order: order(18), ..Config::default() };
    let mut bytes = ZeroBytes::default();
    then(
        &Allocator::new(OneThread::new(), &machine, &config, |request| Some(bytes.lend(request.bytes)))
            .unwrap(),
    );
}

fn all_of(a: &Allocator<'_, OneThread>, at: Order) -> Vec<Block> {
    let request = Request::new(at).urgency(Urgency::Reserve);
    std::iter::from_fn(|| a.alloc(&request).ok()).collect()
}

/// Tests a zone whose last frame has the largest offset that fits into 32 bits.
#[test]
#[cfg_attr(miri, ignore = "takes Miri too long")]
fn the_last_frame_of_the_largest_zone_is_a_frame_as_any_other() {
    run_on(0);
    let span = range(7 << 40, ZONE_FRAMES_MAX);
    let (first, last) = (span.start, Pfn::new(span.end().get() - 1));
    // The first 20 000 frames of the zone and its last 20 000 frames are memory.
    let managed = [range(first.get(), 20_000), range(span.end().get() - 20_000, 20_000)];
    with_span(span, &managed, |a| {
        let mut frames: Vec<Pfn> = all_of(a, Order::PAGE).iter().map(|block| block.first).collect();
        assert_eq!((frames.len(), frames.iter().min()), (40_000, Some(&first)));
        assert_eq!(frames.iter().max(), Some(&last));
        assert_eq!(a.verify().unwrap().allocated, pages(40_000));
        frames.retain(|&frame| frame != last);
        a.free_bulk(&frames).unwrap();
        a.drain_pagesets();
        assert_eq!(a.verify().unwrap().allocated, pages(1));
        // Offsets past the end must not wrap to 0.
        for frame in [span.end(), Pfn::new(first.get() - 1), last.plus(pages(1 << 32))] {
            assert_eq!(a.free(frame, Order::PAGE), Err(FreeError::NotManaged(frame)));
        }
        let frame = range(last.get(), 1);
        assert!(a.offline_memory(frame).is_err());
        a.free(last, Order::PAGE).unwrap();
        assert_eq!(a.free(last, Order::PAGE), Err(FreeError::NotAllocated(last)));
        a.offline_memory(frame).unwrap();
        assert_eq!(a.free(last, Order::PAGE), Err(FreeError::NotManaged(last)));
        // The zone now ends with an absent frame.
        assert_eq!(a.verify().unwrap().managed, pages(39_999));
        a.online_memory(frame).unwrap();
        assert_eq!(a.verify().unwrap().free, pages(40_000));
    });
}

/// Each way to allocate, free and withdraw frames reaches the last frames of the largest zone, whose end is not a 32-bit
/// offset.
#[test]
#[cfg_attr(miri, ignore = "takes Miri too long")]
fn every_form_reaches_the_last_frames_of_the_largest_zone() {
    run_on(0);
    let span = range(ZONE_FRAMES_MAX, ZONE_FRAMES_MAX);
    let block = order(18).pages();
    let managed = range(span.end().get() - block.get(), block.get());
    let tail = |count: u64| range(span.end().get() - count, count);
    let urgent = |at| Request::new(at).urgency(Urgency::Reserve);
    with_span(span, &[managed], |a| {
        let all_free = || {
            a.drain_pagesets();
            let accounting = a.verify().unwrap();
            assert_eq!((accounting.free, accounting.managed), (block, block));
        };
        for below in [span.end(), Pfn::new(u64::MAX)] {
            let whole = a.alloc(&urgent(order(18)).below(below)).unwrap();
            assert_eq!(whole.first, managed.start);
            a.free(whole.first, whole.order).unwrap();
            all_free();
        }
        for count in [block.get(), block.get() - 1, block.get() / 2 + 1] {
            let run = a.alloc_frames(&urgent(Order::PAGE), pages(count)).unwrap();
            a.free_frames(run.range.start, run.range.count).unwrap();
            all_free();
            let run = a.alloc_contiguous(&urgent(Order::PAGE), pages(count)).unwrap();
            a.split_frames(run.range.start, run.range.count, Order::PAGE).unwrap();
            (0..count).for_each(|at| a.free(run.range.start.plus(pages(at)), Order::PAGE).unwrap());
            all_free();
        }
        for count in [1, 2, 3, 5, 64, 1000] {
            let run = a.alloc_range(tail(count), PageKind::User).unwrap();
            a.free_frames(run.range.start, run.range.count).unwrap();
            let fence = a.fence(tail(count)).unwrap();
            assert!(fence.is_whole());
            let run = fence.alloc(PageKind::Kernel).unwrap();
            a.free_frames(run.range.start, run.range.count).unwrap();
            a.offline_memory(tail(count)).unwrap();
            a.online_memory(tail(count)).unwrap();
            all_free();
        }
        let frames = all_of(a, Order::PAGE);
        a.free_bulk(&frames.iter().map(|frame| frame.first).collect::<Vec<_>>()).unwrap();
        all_free();
        a.retire(tail(1).start).unwrap();
        assert_eq!(a.verify().unwrap().allocated, pages(1));
    });
}

/// All offsets of the zone are memory, and its last block is split down to the last frame.
#[test]
#[cfg_attr(miri, ignore = "takes Miri too long")]
fn all_blocks_of_the_largest_zone_are_allocated_and_freed() {
    run_on(0);
    let span = range(ZONE_FRAMES_MAX, ZONE_FRAMES_MAX);
    with_span(span, &[span], |a| {
        let mut blocks = all_of(a, order(18));
        assert_eq!(blocks.len() as u64, ZONE_FRAMES_MAX >> 18);
        let last_block = blocks.pop().unwrap();
        assert_eq!(last_block.first.plus(order(18).pages()), span.end());
        a.free(last_block.first, order(18)).unwrap();
        let frames: Vec<Pfn> = all_of(a, Order::PAGE).iter().map(|block| block.first).collect();
        let last = Pfn::new(span.end().get() - 1);
        assert_eq!((frames.len(), frames.iter().max()), (1 << 18, Some(&last)));
        a.free_bulk(&frames).unwrap();
        blocks.into_iter().for_each(|block| a.free(block.first, order(18)).unwrap());
        a.drain_pagesets();
        let zone = a.zones().next().unwrap();
        assert_eq!((zone.free, zone.free_blocks[18]), (span.count, ZONE_FRAMES_MAX >> 18));
    });
}

/// Tests a node that spans 40 TiB in frames of 4 KiB, few of which are memory.
#[test]
#[cfg_attr(miri, ignore = "takes Miri too long")]
fn a_node_larger_than_a_zone_is_several_zones() {
    run_on(0);
    const TIB: u64 = 1 << 28;
    let span = range(3 * TIB + 12_345, 40 * TIB);
    let parts: Vec<FrameRange> = span.zone_spans().collect();
    let cuts = if usize::BITS < 64 { 4 } else { 16 } * TIB;
    assert!(parts[1..].iter().all(|part| part.start.get().is_multiple_of(cuts)), "{parts:?}");
    assert_eq!(parts.iter().map(|part| part.count).sum::<PageCount>(), span.count);
    // There is memory at both ends of the span, across each boundary between parts, and in the middle of one part.
    const MEMORY: u64 = 1 << 16;
    let mut memory = vec![range(span.start.get(), MEMORY)];
    memory.extend(parts[1..].iter().map(|part| range(part.start.get() - MEMORY / 2, MEMORY)));
    memory.push(range(parts[1].start.get() + TIB, MEMORY));
    memory.push(range(span.end().get() - MEMORY, MEMORY));
    memory.sort_by_key(|range| range.start);
    let frames = memory.len() as u64 * MEMORY;
    with_span(span, &memory, |a| {
        let zones: Vec<_> = a.zones().collect();
        assert!(zones.iter().map(|zone| zone.span).eq(parts.iter().copied()));
        assert_eq!(a.verify().unwrap().free, pages(frames));
        assert!(zones.iter().all(|zone| zone.managed >= pages(MEMORY)));
        let blocks = all_of(a, order(9));
        let mut sequence: Vec<usize> = blocks.iter().map(|block| block.zone.index()).collect();
        sequence.dedup();
        assert!(sequence.iter().copied().eq(0..parts.len()), "from one part to the next: {sequence:?}");
        let within = |block: &Block| {
            let block = FrameRange { start: block.first, count: block.order.pages() };
            memory.iter().any(|range| range.contains(&block))
        };
        assert!(blocks.iter().all(within));
        // The unaligned ends leave single frames that are in no large block.
        let rest = all_of(a, Order::PAGE);
        assert_eq!(blocks.len() as u64 * 512 + rest.len() as u64, frames);
        let accounting = a.verify().unwrap();
        assert_eq!((accounting.allocated, accounting.free), (pages(frames), PageCount::ZERO));
        assert_eq!(a.locality().hit, (blocks.len() + rest.len()) as u64);
        blocks.iter().chain(&rest).for_each(|block| a.free(block.first, block.order).unwrap());
        a.drain_pagesets();
        assert_eq!(a.accounting().free, pages(frames));
        // Memory can go online and offline within a part, but not across two parts.
        let cut = parts[1].start.get();
        assert!(a.offline_memory(range(cut - 4, 8)).is_err());
        a.offline_memory(range(cut - 4, 4)).unwrap();
        a.offline_memory(range(cut, 4)).unwrap();
        assert_eq!(a.accounting().managed, pages(frames - 8));
    });
}
