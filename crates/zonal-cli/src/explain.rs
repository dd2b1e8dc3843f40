//! `zonal explain`: which zones a request would try on a machine, in order, and why each is passed over.
//!
//! The command builds the allocator that ships over the zones of a described machine, without memory behind them, fills
//! it, and asks it. Related files: `explain/filled.rs` builds and fills the allocator, `explain/render.rs` prints.

mod filled;
mod render;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use zonal::explain::Step;
use zonal::mempolicy::WeightTable;
use zonal::platform::one_thread::OneThread;
use zonal::request::Urgency;
use zonal::units::{NodeId, Order};
use zonal::{Allocator, NodeMask, Policy, Request};
use zonal_machine::{Capture, MachineModel, capture_live, preset};

use crate::layout::{self, Width};
use crate::outcome::{Failure, print, print_message};
use crate::values::{Nodes, Percent, PolicyChoice};
use filled::Filled;

/// Explain which zones a request would try on a machine, and why each is passed over
#[derive(Args, Clone, Debug)]
#[command(after_help = examples())]
pub(crate) struct ExplainArgs {
    #[command(flatten)]
    source: Source,

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

    /// Share of a node's memory that is in use; can be repeated [default: as now for this machine, else nothing]
    #[arg(long, value_name = "NODE=PERCENT", value_parser = fill)]
    fill: Vec<(NodeId, Percent)>,

    /// Print the explanation as one JSON document
    #[arg(long)]
    json: bool,
}

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

    /// This machine, with as much free memory as it has now (the default)
    #[arg(long)]
    live: bool,
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

/// The steps of a request, and the zone that would serve it.
struct Explanation {
    steps: Vec<Step>,
    served_by: Option<zonal::explain::ZoneName>,
}

fn examples() -> String {
    let examples = [
        ("zonal explain", "a page on this machine, as full as it is now"),
        ("zonal explain --preset quad-10-12-32 --node 2 --fill 2=100", "the nearest node of a full one"),
        ("zonal explain --machine quad.json --order 9 --policy bind:0-1 --fill 0=99 --fill 1=50", ""),
        ("zonal explain --preset quad-10-12-32 --cpuset 1-3 --urgency atomic --json", ""),
    ];
    let about = "The allocator that ships answers, over the zones of the machine and without memory behind them. It \
                 has its own defaults and the machine's settings; memory in use cannot be reclaimed.";
    format!("{}\nExamples:\n{}", Width::of_output().paragraph("", "", about), layout::entries(examples))
}

fn one_node(text: &str) -> Result<NodeId, String> {
    match text.parse()? {
        Nodes(nodes) if nodes.len() == 1 => Ok(nodes[0]),
        Nodes(_) => Err(format!("`{text}` is more than one node")),
    }
}

fn order(text: &str) -> Result<Order, String> {
    let order = text.trim().parse().ok().and_then(Order::new).filter(|&order| order <= Order::DEFAULT_MAX);
    order.ok_or_else(|| format!("`{text}` is not an order from 0 to {}", Order::DEFAULT_MAX))
}

/// Reads NODE=PERCENT.
fn fill(text: &str) -> Result<(NodeId, Percent), String> {
    let Some((node, percent)) = text.split_once('=') else {
        return Err(format!("`{text}` is not NODE=PERCENT, as in 0=95"));
    };
    Ok((one_node(node)?, percent.parse()?))
}

/// Runs the command. Returns exit code 0 for success, 1 if the machine cannot be read or set up, and 2 for bad input.
pub(crate) fn run(args: &ExplainArgs) -> ExitCode {
    explain(args).map_or_else(Failure::report, |()| ExitCode::SUCCESS)
}

fn explain(args: &ExplainArgs) -> Result<(), Failure> {
    let model = model(&args.source)?;
    let node = requesting_node(&model, args.node)?;
    check_nodes(&model, "--policy", args.policy.nodes())?;
    check_nodes(&model, "--cpuset", args.cpuset.iter().flat_map(|nodes| nodes.0.clone()))?;
    check_nodes(&model, "--fill", args.fill.iter().map(|&(node, _)| node))?;
    let is_live = args.source.machine.is_none() && args.source.preset.is_none();
    let filled = Filled::new(&model, node, &args.fill, is_live)?;
    let explanation = filled.with(|allocator| ask(args, allocator))?;
    let explained = render::Explained { args, model: &model, node, explanation: &explanation };
    print(&if args.json { explained.json() } else { explained.text(Width::of_output()) })
}

fn model(source: &Source) -> Result<MachineModel, Failure> {
    match (&source.machine, &source.preset) {
        (Some(file), _) => MachineModel::read(file).map_err(Failure::bad_input),
        (None, Some(name)) => preset(name).map_err(Failure::bad_input),
        (None, None) => {
            let Capture { model, notes } = capture_live().map_err(Failure::failed)?;
            notes.into_iter().for_each(|note| print_message(format_args!("note: {note}")));
            Ok(model)
        }
    }
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
fn ask(args: &ExplainArgs, allocator: &Allocator<'_, OneThread>) -> Result<Explanation, Failure> {
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
    let mut steps = Vec::new();
    let served_by = allocator.explain(&request, |step| steps.push(step)).map_err(Failure::bad_input)?;
    Ok(Explanation { steps, served_by })
}
