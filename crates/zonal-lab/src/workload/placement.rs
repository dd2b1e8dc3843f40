//! The placement of a program's pages: the `policy` of a workload in an experiment file.
//!
//! The text forms are those of `zonal run --policy`. Related files: `workload/first_touch.rs` uses placements.

use serde::{Deserialize, Serialize};
use zonal::error::PolicyError;
use zonal::units::{MAX_NODES, NodeId};
use zonal::{Allocator, Policy};

use super::program::Unfit;
use crate::sim::{Lab, SimulatedMachine};

/// The memory policy of a program.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Placement {
    /// `local`: the node of the CPU, then the nodes of its fallback list.
    #[default]
    Local,
    /// `preferred:1`: this node, then the nodes of its fallback list.
    Preferred(NodeId),
    /// `preferred-many:3,1`: these nodes in this order, then those of the CPU's fallback list.
    PreferredMany(Vec<NodeId>),
    /// `bind:0,2`: only these nodes, in the order of the CPU's fallback list.
    Bind(Vec<NodeId>),
}

impl TryFrom<String> for Placement {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        match text.split_once(':').unwrap_or((&text, "")) {
            ("local", "") => Ok(Self::Local),
            ("preferred", id) if !id.is_empty() => node(id).map(Self::Preferred),
            ("preferred-many", list) if !list.is_empty() => nodes(list).map(Self::PreferredMany),
            ("bind", list) if !list.is_empty() => nodes(list).map(Self::Bind),
            _ => Err(format!(
                "`{text}` is not a policy; policies look like local, preferred:1, preferred-many:3,1 and bind:0,2"
            )),
        }
    }
}

impl From<Placement> for String {
    fn from(placement: Placement) -> Self {
        let list = |nodes: &[NodeId]| {
            let ids: Vec<Self> = nodes.iter().map(|node| node.get().to_string()).collect();
            ids.join(",")
        };
        match placement {
            Placement::Local => "local".to_owned(),
            Placement::Preferred(node) => format!("preferred:{}", node.get()),
            Placement::PreferredMany(nodes) => format!("preferred-many:{}", list(&nodes)),
            Placement::Bind(nodes) => format!("bind:{}", list(&nodes)),
        }
    }
}

fn node(text: &str) -> Result<NodeId, String> {
    let id = text.trim().parse().ok().and_then(NodeId::new);
    id.ok_or_else(|| format!("`{text}` is not a node; nodes are numbers from 0 to {}", MAX_NODES - 1))
}

fn nodes(list: &str) -> Result<Vec<NodeId>, String> {
    let nodes: Vec<NodeId> = list.split(',').map(node).collect::<Result<_, _>>()?;
    match nodes.iter().enumerate().find(|(at, node)| nodes[..*at].contains(node)) {
        Some((_, twice)) => Err(format!("node {twice} is listed twice in `{list}`; nodes must be unique")),
        None => Ok(nodes),
    }
}

impl Placement {
    /// Refuses nodes that the machine does not have, and policies without memory.
    pub(super) fn check(&self, machine: &SimulatedMachine) -> Result<(), Unfit> {
        let model = &machine.model;
        let named = match self {
            Self::Local => return Ok(()),
            Self::Preferred(node) => std::slice::from_ref(node),
            Self::PreferredMany(nodes) | Self::Bind(nodes) => nodes,
        };
        let refused = |problem| Err(Unfit { field: "policy", problem });
        if let Some(unknown) = named.iter().find(|&&id| model.nodes.iter().all(|node| node.id != id)) {
            let ids: Vec<String> = model.nodes.iter().map(|node| node.id.to_string()).collect();
            let ids = ids.join(", ");
            return refused(format!("node {unknown} does not exist; machine {} has {ids}", model.name));
        }
        if named.iter().all(|&node| model.managed_of(node).get() == 0) {
            return refused("names no node with memory".to_owned());
        }
        Ok(())
    }

    /// Returns the policy on a machine that [`Placement::check`] accepted, or `None` for local placement.
    pub(super) fn policy(
        &self,
        allocator: &Allocator<'_, Lab>,
    ) -> Result<Option<Policy<'_, Lab>>, PolicyError> {
        Ok(Some(match self {
            Self::Local => return Ok(None),
            Self::Preferred(node) => Policy::preferred(allocator, *node)?,
            Self::PreferredMany(nodes) => Policy::preferred_many(allocator, nodes)?,
            Self::Bind(nodes) => Policy::bind(allocator, nodes.iter().copied().collect())?,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_policies_or_errors() {
        let id = |id| NodeId::new(id).unwrap();
        let parse = |text: &str| Placement::try_from(text.to_owned());
        assert_eq!(parse("local"), Ok(Placement::Local));
        assert_eq!(parse("preferred:2"), Ok(Placement::Preferred(id(2))));
        assert_eq!(parse("preferred-many:3,1"), Ok(Placement::PreferredMany(vec![id(3), id(1)])));
        assert_eq!(parse("bind:0, 2"), Ok(Placement::Bind(vec![id(0), id(2)])));
        for text in ["local", "preferred:2", "preferred-many:3,1", "bind:0,2"] {
            assert_eq!(String::from(parse(text).unwrap()), text);
        }
        for text in ["", "Local", "local:1", "preferred", "preferred-many:", "interleave:0", "3,1"] {
            assert!(parse(text).unwrap_err().contains("policies look like"), "{text}");
        }
        assert!(parse("preferred-many:3,x").unwrap_err().starts_with("`x` is not a node"));
        assert!(parse("bind:3,1,3").unwrap_err().contains("node 3 is listed twice"));
    }
}
