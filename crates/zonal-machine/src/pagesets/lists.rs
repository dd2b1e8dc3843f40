//! The lists of a pageset: blocks by order and mobility, and frames whose list is not known.
//!
//! Related files: `mod.rs` says when blocks are added and taken.

use zonal::units::{Order, PageCount};

use super::{CachedOrders, DrainOrder, Moved};

/// The largest order besides that of 2 MiB blocks.
pub(super) const LARGEST: Order = match Order::new(3) {
    Some(order) => order,
    None => Order::PAGE,
};
/// The lists of single frames.
const SINGLE: usize = Mobility::ALL.len();
/// The list that kernels with one list of 2 MiB blocks do not have.
const UNUSED: usize = LISTS - 2;
/// Lists of orders 0 to 3 for each mobility, and two lists of 2 MiB blocks.
const LISTS: usize = 4 * Mobility::ALL.len() + 2;

/// Whether the contents of a block can be moved. Linux calls it migratetype.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Mobility {
    /// They cannot.
    Unmovable,
    /// They can.
    Movable,
    /// They cannot, but can be given up.
    Reclaimable,
}

impl Mobility {
    /// All kinds, in the order of the kernel's numbers.
    pub const ALL: [Self; 3] = [Self::Unmovable, Self::Movable, Self::Reclaimable];

    /// Returns the mobility with a kernel's number. Blocks with other numbers are kept with the movable ones.
    #[must_use]
    pub fn of_number(number: i32) -> Self {
        let known = usize::try_from(number).ok().and_then(|number| Self::ALL.get(number));
        known.copied().unwrap_or(Self::Movable)
    }
}

/// A list of a pageset.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PagesetList {
    /// The order of its blocks.
    pub order: Order,
    /// Their mobility.
    pub mobility: Mobility,
}

/// The index of the list for movable single frames.
const MOVABLE: usize = Mobility::Movable as usize;

/// The index of a list. Invariant: below [`LISTS`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Place(usize);

impl Place {
    pub(super) fn of(list: PagesetList) -> Self {
        if list.order <= LARGEST {
            return Self(usize::from(list.order.get()) * Mobility::ALL.len() + list.mobility as usize);
        }
        Self(LISTS - 2 + usize::from(list.mobility == Mobility::Movable))
    }

    const fn next(self) -> Self {
        Self((self.0 + 1) % LISTS)
    }
}

/// Frames whose list is not known.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
struct Unknown {
    pages: u64,
    /// The lists to which none of them belong, because they were found empty.
    excluded: [bool; LISTS],
}

/// The lists of a pageset. Invariant: `pages` is the sum of the blocks' frames and the unknown ones.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Lists {
    blocks: [u64; LISTS],
    /// The orders of the lists, which are known once a block was added.
    orders: [u8; LISTS],
    /// The number of lists that kernels with [`DrainOrder::Turns`] visit.
    ring: usize,
    unknown: Unknown,
    /// Blocks that turned out to be in a list at the start.
    found: [u64; LISTS],
    pages: u64,
}

/// What the lists of a pageset had at a start, as far as later steps showed it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FoundAtStart {
    blocks: [u64; LISTS],
    orders: [u8; LISTS],
}

impl Lists {
    /// Returns what the lists had at the start. Frames that were never seen are in the list for movable single frames,
    /// unless it was found empty.
    pub(super) fn found(&self) -> FoundAtStart {
        let mut found = FoundAtStart { blocks: self.found, orders: self.orders };
        if !self.unknown.excluded[MOVABLE] {
            found.blocks[MOVABLE] += self.unknown.pages;
        }
        found
    }

    /// Moves frames whose list is not known to the lists in which they were found. The others are in no list that is
    /// used.
    pub(super) fn know(&mut self, found: &FoundAtStart) {
        for place in 0..LISTS {
            let pages = 1 << found.orders[place];
            let blocks = found.blocks[place].min(self.unknown.pages / pages);
            self.orders[place] = found.orders[place];
            self.blocks[place] += blocks;
            self.unknown.pages -= blocks * pages;
        }
        self.unknown.excluded = [true; LISTS];
    }

    pub(super) fn of_unknown(count: PageCount, orders_cached: CachedOrders) -> Self {
        let ring = if orders_cached == CachedOrders::Single { SINGLE } else { LISTS };
        let mut orders = [0; LISTS];
        for (place, order) in orders.iter_mut().enumerate().take(LISTS - 2) {
            *order = (place / Mobility::ALL.len()) as u8;
        }
        let unknown = Unknown { pages: count.get(), excluded: [false; LISTS] };
        Self { blocks: [0; LISTS], orders, ring, unknown, found: [0; LISTS], pages: count.get() }
    }

    pub(super) const fn pages(&self) -> PageCount {
        PageCount::new(self.pages)
    }

    pub(super) fn in_list(&self, list: PagesetList) -> PageCount {
        PageCount::new(self.blocks[list.place().0] << list.order.get())
    }

    /// Adds blocks.
    pub(super) fn add(&mut self, list: PagesetList, blocks: u64) {
        let place = list.place().0;
        self.orders[place] = list.order.get();
        self.blocks[place] += blocks;
        self.pages += blocks << list.order.get();
    }

    /// Takes a block, and returns whether there was one.
    pub(super) fn take(&mut self, list: PagesetList) -> bool {
        let (place, pages) = (list.place().0, list.order.pages().get());
        if self.blocks[place] > 0 {
            self.blocks[place] -= 1;
        } else if list.order == Order::PAGE && self.unknown.pages > 0 && !self.unknown.excluded[place] {
            // Few of the frames at the start are in larger blocks.
            self.unknown.pages -= 1;
        } else {
            self.unknown.excluded[place] = true;
            return false;
        }
        self.pages -= pages;
        true
    }

    /// Takes a block that was there, from another list if this one is thought to be empty.
    pub(super) fn take_or_borrow(&mut self, list: PagesetList) {
        let pages = list.order.pages().get();
        let place = list.place().0;
        if self.blocks[place] > 0 {
            self.blocks[place] -= 1;
        } else if self.unknown.pages >= pages {
            self.unknown.pages -= pages;
            self.orders[place] = list.order.get();
            self.found[place] += 1;
        } else if let Some(other) =
            (0..LISTS).find(|other| self.orders[*other] == list.order.get() && self.blocks[*other] > 0)
        {
            self.blocks[other] -= 1;
        } else {
            return;
        }
        self.pages -= pages;
    }

    /// Makes a list empty, because it was found so. Its frames are in the list of another mobility.
    pub(super) fn forget(&mut self, list: PagesetList) {
        let place = list.place().0;
        let other = match list.mobility {
            Mobility::Movable => Mobility::Unmovable,
            Mobility::Unmovable | Mobility::Reclaimable => Mobility::Movable,
        };
        let blocks = std::mem::take(&mut self.blocks[place]);
        let other = PagesetList { mobility: other, ..list }.place().0;
        self.orders[other] = list.order.get();
        self.blocks[other] += blocks;
        self.unknown.excluded[place] = true;
    }

    /// Takes blocks with at least `size` frames, or all, beginning with the list `first`.
    pub(super) fn drain(&mut self, size: PageCount, first: Option<PagesetList>, order: DrainOrder) -> Moved {
        let mut left = size.get();
        let mut moved = Moved::default();
        let start = first.map_or(Place(0), PagesetList::place);
        match order {
            DrainOrder::WholeLists => {
                let mut place = start;
                for _ in 0..LISTS {
                    self.drain_list(place, u64::MAX, &mut left, &mut moved);
                    place = place.next();
                }
            }
            DrainOrder::Turns => self.drain_in_turns(&mut left, &mut moved),
        }
        let rest = left.min(self.unknown.pages);
        self.unknown.pages -= rest;
        self.pages -= rest;
        moved.plus(Moved { blocks: rest, pages: PageCount::new(rest) })
    }

    /// Takes `size` frames in batches, each as [`Lists::drain`] takes it from whole lists. The first list that has blocks gives all of its
    /// whole batches at once, so that the number of steps does not depend on `size`.
    pub(super) fn drain_in_batches(&mut self, size: PageCount, batch: PageCount) -> Moved {
        let mut left = size;
        let mut moved = Moved::default();
        while left > PageCount::ZERO && self.pages > 0 {
            let first = (0..LISTS).find(|&place| self.blocks[place] > 0);
            let (blocks, shift) =
                first.map_or((self.unknown.pages, 0), |place| (self.blocks[place], self.orders[place]));
            let each = batch.get().div_ceil(1 << shift);
            let batches = (blocks / each).min(left.get() / batch.get()).max(1);
            let wanted = if batches > 1 { (batches * each) << shift } else { left.min(batch).get() };
            moved = moved.plus(self.drain(PageCount::new(wanted), None, DrainOrder::WholeLists));
            left = left.saturating_minus(PageCount::new(batches * batch.get()));
        }
        moved
    }

    /// Takes blocks from all lists in turn, beginning with the second one. A list gives one block, and one more for each
    /// empty list before it.
    fn drain_in_turns(&mut self, left: &mut u64, moved: &mut Moved) {
        let ring = self.ring;
        let visited = ring.min(UNUSED + 1);
        let (mut place, mut turn) = (1, 0);
        while *left > 0 && self.blocks[..ring].iter().any(|blocks| *blocks > 0) {
            if place != UNUSED || self.blocks[place] > 0 {
                turn += 1;
                let most = if turn >= visited { u64::MAX } else { turn as u64 };
                if self.drain_list(Place(place), most, left, moved) {
                    turn = 0;
                }
            }
            place = (place + 1) % ring;
        }
    }

    /// Takes up to `most` blocks of a list while frames are `left` to take. Returns whether there were any.
    fn drain_list(&mut self, place: Place, most: u64, left: &mut u64, moved: &mut Moved) -> bool {
        let shift = self.orders[place.0];
        let wanted = left.div_ceil(1 << shift);
        let blocks = self.blocks[place.0].min(wanted).min(most);
        let pages = blocks << shift;
        self.blocks[place.0] -= blocks;
        self.pages -= pages;
        *left = left.saturating_sub(pages);
        *moved = moved.plus(Moved { blocks, pages: PageCount::new(pages) });
        blocks > 0
    }
}
