//! The trait that an allocator implements to be measured.

use zonal::units::Order;

/// One thread's access to an allocator of pages.
pub trait PageSource {
    /// Identifies an allocated block: its number or its address. Another thread may free it.
    type Page: Copy + Default + Send;

    /// Allocates a block of `order`. Returns `None` if there is no such block.
    fn alloc(&mut self, order: Order) -> Option<Self::Page>;

    /// Frees a block that was allocated with this `order`.
    fn free(&mut self, page: Self::Page, order: Order);

    /// Stores to the first frame of a block. Only [`Workload::Touch`](crate::Workload::Touch) calls it.
    ///
    /// # Panics
    /// Panics if the pages have no memory, as in allocators that only manage numbers.
    fn touch(&mut self, _page: Self::Page) {
        panic!("this source has no memory behind its pages, so it cannot run `touch`");
    }

    /// Runs on the source's own thread just before its measured part.
    fn measuring_begins(&mut self) {}

    /// Runs on the source's own thread just after its measured part.
    fn measuring_ends(&mut self) {}
}
