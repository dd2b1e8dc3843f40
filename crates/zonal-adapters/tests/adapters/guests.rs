//! Guest memory through the traits of `vm-memory`.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use vm_memory::bitmap::AtomicBitmap;
use vm_memory::{
    Bytes, GuestAddress, GuestMemoryBackend, GuestMemoryMmap, GuestMemoryRegion, GuestRegionMmap,
};
use zonal_adapters::vm_memory::{PoolMemory, PoolRegion, RegionError, RegionPlan, guest_memory};
use zonal_linux::{NodeId, Pool, PoolRequest};

const GIB: u64 = 1 << 30;

fn pool(mib: u64) -> Pool {
    Pool::builder().size(mib << 20).fake_nodes(2).build().unwrap()
}

fn plan(base: u64, mib: usize, node: u16) -> RegionPlan {
    RegionPlan { base: GuestAddress(base), bytes: mib << 20, node: NodeId::new(node) }
}

#[test]
fn guests_read_and_write_their_regions_on_chosen_nodes() {
    let pool = pool(256);
    let plans = [plan(0, 48, 0), plan(GIB, 2, 1), plan(4 * GIB, 33, 1)];
    // A page of each node, so that the first free frames are not aligned to 2 MiB.
    let page = |node| pool.alloc(&PoolRequest::page().policy(&pool.preferred(node).unwrap())).unwrap();
    let _pages: Vec<_> = pool.memory_nodes().iter().map(page).collect();
    let guest: PoolMemory = guest_memory(&pool, &PoolRequest::page(), &plans).unwrap();
    assert_eq!(pool.accounting().allocated.get(), 2 + (48 + 2 + 33) * 256);
    assert_eq!(guest.iter().map(|region| region.node().get()).collect::<Vec<_>>(), [0, 1, 1]);
    assert_eq!((guest.num_regions(), guest.last_addr()), (3, GuestAddress(4 * GIB + (33 << 20) - 1)));
    for (plan, region) in plans.iter().zip(guest.iter()) {
        let last = plan.base.0 + plan.bytes as u64 - 8;
        assert_eq!(guest.read_obj::<u64>(plan.base).unwrap(), 0, "new memory is zeroed");
        guest.write_obj(last, plan.base).unwrap();
        guest.store(last ^ 1, GuestAddress(last), Ordering::Release).unwrap();
        assert_eq!(guest.read_obj::<u64>(plan.base).unwrap(), last);
        assert_eq!(guest.load::<u64>(GuestAddress(last), Ordering::Acquire).unwrap(), last ^ 1);
        let host = guest.get_host_address(plan.base).unwrap();
        assert_eq!(pool.pfn_of(host).is_some(), region.len() == plan.bytes as u64);
        assert!(plan.bytes % (2 << 20) != 0 || host.addr() % (2 << 20) == 0, "room for huge pages");
    }
    guest.write_obj(1_u8, GuestAddress(48 << 20)).unwrap_err();
    assert_eq!(guest.write(&[1; 100], GuestAddress(GIB + (2 << 20) - 50)).unwrap(), 50);
    drop(guest);
    assert_eq!(pool.verify().unwrap().allocated.get(), 2);
}

#[test]
fn regions_keep_their_frames_and_the_pool() {
    let pool = pool(64);
    let guest: PoolMemory =
        guest_memory(&pool, &PoolRequest::page(), &[plan(0, 4, 0), plan(GIB, 4, 1)]).unwrap();
    let other = guest.clone();
    let (rest, removed) = guest.remove_region(GuestAddress(GIB), 4 << 20).unwrap();
    drop(guest);
    assert_eq!(pool.accounting().allocated.get(), 2048, "the clone has both regions");
    drop(other);
    assert_eq!(pool.accounting().allocated.get(), 2048, "each region has an owner");
    drop(removed);
    assert_eq!(pool.accounting().allocated.get(), 1024);
    rest.write_slice(b"stays", GuestAddress(100)).unwrap();
    drop(pool);
    let reader = std::thread::spawn(move || {
        let mut read = [0; 5];
        rest.read_slice(&mut read, GuestAddress(100)).unwrap();
        read
    });
    assert_eq!(&reader.join().unwrap(), b"stays");
}

#[test]
fn reused_frames_are_zeroed_and_writes_are_tracked() {
    let pool = pool(64);
    for round in 0..4 {
        let region = PoolRegion::<AtomicBitmap>::new(&pool, &PoolRequest::page(), GuestAddress(0), 24 << 20);
        let guest = PoolMemory::from_regions(vec![region.unwrap()]).unwrap();
        let mut page = [0xff; 4096];
        guest.read_slice(&mut page, GuestAddress(5 << 20)).unwrap();
        assert_eq!(page, [0; 4096], "round {round}");
        let dirty = |at| {
            vm_memory::bitmap::Bitmap::dirty_at(&guest.find_region(GuestAddress(0)).unwrap().bitmap(), at)
        };
        assert!(!dirty(5 << 20));
        guest.write_slice(&[0xa5; 4096], GuestAddress(5 << 20)).unwrap();
        assert!(dirty(5 << 20) && !dirty(6 << 20));
    }
}

#[test]
fn permanent_regions_are_of_the_type_that_monitors_expect() {
    let pool = pool(64);
    let region = PoolRegion::new(&pool, &PoolRequest::page(), GuestAddress(0), 2 << 20).unwrap();
    // SAFETY: no clone of the mapping is made.
    assert_eq!(unsafe { region.as_mmap() }.size(), 2 << 20);
    let region: GuestRegionMmap = region.into_permanent();
    let guest = GuestMemoryMmap::from_arc_regions(vec![Arc::new(region)]).unwrap();
    guest.write_obj(77_u32, GuestAddress(64)).unwrap();
    let frames = pool.accounting().allocated.get();
    drop(pool);
    assert_eq!((frames, guest.read_obj::<u32>(GuestAddress(64)).unwrap()), (512, 77));
}

#[test]
fn plans_that_make_no_sense_are_refused_and_take_nothing() {
    let pool = pool(64);
    let refused = |plans: &[RegionPlan]| {
        let refused = guest_memory::<()>(&pool, &PoolRequest::page(), plans).unwrap_err();
        assert_eq!(pool.accounting().allocated.get(), 0, "{refused}");
        refused
    };
    let odd = RegionPlan { bytes: 5000, ..plan(0, 1, 0) };
    let shown = refused(&[plan(GIB, 1, 0), odd]).to_string();
    assert!(shown.contains("5000") && shown.contains("4096"), "{shown}");
    assert!(matches!(refused(&[plan(0, 0, 0)]), RegionError::Size { bytes: 0, page_bytes: 4096 }));
    assert!(matches!(refused(&[plan(u64::MAX - 4095, 1, 0)]), RegionError::End { bytes: 0x10_0000, .. }));
    assert!(matches!(refused(&[plan(0, 1, 9)]), RegionError::Node(_)));
    assert!(matches!(refused(&[plan(0, 16, 0), plan(GIB, 1000, 1)]), RegionError::Frames(_)));
    assert!(matches!(refused(&[plan(0, 16, 0), plan(1 << 20, 16, 1)]), RegionError::Regions(_)));
    assert!(matches!(refused(&[]), RegionError::Regions(_)));
}

#[test]
fn regions_of_files_can_be_mapped_a_second_time() {
    let pool = Pool::builder().size(64 << 20).fake_nodes(2).shared_memory().build().unwrap();
    let make = |pool: &Pool| {
        // Both regions are on one node, and so in one file, even if this thread moves to another CPU.
        let one_node = pool.bind([NodeId::new(0).unwrap()].into_iter().collect()).unwrap();
        let request = PoolRequest::page().policy(&one_node);
        // SAFETY: the file is used only for the frames of the region.
        unsafe { PoolRegion::<()>::shared(pool, &request, GuestAddress(0), 8 << 20) }
    };
    let regions = [make(&pool).unwrap(), make(&pool).unwrap()];
    let place = |region: &PoolRegion| region.file_offset().unwrap().start();
    let region = regions.iter().max_by_key(|region| place(region)).unwrap();
    assert!(place(region) >= 8 << 20, "two regions of one file");
    let file = region.file_offset().unwrap().clone();
    // As the process of a device does.
    let device =
        GuestMemoryMmap::<()>::from_ranges_with_files([(GuestAddress(0), 8 << 20, Some(file))]).unwrap();
    let last = (8 << 20) - 8;
    region.write_obj(7_u64, vm_memory::MemoryRegionAddress(last)).unwrap();
    assert_eq!(device.read_obj::<u64>(GuestAddress(last)).unwrap(), 7);
    device.write_obj(8_u64, GuestAddress(0)).unwrap();
    assert_eq!(region.read_obj::<u64>(vm_memory::MemoryRegionAddress(0)).unwrap(), 8);
    let private = self::pool(64);
    assert!(matches!(make(&private), Err(RegionError::NoFile)));
    assert_eq!(private.accounting().allocated.get(), 0);
}
