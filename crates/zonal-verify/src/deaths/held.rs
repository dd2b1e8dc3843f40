//! Blocks with contents that say to which block they belong.

use zonal_linux::{FrameRange, Order, PageCount, Pfn, Pool};

/// A block or run, and what its frames contain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Held {
    pub(super) first: Pfn,
    pub(super) count: u64,
    pub(super) tag: u64,
}

impl Held {
    pub(super) fn range(&self) -> FrameRange {
        FrameRange { start: self.first, count: PageCount::new(self.count) }
    }

    /// Returns the parts that a split into blocks of at most `order` leaves.
    pub(super) fn parts(self, order: Order) -> impl Iterator<Item = Self> {
        self.range().blocks(order).map(move |(first, order)| Self {
            first,
            count: order.pages().get(),
            tag: self.tag,
        })
    }

    pub(super) fn overlaps(&self, (first, count): (u64, u64)) -> bool {
        self.first.get() < first + count && first < self.first.get() + self.count
    }

    /// Writes the contents.
    pub(super) fn fill(self, pool: &Pool) -> Self {
        // SAFETY: the caller's process has just allocated the words.
        self.words(pool).for_each(|(word, value)| unsafe { word.write_volatile(value) });
        self
    }

    /// Panics if the contents are not those that [`Held::fill`] has written.
    pub(super) fn check(self, pool: &Pool) -> Self {
        for (word, value) in self.words(pool) {
            // SAFETY: the block is allocated, and in the hands of the caller.
            let found = unsafe { word.read_volatile() };
            assert!(found == value, "{self:?} has {found:#x} instead of {value:#x} at {word:p}");
        }
        self
    }

    /// Returns the words with their contents, which differ between all frames.
    fn words(self, pool: &Pool) -> impl Iterator<Item = (*mut u64, u64)> {
        let bytes = pool.page_bytes() as u64;
        let start = pool.ptr_of(self.first).expect("it is a frame of the pool").cast::<u64>().as_ptr();
        let first = self.first.get() * bytes;
        (0..self.count * bytes / 8)
            .map(move |at| (start.wrapping_add(at as usize), self.tag ^ (first + 8 * at)))
    }

    pub(super) fn to_line(self) -> String {
        format!("{} {} {}", self.first.get(), self.count, self.tag)
    }

    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut numbers = text.split(' ').map_while(|number| number.parse().ok());
        Some(Self { first: Pfn::new(numbers.next()?), count: numbers.next()?, tag: numbers.next()? })
    }
}
