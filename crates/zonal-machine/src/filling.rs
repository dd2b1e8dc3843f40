//! Which node fills first if all CPUs allocate at the same rate and free nothing.
//!
//! Each CPU takes memory from the first node of its fallback order that is not full. A node that serves more CPUs for its
//! memory fills sooner, and then its CPUs turn to the next node of their order.

use serde::Serialize;
use zonal::units::NodeId;
use zonal_model::{MachineModel, Presence};

/// Relative rounding error that sums may have.
const ROUNDING: f64 = 1e-9;

/// A node that fills.
#[derive(Serialize, Clone, Copy, PartialEq, Debug)]
pub struct Filling {
    /// The node.
    pub node: u16,
    /// Number of CPUs whose requests it serves when it fills.
    pub cpus: u32,
    /// Managed frames of the node.
    pub frames: u64,
    /// Share of the machine's memory that is in use then, in percent.
    pub percent_used: f64,
}

/// Returns the nodes in the order in which they fill. Nodes that no CPU's order has are left out.
pub(crate) fn filling(model: &MachineModel, orders: &[Vec<NodeId>]) -> Vec<Filling> {
    let memory: Vec<u64> = model.nodes.iter().map(|node| model.managed_of(node.id).get()).collect();
    let all: f64 = memory.iter().map(|&frames| frames as f64).sum();
    let mut left: Vec<f64> = memory.iter().map(|&frames| frames as f64).collect();
    let mut filled = Vec::new();
    while filled.len() < memory.len() {
        let mut cpus = vec![0u32; memory.len()];
        for (node, order) in model.nodes.iter().zip(orders) {
            let target = order.iter().filter_map(|&id| model.place(id)).find(|&place| left[place] > 0.0);
            if let Some(place) = target.filter(|_| node.presence == Presence::Online) {
                cpus[place] += node.cpus.len() as u32;
            }
        }
        let seconds = |place: usize| left[place] / f64::from(cpus[place]);
        let busy = (0..memory.len()).filter(|&place| cpus[place] > 0);
        let Some(until) = busy.clone().map(seconds).min_by(f64::total_cmp) else { break };
        // Nodes whose last frame goes at the same time fill together.
        let full: Vec<usize> =
            busy.clone().filter(|&place| seconds(place) <= until * (1.0 + ROUNDING)).collect();
        for place in busy {
            left[place] = (left[place] - until * f64::from(cpus[place])).max(0.0);
        }
        full.iter().for_each(|&place| left[place] = 0.0);
        let used = 100.0 * (1.0 - left.iter().sum::<f64>() / all);
        filled.extend(full.iter().map(|&place| Filling {
            node: model.nodes[place].id.get(),
            cpus: cpus[place],
            frames: memory[place],
            percent_used: (used * 10.0).round() / 10.0,
        }));
    }
    filled
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::predict::orders;
    use crate::preset;
    use zonal_model::{KernelVersion, Rules};

    #[test]
    fn the_node_with_the_least_memory_for_its_cpus_fills_first() {
        let mut model = preset("quad-10-12-32").unwrap();
        let orders = orders(&model, &Rules::of(KernelVersion::NEWEST));
        let all = |model: &MachineModel| {
            filling(model, &orders).iter().map(|step| (step.node, step.cpus)).collect::<Vec<_>>()
        };
        assert_eq!(all(&model), [(0, 16), (1, 16), (2, 16), (3, 16)], "all are alike");
        let cpus = model.nodes[0].cpus.split_off(8);
        model.nodes[3].cpus.extend(cpus);
        // Node 3 fills first, and its 24 CPUs turn to node 2, which then serves 40.
        assert_eq!(all(&model)[..2], [(3, 24), (2, 40)]);
        let filled = filling(&model, &orders);
        assert_eq!((filled[0].percent_used, filled[3].percent_used, filled[3].cpus), (66.7, 100.0, 64));
    }

    #[test]
    fn a_machine_without_cpus_fills_nothing() {
        let mut model = preset("quad-10-12-32").unwrap();
        model.nodes.iter_mut().for_each(|node| node.cpus.clear());
        assert_eq!(filling(&model, &vec![Vec::new(); 4]), []);
    }
}
