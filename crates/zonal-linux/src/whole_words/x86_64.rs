//! The accesses to whole words for x86-64: 16 bytes with one instruction.
//!
//! To the memory model such an instruction is one access for each cell, in an unspecified order. The two instructions
//! are assembly, because the language has no accesses that overlap atomics of another size. On x86-64 every load is an
//! acquire, every store is a release, and each byte or aligned word of a vector is accessed whole.

use std::arch::asm;
use std::arch::x86_64::{
    __m128i, _mm_add_epi32, _mm_cmpeq_epi8, _mm_movemask_epi8, _mm_or_si128, _mm_set_epi32, _mm_set1_epi8,
    _mm_set1_epi32, _mm_setzero_si128, _mm_xor_si128,
};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU8, AtomicU32};

use zonal::platform::whole_words::{self, Direction, WORD_FRAMES};

/// Defines a load and a store of 16 cell bytes.
macro_rules! vector_access {
    ($load:ident, $store:ident: $($cells:tt)*) => {
        #[inline(always)]
        fn $load(cells: &$($cells)*) -> __m128i {
            const { assert!(size_of::<$($cells)*>() == 16) };
            let vector;
            // SAFETY: the access is to the cells. The load may be an acquire of other memory, so the block is not
            // `readonly`.
            unsafe {
                asm!("movdqu {vector}, [{at}]", at = in(reg) cells.as_ptr(), vector = lateout(xmm_reg) vector,
                    options(nostack, preserves_flags));
            }
            vector
        }

        #[inline(always)]
        fn $store(cells: &$($cells)*, vector: __m128i) {
            // SAFETY: the access is to the cells, whose type permits shared mutation.
            unsafe {
                asm!("movdqu [{at}], {vector}", at = in(reg) cells.as_ptr(), vector = in(xmm_reg) vector,
                    options(nostack, preserves_flags));
            }
        }
    };
}
vector_access!(load_bytes, store_bytes: [AtomicU8; 16]);
vector_access!(load_numbers, store_numbers: [AtomicU32; 4]);

/// Implements [`zonal::Platform::replace_all`].
#[inline]
pub(crate) fn replace_all(cells: &[AtomicU8; WORD_FRAMES], from: u8, to: u8) -> bool {
    // SAFETY: every x86-64 processor that runs Linux has SSE2, here and below.
    unsafe { replace_all_by_vectors(cells, from, to) }
}

#[inline]
#[target_feature(enable = "sse2")]
fn replace_all_by_vectors(cells: &[AtomicU8; WORD_FRAMES], from: u8, to: u8) -> bool {
    let [from, to] = [_mm_set1_epi8(from.cast_signed()), _mm_set1_epi8(to.cast_signed())];
    let (vectors, mut differences) = (cells.as_chunks::<16>().0, _mm_setzero_si128());
    for cells in vectors {
        differences = _mm_or_si128(differences, _mm_xor_si128(load_bytes(cells), from));
    }
    if !is_zero(differences) {
        return false;
    }
    vectors.iter().for_each(|cells| store_bytes(cells, to));
    true
}

/// Whether all bytes of a vector are zero.
#[inline]
#[target_feature(enable = "sse2")]
fn is_zero(vector: __m128i) -> bool {
    _mm_movemask_epi8(_mm_cmpeq_epi8(vector, _mm_setzero_si128())) == 0xffff
}

/// Implements [`zonal::Platform::exchange_leading`].
#[inline]
pub(crate) fn exchange_leading(cells: &[AtomicU8; WORD_FRAMES], from: u8, to: u8) -> usize {
    // An exchange that crosses cache lines would be very slow.
    if !cells.as_ptr().addr().is_multiple_of(size_of::<u64>()) {
        return whole_words::exchange_leading(cells, from, to);
    }
    let mut exchanged = 0;
    for eight in cells.as_chunks::<8>().0 {
        let of_eight = exchange_eight(eight, from, to);
        exchanged += of_eight;
        if of_eight != eight.len() {
            break;
        }
    }
    exchanged
}

/// Performs [`exchange_leading`] for eight cells, which are aligned, with one exchange if all hold `from`.
#[inline]
fn exchange_eight(cells: &[AtomicU8; 8], from: u8, to: u8) -> usize {
    let [all_from, all_to] = [from, to].map(|byte| u64::from_ne_bytes([byte; 8]));
    let found: u64;
    // SAFETY: the access is to the eight cells, whose type permits shared mutation.
    unsafe {
        asm!("lock cmpxchg [{cells}], {all_to}", cells = in(reg) cells.as_ptr(), all_to = in(reg) all_to,
            inout("rax") all_from => found, options(nostack));
    }
    if found == all_from { 8 } else { whole_words::exchange_leading(cells, from, to) }
}

/// Implements [`zonal::Platform::store_ascending`].
#[inline]
pub(crate) fn store_ascending(cells: &[AtomicU32; WORD_FRAMES], first: u32) {
    // SAFETY: as in `replace_all`.
    unsafe { store_ascending_by_vectors(cells, first) }
}

#[inline]
#[target_feature(enable = "sse2")]
fn store_ascending_by_vectors(cells: &[AtomicU32; WORD_FRAMES], first: u32) {
    let (mut numbers, four) = (run_from(first, 1), _mm_set1_epi32(4));
    for cells in cells.as_chunks::<4>().0 {
        store_numbers(cells, numbers);
        numbers = _mm_add_epi32(numbers, four);
    }
}

/// Implements [`zonal::Platform::holds_run`].
#[inline]
pub(crate) fn holds_run(cells: &[AtomicU32; WORD_FRAMES], direction: Direction) -> bool {
    let step = match direction {
        Direction::Ascending => 1,
        Direction::Descending => -1,
    };
    // SAFETY: as in `replace_all`.
    unsafe { holds_run_by_vectors(cells, step) }
}

#[inline]
#[target_feature(enable = "sse2")]
fn holds_run_by_vectors(cells: &[AtomicU32; WORD_FRAMES], step: i32) -> bool {
    let (mut expected, by) = (run_from(cells[0].load(Relaxed), step), _mm_set1_epi32(4 * step));
    let mut differences = _mm_setzero_si128();
    for cells in cells.as_chunks::<4>().0 {
        differences = _mm_or_si128(differences, _mm_xor_si128(load_numbers(cells), expected));
        expected = _mm_add_epi32(expected, by);
    }
    is_zero(differences)
}

/// Returns `first` and the next three numbers, `step` apart.
#[inline]
#[target_feature(enable = "sse2")]
fn run_from(first: u32, step: i32) -> __m128i {
    _mm_add_epi32(_mm_set1_epi32(first.cast_signed()), _mm_set_epi32(3 * step, 2 * step, step, 0))
}
