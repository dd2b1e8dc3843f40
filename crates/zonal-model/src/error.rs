//! Errors of machine files and captured machines. Each prints on one line, whatever text it quotes.

use std::path::PathBuf;

use zonal::units::{MAX_NODES, ZoneKind};

use crate::escape::Excerpt;
use crate::kernel::VersionError;

/// The reason why no machine could be read or captured.
#[derive(Debug, thiserror::Error)]
pub enum MachineError {
    /// A file could not be read.
    #[error("cannot read {}: {source}", Excerpt::name(path.display()))]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// A file is not JSON or does not have the structure of a machine file.
    #[error("{}: {}: {}", Excerpt::name(origin), Excerpt::name(field), Excerpt::sentence(problem))]
    Shape {
        /// The file.
        origin: String,
        /// The field, as a path from the top.
        field: String,
        /// Line and column, from 1.
        place: (usize, usize),
        /// What is wrong, with line and column.
        problem: String,
    },
    /// A file has the right structure but does not describe a possible machine.
    #[error("{}: {}: {}", Excerpt::name(origin), Excerpt::name(field), Excerpt::sentence(problem))]
    Invalid {
        /// The file.
        origin: String,
        /// The field, as a path from the top.
        field: String,
        /// What is wrong.
        problem: Problem,
    },
    /// The directory of a capture contains neither `proc` nor `sys`.
    #[error("{}: it contains neither proc/zoneinfo nor sys/devices/system/node; name the directory with the machine's proc and sys", Excerpt::name(.0.display()))]
    NoTree(PathBuf),
    /// A captured tree does not report any memory.
    #[error("{}: no node has memory; proc/zoneinfo must show a zone that spans frames, or sys/devices/system/node/nodeN/meminfo a MemTotal", Excerpt::name(.0.display()))]
    NoMemory(PathBuf),
    /// A file of a captured tree is malformed.
    #[error("{}: {}", Excerpt::name(path.display()), Excerpt::sentence(problem))]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong, and what is allowed.
        problem: String,
    },
    /// No preset has this name.
    #[error("there is no preset \"{}\"; presets are: {known}", Excerpt::name(name))]
    UnknownPreset {
        /// The name that was given.
        name: String,
        /// The known names.
        known: String,
    },
}

impl MachineError {
    /// Returns the error in one line, without any of the file's contents.
    ///
    /// This is for requests of other users, which may name a file that those users must not read.
    #[must_use]
    pub fn without_contents(&self) -> String {
        const MORE: &str = "`zonal machine --file` shows what is wrong";
        match self {
            Self::Shape { origin, place: (line, column), .. } => {
                format!(
                    "{}:{line}:{column}: this is not valid in a machine file; {MORE}",
                    Excerpt::name(origin)
                )
            }
            Self::Invalid { origin, field, .. } => {
                // A position in a list does not reveal contents, but a key of a map does, so the key is cut off.
                let known = field.find(FALLBACK_ORDER).map_or(field.len(), |at| at + FALLBACK_ORDER.len());
                format!(
                    "{}: {}: this value is impossible; {MORE}",
                    Excerpt::name(origin),
                    Excerpt::name(&field[..known])
                )
            }
            other => other.to_string(),
        }
    }
}

/// The only field below which the path of an error contains keys from the file.
pub(crate) const FALLBACK_ORDER: &str = "observed.fallback_order";

/// The reason why a well-formed description is not a possible machine.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[allow(missing_docs)] // each message explains its fields
pub enum Problem {
    #[error("{0} is not a page size; it must be a power of two from 4096 to 1073741824")]
    PageBytes(u64),
    #[error("there is no node; at least one is needed")]
    NoNodes,
    #[error("there is no zone; at least one is needed, though it may be without managed frames")]
    NoZones,
    #[error("{0} nodes, including possible ones; the maximum is {MAX_NODES}")]
    TooManyNodes(usize),
    #[error("{0} is not a node id; ids are 0 to {max}", max = MAX_NODES - 1)]
    NodeId(u64),
    #[error("node {0} is listed twice; each id must occur once")]
    NodeTwice(u64),
    #[error("node {0} is both online and possible_offline; it must be one of the two")]
    OnlineAndOffline(u64),
    #[error("CPU {cpu} is on node {first} and again on node {second}; a CPU must be on one node, once")]
    CpuTwice { cpu: u32, first: u16, second: u16 },
    #[error("{0} is not a CPU id; ids are 0 to 1048575")]
    CpuId(u64),
    #[error("node {from} has no distance to node {to}; it needs one to each node")]
    DistanceMissing { from: u16, to: u16 },
    #[error("node {from} has a distance to node {to}, which the machine does not have")]
    DistanceToNowhere { from: u16, to: u64 },
    #[error("node {from} has two distances to node {to}; it must have one")]
    DistanceTwice { from: u16, to: u64 },
    #[error("the distance of node {node} to itself is {distance}; it must be 10")]
    Diagonal { node: u16, distance: i64 },
    #[error("the distance from node {from} to node {to} is {distance}; it must be 10 to 255")]
    Distance { from: u16, to: u16, distance: i64 },
    #[error("node {0} is not a node of the machine")]
    UnknownNode(u64),
    #[error("node {node} has two {kind} zones; it must have at most one of each kind")]
    ZoneTwice { node: u16, kind: ZoneKind },
    #[error(
        "node {node} {kind}: spanned {spanned}, present {present}, managed {managed}; it must be spanned >= present >= managed"
    )]
    Counts { node: u16, kind: ZoneKind, spanned: u64, present: u64, managed: u64 },
    #[error(
        "node {node} {kind} spans {spanned} frames from frame {start}; with this page size, zones must end by frame {most}"
    )]
    ZoneTooLarge { node: u16, kind: ZoneKind, start: u64, spanned: u64, most: u64 },
    #[error("node {node} {kind} spans no frames; omit it, or include all frames that it could ever hold")]
    ZoneEmpty { node: u16, kind: ZoneKind },
    #[error(
        "node {node} {kind} overlaps node {other_node} {other_kind} at frame {frame}; zones must be disjoint"
    )]
    ZonesOverlap { node: u16, kind: ZoneKind, other_node: u16, other_kind: ZoneKind, frame: u64 },
    #[error("{0} ratios; there must be one for each of DMA, DMA32, Normal, Movable and, optionally, Device")]
    Ratios(usize),
    #[error("{value} is too large; it must be at most {most}")]
    TooLarge { value: u64, most: u64 },
    #[error("{value} is too small; it must be at least {least}")]
    TooSmall { value: u64, least: u64 },
    #[error("node {0} occurs twice; each node may occur only once")]
    OrderTwice(u64),
    #[error(transparent)]
    Kernel(#[from] VersionError),
    #[error("node {node} has no {kind} zone; observed zones must be zones of the machine")]
    UnknownZone { node: u16, kind: ZoneKind },
    #[error("node {node} {kind}: {columns} columns; there must be five: DMA, DMA32, Normal, Movable, Device")]
    Protection { node: u16, kind: ZoneKind, columns: usize },
}
