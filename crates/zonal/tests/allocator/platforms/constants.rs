//! Tests of platforms whose constants say what an embedder does not use: what it does use must not change.

use std::cell::Cell;
use std::convert::Infallible;
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64};

use crate::common::{Random, order};
use zonal::error::AllocError;
use zonal::machine::{FrameRange, NodeDescription, ZoneDescription};
use zonal::platform::cpu_local::{Pinned, Quiesce};
use zonal::platform::{SpinLock, ZeroedCells};
use zonal::request::{Block, Urgency};
use zonal::settings::Setting;
use zonal::units::{CpuId, Moment, NodeId, PageCount, PageKind, Pfn, ZoneKind};
use zonal::{Allocator, Buffer, Config, Machine, NodeMask, Platform, Request};

thread_local! {
    static CPU: Cell<u32> = const { Cell::new(0) };
    static NOW: Cell<u64> = const { Cell::new(0) };
}

/// CPUs that run one after another on the thread of a test.
struct OneThread;

impl Quiesce for OneThread {
    fn quiesce(&self, _cpu: CpuId) {}
}

/// A platform without contents or recorders; if `LEAN`, its constants say so. Without reclaim, no zone is marked as short.
struct Kernel<const LEAN: bool, const RECLAIMS: bool>(Pinned<OneThread>);

impl<const LEAN: bool, const RECLAIMS: bool> Platform for Kernel<LEAN, RECLAIMS> {
    const CONFIG: Option<&'static Config> = if LEAN { Some(&Config::DEFAULT) } else { None };
    const ZEROED_CELLS: Option<ZeroedCells<Self>> = if LEAN {
        // SAFETY: the atomics of `core` and `SpinLock` are integers, and 0 is what `new(0)` and `new()` make. They need no drop.
        Some(unsafe { ZeroedCells::promise() })
    } else {
        None
    };
    const OWNS_BLOCKS: bool = !LEAN;
    const IS_SHARED: bool = !LEAN;
    const ONLY_BLOCKS: bool = LEAN;
    const RESTRICTS: bool = !LEAN;
    const RECLAIMS: bool = RECLAIMS;
    type U8 = AtomicU8;
    type U32 = AtomicU32;
    type U64 = AtomicU64;
    type Lock = SpinLock;
    type CpuLocal = Pinned<OneThread>;

    fn current_cpu(&self) -> CpuId {
        CpuId::new(CPU.get())
    }

    fn cpu_local(&self) -> &Pinned<OneThread> {
        &self.0
    }

    fn now(&self) -> Moment {
        Moment::from_ns(NOW.get())
    }
}

/// Builds two nodes with two CPUs each, and two zones on the first.
fn build<const LEAN: bool, const RECLAIMS: bool>() -> Allocator<'static, Kernel<LEAN, RECLAIMS>> {
    let [first, second] = [0, 1].map(|id| NodeId::new(id).unwrap());
    let cpus = [0, 1, 2, 3].map(CpuId::new);
    let nodes = [
        NodeDescription { id: first, cpus: &cpus[..2], distances: &[10, 20] },
        NodeDescription { id: second, cpus: &cpus[2..], distances: &[20, 10] },
    ];
    let spans = [(1 << 20, 1 << 13), (1 << 21, 1 << 15), (1 << 22, 1 << 15)];
    let managed =
        spans.map(|(start, count)| [FrameRange { start: Pfn::new(start), count: PageCount::new(count) }]);
    let kinds = [(first, ZoneKind::Dma32), (first, ZoneKind::Normal), (second, ZoneKind::Normal)];
    let zones = [0, 1, 2].map(|at| {
        let (node, kind) = kinds[at];
        ZoneDescription { node, kind, span: managed[at][0], managed: &managed[at] }
    });
    let machine = Machine::new(&nodes, &zones).unwrap();
    let supply = |request: zonal::layout::BufferRequest| {
        let bytes = vec![MaybeUninit::new(0xa5); request.bytes + 64].leak();
        let skew = bytes.as_ptr().align_offset(64);
        Some(Buffer::uninit(&mut bytes[skew..][..request.bytes]))
    };
    Allocator::new(Kernel(Pinned(OneThread)), &machine, &Config::default(), supply).unwrap()
}

/// Runs requests of all orders, kinds and urgencies on all CPUs, until the memory is full and empty again, and returns
/// what they got.
fn history<P: Platform>(a: &Allocator<'_, P>) -> Vec<Result<Block, AllocError>> {
    let (mut random, mut held, mut all) = (Random(11), Vec::<Block>::new(), Vec::new());
    NOW.set(0);
    for at in 0..60_000_u64 {
        CPU.set(random.below(4) as u32);
        NOW.set(NOW.get() + 1_000_000);
        if at % 1000 == 0 {
            a.tick();
        }
        let grows = at / 15_000 % 2 == 0;
        if random.below(100) < if grows { 70 } else { 30 } || held.is_empty() {
            let request = Request::new(order(random.pick(&[0, 0, 0, 0, 1, 2, 4, 7, 9, 10])))
                .kind(random.pick(&PageKind::ALL))
                .urgency(random.pick(&[Urgency::Normal, Urgency::Normal, Urgency::High, Urgency::Atomic]))
                .zone_limit(random.pick(&[ZoneKind::Normal, ZoneKind::Normal, ZoneKind::Dma32]));
            let request = if random.once_in(5) { request.no_wait() } else { request };
            let block = a.alloc(&request);
            held.extend(&block);
            all.push(block);
        } else {
            let block = held.swap_remove(random.below(held.len() as u64) as usize);
            a.free(block.first, block.order).unwrap();
            assert!(a.free(block.first, block.order).is_err(), "freed twice");
        }
    }
    for block in held {
        a.free(block.first, block.order).unwrap();
    }
    a.drain_pagesets();
    all
}

/// Returns the files of a snapshot.
fn files<P: Platform>(a: &Allocator<'_, P>) -> Vec<(String, String)> {
    let mut files = Vec::new();
    let Ok(()) = a.snapshot().files(|path, text| {
        files.push((path.to_string(), text.to_string()));
        Ok::<(), Infallible>(())
    });
    files
}

/// Runs the history on both platforms, and compares all that can be seen of it.
fn compare<const RECLAIMS: bool>() {
    let (lean, whole) = (build::<true, RECLAIMS>(), build::<false, RECLAIMS>());
    let [leanly, wholly] = [history(&lean), history(&whole)];
    let failed = wholly.iter().filter(|result| result.is_err()).count();
    assert!((1000..wholly.len() - 1000).contains(&failed), "{failed} of {} requests failed", wholly.len());
    for (at, (lean, whole)) in leanly.iter().zip(&wholly).enumerate() {
        assert_eq!(lean, whole, "request {at}");
    }
    assert!(lean.zones().eq(whole.zones()), "other limits or figures");
    assert_eq!(lean.events(), whole.events());
    assert_eq!(lean.verify().unwrap(), whole.verify().unwrap());
    assert!(lean.verify().unwrap().balance());
    for setting in Setting::ALL {
        let name = setting.info().name;
        assert_eq!(lean.setting(name), whole.setting(name), "{name}");
    }
    assert_eq!(files(&lean), files(&whole));
}

#[test]
fn what_is_used_does_not_change() {
    compare::<true>();
    compare::<false>();
}

#[test]
fn restricted_requests_are_refused_by_a_platform_that_has_none() {
    let a = build::<true, false>();
    CPU.set(0);
    let other: NodeMask = [NodeId::new(1).unwrap()].into_iter().collect();
    let page = Request::page();
    for request in [page.allowed(&other), page.below(Pfn::new(1 << 21))] {
        let why = catch_unwind(AssertUnwindSafe(|| a.alloc(&request))).unwrap_err();
        assert_eq!(why.downcast_ref::<&str>(), Some(&"the platform's requests have no restrictions"));
    }
    let block = a.alloc(&page).unwrap();
    a.free(block.first, block.order).unwrap();
    assert!(a.verify().unwrap().balance());
}

/// A constant that the platform of these tests or the smallest kernel did not set would be measured and tested with its default.
#[test]
fn every_constant_is_set() {
    let contract = include_str!("../../../src/platform/mod.rs").lines();
    let names: Vec<&str> =
        contract.filter_map(|line| line.strip_prefix("    const ")?.split(':').next()).collect();
    assert!(names.contains(&"CONFIG") && names.len() >= 7, "{names:?}");
    for name in names {
        for (file, text) in [
            ("constants.rs", include_str!("constants.rs")),
            ("bare/src/small.rs", include_str!("../../../bare/src/small.rs")),
        ] {
            assert!(text.contains(&format!("    const {name}:")), "{file} does not set {name}");
        }
    }
}
