//! Tests of the zones' memory.

use super::*;

fn memory(frames: &[u64], huge_pages: HugePages) -> (PoolMemory, Vec<Warning>) {
    let plan = |(at, &frames): (usize, &u64)| ZonePlan {
        node: NodeId::new(at as u16).unwrap(),
        kind: ZoneKind::Normal,
        frames: PageCount::new(frames),
        online: PageCount::new(frames),
    };
    let plans: Vec<_> = frames.iter().enumerate().map(plan).collect();
    let options = MapOptions {
        page_bytes: 4096,
        max_order: Order::DEFAULT_MAX,
        huge_pages,
        binding: Binding::None,
        sharing: Sharing::Private,
    };
    let mut warnings = Warnings::default();
    let memory = PoolMemory::map(&plans, options, &mut warnings).unwrap();
    (memory, warnings.into_vec())
}

#[test]
fn frames_convert_to_addresses_and_back() {
    let (memory, _) = memory(&[100, 5000, 3], HugePages::Never);
    for zone in memory.zones() {
        assert!(zone.range.start.is_aligned_to(Order::DEFAULT_MAX));
        for at in [0, zone.range.count.get() - 1] {
            let frame = zone.range.start.plus(PageCount::new(at));
            let pointer = memory.pointer(frame).unwrap().as_ptr();
            assert_eq!(memory.frame(pointer), Some(frame));
            assert_eq!(memory.frame(pointer.wrapping_add(4095)), Some(frame));
        }
        assert_eq!(memory.pointer(zone.range.end()), None);
        let before = Pfn::new(zone.range.start.get() - 1);
        assert!(
            memory.zones().iter().any(|other| other.range.end() == zone.range.start)
                || memory.pointer(before).is_none()
        );
    }
    assert_eq!(memory.frame(std::ptr::null()), None);
    assert_eq!(memory.pointer(Pfn::new(u64::MAX)), None);
}

#[test]
fn contents_are_filled_compared_and_discarded() {
    let (memory, _) = memory(&[64, 64], HugePages::Never);
    let range = memory.zones()[1].range;
    let (first, count) = (range.start, PageCount::new(3));
    assert!(memory.holds(first, range.count, 0));
    memory.fill(first, count, 0x5a5a);
    assert!(memory.holds(first, count, 0x5a5a));
    assert!(!memory.holds(first, PageCount::new(4), 0x5a5a));
    let none = |_| PageCount::ZERO;
    memory.discard(FrameRange { start: first, count: PageCount::new(1) }, none).unwrap();
    assert!(memory.holds(first, PageCount::new(1), 0) && !memory.holds(first, count, 0));
    assert!(memory.discard(FrameRange { start: first, count: PageCount::new(65) }, none).is_err());
    assert!(memory.discard(FrameRange { start: first, count: PageCount::ZERO }, none).is_err());
}

#[test]
fn missing_huge_page_reserve_is_only_a_warning() {
    let (memory, warnings) = memory(&[1 << 20], HugePages::Explicit);
    if memory.zones()[0].populated {
        zonal_testing::skipped!("this machine has 2048 huge pages in reserve");
        return;
    }
    assert!(warnings.iter().any(|one| matches!(one, Warning::NoExplicitHugePages { needed: 2048, .. })));
    memory.fill(memory.zones()[0].range.start, PageCount::new(1), 1);
}

/// Uses a node that this machine does not have, because the kernel refuses to bind memory to it.
#[test]
fn memory_that_cannot_be_bound_is_only_a_warning() {
    let plan = ZonePlan {
        node: NodeId::new(1023).unwrap(),
        kind: ZoneKind::Normal,
        frames: PageCount::new(100),
        online: PageCount::new(100),
    };
    let mut options = MapOptions {
        page_bytes: 4096,
        max_order: Order::DEFAULT_MAX,
        huge_pages: HugePages::Never,
        binding: Binding::ToNodes,
        sharing: Sharing::Private,
    };
    for huge_pages in [HugePages::Never, HugePages::Explicit] {
        options.huge_pages = huge_pages;
        let mut warnings = Warnings::default();
        let memory = PoolMemory::map(&[plan], options, &mut warnings).unwrap();
        memory.fill(memory.zones()[0].range.start, PageCount::new(100), 1);
        let not_bound =
            |one: &Warning| matches!(one, Warning::NotBound { nodes, .. } if *nodes == [plan.node]);
        assert!(warnings.into_vec().iter().any(not_bound), "{huge_pages:?}");
    }
}
