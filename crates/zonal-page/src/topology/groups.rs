//! Groups of nodes by distance: nodes that are close to each other are in the same group, and groups nest.

use std::collections::BTreeMap;

/// Maximum depth of nested groups. Deeper nesting comes from distances without groups, and shows nothing.
const DEPTH_MAX: usize = 6;

/// A node, or a group of nodes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Group {
    /// The index of a node.
    Node(usize),
    /// Several members, and the smallest and largest distance between nodes of different members.
    Members {
        /// The members, ordered by their first nodes.
        members: Vec<Group>,
        /// The smallest and the largest distance.
        distances: (u32, u32),
    },
}

impl Group {
    /// Returns the indexes of the group's nodes, ascending.
    pub(super) fn nodes(&self) -> Vec<usize> {
        let mut nodes = match self {
            Self::Node(node) => vec![*node],
            Self::Members { members, .. } => members.iter().flat_map(Self::nodes).collect(),
        };
        nodes.sort_unstable();
        nodes
    }

    fn depth(&self) -> usize {
        match self {
            Self::Node(_) => 0,
            Self::Members { members, .. } => 1 + members.iter().map(Self::depth).max().unwrap_or(0),
        }
    }

    fn first(&self) -> usize {
        match self {
            Self::Node(node) => *node,
            Self::Members { members, .. } => members.iter().map(Self::first).min().unwrap_or(0),
        }
    }
}

/// Groups nodes by single linkage: at each distance, in ascending order, it joins the groups with two nodes that are at
/// most this far apart. If the distance of two nodes depends on the direction, the larger one is used. Groups that
/// would nest too deeply are replaced by one group of all nodes.
pub(super) fn group(distances: &[Vec<u32>]) -> Group {
    let count = distances.len();
    let between = |a: usize, b: usize| distances[a][b].max(distances[b][a]);
    let mut pairs: BTreeMap<u32, Vec<(usize, usize)>> = BTreeMap::new();
    for a in 0..count {
        for b in a + 1..count {
            pairs.entry(between(a, b)).or_default().push((a, b));
        }
    }
    let mut groups: Vec<Option<Group>> = (0..count).map(|node| Some(Group::Node(node))).collect();
    // The group index of each node.
    let mut group_of: Vec<usize> = (0..count).collect();
    for joined in pairs.values() {
        let joined = join(&mut group_of, joined);
        for (place, parts) in joined {
            let mut members: Vec<Group> = parts.iter().filter_map(|part| groups[*part].take()).collect();
            members.sort_by_key(Group::first);
            let distances = extremes(&members, between);
            groups[place] = Some(Group::Members { members, distances });
        }
    }
    let Some(whole) = groups.into_iter().flatten().next() else {
        return Group::Members { members: Vec::new(), distances: (0, 0) };
    };
    if whole.depth() <= DEPTH_MAX {
        return whole;
    }
    let members: Vec<Group> = (0..count).map(Group::Node).collect();
    let distances = extremes(&members, between);
    Group::Members { members, distances }
}

/// Joins each node pair's groups. Returns each resulting group, by its smallest index, with the groups that it consists
/// of.
fn join(group_of: &mut [usize], pairs: &[(usize, usize)]) -> BTreeMap<usize, Vec<usize>> {
    let mut joined: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for &(a, b) in pairs {
        let (a, b) = (group_of[a].min(group_of[b]), group_of[a].max(group_of[b]));
        if a == b {
            continue;
        }
        group_of.iter_mut().filter(|group| **group == b).for_each(|group| *group = a);
        let more = joined.remove(&b).unwrap_or_else(|| vec![b]);
        joined.entry(a).or_insert_with(|| vec![a]).extend(more);
    }
    joined
}

/// Returns the smallest and the largest distance between nodes of different members.
fn extremes(members: &[Group], between: impl Fn(usize, usize) -> u32) -> (u32, u32) {
    let nodes: Vec<Vec<usize>> = members.iter().map(Group::nodes).collect();
    let mut extremes = (u32::MAX, 0);
    for (at, own) in nodes.iter().enumerate() {
        for (&a, &b) in own.iter().flat_map(|a| nodes[at + 1..].iter().flatten().map(move |b| (a, b))) {
            extremes = (extremes.0.min(between(a, b)), extremes.1.max(between(a, b)));
        }
    }
    extremes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(count: usize, distance: impl Fn(usize, usize) -> u32) -> Group {
        let row = |a| (0..count).map(|b| if a == b { 10 } else { distance(a, b) }).collect();
        group(&(0..count).map(row).collect::<Vec<_>>())
    }

    fn members(members: Vec<Group>, distance: u32) -> Group {
        Group::Members { members, distances: (distance, distance) }
    }

    fn leaves(nodes: impl IntoIterator<Item = usize>) -> Vec<Group> {
        nodes.into_iter().map(Group::Node).collect()
    }

    #[test]
    fn pairs_and_their_pair() {
        let pair = |first| members(leaves([first, first + 1]), 12);
        assert_eq!(of(4, |a, b| if a / 2 == b / 2 { 12 } else { 32 }), members(vec![pair(0), pair(2)], 32));
    }

    #[test]
    fn memory_without_cpus_is_beside_its_socket() {
        let cxl = of(4, |a, b| match (a.min(b), a.max(b)) {
            (0, 1) => 21,
            (0, 2) | (1, 3) => 14,
            _ => 24,
        });
        let sockets = vec![members(leaves([0, 2]), 14), members(leaves([1, 3]), 14)];
        assert_eq!(cxl, Group::Members { members: sockets, distances: (21, 24) });
    }

    #[test]
    fn equal_distances_and_chains_are_one_group() {
        assert_eq!(of(3, |_, _| 20), members(leaves(0..3), 20));
        // Every node joins at a distance of its own.
        let chain = of(20, |a, b| 20 + a.max(b) as u32);
        assert_eq!(chain, Group::Members { members: leaves(0..20), distances: (21, 39) });
        // In a ring, neighbours join all nodes at once.
        let ring = of(6, |a, b| [10, 16, 22, 28, 22, 16][a.abs_diff(b)]);
        assert_eq!(ring, Group::Members { members: leaves(0..6), distances: (16, 28) });
    }

    /// Nodes 0 and 3 and nodes 1 and 2 join at the same distance as both pairs do.
    #[test]
    fn groups_that_join_at_one_distance_are_one_group() {
        let near = [(0, 3), (1, 2), (1, 3)];
        let path = of(4, |a, b| if near.contains(&(a.min(b), a.max(b))) { 16 } else { 28 });
        assert_eq!(path, Group::Members { members: leaves(0..4), distances: (16, 28) });
    }

    #[test]
    fn one_node_is_no_group() {
        assert_eq!(of(1, |_, _| 0), Group::Node(0));
        assert_eq!(of(0, |_, _| 0).nodes(), []);
    }

    #[test]
    fn the_larger_direction_counts() {
        let uneven = of(3, |a, b| if (a, b) == (0, 1) { 12 } else { 21 });
        assert_eq!(uneven, members(leaves(0..3), 21));
    }
}
