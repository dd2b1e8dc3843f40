//! A peer that allocates blocks of one order, whatever order the workload asks for.

use zonal::units::Order;
use zonal_workload::PageSource;

use crate::contender::Contender;

/// A peer, and the order of its blocks.
pub(super) struct AtOrder<C>(pub(super) C, pub(super) Order);

pub(super) struct AtOrderSource<S>(S, Order);

impl<S: PageSource> PageSource for AtOrderSource<S> {
    type Page = S::Page;

    #[inline(always)]
    fn alloc(&mut self, _order: Order) -> Option<S::Page> {
        self.0.alloc(self.1)
    }

    #[inline(always)]
    fn free(&mut self, page: S::Page, _order: Order) {
        self.0.free(page, self.1);
    }
}

impl<C: Contender> Contender for AtOrder<C> {
    type Source<'a> = AtOrderSource<C::Source<'a>>;

    fn source(&self) -> Self::Source<'_> {
        AtOrderSource(self.0.source(), self.1)
    }
}
