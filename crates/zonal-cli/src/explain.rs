//! `zonal explain`: which zones a request would try on a machine, in order, and why each is passed over.
//!
//! The command builds the allocator that ships over the zones of a described machine, without memory behind them, fills
//! it, and asks it; with changes to the machine, it asks twice. With `--log` it explains failed requests that a kernel
//! reported. Related files: `explain/filled.rs` builds and fills the allocator, `explain/pool.rs` asks a published pool,
//! `explain/render.rs` prints, `explain/log.rs` explains logs, and `changes.rs` has the changes.

mod filled;
mod log;
mod pool;
mod render;

use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;

use clap::builder::PossibleValuesParser;
use clap::{Args, ValueEnum};
use zonal::config::ZonelistCache;
use zonal::explain::{Outcome, ReclaimStep, Step, ZoneName};
use zonal::mempolicy::WeightTable;
use zonal::request::Urgency;
use zonal::rules::watermarks::Watermark;
use zonal::settings::{NamedRule, Setting};
use zonal::units::{NodeId, Order};
use zonal::{Allocator, NodeMask, Policy, Request};
use zonal_bench::Described;
use zonal_machine::state::{CapturedState, Sample, SystemState};
use zonal_machine::{Capture, MachineModel, capture, capture_live, preset};

use crate::changes::Changes;
use crate::layout::{self, Width};
use crate::outcome::{Failure, print, print_message};
use crate::values::{Nodes, Percent, PolicyChoice, node_reclaim_mode, one_node};
use filled::Filled;

/// Explain which zones a request would try on a machine, and why each is passed over
#[derive(Args, Clone, Debug)]
#[command(after_help = examples())]
pub(crate) struct ExplainArgs {
    #[command(flatten)]
    source: Source,

    /// Explain the failed requests in a kernel log instead; - reads standard input
    #[arg(long, value_name = "FILE", conflicts_with_all = ["Source", "recent", "node", "order", "policy", "cpuset", "urgency", "fill", "reclaimable", "set", "without", "zonelist_cache", "node_reclaim"])]
    log: Option<PathBuf>,

    /// Node on whose CPU the request is made [default: the first with CPUs]
    #[arg(long, value_name = "N", value_parser = one_node, allow_hyphen_values = true)]
    node: Option<NodeId>,

    /// The block has 2^K frames
    #[arg(long, value_name = "K", default_value = "0", value_parser = order, allow_hyphen_values = true)]
    order: Order,

    /// The placement, as in local, preferred:1, preferred-many:2,1, bind:0,2-3, interleave:0-3 or weighted:0=3,1=1
    #[arg(long, value_name = "P", default_value = "local")]
    policy: PolicyChoice,

    /// Nodes that the request may use, as in 0,2-3
    #[arg(long, value_name = "LIST", allow_hyphen_values = true)]
    cpuset: Option<Nodes>,

    /// How far below `min` the request may go
    #[arg(long, value_name = "U", default_value = "normal")]
    urgency: UrgencyArg,

    /// Share of a node's memory that is in use, or the watermark down to which its zones are: min or low; can be
    /// repeated [default: as now for this machine, else nothing]
    #[arg(long, value_name = "NODE=PERCENT", value_parser = of_node::<Fill>, allow_hyphen_values = true)]
    fill: Vec<(NodeId, Fill)>,

    /// Share of a node's memory in use that reclaim could free; can be repeated [default: nothing]
    #[arg(long, value_name = "NODE=PERCENT", value_parser = of_node::<Percent>, allow_hyphen_values = true)]
    reclaimable: Vec<(NodeId, Percent)>,

    #[command(flatten)]
    changes: Changes,

    /// Show what another mode of the zonelist cache would change for a request that follows an equal one
    #[arg(long, value_name = "MODE", value_parser = PossibleValuesParser::new(ZonelistCache::names()))]
    zonelist_cache: Option<String>,

    /// Show what node reclaim would change: on, off, or a value of zone_reclaim_mode from 0 to 7
    #[arg(long, value_name = "MODE", value_parser = node_reclaim_mode, allow_hyphen_values = true)]
    node_reclaim: Option<String>,

    /// Show the last requests of the pool that failed, stalled in direct reclaim, or were served by another node than the
    /// preferred one, and why
    #[arg(long, requires = "pool", conflicts_with_all = NOT_FOR_RECENT)]
    recent: bool,

    /// Print the explanation as one JSON document
    #[arg(long)]
    json: bool,
}

/// Options that describe or change a machine, which a pool has already.
const ONLY_MACHINES: [&str; 6] = ["fill", "reclaimable", "set", "without", "zonelist_cache", "node_reclaim"];

/// Options that describe a request or a machine, which the last requests of a pool have already.
const NOT_FOR_RECENT: [&str; 10] =
    ["node", "order", "policy", "cpuset", "urgency", "machine", "preset", "live", "sysfs", "capture"];

/// Where the machine is read from; by default this machine.
#[derive(Args, Clone, Debug)]
#[group(multiple = false)]
struct Source {
    /// A machine file
    #[arg(long, value_name = "FILE")]
    machine: Option<PathBuf>,

    /// A well-known machine; `zonal machine --help` lists them
    #[arg(long, value_name = "NAME")]
    preset: Option<String>,

    /// This machine, with the free blocks that it has now (the default)
    #[arg(long)]
    live: bool,

    /// A captured tree: DIR/sys and DIR/proc of another machine, as full as it was
    #[arg(long, value_name = "DIR")]
    sysfs: Option<PathBuf>,

    /// A file of `zonal capture`: a machine, as full as it was
    #[arg(long, value_name = "FILE")]
    capture: Option<PathBuf>,

    /// Socket of a program that publishes its pool, which answers for the state that it has now
    #[arg(long, value_name = "SOCKET", conflicts_with_all = ONLY_MACHINES)]
    pool: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum UrgencyArg {
    Normal,
    High,
    Atomic,
    Reserve,
}

impl From<UrgencyArg> for Urgency {
    fn from(arg: UrgencyArg) -> Self {
        match arg {
            UrgencyArg::Normal => Self::Normal,
            UrgencyArg::High => Self::High,
            UrgencyArg::Atomic => Self::Atomic,
            UrgencyArg::Reserve => Self::Reserve,
        }
    }
}

/// A machine and, if it is known, its state.
struct Subject {
    model: MachineModel,
    state: Option<Sample>,
}

/// The steps of a request, and the zone that would serve it.
struct Explanation {
    node: NodeId,
    steps: Vec<Step>,
    served_by: Option<ZoneName>,
    /// The zone that serves the request if the first node reclaim frees as much as it wants.
    after_reclaim: Option<(ZoneName, Option<ZoneName>)>,
}

fn examples() -> String {
    let examples = [
        ("zonal explain", "a page on this machine, as full as it is now"),
        ("zonal explain --preset quad-10-12-32 --node 2 --fill 2=100", "the nearest node of a full one"),
        ("zonal explain --machine quad.json --order 9 --policy bind:0-1 --fill 0=99 --fill 1=50", ""),
        ("zonal explain --preset quad-10-12-32 --cpuset 1-3 --urgency atomic --json", ""),
        (
            "zonal explain --preset quad-10-12-32 --fill 0=low --reclaimable 0=25 --node-reclaim on",
            "before and after",
        ),
        ("zonal explain --preset quad-10-12-32 --fill 2=100 --node 2 --without 3", "... and if node 3 left"),
        ("journalctl -k | zonal explain --log -", "OOM kills and failed requests of this boot"),
        ("zonal explain --pool /tmp/run.zonal --order 9", "a running program, in its present state"),
        (
            "zonal explain --pool /tmp/run.zonal --recent",
            "its requests that failed, stalled or went elsewhere",
        ),
    ];
    let about = "The allocator that ships answers, over the zones of the machine and without memory behind them. It \
                 has its own defaults and the machine's settings. Free blocks of a known state have their sizes, and \
                 positions that are possible.";
    format!("{}\nExamples:\n{}", Width::of_output().paragraph("", "", about), layout::entries(examples))
}

fn order(text: &str) -> Result<Order, String> {
    let order = text.trim().parse().ok().and_then(Order::new).filter(|&order| order <= Order::DEFAULT_MAX);
    order.ok_or_else(|| format!("`{text}` is not an order from 0 to {}", Order::DEFAULT_MAX))
}

/// Reads NODE=VALUE.
fn of_node<T: FromStr<Err = String>>(text: &str) -> Result<(NodeId, T), String> {
    let Some((node, value)) = text.split_once('=') else {
        return Err(format!("`{text}` is not NODE=PERCENT, as in 0=95"));
    };
    Ok((one_node(node)?, value.parse()?))
}

/// How full the zones of a node are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fill {
    /// This share is in use.
    Percent(Percent),
    /// As many frames are free as the watermark has.
    To(Watermark),
}

impl FromStr for Fill {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.trim() {
            "min" => Ok(Self::To(Watermark::Min)),
            "low" => Ok(Self::To(Watermark::Low)),
            text => text.parse().map(Self::Percent).map_err(|error| format!("{error}, min or low")),
        }
    }
}

/// Runs the command. Returns exit code 0 for success, 1 if the machine cannot be read or set up, and 2 for bad input.
pub(crate) fn run(args: &ExplainArgs) -> ExitCode {
    explain(args).map_or_else(Failure::report, |()| ExitCode::SUCCESS)
}

fn explain(args: &ExplainArgs) -> Result<(), Failure> {
    if let Some(path) = &args.log {
        return log::explain(path, args.json);
    }
    if let Some(socket) = &args.source.pool {
        return if args.recent { pool::recent(args, socket) } else { pool::explain(args, socket) };
    }
    let subject = subject(&args.source)?;
    let changes = args.changes.clone();
    let changes = changes.and(Setting::ZonelistCache, args.zonelist_cache.as_ref());
    let changes = changes.and(Setting::ZoneReclaimMode, args.node_reclaim.as_ref());
    let before = answer(args, &subject, &Changes::default())?;
    let width = Width::of_output();
    let explained = |machine, explanation| render::Explained { args, machine, explanation };
    let first = explained(&subject.model.name, &before);
    if changes.is_empty() {
        return print(&if args.json { first.json() } else { first.text(width) });
    }
    let changed = Subject { model: changes.machine(&subject.model)?, state: subject.state.clone() };
    let after = answer(args, &changed, &changes)?;
    let second = explained(&changed.model.name, &after);
    print(&if args.json { first.json_beside(&second) } else { first.text_beside(&second, &changes, width) })
}

/// Answers for a machine with the changes.
fn answer(args: &ExplainArgs, subject: &Subject, changes: &Changes) -> Result<Explanation, Failure> {
    let Subject { model, state } = subject;
    let node = requesting_node(model, args.node)?;
    check_nodes(model, "--policy", args.policy.nodes())?;
    check_nodes(model, "--cpuset", args.cpuset.iter().flat_map(|nodes| nodes.0.clone()))?;
    if changes.is_empty() {
        check_nodes(model, "--fill", args.fill.iter().map(|&(node, _)| node))?;
        check_nodes(model, "--reclaimable", args.reclaimable.iter().map(|&(node, _)| node))?;
    }
    let config = changes.config(model.config())?;
    let filled = Filled { model, config, node, state: state.as_ref(), args, freed: None };
    let (steps, served_by) = filled.with(|allocator| ask(args, allocator))?;
    let reclaimed = steps.iter().find_map(|step| match *step {
        Step::Zone { zone, outcome: Outcome::Reclaim(ReclaimStep::WouldRun), .. } => Some(zone),
        _ => None,
    });
    let after_reclaim = match reclaimed {
        Some(zone) => {
            let freed = Filled { freed: Some((zone, filled::reclaim_target(args.order))), ..filled };
            let (_, served_by) = freed.with(|allocator| ask(args, allocator))?;
            Some((zone, served_by))
        }
        None => None,
    };
    Ok(Explanation { node, steps, served_by, after_reclaim })
}

fn subject(source: &Source) -> Result<Subject, Failure> {
    let without_state = |model| Subject { model, state: None };
    if let Some(file) = &source.machine {
        return MachineModel::read(file).map(without_state).map_err(Failure::bad_input);
    }
    if let Some(name) = &source.preset {
        return preset(name).map(without_state).map_err(Failure::bad_input);
    }
    if let Some(file) = &source.capture {
        let captured = CapturedState::read(file).map_err(Failure::bad_input)?;
        return Ok(Subject { model: captured.model, state: Some(captured.sample) });
    }
    let (captured, mut state) = match &source.sysfs {
        Some(folder) => (capture(folder).map_err(Failure::bad_input)?, SystemState::tree(folder)),
        None => (capture_live().map_err(Failure::failed)?, SystemState::live()),
    };
    let state = state.read().map_err(|error| match &source.sysfs {
        Some(_) => Failure::bad_input(error),
        None => Failure::failed(error),
    })?;
    let Capture { model, notes, .. } = captured;
    notes.into_iter().for_each(|note| print_message(format_args!("note: {note}")));
    Ok(Subject { model, state: Some(state) })
}

/// Returns the node of the CPU that makes the request.
fn requesting_node(model: &MachineModel, wanted: Option<NodeId>) -> Result<NodeId, Failure> {
    check_nodes(model, "--node", wanted)?;
    let with_cpus: Vec<NodeId> =
        model.online_nodes().filter(|node| !node.cpus.is_empty()).map(|node| node.id).collect();
    match wanted {
        Some(node) if !with_cpus.contains(&node) => Err(Failure::bad_input(format!(
            "--node: node {node} has no CPUs; {} can make requests",
            Nodes(with_cpus)
        ))),
        Some(node) => Ok(node),
        None => with_cpus.first().copied().ok_or_else(|| Failure::bad_input("the machine has no CPUs")),
    }
}

fn check_nodes(
    model: &MachineModel,
    option: &str,
    nodes: impl IntoIterator<Item = NodeId>,
) -> Result<(), Failure> {
    let existing: Vec<NodeId> = model.online_nodes().map(|node| node.id).collect();
    match nodes.into_iter().find(|node| !existing.contains(node)) {
        Some(node) => Err(Failure::bad_input(format!(
            "{option}: node {node} does not exist; the machine has {}",
            Nodes(existing)
        ))),
        None => Ok(()),
    }
}

/// Makes the request of the arguments, and asks the allocator about it.
fn ask(
    args: &ExplainArgs,
    allocator: &Allocator<'_, Described>,
) -> Result<(Vec<Step>, Option<ZoneName>), Failure> {
    let weights = WeightTable::new();
    let mask = |nodes: &Nodes| nodes.0.iter().copied().collect::<NodeMask>();
    let policy = match &args.policy {
        PolicyChoice::Local => Ok(Policy::local()),
        PolicyChoice::Preferred(node) => Policy::preferred(allocator, *node),
        PolicyChoice::PreferredMany(nodes) => Policy::preferred_many(allocator, nodes),
        PolicyChoice::Bind(nodes) => Policy::bind(allocator, mask(nodes)),
        PolicyChoice::Interleave(nodes) => Policy::interleave(allocator, mask(nodes)),
        PolicyChoice::Weighted(pairs) => {
            pairs.iter().for_each(|&(node, weight)| weights.set(node, weight));
            let nodes = pairs.iter().map(|&(node, _)| node).collect();
            Policy::weighted_interleave(allocator, nodes, &weights)
        }
    };
    let policy = policy.map_err(|error| Failure::bad_input(format!("--policy: {error}")))?;
    let cpuset = args.cpuset.as_ref().map(mask);
    let mut request = Request::new(args.order).policy(&policy).urgency(args.urgency.into());
    if let Some(cpuset) = &cpuset {
        request = request.allowed(cpuset);
    }
    // An equal request marks the zones that it finds full. If it fails, it has marked them too.
    if args.zonelist_cache.is_some()
        && let Ok(block) = allocator.alloc(&request)
    {
        allocator.free(block.first, block.order).map_err(Failure::failed)?;
    }
    let mut steps = Vec::new();
    let served_by = allocator.explain(&request, |step| steps.push(step)).map_err(Failure::bad_input)?;
    Ok((steps, served_by))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_requests_are_those_of_a_pool_only() {
        let command = ExplainArgs::augment_args(clap::Command::new("explain"));
        let machines = command.get_groups().find(|group| group.get_id() == "Source").unwrap();
        let machines: Vec<&clap::Arg> = command
            .get_arguments()
            .filter(|arg| arg.get_id() != "pool" && machines.get_args().any(|id| id == arg.get_id()))
            .collect();
        assert!(machines.len() >= 5, "{machines:?}");
        for machine in machines {
            let option = format!("--{}", machine.get_long().unwrap());
            let value = machine.get_action().takes_values().then_some("x");
            let words = ["explain", "--recent", &option].into_iter().chain(value);
            let refused = command.clone().try_get_matches_from(words).map(|_| option.clone());
            let refused = refused.unwrap_err().to_string();
            assert!(
                refused.contains("'--recent' cannot be used with") && refused.contains(&option),
                "{refused}"
            );
        }
    }
}
