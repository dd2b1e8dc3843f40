//! Shared pools in explicit huge pages: of a descriptor, and in hugetlbfs.

use std::ffi::CString;
use std::fs;
use std::path::Path;

use zonal_linux::{HugePages, Order, PageCount, Pool, PoolBuilder, PoolError, SharedError, Warning};
use zonal_testing::skipped;

use crate::other::{Other, Place, free, page, recover};
use crate::reserve::{Files, Reserve, free_huge_pages, returned};

/// A new mount of hugetlbfs, which is unmounted when this is dropped.
struct Mount(tempfile::TempDir);

impl Mount {
    fn new(page_size: &str) -> Result<Self, String> {
        let folder = tempfile::tempdir().unwrap();
        let place = CString::new(folder.path().to_str().unwrap()).unwrap();
        let options = CString::new(format!("pagesize={page_size},mode=700")).unwrap();
        let kind = c"hugetlbfs";
        // SAFETY: the texts outlive the call.
        let mounted =
            unsafe { libc::mount(kind.as_ptr(), place.as_ptr(), kind.as_ptr(), 0, options.as_ptr().cast()) };
        if mounted == 0 {
            Ok(Self(folder))
        } else {
            Err(format!("hugetlbfs: {}", std::io::Error::last_os_error()))
        }
    }

    fn place(&self, name: &str) -> Place {
        Place(self.0.path().join(name).to_str().unwrap().into())
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let place = CString::new(self.0.path().to_str().unwrap()).unwrap();
        // SAFETY: the text outlives the call.
        unsafe { libc::umount2(place.as_ptr(), libc::MNT_DETACH) };
    }
}

fn builder(mib: u64) -> PoolBuilder<'static> {
    Pool::builder().size(mib << 20).processes(4)
}

/// Returns how many bytes of a pool are in explicit huge pages.
fn explicit(pool: &Pool) -> u64 {
    pool.backing().unwrap().explicit_huge
}

/// Uses a pool from two processes, the second of which dies.
fn use_from_two(pool: &Pool, place: &Place) {
    let mut other = Other::start(place);
    other.ask("pages 200");
    let first = other.ask("block 9");
    let (frame, _) = page(pool);
    assert_ne!(frame.get(), first.parse::<u64>().unwrap());
    other.pass("churn 1");
    other.answer();
    other.die();
    recover(pool, 1);
    free(pool, (frame, Order::PAGE));
    assert_eq!(pool.verify().unwrap().allocated, PageCount::ZERO);
}

#[test]
fn a_pool_in_hugetlbfs_is_shared_and_outlives_its_processes() {
    let _reserve = match Reserve::with_free(17) {
        Ok(reserve) => reserve,
        Err(why) => return skipped!("a shared pool in hugetlbfs: {why}"),
    };
    let mount = match Mount::new("2M") {
        Ok(mount) => mount,
        Err(why) => return skipped!("a shared pool in hugetlbfs: {why}"),
    };
    let (before, place) = (free_huge_pages(), mount.place("pool"));
    let pool = builder(32).shared(&place.0).process_name("cache").build().unwrap();
    assert_eq!((pool.warnings(), explicit(&pool)), (&[][..], 32 << 20));
    assert_eq!(free_huge_pages(), before - 17, "the zone, and a page for the metadata");
    use_from_two(&pool, &place);

    let (frame, _) = page(&pool);
    // SAFETY: the frame is allocated, and this test alone uses it.
    unsafe { pool.ptr_of(frame).unwrap().write_volatile(77) };
    drop(pool); // all processes have ended
    let again = Pool::join_as(&place.0, "cache").unwrap();
    assert_eq!((again.allocated_here(), explicit(&again)), (Some(PageCount::new(1)), 32 << 20));
    // SAFETY: as above.
    assert_eq!(unsafe { again.ptr_of(frame).unwrap().read_volatile() }, 77);
    free(&again, (frame, Order::PAGE));
    assert_eq!(again.verify().unwrap().allocated, PageCount::ZERO);
    drop((again, place)); // the file is removed
    returned(before);
}

#[test]
fn a_pool_in_hugetlbfs_needs_its_reserve() {
    let _reserve = match Reserve::with_free(8) {
        Ok(reserve) => reserve,
        Err(why) => return skipped!("a shared pool without a reserve: {why}"),
    };
    let (before, mount) = match Mount::new("2M") {
        Ok(mount) => (free_huge_pages(), mount),
        Err(why) => return skipped!("a shared pool without a reserve: {why}"),
    };
    let place = mount.place("pool");
    let refused = builder(before * 4).shared(&place.0).build().unwrap_err().to_string();
    assert!(refused.contains("for node 0") && refused.contains("nr_hugepages"), "{refused}");
    assert!(!Path::new(&place.0).exists());
    returned(before);
    // What is there is no pool.
    fs::File::create(&place.0).unwrap().set_len(2 << 20).unwrap();
    assert!(matches!(Pool::join(&place.0), Err(PoolError::Shared { source: SharedError::Corrupt(_), .. })));
}

#[test]
fn a_descriptor_has_huge_pages_or_a_warning() {
    let mut reserve = match Reserve::with_free(17) {
        Ok(reserve) => reserve,
        Err(why) => return skipped!("a shared pool of a descriptor in explicit huge pages: {why}"),
    };
    let before = free_huge_pages();
    let built = || builder(32).fake_nodes(2).huge_pages(HugePages::Explicit).shared_by_descriptor();
    let pool = built().build().unwrap();
    assert_eq!((pool.warnings(), explicit(&pool)), (&[][..], 32 << 20));
    let joined = Pool::join_file(pool.shared_file().unwrap()).unwrap();
    assert_eq!((explicit(&joined), free_huge_pages()), (32 << 20, before - 17));
    let (frame, order) = page(&joined);
    free(&pool, (frame, order));
    drop((pool, joined));
    returned(before);

    reserve.lower().unwrap();
    if free_huge_pages() < 17 {
        let pool = built().build().unwrap();
        let needed = pool.warnings().iter().filter_map(|one| match one {
            Warning::NoExplicitHugePages { needed, .. } => Some(*needed),
            _ => None,
        });
        // The first has the metadata too.
        assert_eq!(needed.collect::<Vec<_>>(), [9, 8], "{:?}", pool.warnings());
        let joined = Pool::join_file(pool.shared_file().unwrap()).unwrap();
        assert_eq!((explicit(&pool), explicit(&joined)), (0, 0));
        free(&joined, page(&pool));
        assert!(matches!(built().require_huge_pages().build(), Err(PoolError::Required(_))));
    }
}

#[test]
fn pages_of_one_gib_are_shared() {
    let raised =
        Reserve::locked(Files::gigantic()).and_then(|mut reserve| reserve.raise(2).map(|()| reserve));
    let (_reserve, mount) = match raised.and_then(|reserve| Ok((reserve, Mount::new("1G")?))) {
        Ok(both) => both,
        Err(why) => return skipped!("a shared pool in pages of 1 GiB: {why}"),
    };
    let place = mount.place("pool");
    let pool = builder(1024).shared(&place.0).build().unwrap();
    assert_eq!((pool.warnings(), explicit(&pool)), (&[][..], 1 << 30));
    use_from_two(&pool, &place);
}

#[test]
fn a_pool_in_hugetlbfs_cannot_grow() {
    let mount = match Mount::new("2M") {
        Ok(mount) => mount,
        Err(why) => return skipped!("a shared pool in hugetlbfs: {why}"),
    };
    let refused = builder(32).max_size(64 << 20).shared(mount.place("pool").0.as_str()).build().unwrap_err();
    assert!(refused.to_string().contains("cannot have a largest size"), "{refused}");
}

#[test]
fn explicit_huge_pages_elsewhere_are_refused() {
    let place = Place::new("huge");
    let refused = builder(32).huge_pages(HugePages::Explicit).shared(&place.0).build().unwrap_err();
    assert!(refused.to_string().contains("except in a file of hugetlbfs"), "{refused}");
    assert!(!Path::new(&place.0).exists());
}
