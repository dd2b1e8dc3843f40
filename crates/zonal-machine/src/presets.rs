//! Models of well-known machines.

use zonal::machine::LOCAL_DISTANCE;
use zonal::units::{CpuId, NodeId, PageCount, Pfn, ZoneKind};
use zonal_model::{MachineError, MachineModel, NodeModel, Presence, Settings, ZoneModel};

/// A machine that can be selected by name.
#[derive(Clone, Copy, Debug)]
pub struct Preset {
    /// The name by which the preset is selected.
    pub name: &'static str,
    /// A description in one line.
    pub description: &'static str,
    plan: fn() -> Plan,
}

/// All presets.
pub const PRESETS: &[Preset] = &[
    Preset {
        name: "desktop",
        description: "one node, 8 CPUs, 16 GiB: not a NUMA machine",
        plan: || Plan::new(vec![(8, 16 << 10)], |_, _| 10),
    },
    Preset {
        name: "quad-10-12-32",
        description: "4 nodes in two pairs, distances 12 and 32: the machine of the node-load patch",
        plan: || Plan::new(vec![(16, 64 << 10); 4], |a, b| if a / 2 == b / 2 { 12 } else { 32 }),
    },
    Preset {
        name: "epyc8-nps4",
        description: "two EPYC sockets of 4 nodes each, 128 CPUs, 512 GiB",
        plan: || Plan::new(vec![(16, 64 << 10); 8], |a, b| if a / 4 == b / 4 { 12 } else { 32 }),
    },
    Preset {
        name: "xeon224",
        description: "two Xeon sockets of 112 logical CPUs, 512 GiB",
        plan: || Plan::new(vec![(112, 256 << 10); 2], |_, _| 21),
    },
    Preset {
        name: "xeon128",
        description: "two Xeon sockets of 64 logical CPUs, 256 GiB",
        plan: || Plan::new(vec![(64, 128 << 10); 2], |_, _| 21),
    },
    Preset {
        name: "duo24",
        description: "two sockets of 12 logical CPUs and 6 GiB each, from 2011",
        plan: || Plan::new(vec![(12, 6 << 10); 2], |_, _| 20),
    },
    Preset {
        name: "altix28",
        description: "SGI Altix of 2006: 28 nodes of 2 CPUs in a fat tree, 96 GB, 16 KiB pages",
        plan: || Plan {
            page_bytes: 16 << 10,
            ..Plan::new(vec![(2, (96 << 10) / 28); 28], |a, b| match (a ^ b).ilog2() {
                0 => 22,
                1 => 34,
                2 => 46,
                _ => 58,
            })
        },
    },
    Preset {
        name: "altix512",
        description: "SGI Altix of 2006: 512 nodes of 2 CPUs and 8 GiB in a fat tree, 16 KiB pages",
        plan: || Plan {
            page_bytes: 16 << 10,
            ..Plan::new(vec![(2, 8 << 10); 512], |a, b| match (a ^ b).ilog2() {
                0 => 22,
                1 => 34,
                2..=3 => 46,
                4..=5 => 58,
                6..=7 => 70,
                _ => 82,
            })
        },
    },
    Preset {
        name: "cxl4",
        description: "two sockets with a CXL memory expander each: nodes 2 and 3 have no CPUs",
        plan: || {
            let nodes = vec![(32, 256 << 10), (32, 256 << 10), (0, 128 << 10), (0, 128 << 10)];
            Plan::new(nodes, |a, b| match (a.min(b), a.max(b)) {
                (0, 1) => 21,
                (0, 2) | (1, 3) => 14,
                (2, 3) => 26,
                _ => 24,
            })
        },
    },
    Preset {
        name: "knl-snc4-flat",
        description: "Xeon Phi in SNC-4 flat mode: 4 nodes with CPUs, 4 nodes of fast memory only",
        plan: || {
            let nodes = [vec![(68, 24 << 10); 4], vec![(0, 4 << 10); 4]].concat();
            Plan::new(nodes, |a, b| match (a < 4 && b < 4, a % 4 == b % 4) {
                (true, _) => 21,
                (false, true) => 31,
                (false, false) => 41,
            })
        },
    },
    Preset {
        name: "mesh64",
        description: "64 nodes of 4 CPUs and 4 GiB in an 8 x 8 mesh",
        plan: || Plan::new(vec![(4, 4 << 10); 64], mesh::<8>),
    },
    Preset {
        name: "mesh1024",
        description: "1024 nodes of 4 CPUs and 4 GiB in a 32 x 32 mesh: the maximum number of nodes",
        plan: || Plan::new(vec![(4, 4 << 10); 1024], mesh::<32>),
    },
];

/// Returns the machine of a preset.
///
/// # Errors
/// [`MachineError::UnknownPreset`], which lists the known names.
pub fn preset(name: &str) -> Result<MachineModel, MachineError> {
    let Some(found) = PRESETS.iter().find(|preset| preset.name == name) else {
        let names: Vec<&str> = PRESETS.iter().map(|preset| preset.name).collect();
        return Err(MachineError::UnknownPreset { name: name.to_owned(), known: names.join(", ") });
    };
    Ok((found.plan)().model(name))
}

/// Returns the distance between two nodes of a mesh `WIDTH` nodes wide.
fn mesh<const WIDTH: usize>(a: usize, b: usize) -> u8 {
    let hops = (a % WIDTH).abs_diff(b % WIDTH) + (a / WIDTH).abs_diff(b / WIDTH);
    LOCAL_DISTANCE + 3 * hops as u8
}

/// The description from which a preset is built. The nodes' memory is consecutive.
struct Plan {
    page_bytes: u32,
    /// CPUs and MiB of each node.
    nodes: Vec<(u32, u64)>,
    /// Distance between two different nodes.
    distance: fn(usize, usize) -> u8,
}

impl Plan {
    fn new(nodes: Vec<(u32, u64)>, distance: fn(usize, usize) -> u8) -> Self {
        Self { page_bytes: 4096, nodes, distance }
    }

    /// Builds the model. A test checks that every preset is a possible machine.
    fn model(&self, name: &str) -> MachineModel {
        let (mut cpu, mut frame) = (0, 0);
        let (mut nodes, mut zones) = (Vec::new(), Vec::new());
        for (at, &(cpus, mib)) in self.nodes.iter().enumerate() {
            let id = u16::try_from(at).ok().and_then(NodeId::new).expect("presets have few nodes");
            let distance = |to| if at == to { LOCAL_DISTANCE } else { (self.distance)(at, to) };
            nodes.push(NodeModel {
                id,
                presence: Presence::Online,
                cpus: (cpu..cpu + cpus).map(CpuId::new).collect(),
                distances: (0..self.nodes.len()).map(distance).collect(),
            });
            let end = frame + (mib << 20) / u64::from(self.page_bytes);
            self.cut(id, frame, end, &mut zones);
            (cpu, frame) = (cpu + cpus, end);
        }
        let (name, settings) = (name.to_owned(), Settings::default());
        MachineModel { name, page_bytes: self.page_bytes, nodes, zones, settings, observed: None }
    }

    /// Splits a node's frames into zones. Machines with 4 KiB pages are PCs, whose zones end at 16 MiB and 4 GiB. Other
    /// machines have one zone per node.
    fn cut(&self, node: NodeId, start: u64, end: u64, zones: &mut Vec<ZoneModel>) {
        let pc = [
            (ZoneKind::Dma, 1, 4096),
            (ZoneKind::Dma32, 4096, 1 << 20),
            (ZoneKind::Normal, 1 << 20, u64::MAX),
        ];
        let other = [(ZoneKind::Normal, 0, u64::MAX)];
        let kinds: &[_] = if self.page_bytes == 4096 { &pc } else { &other };
        for &(kind, from, to) in kinds {
            let (start, end) = (start.max(from), end.min(to));
            if start < end {
                let spanned = PageCount::new(end - start);
                // A kernel uses about 1/64 of memory for its page metadata.
                let managed = PageCount::new(spanned.get() - spanned.get() / 64);
                zones.push(ZoneModel {
                    node,
                    kind,
                    start: Pfn::new(start),
                    spanned,
                    present: spanned,
                    managed,
                });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::OwnedMachine;
    use crate::predict::predict;
    use crate::{KernelVersion, Rules};

    #[test]
    fn every_preset_is_a_machine() {
        for known in PRESETS {
            let model = preset(known.name).unwrap();
            assert_eq!(MachineModel::from_json(&model.to_json(), "again").unwrap(), model);
            let nodes = OwnedMachine::from(&model).with(|machine| machine.nodes().len());
            assert_eq!(nodes, Ok(model.nodes.len()), "{}", known.name);
        }
    }

    #[test]
    fn the_published_defect_shows_in_its_preset() {
        let model = preset("quad-10-12-32").unwrap();
        let tail = |version| {
            let orders = predict(&model, &Rules::of(version)).orders;
            orders[3].iter().map(|id| id.get()).collect::<Vec<_>>()
        };
        assert_eq!(tail(KernelVersion::new(5, 10)), [3, 2, 0, 1]);
        assert_eq!(tail(KernelVersion::new(6, 12)), [3, 2, 1, 0]);
    }

    #[test]
    fn unknown_presets_are_errors_that_list_the_known_ones() {
        let text = preset("nosuch").unwrap_err().to_string();
        assert!(PRESETS.iter().all(|known| text.contains(known.name)), "{text}");
    }
}
