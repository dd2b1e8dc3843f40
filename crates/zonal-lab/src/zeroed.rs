//! Large zeroed arrays in their own mappings, most of them in huge pages where the host has them.
//!
//! Runs read and write scattered parts of such arrays. With small pages, each of these parts faults, and the first write to a page
//! that was read before interrupts all of the host's CPUs that run this program. The largest arrays are those of machines with
//! hundreds of nodes: runs use so few lines of each node that clearing huge pages would take longer than everything else.

use std::alloc::{Layout, handle_alloc_error};
use std::cell::Cell;
use std::ops::Deref;
use std::slice;

use memmap2::{Advice, MmapMut, MmapOptions, MmapRaw};

/// An array whose elements are zero at first.
pub(crate) struct Zeroed {
    memory: MmapRaw,
    len: usize,
}

impl Zeroed {
    /// Creates an array of `len` elements.
    pub(crate) fn new(len: usize) -> Self {
        let layout = Layout::array::<Cell<u64>>(len).expect("an array fits into the address space");
        let mapped = map_zeros(MmapOptions::new().len(layout.size().max(1)));
        let memory = mapped.unwrap_or_else(|_| handle_alloc_error(layout));
        Self { memory: memory.into(), len }
    }
}

impl Deref for Zeroed {
    type Target = [Cell<u64>];

    #[inline(always)]
    fn deref(&self) -> &[Cell<u64>] {
        // SAFETY: the mapping is private, holds `len` elements, begins at a page, and is zero where no element was written; zero is a
        // valid value. The bytes are reached only through the elements, whose cells may be written through this pointer.
        #[allow(unsafe_code)]
        unsafe {
            slice::from_raw_parts(self.memory.as_mut_ptr().cast::<Cell<u64>>().cast_const(), self.len)
        }
    }
}

/// Size up to which arrays are in huge pages, in bytes.
const DENSE_BYTES: usize = 256 << 20;

/// Maps zeros, in huge pages if they are worth it.
pub(crate) fn map_zeros(options: &MmapOptions) -> std::io::Result<MmapMut> {
    let memory = options.map_anon()?;
    if memory.len() <= DENSE_BYTES {
        // A kernel without huge pages refuses.
        let _ = memory.advise(Advice::HugePage);
    }
    Ok(memory)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_are_zero_and_keep_what_is_written() {
        for len in [0, 1, 1 << 20] {
            let array = Zeroed::new(len);
            assert_eq!(array.len(), len);
            assert!(array.iter().all(|element| element.get() == 0));
            array.iter().enumerate().for_each(|(at, element)| element.set(at as u64));
            assert!(array.iter().enumerate().all(|(at, element)| element.get() == at as u64));
        }
    }
}
