//! The one trait that an allocator implements to be driven: what a thread may do with it.

use zonal::units::Order;

/// One thread's way to an allocator of pages.
pub trait PageSource {
    /// What is held of a block: its number or its address. Another thread may give it back.
    type Page: Copy + Default + Send;

    /// Takes a block of `order`, or `None` when there is none.
    fn take(&mut self, order: Order) -> Option<Self::Page>;

    /// Gives back a block that was taken with this `order`.
    fn give(&mut self, page: Self::Page, order: Order);

    /// Stores to the first frame of a block. Only [`Workload::Touch`](crate::Workload::Touch) asks for it.
    ///
    /// # Panics
    /// When there is no memory behind the pages, as with allocators that only keep numbers.
    fn touch(&mut self, _page: Self::Page) {
        panic!("this source has no memory behind its pages, so it cannot run `touch`");
    }

    /// Called on the source's own thread just before its measured part.
    fn measuring_begins(&mut self) {}

    /// Called on the source's own thread just after its measured part.
    fn measuring_ends(&mut self) {}
}
