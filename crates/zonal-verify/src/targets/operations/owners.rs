//! Who has each frame, as the caller of the allocator must see it, and the blocks handed out.
//!
//! Neighbours: `operations.rs` writes here whatever the allocator says it did.

use std::collections::BTreeMap;

use zonal::machine::FrameRange;
use zonal::request::PageKind;
use zonal::units::{NodeId, Order, PageCount, Pfn, ZoneKind};

use super::plan::Plan;

/// What a frame is to the caller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Frame {
    /// Of no zone, in a hole, or taken offline.
    Absent,
    /// The allocator has it.
    Unowned,
    /// It is in a block that was handed out.
    Owned,
}

/// A block that was handed out.
#[derive(Clone, Copy, Debug)]
pub(super) struct Held {
    pub(super) order: Order,
    pub(super) kind: PageKind,
    pub(super) node: NodeId,
}

/// The table of owners. Invariant: the frames of `held` are those that are owned, `managed` counts these
/// and the unowned ones.
#[derive(Debug)]
pub(super) struct Owners {
    frames: Vec<Frame>,
    zones: Vec<(NodeId, ZoneKind, FrameRange)>,
    /// By first frame, each with its place in `firsts`.
    held: BTreeMap<u64, (Held, usize)>,
    /// First frames of `held` in any order, to pick from.
    firsts: Vec<u64>,
    managed: u64,
    owned: u64,
    /// Owned frames by node and kind.
    by_node: [[u64; PageKind::COUNT]; 4],
}

impl Owners {
    pub(super) fn new(plan: &Plan) -> Self {
        let end = plan.zones.iter().map(|zone| zone.span.end().get()).max().unwrap_or(0);
        let mut frames = vec![Frame::Absent; end as usize];
        for range in plan.zones.iter().flat_map(|zone| &zone.managed) {
            frames[range.start.get() as usize..range.end().get() as usize].fill(Frame::Unowned);
        }
        let zones = plan.zones.iter().map(|zone| (zone.node, zone.kind, zone.span)).collect();
        let managed = frames.iter().filter(|&&frame| frame == Frame::Unowned).count() as u64;
        Self {
            frames,
            zones,
            held: BTreeMap::new(),
            firsts: Vec::new(),
            managed,
            owned: 0,
            by_node: Default::default(),
        }
    }

    /// Number of frame numbers that mean anything.
    pub(super) fn end(&self) -> u64 {
        self.frames.len() as u64
    }

    pub(super) fn frame(&self, frame: u64) -> Frame {
        self.frames.get(frame as usize).copied().unwrap_or(Frame::Absent)
    }

    /// Frames the allocator manages.
    pub(super) fn managed(&self) -> u64 {
        self.managed
    }

    /// Frames handed out.
    pub(super) fn owned(&self) -> u64 {
        self.owned
    }

    /// Frames of kind `kind` on `node` that are handed out.
    pub(super) fn owned_of(&self, node: NodeId, kind: PageKind) -> u64 {
        self.by_node[node.index()][kind as usize]
    }

    /// Writes down a block that was handed out; gives the node and kind of its zone.
    pub(super) fn take(&mut self, first: Pfn, order: Order, kind: PageKind) -> (NodeId, ZoneKind) {
        assert!(first.is_aligned_to(order), "frame {first} is not aligned to order {order}");
        let block = FrameRange { start: first, count: order.pages() };
        let zone = self.zones.iter().find(|(_, _, span)| span.contains(&block));
        let &(node, zone, _) = zone.unwrap_or_else(|| panic!("{block:?} lies not in one zone"));
        for frame in first.get()..block.end().get() {
            assert_eq!(self.frame(frame), Frame::Unowned, "frame {frame} was handed out in {block:?}");
            self.frames[frame as usize] = Frame::Owned;
        }
        self.held.insert(first.get(), (Held { order, kind, node }, self.firsts.len()));
        self.firsts.push(first.get());
        self.owned += order.pages().get();
        self.by_node[node.index()][kind as usize] += order.pages().get();
        (node, zone)
    }

    /// The block at a place, if any is handed out.
    pub(super) fn pick(&self, place: u64) -> Option<(u64, Held)> {
        let first = *self.firsts.get(place.checked_rem(self.firsts.len() as u64)? as usize)?;
        Some((first, self.held[&first].0))
    }

    /// The block that begins at a frame.
    pub(super) fn held(&self, first: u64) -> Option<Held> {
        self.held.get(&first).map(|(held, _)| *held)
    }

    /// Blocks on `node` of a kind, some `target` frames of them.
    pub(super) fn some_of(&self, node: NodeId, kind: PageKind, target: PageCount) -> Vec<(u64, Held)> {
        let mut rest = target;
        let wanted = self.held.iter().filter(|(_, (held, _))| held.node == node && held.kind == kind);
        wanted
            .take_while(|(_, (held, _))| {
                let more = rest > PageCount::ZERO;
                rest = rest.saturating_minus(held.order.pages());
                more
            })
            .map(|(&first, &(held, _))| (first, held))
            .collect()
    }

    /// Writes down that a block was given back.
    pub(super) fn give(&mut self, first: u64) {
        let (held, place) = self.held.remove(&first).expect("only what is held is given back");
        self.firsts.swap_remove(place);
        if let Some(moved) = self.firsts.get(place) {
            self.held.get_mut(moved).expect("what is listed is held").1 = place;
        }
        let count = held.order.pages().get();
        self.frames[first as usize..(first + count) as usize].fill(Frame::Unowned);
        self.owned -= count;
        self.by_node[held.node.index()][held.kind as usize] -= count;
    }

    /// What there is of each kind of frame in a range: absent, unowned, owned.
    pub(super) fn census(&self, range: &FrameRange) -> [u64; 3] {
        let mut census = [0; 3];
        (range.start.get()..range.end().get()).for_each(|frame| census[self.frame(frame) as usize] += 1);
        census
    }

    /// Whether a range lies within the span of one zone.
    pub(super) fn is_in_one_zone(&self, range: &FrameRange) -> bool {
        self.zones.iter().any(|(_, _, span)| span.contains(range))
    }

    /// Writes down that all frames of a range came or went.
    pub(super) fn set(&mut self, range: &FrameRange, frame: Frame) {
        let count = range.count.get();
        self.managed = if frame == Frame::Absent { self.managed - count } else { self.managed + count };
        self.frames[range.start.get() as usize..range.end().get() as usize].fill(frame);
    }
}
