//! The layout of a topology: groups as nested frames, in rows of similar length.

use super::groups::Group;
use super::{Detail, Topology};

/// Maximum width of a picture, in pixels, unless a single node is wider.
const WIDTH_MAX: f64 = 1000.0;
/// Preferred ratio of a group's width to its height.
const RATIO: f64 = 1.9;
/// How much empty space counts in comparison with an unsuitable ratio.
const EMPTY_WEIGHT: f64 = 8.0;

/// A part of the picture, at its place.
#[derive(Clone, Debug)]
pub(super) enum Part<'a> {
    /// A node, by its index.
    Node(usize),
    /// The frame of a group.
    Frame(&'a Group, (f64, f64)),
}

/// A laid out group: its size and its parts, outer parts first.
#[derive(Clone, Default, Debug)]
pub(super) struct Layout<'a> {
    pub(super) size: (f64, f64),
    pub(super) parts: Vec<((f64, f64), Part<'a>)>,
}

/// Sizes in pixels that depend on the detail.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sizes {
    /// A node.
    pub(super) node: (f64, f64),
    /// Space between the members of a group, and around them.
    pub(super) gap: f64,
    /// Height of a frame's title.
    pub(super) head: f64,
}

impl Topology {
    pub(super) fn sizes(&self) -> Sizes {
        let zones = self.nodes.iter().map(|node| node.zones.len()).max().unwrap_or(0) as f64;
        match self.detail() {
            Detail::Full => Sizes { node: (196.0, 66.0 + 17.0 * zones), gap: 12.0, head: 22.0 },
            Detail::Compact => Sizes { node: (104.0, 56.0), gap: 6.0, head: 17.0 },
            Detail::Tiny => Sizes { node: (27.0, 21.0), gap: 3.0, head: 0.0 },
        }
    }
}

/// Lays out a group.
pub(super) fn layout(group: &Group, sizes: Sizes) -> Layout<'_> {
    let members = match group {
        Group::Node(node) => {
            return Layout { size: sizes.node, parts: vec![((0.0, 0.0), Part::Node(*node))] };
        }
        Group::Members { members, .. } => members,
    };
    let inner: Vec<Layout<'_>> = members.iter().map(|member| layout(member, sizes)).collect();
    let boxes: Vec<(f64, f64)> = inner.iter().map(|member| member.size).collect();
    let (places, (width, height)) = rows(&boxes, sizes.gap);
    let (left, top) = (sizes.gap, sizes.gap.max(sizes.head));
    let size = (width + 2.0 * sizes.gap, top + height + sizes.gap);
    let mut parts = vec![((0.0, 0.0), Part::Frame(group, size))];
    for (member, (x, y)) in inner.into_iter().zip(places) {
        let moved = |((inner_x, inner_y), part)| ((left + x + inner_x, top + y + inner_y), part);
        parts.extend(member.parts.into_iter().map(moved));
    }
    Layout { size, parts }
}

/// Arranges boxes in rows, in their order. Returns their places and the size of the whole. The length of rows is the one
/// with the best ratio and the least empty space.
fn rows(boxes: &[(f64, f64)], gap: f64) -> (Vec<(f64, f64)>, (f64, f64)) {
    let area: f64 = boxes.iter().map(|(width, height)| width * height).sum();
    let mut best = (Vec::new(), (0.0, 0.0));
    let mut best_score = f64::INFINITY;
    let mut width = -gap;
    for (at, (next, _)) in boxes.iter().enumerate() {
        width += gap + next;
        if at > 0 && width > WIDTH_MAX {
            break;
        }
        let arranged = shelves(boxes, width, gap);
        let (whole_width, whole_height) = arranged.1;
        let empty = 1.0 - area / (whole_width * whole_height);
        let score = EMPTY_WEIGHT * empty + (whole_width / whole_height / RATIO).ln().abs();
        if score < best_score {
            (best, best_score) = (arranged, score);
        }
    }
    best
}

/// Arranges boxes in rows of at most the given width.
fn shelves(boxes: &[(f64, f64)], width: f64, gap: f64) -> (Vec<(f64, f64)>, (f64, f64)) {
    let (mut x, mut y, mut row_height) = (0.0, 0.0, 0.0_f64);
    let mut size = (0.0_f64, 0.0_f64);
    let place = |(box_width, box_height): &(f64, f64)| {
        if x > 0.0 && x + box_width > width + 0.01 {
            (x, y, row_height) = (0.0, y + row_height + gap, 0.0);
        }
        let place = (x, y);
        row_height = row_height.max(*box_height);
        size = (size.0.max(x + box_width), size.1.max(y + box_height));
        x += box_width + gap;
        place
    };
    let places = boxes.iter().map(place).collect();
    (places, size)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZES: Sizes = Sizes { node: (100.0, 60.0), gap: 8.0, head: 20.0 };

    fn flat(count: usize) -> Group {
        Group::Members { members: (0..count).map(Group::Node).collect(), distances: (20, 20) }
    }

    /// Whether the boxes of two nodes overlap.
    fn overlap(a: (f64, f64), b: (f64, f64)) -> bool {
        (a.0 - b.0).abs() < SIZES.node.0 && (a.1 - b.1).abs() < SIZES.node.1
    }

    #[test]
    fn nodes_are_inside_their_frames_and_do_not_overlap() {
        let nested = Group::Members { members: vec![flat(3), flat(5), Group::Node(0)], distances: (30, 40) };
        for group in [Group::Node(0), flat(1), flat(2), flat(28), nested] {
            let Layout { size, parts } = layout(&group, SIZES);
            let mut nodes = Vec::new();
            for ((x, y), part) in &parts {
                let (width, height) = if let Part::Frame(_, size) = part { *size } else { SIZES.node };
                assert!(*x >= 0.0 && *y >= 0.0 && x + width <= size.0 && y + height <= size.1, "{parts:?}");
                if matches!(part, Part::Node(_)) {
                    nodes.push((*x, *y));
                }
            }
            assert_eq!(nodes.len(), group.nodes().len());
            for (at, a) in nodes.iter().enumerate() {
                assert!(nodes[at + 1..].iter().all(|b| !overlap(*a, *b)), "{nodes:?}");
            }
        }
    }

    #[test]
    fn rows_fill_a_rectangle_if_possible() {
        let across = |count: usize| {
            let group = flat(count);
            let parts = layout(&group, SIZES).parts;
            let top = parts.iter().filter(|((_, y), part)| matches!(part, Part::Node(_)) && *y == 20.0);
            top.count()
        };
        assert_eq!([1, 2, 3, 4, 6, 8, 12].map(across), [1, 2, 3, 2, 3, 4, 4]);
        assert!(layout(&flat(1024), SIZES).size.0 <= WIDTH_MAX + 2.0 * SIZES.gap);
    }
}
