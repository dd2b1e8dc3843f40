//! Tests of large machines: the amount of metadata, and that the start leaves zeroed metadata untouched.

use crate::common::zeroed::ZeroBytes;
use crate::common::{Plan, node, order, range, run_on};
use zonal::machine::{FrameRange, NodeDescription, ZoneDescription};
use zonal::platform::one_thread::OneThread;
use zonal::units::{CpuId, Order, PageCount, ZoneKind};
use zonal::{Allocator, Config, Machine, Request};

/// Calls `then` with an allocator for `nodes` nodes, each with `cpus` CPUs and one zone of `frames` frames. Its
/// metadata is zeroed memory.
fn with_large(nodes: u16, cpus: u32, frames: u64, then: impl FnOnce(&Allocator<'_, OneThread>)) {
    let ids: Vec<Vec<CpuId>> = (0..u32::from(nodes))
        .map(|node| (node * cpus..(node + 1) * cpus).map(CpuId::new).collect())
        .collect();
    let rows: Vec<Vec<u8>> = (0..usize::from(nodes))
        .map(|row| (0..usize::from(nodes)).map(|to| if to == row { 10 } else { 20 }).collect())
        .collect();
    let memory: Vec<FrameRange> = (0..nodes).map(|id| range((u64::from(id) + 1) * frames, frames)).collect();
    let nodes: Vec<_> = (ids.iter().zip(&rows).enumerate())
        .map(|(id, (cpus, distances))| NodeDescription { id: node(id as u16), cpus, distances })
        .collect();
    let zones: Vec<_> = (memory.iter().enumerate())
        .map(|(id, span)| ZoneDescription {
            node: node(id as u16),
            kind: ZoneKind::Normal,
            span: *span,
            managed: core::slice::from_ref(span),
        })
        .collect();
    let machine = Machine::new(&nodes, &zones).unwrap();
    let mut bytes = ZeroBytes::default();
    then(
        &Allocator::new(OneThread::new(), &machine, &Config::default(), |r| Some(bytes.lend(r.bytes)))
            .unwrap(),
    );
}

#[test]
fn metadata_stays_below_a_byte_and_a_half_a_frame() {
    const GIB: u64 = 1 << 18;
    for (nodes, cpus, gib) in [(1, 1, 1), (1, 2, 8), (2, 4, 16), (2, 32, 64), (1, 64, 64), (8, 8, 128)] {
        with_large(nodes, cpus, gib * GIB / u64::from(nodes), |a| {
            let (bytes, frames) = (a.metadata_bytes(), gib * GIB);
            let each = bytes as f64 / frames as f64;
            println!("{nodes} nodes of {cpus} CPUs, {gib} GiB: {each:.3} bytes a frame");
            assert!(bytes * 2 <= frames * 3, "{each} bytes a frame");
        });
    }
}

#[test]
fn a_tebibyte_starts_on_untouched_metadata() {
    const TIB: u64 = 1 << 28;
    let (start, before) = (std::time::Instant::now(), resident_bytes());
    with_large(1, 4, TIB, |a| {
        println!("1 TiB started in {:?}, {} bytes of metadata", start.elapsed(), a.metadata_bytes());
        assert_eq!(a.accounting().free, PageCount::new(TIB));
        let block = a.alloc(&Request::new(Order::DEFAULT_MAX)).unwrap();
        a.free(block.first, block.order).unwrap();
        assert_eq!(a.accounting().free, PageCount::new(TIB));
        let Some((before, after)) = before.zip(resident_bytes()) else {
            zonal_testing::skipped!("the system does not say what is resident");
            return;
        };
        println!("{} KiB of it touched", after.saturating_sub(before) / 1024);
        assert!(after.saturating_sub(before) < a.metadata_bytes() / 10, "metadata was touched");
    });
}

/// Returns the resident memory of this process in bytes, if the system reports it.
fn resident_bytes() -> Option<u64> {
    let statm = std::fs::read_to_string("/proc/self/statm").ok()?;
    statm.split(' ').nth(1)?.parse::<u64>().ok().map(|pages| pages * 4096)
}

#[test]
fn zeroed_and_garbage_buffers_make_the_same_allocator() {
    run_on(0);
    let garbage = Plan::even(2, 2, 1 << 15).build(&Config::default());
    with_large(2, 2, 1 << 15, |a| {
        assert_eq!(a.verify().unwrap(), garbage.allocator.verify().unwrap());
        assert!(a.zones().eq(garbage.allocator.zones()));
        assert!(a.pagesets().eq(garbage.allocator.pagesets()));
        for order in (0..=10).map(order) {
            let same = garbage.allocator.alloc(&Request::new(order)).unwrap();
            assert_eq!(a.alloc(&Request::new(order)).unwrap(), same);
        }
        assert_eq!(a.verify().unwrap(), garbage.allocator.verify().unwrap());
    });
}
