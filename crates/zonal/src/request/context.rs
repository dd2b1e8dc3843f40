//! The allocation context: the CPU of a request, the zonelist to walk, and the zones that may serve the request.
//!
//! An [`AllocContext`] is a request resolved against the state of the machine. Its *target* is the node whose zonelist
//! is walked. Related files: `request/policy.rs` defines the policies that choose nodes, and `alloc/scan.rs` walks the
//! list.

use core::cell::Cell;

use crate::config::ZeroOn;
use crate::error::AllocError;
use crate::node_mask::NodeMask;
use crate::pageset::state::MachineState;
use crate::platform::Platform;
use crate::platform::recorder::SlowRequest;
use crate::platform::steps::{Exclusion, Step};
use crate::request::policy::{Mode, Turn};
use crate::request::{BELOW, Request, RequestFlags, ZEROED};
use crate::rules::watermarks::Urgency;
use crate::units::{NodeId, PageCount, Pfn, ZoneId};
use crate::zone::{CpuInfo, Zone};
use crate::zonelist::AllowedNodes;

/// A request with its policy and cpuset resolved to nodes.
pub(crate) struct AllocContext<'r> {
    /// Those of the request; a caller that is reclaiming may use the reserve.
    pub(crate) flags: RequestFlags,
    /// Number of frames that the request needs: those in one block, fewer, or any number of adjacent frames.
    pub(crate) count: PageCount,
    /// Frame below which all frames must be. Such a request neither sets nor checks full bits, because a zone without a
    /// suitable block below the limit may have others.
    pub(crate) below: Option<Pfn>,
    /// CPU info of the current CPU; a placeholder with the CPU's number if the CPU is unknown or offline.
    pub(crate) cpu: CpuInfo,
    /// Index of the current CPU's node.
    pub(crate) from: usize,
    /// Index of the node whose zonelist is walked.
    pub(crate) target: usize,
    /// Whether only the target may serve the request.
    pub(crate) strict: bool,
    /// Whether `target` was chosen by interleaving.
    pub(crate) interleaved: bool,
    /// Whether reclaimers may be called: the request may wait, and the caller is not inside a reclaimer's call.
    pub(crate) may_reclaim: bool,
    /// Nodes that the request's cpuset allows.
    pub(crate) cpuset: Option<&'r NodeMask>,
    /// Nodes to try first, in order, before those of the zonelist.
    pub(crate) first: &'r [NodeId],
    /// Nodes that a binding policy allows.
    pub(crate) bound: Option<&'r NodeMask>,
    /// Number of nodes with memory that both `cpuset` and `bound` allow.
    pub(crate) nodes: usize,
    /// Whether reclaimers that were called for a range freed other frames instead.
    pub(crate) ranges_ignored: Cell<bool>,
    /// Receives the steps of the request; `None` for most requests.
    pub(crate) observer: Option<&'r dyn Fn(Step)>,
}

impl<'r> AllocContext<'r> {
    /// Whether `zone` may serve the request.
    pub(crate) fn allows<P: Platform>(&self, zone: &Zone<'_, P>) -> bool {
        self.exclusion(zone).is_none() && (!self.strict || zone.node == self.target)
    }

    /// Returns why the zone limit, the nodes or the address limit of the request exclude `zone`.
    #[inline]
    pub(crate) fn exclusion<P: Platform>(&self, zone: &Zone<'_, P>) -> Option<Exclusion> {
        let within = |limit: Pfn| limit.min(zone.span.end()).offset_from(zone.span.start);
        let reaches = |limit| within(limit).is_some_and(|frames| frames >= self.flags.order.pages());
        if zone.kind > self.flags.zone_limit {
            Some(Exclusion::ZoneLimit)
        } else if !P::RESTRICTS {
            None
        } else if self.nodes().is_some_and(|nodes| !nodes.contains(zone.node_id)) {
            Some(Exclusion::Node)
        } else {
            // No block can end below the limit.
            (!self.below.is_none_or(reaches)).then_some(Exclusion::AddressLimit)
        }
    }

    /// Returns the offset of the frame after the last one in `zone` that may serve the request.
    pub(crate) fn reach<P: Platform>(&self, zone: &Zone<'_, P>) -> u64 {
        let end = self.below.map_or(zone.span.end(), |limit| limit.min(zone.span.end()));
        end.offset_from(zone.base).map_or(0, PageCount::get)
    }

    /// Reports a step of the request.
    pub(crate) fn report(&self, step: Step) {
        if let Some(observer) = self.observer {
            observer(step);
        }
    }

    /// Returns the nodes that may serve the request; `None` means all nodes.
    #[inline]
    pub(crate) fn nodes(&self) -> Option<AllowedNodes<'r>> {
        let first = self.bound.or(self.cpuset)?;
        let other = self.bound.and(self.cpuset);
        Some(AllowedNodes::new(first, other))
    }
}

impl<'m, P: Platform> MachineState<'m, P> {
    /// Resolves a request with the given turn of its policy.
    pub(crate) fn resolve<'r>(
        &self,
        request: &Request<'r>,
        turn: Turn,
    ) -> Result<AllocContext<'r>, AllocError> {
        if request.flags.order > self.config().max_order {
            return Err(AllocError::OrderTooLarge {
                order: request.flags.order,
                max: self.config().max_order,
            });
        }
        if self.zeroes(Some(request)) && self.platform.contents().is_none() {
            return Err(AllocError::NoContents);
        }
        let is_restricted =
            request.policy.is_some() || request.allowed.is_some() || request.flags.bits & BELOW != 0;
        assert!(P::RESTRICTS || !is_restricted, "the platform's requests have no restrictions");
        let reclaiming = self.platform.is_reclaiming();
        let urgency = if reclaiming { Urgency::Reserve } else { request.flags.urgency };
        let cpu = self.platform.current_cpu();
        let here = self.cpu_info(cpu);
        let from = here.map_or(0, |cpu| usize::from(cpu.node));
        let mut context = AllocContext {
            flags: RequestFlags { urgency, ..request.flags },
            count: request.flags.order.pages(),
            below: (request.flags.bits & BELOW != 0).then_some(request.below),
            cpu: here.filter(|&cpu| self.is_online(cpu)).unwrap_or(CpuInfo::absent(cpu)),
            from,
            target: from,
            strict: request.is_strict(),
            interleaved: false,
            may_reclaim: request.may_wait() && !reclaiming,
            cpuset: request.allowed.filter(|_| urgency != Urgency::Atomic),
            first: &[],
            bound: None,
            nodes: 0,
            ranges_ignored: Cell::new(false),
            observer: None,
        };
        if P::RESTRICTS && (request.policy.is_some() || context.cpuset.is_some()) {
            self.constrain(&mut context, request, turn)?;
        }
        Ok(context)
    }

    /// Finds frames for a request with `find`, which returns them with their zone, and passes the request and its
    /// steps to the platform's recorder, if there is one.
    pub(crate) fn recorded<T>(
        &self,
        context: &AllocContext<'_>,
        find: impl FnOnce(&AllocContext<'_>) -> Option<(ZoneId, T)>,
    ) -> Option<T> {
        let (mut find, mut found) = (Some(find), None);
        if let Some(recorder) = self.platform.recorder().filter(|_| !P::ONLY_BLOCKS) {
            let request = SlowRequest {
                cpu: context.cpu.id,
                node: self.nodes[context.target].id,
                preferred: self.find_in_zones(context, Some).map(|zone| zone.node_id),
                order: context.flags.order,
                frames: context.count,
                kind: context.flags.kind,
                urgency: context.flags.urgency,
                zone_limit: context.flags.zone_limit,
                may_reclaim: context.may_reclaim,
            };
            recorder.record(&request, &mut |observer| {
                let both = |step| {
                    context.report(step);
                    observer(step);
                };
                let ranges_ignored = Cell::new(false);
                let observed = AllocContext { observer: Some(&both), ranges_ignored, ..*context };
                let served = find.take()?(&observed);
                context.ranges_ignored.set(observed.ranges_ignored.get());
                let (zone, frames) = served?;
                found = Some(frames);
                Some(zone)
            });
        }
        found.or_else(|| Some(find.take()?(context)?.1))
    }

    /// Whether the frames for a request, or for a given range, must be zeroed.
    fn zeroes(&self, request: Option<&Request<'_>>) -> bool {
        request.is_some_and(|request| request.flags.bits & ZEROED != 0)
            || self.config().hardening.zero == ZeroOn::EveryAllocation
    }

    /// Zeroes frames that were allocated for a request, or as a given range, if they must be zeroed.
    #[inline]
    pub(crate) fn zero_new(&self, request: Option<&Request<'_>>, first: Pfn, count: PageCount) {
        if self.zeroes(request)
            && let Some(contents) = self.platform.contents()
        {
            contents.fill(first, count, 0);
        }
    }

    /// Applies the policy and the cpuset of `request` to `context`.
    fn constrain<'r>(
        &self,
        context: &mut AllocContext<'r>,
        request: &Request<'r>,
        turn: Turn,
    ) -> Result<(), AllocError> {
        let memory = self.memory_nodes();
        let usable = context.cpuset.map_or(memory, |mask| mask.intersection(&memory));
        context.nodes = usable.len();
        let none = |mask: &NodeMask| if mask.is_empty() { Err(AllocError::NoNodeInPolicy) } else { Ok(()) };
        none(&usable)?;
        let Some(policy) = request.policy else { return Ok(()) };
        none(&policy.nodes().intersection(&memory))?;
        let target = match policy.mode() {
            Mode::Local => None,
            Mode::PreferredMany => {
                if !context.strict {
                    context.first = policy.order();
                }
                None
            }
            Mode::Preferred(node) => Some(node),
            Mode::Bind => {
                let nodes = policy.nodes().intersection(&usable);
                none(&nodes)?;
                (context.bound, context.nodes) = (Some(policy.nodes()), nodes.len());
                None
            }
            Mode::Interleave => {
                let cpu = self.platform.current_cpu();
                let node = policy.target(cpu, &|at| usable.words[at], turn);
                context.interleaved = node.is_some();
                node
            }
        };
        if let Some(place) = target.and_then(|node| self.place_of(node)) {
            context.target = place;
        }
        Ok(())
    }
}
