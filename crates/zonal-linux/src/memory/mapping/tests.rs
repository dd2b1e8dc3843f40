//! Tests of mappings.

use super::*;
use crate::memory::origin::tests::in_a_child;

fn byte(mapping: &Mapping, at: usize) -> *mut u8 {
    assert!(at < mapping.bytes());
    mapping.base().as_ptr().wrapping_add(at)
}

/// Returns how many bytes of a mapping are in memory.
pub(crate) fn resident(mapping: &Mapping) -> usize {
    let start = mapping.base().as_ptr().addr();
    resident_bytes(start..start + mapping.bytes()).unwrap()
}

fn is_mapped(start: usize) -> bool {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().any(|line| {
        let (from, to) = line.split_once(' ').unwrap().0.split_once('-').unwrap();
        let address = |text| usize::from_str_radix(text, 16).unwrap();
        (address(from)..address(to)).contains(&start)
    })
}

#[test]
fn mapping_is_aligned_and_unmapped_on_drop() {
    let align = 64 << 20;
    let mapping = Mapping::new(8 << 20, align, Backing::Ordinary).unwrap();
    let start = mapping.base().as_ptr() as usize;
    assert_eq!(start % align, 0);
    assert_eq!(resident(&mapping), 0);
    assert!(is_mapped(start) && is_mapped(start + mapping.bytes() - 1));
    drop(mapping);
    // Another test may map this address at once.
    zonal_testing::eventually("the end of a mapping", || {
        !is_mapped(start) || {
            drop(Mapping::new(8 << 20, align, Backing::Ordinary).unwrap());
            false
        }
    });
}

#[test]
fn alignment_margin_is_unmapped() {
    // The margins are half a tebibyte on average. If they leaked, they would fill the address space of 128 TiB.
    for _ in 0..400 {
        Mapping::new(4096, 1 << 40, Backing::Ordinary).unwrap();
    }
}

#[test]
fn populate_keeps_contents_and_discard_clears_them() {
    let mapping = Mapping::new(4 << 20, 2 << 20, Backing::Ordinary).unwrap();
    mapping.advise(Transparent::Unwanted).ok();
    // SAFETY: the byte is inside the mapping, which only this test uses.
    unsafe { byte(&mapping, 4096).write(7) };
    match mapping.populate(0, 2 << 20) {
        Ok(()) => assert_eq!(resident(&mapping), 2 << 20),
        Err(e) => zonal_testing::skipped!("this kernel cannot populate: {e}"),
    }
    // SAFETY: the byte is inside the mapping, which only this test uses.
    assert_eq!(unsafe { byte(&mapping, 4096).read() }, 7);
    mapping.discard(4096, 4096).unwrap();
    // SAFETY: the byte is inside the mapping, which only this test uses.
    assert_eq!(unsafe { byte(&mapping, 4096).read() }, 0);
    mapping.touch(2 << 20, 1 << 20);
    assert!(resident(&mapping) >= 1 << 20);
}

#[test]
fn binding_succeeds_for_existing_nodes() {
    let mapping = Mapping::new(2 << 20, 2 << 20, Backing::Ordinary).unwrap();
    let nowhere = NodeId::new(1023).unwrap();
    assert!(mapping.bind(nowhere).is_err());
    match mapping.bind(NodeId::new(0).unwrap()) {
        Ok(()) => mapping.touch(0, 2 << 20),
        // Any other error is a bug in `bind`.
        Err(e) if matches!(e.raw_os_error(), Some(libc::ENOSYS | libc::EPERM)) => {
            zonal_testing::skipped!("this kernel does not bind memory: {e}");
        }
        Err(e) => panic!("node 0 has memory: {e}"),
    }
}

#[test]
#[should_panic(expected = "outside the mapping")]
fn ranges_outside_the_mapping_are_refused() {
    let mapping = Mapping::new(2 << 20, 2 << 20, Backing::Ordinary).unwrap();
    mapping.touch(1 << 20, (1 << 20) + 1);
}

/// Checks, in children, the range of a mapping that is not copied to them, and mappings that they create.
#[test]
fn child_has_a_gap_that_later_mappings_avoid() {
    let mapping = Mapping::new(4 << 20, 2 << 20, Backing::Ordinary).unwrap().without_copies().unwrap();
    mapping.touch(0, 4096);
    let is_kept = || {
        // Mapping another range at this address fails if the address is in use.
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        mapping.is_gap()
            && map(mapping.base().as_ptr().cast(), mapping.bytes(), flags, None)
                .is_err_and(|why| why.raw_os_error() == Some(libc::EEXIST))
    };
    let ended = in_a_child(false, || is_kept() && in_a_child(false, is_kept) == 0);
    assert_eq!(ended, 0);
    // In a child made by the bare system call, the gap is not filled, but `is_gap` returns true. Memory that is
    // mapped in the gap belongs to other code.
    let leaves_others_alone = || {
        let (start, bytes) = (mapping.base(), mapping.bytes());
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        let other = map(start.as_ptr().cast(), bytes, flags, None);
        let refused = mapping.discard(0, bytes).is_err() && mapping.open(0, bytes).is_err();
        // SAFETY: the child ends without using `mapping` again.
        drop(unsafe { std::ptr::read(&raw const mapping) });
        // Mapping another range at this address fails if the address is in use.
        mapping.is_gap()
            && other.is_ok()
            && refused
            && map(start.as_ptr().cast(), bytes, flags, None).is_err()
    };
    assert_eq!(in_a_child(true, leaves_others_alone), 0);
    let touched = in_a_child(false, || {
        assert!(mapping.open(0, 4096).is_err());
        mapping.touch(0, 4096);
        true
    });
    assert!(libc::WIFSIGNALED(touched) && libc::WTERMSIG(touched) == libc::SIGSEGV);
    assert!(!mapping.is_gap());
    // The next mapping that uses the list entry is not a gap, even if a child created that mapping.
    drop(mapping);
    let of_a_child = in_a_child(false, || {
        let own = Mapping::new(2 << 20, 2 << 20, Backing::Ordinary).and_then(Mapping::without_copies);
        own.is_ok_and(|own| {
            own.touch(0, 4096);
            !own.is_gap()
        })
    });
    assert_eq!(of_a_child, 0);
}

/// Returns the wait status of a child that has no addresses left to fill its gap.
fn child_without_addresses() -> i32 {
    in_a_child(false, || {
        let mapping = Mapping::new(4 << 20, 2 << 20, Backing::Ordinary).unwrap().without_copies().unwrap();
        // SAFETY: all zeros are a valid `rlimit`.
        let mut usual: libc::rlimit = unsafe { std::mem::zeroed() };
        // SAFETY: the call writes only the limit.
        assert_eq!(unsafe { libc::getrlimit(libc::RLIMIT_AS, &raw mut usual) }, 0);
        let set = |soft| {
            let limit = libc::rlimit { rlim_cur: soft, ..usual };
            // SAFETY: the call reads the limit, and changes only limits of this child.
            unsafe { libc::setrlimit(libc::RLIMIT_AS, &raw const limit) == 0 }
        };
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
        let place = mapping.base().as_ptr().cast();
        set(0)
            && in_a_child(false, || {
                // The gap is not filled, but `is_gap` returns true, also in children of the child. Memory that is
                // mapped in the gap belongs to other code.
                let is_free = set(usual.rlim_cur) && map(place, 4096, flags, None).is_ok();
                mapping.is_gap() && is_free && in_a_child(false, || mapping.is_gap()) == 0 && {
                    // SAFETY: the child ends without using `mapping` again.
                    drop(unsafe { std::ptr::read(&raw const mapping) });
                    is_mapped(place as usize)
                }
            }) == 0
    })
}

#[test]
fn child_without_free_addresses_survives() {
    assert_eq!(child_without_addresses(), 0);
}

#[test]
fn fixed_mappings_are_never_placed_elsewhere() {
    let taken = Mapping::new(1 << 20, 1 << 20, Backing::Ordinary).unwrap();
    let length = || std::fs::read_to_string("/proc/self/statm").unwrap();
    let elsewhere = || {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE; // as old kernels treat them
        map_at(taken.base(), 1 << 30, flags, None).unwrap_err().raw_os_error()
    };
    // Runs in a child, where no other thread maps memory. The first call of `length` makes the heap grow before the
    // lengths are compared.
    let is_gone = || {
        length();
        let before = length();
        let refused = elsewhere();
        let pages = |text: String| text.split(' ').next().map(|pages| pages.parse::<usize>().unwrap());
        refused == Some(libc::EEXIST) && pages(length()) == pages(before)
    };
    assert_eq!(in_a_child(false, is_gone), 0);
}

/// A file's memory does not count towards the limits of private memory.
#[test]
fn files_are_mapped_without_private_memory() {
    let of_child = in_a_child(false, || {
        let limit = libc::rlimit { rlim_cur: 16 << 20, rlim_max: libc::RLIM_INFINITY };
        // SAFETY: the call reads the limit, and changes only limits of this child.
        let is_set = unsafe { libc::setrlimit(libc::RLIMIT_DATA, &raw const limit) } == 0;
        is_set
            && Mapping::new(64 << 20, 2 << 20, Backing::Ordinary).is_err()
            && Mapping::in_file("test", 64 << 20, 2 << 20, Backing::Ordinary).is_ok()
    });
    assert_eq!(of_child, 0);
}

#[test]
fn mappings_larger_than_the_address_space_are_refused() {
    assert!(Mapping::new(usize::MAX - 5, 4096, Backing::Ordinary).is_err());
    assert!(Mapping::new(1 << 55, 4096, Backing::Ordinary).is_err());
}
