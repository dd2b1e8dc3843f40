//! What a shared pool refuses, and how its errors name what would be right.

use zonal::rules::stat_threshold::{CounterRules, ThresholdForm, ThresholdRule};
use zonal_linux::{Config, FrameRange, OwnedBlocks, PageCount, Pool};
use zonal_testing::skipped;

use crate::other::{Place, page};

/// A form of thresholds, which is code of this process.
#[derive(Debug)]
struct Same;

impl ThresholdForm for Same {
    fn name(&self) -> &'static str {
        "same"
    }

    fn frames(&self, managed: PageCount, _: PageCount) -> PageCount {
        managed
    }

    fn threshold(&self, _: u32, _: PageCount, _: u32) -> u8 {
        1
    }
}

#[test]
fn what_cannot_be_joined_is_refused_with_a_reason() {
    let place = Place::new("refused");
    let refused = |text: &str| {
        let error = Pool::join(&place.0).unwrap_err().to_string();
        assert!(error.contains(text) && error.contains(&place.0), "{error}");
    };
    refused("No such file");
    std::fs::write(&place.0, "no pool").unwrap();
    refused("shorter than a header");
    std::fs::write(&place.0, vec![0; 1 << 20]).unwrap();
    refused("does not begin like a pool");
    let taken = Pool::builder().size(64 << 20).shared(&place.0).build().unwrap_err().to_string();
    assert!(taken.contains("join the pool there, or remove the file"), "{taken}");
    std::fs::remove_file(&place.0).unwrap();
    drop(place.pool());
    let whole = std::fs::read(&place.0).unwrap();
    let with = |at: usize, byte: u8| {
        let mut damaged = whole.clone();
        damaged[at] = byte;
        std::fs::write(&place.0, damaged).unwrap();
    };
    with(8, 99);
    refused("version 99");
    with((20 << 10) + 5, b'}');
    refused("description is damaged");
    std::fs::write(&place.0, &whole[..whole.len() / 2]).unwrap();
    refused("was cut or extended");
    std::fs::remove_file(&place.0).unwrap();
    std::os::unix::fs::symlink("/dev/shm/other", &place.0).unwrap();
    refused("give the path of the file itself");
    std::fs::remove_file(&place.0).unwrap();
    std::fs::write(&place.0, &whole).unwrap();
    assert_eq!(Pool::join(&place.0).unwrap().verify().unwrap().allocated, PageCount::ZERO);
}

#[test]
fn options_that_a_shared_pool_cannot_have_are_refused() {
    let builder = || Pool::builder().size(64 << 20).shared_by_descriptor();
    let owned = Config { owned_blocks: OwnedBlocks::On, ..Pool::default_config(Some(64 << 20)) };
    let counted = |threshold| {
        let default = Pool::default_config(Some(64 << 20));
        Config { counters: CounterRules { threshold, ..default.counters }, ..default }
    };
    let mut too_large = counted(ThresholdRule::Scaled);
    too_large.watermarks.min_free = Some(PageCount::new(1 << 60));
    let by_path = |path: &str| Pool::builder().size(64 << 20).shared(path).build();
    let refused = [
        (builder().processes(0).build(), "no processes"),
        (builder().processes(65).build(), "at most 64"),
        (builder().max_size(128 << 20).build(), "a largest size"),
        (builder().config(owned).build(), "owned_blocks must have its default"),
        (builder().config(counted(ThresholdRule::Form(&Same))).build(), "`counters.threshold`"),
        (builder().config(too_large).build(), "`watermarks.min_free`"),
        (by_path("/dev/shm/no/such/folder"), "No such file"),
        // As file systems of disks are, to which the kernel would write the pool.
        (
            by_path("/proc/pool"),
            "neither tmpfs nor hugetlbfs, which are in memory; use a folder in a memory file system",
        ),
    ];
    for (error, text) in refused {
        let error = error.unwrap_err().to_string();
        assert!(error.contains(text), "{text}: {error}");
    }
    let pool = builder().build().unwrap();
    let range = FrameRange { start: page(&pool).0, count: PageCount::new(1) };
    assert!(pool.offline_memory(range).is_err());
    let why = pool.shrink(1).unwrap_err().to_string();
    assert!(why.starts_with("0 of 1 bytes") && why.contains("processes share"), "{why}");
    assert!(pool.take_over(range.start, PageCount::new(1)).is_ok());
    // SAFETY: the descriptors are not written to.
    assert_eq!(unsafe { pool.memory_files() }.count(), 0);
}

/// A pool on a disk, and the copy of one, would be written to it.
#[test]
fn no_pool_is_made_or_joined_on_a_disk() {
    let folder = env!("CARGO_TARGET_TMPDIR");
    if rustix::fs::statfs(folder).unwrap().f_type as u64 & 0xffff_ffff == libc::TMPFS_MAGIC as u64 {
        return skipped!("a shared pool on a disk: {folder} is in memory");
    }
    let path = format!("{folder}/pool-{}", std::process::id());
    let made = Pool::builder().size(64 << 20).shared(&path).build().unwrap_err().to_string();
    assert!(made.contains(&path) && made.contains("neither tmpfs nor hugetlbfs"), "{made}");
    let place = Place::new("copied");
    drop(place.pool());
    std::fs::copy(&place.0, &path).unwrap();
    let joined = Pool::join(&path).unwrap_err().to_string();
    std::fs::remove_file(&path).unwrap();
    assert!(joined.contains(&path) && joined.contains("neither tmpfs nor hugetlbfs"), "{joined}");
}
