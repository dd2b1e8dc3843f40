//! Bounds on the frames of one node's zones, for single zones and sums of neighbouring kinds' zones.
//!
//! A zone's lowmem reserve is the sum of the zones above it, divided by a ratio and rounded down. It therefore bounds
//! the sum of neighbouring zones, and such a bound is a bound on the difference of two prefix sums. Shortest paths over
//! the prefixes show whether all bounds can be satisfied together. They also make each bound as tight as the others
//! imply, and yield whole numbers that satisfy all bounds.

use zonal::units::{PageCount, ZoneKind};

/// Number of prefix sums: the sum of no kinds, of the lowest kind, and so on up to all kinds.
const PREFIXES: usize = ZoneKind::COUNT + 1;
/// A bound larger than any machine's frames, and small enough to add without overflow.
const UNBOUNDED: i64 = 1 << 58;

/// The range of frames `least..=most`, which is empty if `least` is larger.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Range {
    pub(super) least: u64,
    pub(super) most: u64,
}

impl Range {
    pub(super) fn and(self, other: Self) -> Self {
        Self { least: self.least.max(other.least), most: self.most.min(other.most) }
    }
}

/// Bounds on differences of prefix sums: `most[a][b]` is the largest value of prefix `b` minus prefix `a`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct NodeSums {
    most: [[i64; PREFIXES]; PREFIXES],
}

impl NodeSums {
    /// Creates the bounds from the zones of a node. Kinds without a zone have no frames.
    pub(super) fn new(zones: impl Iterator<Item = (ZoneKind, Range)>) -> Self {
        let mut sums = Self { most: [[UNBOUNDED; PREFIXES]; PREFIXES] };
        for at in 0..PREFIXES {
            sums.most[at][at] = 0;
        }
        let mut present = [false; ZoneKind::COUNT];
        for (kind, range) in zones {
            present[kind.index()] = true;
            sums.confine(kind, range);
        }
        for kind in ZoneKind::ALL.into_iter().filter(|kind| !present[kind.index()]) {
            sums.confine(kind, Range { least: 0, most: 0 });
        }
        sums
    }

    /// Confines one zone to a range.
    pub(super) fn confine(&mut self, kind: ZoneKind, range: Range) {
        self.bound(kind.index(), kind.index() + 1, range);
    }

    /// Adds the bounds that follow from the reserves of the `kind` zone. `row` has one reserve for each limit, and each
    /// reserve is the sum of the zones above the zone up to the limit, divided by `ratio`.
    pub(super) fn add_reserves(&mut self, kind: ZoneKind, row: &[PageCount; 5], ratio: u64) {
        for limit in ZoneKind::ALL.into_iter().filter(|&limit| limit > kind) {
            let least = row[limit.index()].get().saturating_mul(ratio);
            let range = Range { least, most: least.saturating_add(ratio - 1) };
            self.bound(kind.index() + 1, limit.index() + 1, range);
        }
    }

    fn bound(&mut self, from: usize, to: usize, range: Range) {
        let narrow = |frames: u64| i64::try_from(frames).unwrap_or(UNBOUNDED).min(UNBOUNDED);
        self.most[from][to] = self.most[from][to].min(narrow(range.most));
        self.most[to][from] = self.most[to][from].min(-narrow(range.least));
    }

    /// Tightens each bound as far as the other bounds imply. Returns `None` if the bounds contradict each other.
    pub(super) fn tightened(mut self) -> Option<Self> {
        for over in 0..PREFIXES {
            for from in 0..PREFIXES {
                for to in 0..PREFIXES {
                    // With contradicting bounds the sums become smaller in each round, so they are clamped to a
                    // negative bound.
                    let through = (self.most[from][over] + self.most[over][to]).max(-UNBOUNDED);
                    self.most[from][to] = self.most[from][to].min(through);
                }
            }
        }
        (0..PREFIXES).all(|at| self.most[at][at] >= 0).then_some(self)
    }

    /// Returns the frame range of one kind. The bounds must be tightened, as for [`Self::below`].
    pub(super) fn of(&self, kind: ZoneKind) -> Range {
        self.between(kind.index(), kind.index() + 1)
    }

    /// Returns the range for the sum of all kinds below an index.
    pub(super) fn below(&self, kinds: usize) -> Range {
        self.between(0, kinds)
    }

    fn between(&self, from: usize, to: usize) -> Range {
        let frames = |bound: i64| u64::try_from(bound).unwrap_or(0);
        Range { least: frames(-self.most[to][from]), most: frames(self.most[from][to]) }
    }

    /// Fixes the sum of all kinds below an index.
    pub(super) fn set_below(&mut self, kinds: usize, frames: u64) {
        self.bound(0, kinds, Range { least: frames, most: frames });
    }

    /// Returns two choices of frames per kind that satisfy all bounds. The first has as many frames as possible in the
    /// lower kinds, and the second as few as possible.
    pub(super) fn extremes(&self) -> [[u64; ZoneKind::COUNT]; 2] {
        let upper = |at: usize| self.most[0][at];
        let lower = |at: usize| -self.most[at][0];
        let differences = |prefix: &dyn Fn(usize) -> i64| {
            std::array::from_fn(|kind| u64::try_from(prefix(kind + 1) - prefix(kind)).unwrap_or(0))
        };
        [differences(&upper), differences(&lower)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(least: u64, most: u64) -> Range {
        Range { least, most }
    }

    fn pages(row: [u64; 5]) -> [PageCount; 5] {
        row.map(PageCount::new)
    }

    #[test]
    fn reserves_confine_sums_of_zones() {
        let zones = [
            (ZoneKind::Dma, range(0, 3840)),
            (ZoneKind::Dma32, range(0, 9000)),
            (ZoneKind::Normal, range(0, 5000)),
        ];
        let mut sums = NodeSums::new(zones.into_iter());
        sums.add_reserves(ZoneKind::Dma, &pages([0, 31, 50, 50, 50]), 256);
        let tight = sums.tightened().unwrap();
        assert_eq!(tight.of(ZoneKind::Dma), range(0, 3840));
        assert_eq!(tight.of(ZoneKind::Dma32), range(31 * 256, 31 * 256 + 255));
        assert_eq!(tight.of(ZoneKind::Normal), range(50 * 256 - 31 * 256 - 255, 5000));
        assert_eq!(tight.of(ZoneKind::Movable), range(0, 0));
        assert_eq!(tight.below(2).least, 31 * 256);
    }

    #[test]
    fn contradictory_bounds_are_detected() {
        let zones = [(ZoneKind::Dma, range(0, 3840)), (ZoneKind::Dma32, range(0, 9000))];
        let mut sums = NodeSums::new(zones.into_iter());
        sums.add_reserves(ZoneKind::Dma, &pages([0, 36, 36, 36, 36]), 256);
        assert_eq!(sums.clone().tightened(), None, "36 * 256 > 9000");
        assert_eq!(NodeSums::new([(ZoneKind::Dma, range(5, 4))].into_iter()).tightened(), None);
        // A zone without frames adds nothing to a reserve.
        let mut sums = NodeSums::new(zones.into_iter());
        sums.add_reserves(ZoneKind::Dma, &pages([0, 30, 31, 31, 31]), 256);
        assert_eq!(sums.tightened(), None);
    }

    #[test]
    fn choices_satisfy_all_bounds() {
        let zones = [
            (ZoneKind::Dma, range(100, 3840)),
            (ZoneKind::Dma32, range(0, 9000)),
            (ZoneKind::Normal, range(0, 5000)),
            (ZoneKind::Movable, range(0, 700)),
        ];
        let mut sums = NodeSums::new(zones.into_iter());
        sums.add_reserves(ZoneKind::Dma, &pages([0, 31, 50, 52, 52]), 256);
        sums.add_reserves(ZoneKind::Dma32, &pages([0, 0, 150, 166, 166]), 32);
        sums = sums.tightened().unwrap();
        let total = sums.below(3);
        for frames in [total.least, total.most, (total.least + total.most) / 2] {
            let mut fixed = sums.clone();
            fixed.set_below(3, frames);
            for choice in fixed.tightened().unwrap().extremes() {
                assert_eq!(choice[..3].iter().sum::<u64>(), frames);
                for (kind, range) in zones {
                    assert!((range.least..=range.most).contains(&choice[kind.index()]), "{choice:?}");
                }
                let sum = |kinds: std::ops::Range<usize>| choice[kinds].iter().sum::<u64>();
                assert_eq!([sum(1..2) / 256, sum(1..3) / 256, sum(1..4) / 256], [31, 50, 52]);
                assert_eq!([sum(2..3) / 32, sum(2..4) / 32], [150, 166]);
            }
        }
    }
}
