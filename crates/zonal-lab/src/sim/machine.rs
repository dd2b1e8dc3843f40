//! Assembles a simulated machine from its description, its hardware costs, and the allocator.
//!
//! The allocator's metadata is in one zeroed mapping, which is divided into the buffers that the allocator requests.
//! The address of a cell therefore determines its node. Related files: `zonal-machine` describes machines.

use std::mem::MaybeUninit;

use memmap2::MmapOptions;
use zonal::layout::{Layout, Place};
use zonal::units::NodeId;
use zonal::{Allocator, Buffer, Config, Machine};
use zonal_machine::{MachineModel, OwnedMachine};

use super::coherence::{Directory, Watched};
use super::engine::RunError;
use super::geometry::Geometry;
use super::hardware::{Drains, Hardware};
use super::kernel_drains::DoublingDrains;
use super::platform::Lab;
use super::world::World;
use crate::zeroed::map_zeros;

/// A machine to simulate.
#[derive(Clone, Debug)]
pub struct SimulatedMachine {
    /// Description of the machine's CPUs, nodes and zones.
    pub model: MachineModel,
    /// Costs of the machine's hardware.
    pub hardware: Hardware,
}

/// A running machine: its world, and the allocator that manages its memory.
pub struct Simulation<'s, 'm> {
    /// Clocks, cache lines and locks.
    pub world: &'s World,
    /// The production allocator.
    pub allocator: &'s Allocator<'m, Lab>,
    /// The machine.
    pub machine: &'s SimulatedMachine,
}

/// Number of lines reserved for programs, in addition to some lines for each CPU.
const OWN_LINES: usize = 1 << 14;
/// Alignment of metadata buffers. Buffers are aligned to host pages so that no two buffers share a line.
const ALIGN: usize = 4096;

impl SimulatedMachine {
    /// Starts the allocator with `config` on this machine and calls `work` with the simulation. Runs with the same
    /// `seed` are identical.
    ///
    /// # Errors
    /// Returns an error if the configuration is not valid for the machine, or if the host has too little memory for
    /// the simulation.
    pub fn simulate<R>(
        &self,
        config: &Config,
        seed: u64,
        work: impl FnOnce(&Simulation<'_, '_>) -> R,
    ) -> Result<R, SimulateError> {
        let owned = OwnedMachine::from(&self.model);
        owned
            .with(|machine| self.simulate_on(machine, config, seed, work))
            .map_err(|error| SimulateError::Machine(error.to_string()))?
    }

    fn simulate_on<R>(
        &self,
        machine: &Machine<'_>,
        config: &Config,
        seed: u64,
        work: impl FnOnce(&Simulation<'_, '_>) -> R,
    ) -> Result<R, SimulateError> {
        let mut config = Config { page_bytes: self.model.page_bytes, ..*config };
        if self.hardware.drains == Drains::Doubling {
            config.past.tuning = Some(&DoublingDrains);
        }
        let config = &config;
        let refused = |error: zonal::error::ConfigError| SimulateError::Config(error.to_string());
        let layout = Layout::new(machine, config).map_err(refused)?;
        let place_of = |node: NodeId| machine.nodes().iter().position(|there| there.id == node).unwrap_or(0);
        let parts = layout.requests::<Lab>().map(|request| {
            let node = if let Place::Node(node) = request.place { place_of(node) } else { 0 };
            (request.bytes.next_multiple_of(ALIGN), node)
        });
        let parts: Vec<(usize, usize)> = parts.collect();
        let bytes: usize = parts.iter().map(|&(bytes, _)| bytes).sum();
        let no_memory = |error: std::io::Error| RunError::NoMemory {
            what: "the metadata of the simulated machine",
            reason: error.to_string(),
        };
        let mut memory = map_zeros(MmapOptions::new().len(bytes).no_reserve_swap()).map_err(no_memory)?;
        let geometry = Geometry::of(machine);
        let own_lines = OWN_LINES + 8 * machine.cpu_ids();
        let watched = Watched { base: memory.as_ptr().addr(), parts: parts.clone(), own_lines };
        let directory = Directory::new(&watched, &geometry, &self.hardware);
        let world = World::new(geometry, self.hardware.clone(), directory, seed);
        let mut rest: &mut [u8] = &mut memory;
        let mut sizes = parts.iter().map(|&(bytes, _)| bytes);
        let allocator = Allocator::new(Lab, machine, config, |_| {
            let (part, after) = std::mem::take(&mut rest).split_at_mut(sizes.next()?);
            rest = after;
            Some(zeroed(part))
        });
        let allocator = allocator.map_err(refused)?;
        allocator.zones().for_each(|zone| world.drains.limit(&zone.pageset_limits));
        Ok(work(&Simulation { world: &world, allocator: &allocator, machine: self }))
    }
}

/// Returns a buffer over part of a fresh mapping. The buffer is known to be zeroed.
fn zeroed(part: &mut [u8]) -> Buffer<'_> {
    let first = part.as_mut_ptr().cast::<MaybeUninit<u8>>();
    // SAFETY: the new slice covers the same bytes, which stay borrowed through `part`. Every initialized byte is a
    // valid `MaybeUninit<u8>`.
    #[allow(unsafe_code)]
    let part = unsafe { std::slice::from_raw_parts_mut(first, part.len()) };
    // SAFETY: the host zeroes fresh mappings, and this program has not written to this mapping yet.
    #[allow(unsafe_code)]
    unsafe {
        Buffer::zeroed(part)
    }
}

/// Reason why a machine cannot be simulated.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SimulateError {
    /// The allocator refuses the description of the machine.
    #[error("machine: {0}")]
    Machine(String),
    /// The allocator refuses its configuration.
    #[error("configuration: {0}")]
    Config(String),
    /// The host has no memory for the simulation, or the run ended early.
    #[error(transparent)]
    Run(#[from] RunError),
}

impl Geometry {
    fn of(machine: &Machine<'_>) -> Self {
        let nodes = machine.nodes();
        let mut node_of_cpu = vec![0; machine.cpu_ids()];
        for (place, node) in nodes.iter().enumerate() {
            node.cpus.iter().for_each(|cpu| node_of_cpu[cpu.index()] = place);
        }
        Self {
            node_of_cpu,
            nodes: nodes.len(),
            ids: nodes.iter().map(|node| node.id).collect(),
            distances: nodes.iter().flat_map(|node| node.distances).copied().collect(),
        }
    }
}
