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

/// Loads 16 bytes of cells.
///
/// # Safety
/// The bytes must be cells that a shared reference covers.
#[inline(always)]
unsafe fn load(at: *const __m128i) -> __m128i {
    let vector;
    // SAFETY: the caller guarantees valid cells. The block may be the acquire of other memory, so it is not `readonly`.
    unsafe {
        asm!("movdqu {vector}, [{at}]", at = in(reg) at, vector = lateout(xmm_reg) vector,
            options(nostack, preserves_flags));
    }
    vector
}

/// Stores 16 bytes to cells.
///
/// # Safety
/// The bytes must be cells that a shared reference covers.
#[inline(always)]
unsafe fn store(at: *const __m128i, vector: __m128i) {
    // SAFETY: the caller guarantees valid cells, which may change through shared references.
    unsafe {
        asm!("movdqu [{at}], {vector}", at = in(reg) at, vector = in(xmm_reg) vector,
            options(nostack, preserves_flags));
    }
}

/// Whether all bytes of a vector are zero.
#[inline(always)]
fn is_zero(vector: __m128i) -> bool {
    // SAFETY: every x86-64 processor that runs Linux has SSE2, here and below.
    unsafe { _mm_movemask_epi8(_mm_cmpeq_epi8(vector, _mm_setzero_si128())) == 0xffff }
}

/// Implements [`zonal::Platform::replace_all`].
#[inline]
pub(crate) fn replace_all(cells: &[AtomicU8; WORD_FRAMES], from: u8, to: u8) -> bool {
    let at = cells.as_ptr().cast::<__m128i>();
    // SAFETY: the four vectors are the 64 cells.
    unsafe {
        let [from, to] = [from, to].map(|byte| _mm_set1_epi8(byte.cast_signed()));
        let differences = (0..4).fold(_mm_setzero_si128(), |all, step| {
            _mm_or_si128(all, _mm_xor_si128(load(at.add(step)), from))
        });
        if !is_zero(differences) {
            return false;
        }
        (0..4).for_each(|step| store(at.add(step), to));
    }
    true
}

/// Implements [`zonal::Platform::exchange_each`].
#[inline]
pub(crate) fn exchange_each(cells: &[AtomicU8; WORD_FRAMES], from: u8, to: u8) -> u64 {
    // An exchange that crosses cache lines would be very slow.
    if !cells.as_ptr().addr().is_multiple_of(size_of::<u64>()) {
        return whole_words::exchange_each(cells, from, to);
    }
    let eights = cells.as_chunks::<8>().0.iter().enumerate();
    eights.fold(0, |bits, (at, eight)| bits | exchange_eight(eight, from, to) << (8 * at))
}

/// Performs [`exchange_each`] for eight cells, which are aligned, with one exchange if all hold `from`.
#[inline]
fn exchange_eight(cells: &[AtomicU8; 8], from: u8, to: u8) -> u64 {
    let [all_from, all_to] = [from, to].map(|byte| u64::from_ne_bytes([byte; 8]));
    let found: u64;
    // SAFETY: the access is to the eight cells, whose type permits shared mutation.
    unsafe {
        asm!("lock cmpxchg [{cells}], {all_to}", cells = in(reg) cells.as_ptr(), all_to = in(reg) all_to,
            inout("rax") all_from => found, options(nostack));
    }
    if found == all_from { 0xff } else { whole_words::exchange_each(cells, from, to) }
}

/// Implements [`zonal::Platform::store_ascending`].
#[inline]
pub(crate) fn store_ascending(cells: &[AtomicU32; WORD_FRAMES], first: u32) {
    let at = cells.as_ptr().cast::<__m128i>();
    // SAFETY: the 16 vectors are the 64 cells.
    unsafe {
        let four = _mm_set1_epi32(4);
        let mut numbers = run_from(first, 1);
        for step in 0..16 {
            store(at.add(step), numbers);
            numbers = _mm_add_epi32(numbers, four);
        }
    }
}

/// Implements [`zonal::Platform::holds_run`].
#[inline]
pub(crate) fn holds_run(cells: &[AtomicU32; WORD_FRAMES], direction: Direction) -> bool {
    let step = match direction {
        Direction::Ascending => 1,
        Direction::Descending => -1,
    };
    let first = cells[0].load(Relaxed);
    let at = cells.as_ptr().cast::<__m128i>();
    // SAFETY: the 16 vectors are the 64 cells.
    unsafe {
        let (mut expected, by) = (run_from(first, step), _mm_set1_epi32(4 * step));
        let mut differences = _mm_setzero_si128();
        for step in 0..16 {
            differences = _mm_or_si128(differences, _mm_xor_si128(load(at.add(step)), expected));
            expected = _mm_add_epi32(expected, by);
        }
        is_zero(differences)
    }
}

/// Returns `first` and the next three numbers, `step` apart.
#[inline(always)]
fn run_from(first: u32, step: i32) -> __m128i {
    // SAFETY: as in `is_zero`.
    unsafe { _mm_add_epi32(_mm_set1_epi32(first.cast_signed()), _mm_set_epi32(3 * step, 2 * step, step, 0)) }
}
