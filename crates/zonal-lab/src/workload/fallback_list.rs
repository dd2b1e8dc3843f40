//! Reports an entry of a node's fallback list. No simulated thread runs.

use std::sync::atomic::AtomicBool;

use serde::{Deserialize, Serialize};
use zonal::units::NodeId;

use super::program::{Program, Unfit};
use crate::outcome::Outcome;
use crate::sim::{RunError, SimulatedMachine, Time};
use crate::system::System;

/// One entry of one fallback list.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
#[serde(deny_unknown_fields)]
pub struct FallbackList {
    /// Node whose list is read.
    pub node: u16,
    /// Position in the list, from 0.
    pub position: usize,
}

impl Program for FallbackList {
    fn check(&self, machine: &SimulatedMachine) -> Result<(), Unfit> {
        let name = &machine.model.name;
        if !machine.model.online_nodes().any(|node| node.id.get() == self.node) {
            let problem = format!("is {}, but machine {name} has no such node", self.node);
            return Err(Unfit { field: "node", problem });
        }
        let with_memory =
            machine.model.online_nodes().filter(|node| machine.model.managed_of(node.id).get() > 0);
        let places = with_memory.count();
        if self.position >= places {
            let problem =
                format!("is {}, must be less than {places}, the nodes of {name} with memory", self.position);
            return Err(Unfit { field: "position", problem });
        }
        Ok(())
    }

    fn run(&self, system: &System<'_, '_>, _stop: &AtomicBool) -> Result<Outcome, RunError> {
        let mut order = Vec::new();
        let node = NodeId::new(self.node).expect("checked");
        system.sim.allocator.fallback_order(node, |node| order.push(node.get()));
        let mut outcome = Outcome::after(system, Time::ZERO);
        outcome.metric("node", "id", f64::from(order[self.position]));
        Ok(outcome)
    }
}
