//! Tests of [`Pinned`] access on machines with several CPUs, which needs a [`Quiesce`] that reaches them.
//!
//! The tests of `zonal-conformance` run the platform of `examples/embed`.

use core::mem::MaybeUninit;
use core::sync::atomic::AtomicU32;

use zonal::error::ConfigError;
use zonal::machine::{FrameRange, NodeDescription, ZoneDescription};
use zonal::platform::SpinLock;
use zonal::platform::cpu_local::{OneCpu, Pinned, Quiesce};
use zonal::units::{CpuId, Moment, NodeId, PageCount, Pfn, ZoneKind};
use zonal::{Allocator, Buffer, Config, Machine, Platform, Request};

const FRAMES: u64 = 1 << 14;

fn node(id: u16) -> NodeId {
    NodeId::new(id).unwrap()
}

fn cpu(id: u32) -> CpuId {
    CpuId::new(id)
}

/// Builds an allocator for two nodes of [`FRAMES`] frames each. The first node has CPU 0, and the second has all other
/// CPUs.
fn build<P: Platform>(platform: P, cpus: u32) -> Result<Allocator<'static, P>, ConfigError> {
    let others: Vec<CpuId> = (1..cpus).map(cpu).collect();
    let nodes = [
        NodeDescription { id: node(0), cpus: &[cpu(0)], distances: &[10, 20] },
        NodeDescription { id: node(1), cpus: &others, distances: &[20, 10] },
    ];
    let spans = [0, 1].map(|at| [FrameRange { start: Pfn::new(at * FRAMES), count: PageCount::new(FRAMES) }]);
    let zones = [0, 1].map(|at| ZoneDescription {
        node: node(at as u16),
        kind: ZoneKind::Normal,
        span: spans[at][0],
        managed: &spans[at],
    });
    let machine = Machine::new(&nodes, &zones)?;
    Allocator::new(platform, &machine, &Config::default(), |request| {
        Some(Buffer::uninit(Box::leak(vec![MaybeUninit::uninit(); request.bytes].into_boxed_slice())))
    })
}

/// A platform that cannot reach other CPUs.
struct Alone;

impl Platform for Alone {
    type U8 = core::sync::atomic::AtomicU8;
    type U32 = AtomicU32;
    type U64 = core::sync::atomic::AtomicU64;
    type Lock = SpinLock;
    type CpuLocal = Pinned;

    fn current_cpu(&self) -> CpuId {
        cpu(0)
    }

    fn cpu_local(&self) -> &Pinned {
        &Pinned(OneCpu)
    }

    fn now(&self) -> Moment {
        Moment::default()
    }
}

#[test]
fn a_platform_without_remote_drains_is_refused_on_several_cpus() {
    for cpus in [2, 3, 64] {
        let error = build(Alone, cpus).err().unwrap();
        assert_eq!(error, ConfigError::UnreachableCpus(cpus as usize));
        let text = error.to_string();
        assert!(text.contains(&format!("{cpus} CPUs")) && text.contains("Quiesce"), "{text}");
    }
    let alone = build(Alone, 1).unwrap();
    let block = alone.alloc(&Request::page()).unwrap();
    alone.free(block.first, block.order).unwrap();
    alone.drain_pagesets();
    alone.verify().unwrap();
    assert!(!OneCpu.reaches_other_cpus());
}
