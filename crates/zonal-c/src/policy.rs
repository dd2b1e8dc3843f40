//! Policies that programs create once and name in many requests.
//!
//! Interleaving needs such a policy, because it has the position at which the next request continues.

use std::ops::Deref;

use zonal_linux::{NodeId, NodeMask, Pool, PoolPolicy, PoolWeights};

use crate::arguments::{check_pointer, node_id, node_numbers, sized};
use crate::calls::{self, Call, POLICY};
use crate::handle::{index_of, with_pool};
use crate::status::{Failure, Status, call, zonal_status};
use crate::table::{Table, Use, index_of_entry};
use crate::types::{
    ZONAL_POLICY_BIND, ZONAL_POLICY_INTERLEAVE, ZONAL_POLICY_LOCAL, ZONAL_POLICY_PREFERRED,
    ZONAL_POLICY_PREFERRED_MANY, ZONAL_POLICY_WEIGHTED_INTERLEAVE, zonal_policy, zonal_policy_options,
    zonal_pool,
};

static POLICIES: Table<Created> = Table::new(1);

/// What a policy borrows: the weights, or the order of its nodes.
enum Borrowed {
    Nothing,
    Weights(*mut [PoolWeights]),
    Nodes(*mut [NodeId]),
}

/// A created policy.
pub(crate) struct Created {
    /// Slot of the pool that it was created for.
    slot: u32,
    /// `None` only while the object is created.
    policy: Option<PoolPolicy<'static>>,
    borrowed: Borrowed,
}

// SAFETY: the pointers own what they point to, and only `drop` uses them.
unsafe impl Send for Created {}
// SAFETY: as above; the policy can be used by several threads.
unsafe impl Sync for Created {}

impl Created {
    /// Returns the policy for a request to the pool of `slot`.
    pub(crate) fn policy(&self, slot: u32) -> Result<&PoolPolicy<'static>, Failure> {
        match &self.policy {
            Some(policy) if self.slot == slot => Ok(policy),
            _ => Err(Failure::invalid("policy_handle is a policy that was created for another pool")),
        }
    }
}

impl Drop for Created {
    fn drop(&mut self) {
        match self.borrowed {
            Borrowed::Nothing => {}
            // SAFETY: the pointer comes from a box, and the policy that borrows it cannot be used any more. It has no destructor.
            Borrowed::Weights(weights) => drop(unsafe { Box::from_raw(weights) }),
            // SAFETY: as above.
            Borrowed::Nodes(nodes) => drop(unsafe { Box::from_raw(nodes) }),
        }
    }
}

/// A use of a created policy. It is also noted as the calling thread's, so that a child made by `fork` knows whose it is.
pub(crate) struct UsedPolicy {
    created: Use<Created>,
    _noted: Call,
}

impl Deref for UsedPolicy {
    type Target = Created;

    fn deref(&self) -> &Created {
        &self.created
    }
}

/// Returns a created policy.
pub(crate) fn created(policy: zonal_policy) -> Result<UsedPolicy, Failure> {
    let noted = Call::begin(POLICY | index_of_entry(policy.id))?;
    let created = POLICIES.get(policy.id).ok_or_else(|| {
        Failure::invalid(format_args!("{:#x} is not a policy, or it has been destroyed", policy.id))
    })?;
    Ok(UsedPolicy { created, _noted: noted })
}

/// Forgets the uses of other threads, in a child made by `fork`.
pub(crate) fn after_fork_in_child() {
    POLICIES.after_fork_in_child(|index| calls::own_notes(POLICY | index));
}

/// Destroys the policies of a pool that is being closed.
pub(crate) fn destroy_all_of(slot: u32) {
    POLICIES.destroy_all_of(slot);
}

/// Returns the simple policy that a request or an option names, or `None` for the local one.
pub(crate) fn simple(pool: &Pool, kind: u32, nodes: &[u16]) -> Result<Option<PoolPolicy<'static>>, Failure> {
    let policy = match (kind, nodes) {
        (ZONAL_POLICY_LOCAL, []) => return Ok(None),
        (ZONAL_POLICY_PREFERRED, &[first]) => pool.preferred(node_id(first)?),
        (ZONAL_POLICY_BIND, [_, ..]) => {
            let ids = nodes.iter().map(|&number| node_id(number));
            pool.bind(ids.collect::<Result<NodeMask, _>>()?)
        }
        (ZONAL_POLICY_INTERLEAVE..=ZONAL_POLICY_PREFERRED_MANY, _) => {
            return Err(Failure::invalid(format_args!(
                "policy is {kind}, which only a policy of zonal_policy_create can be"
            )));
        }
        _ => {
            return Err(Failure::invalid(format_args!(
                "policy is {kind} with {} nodes; ZONAL_POLICY_LOCAL (0) has none, ZONAL_POLICY_PREFERRED (1) has one, \
                 and ZONAL_POLICY_BIND (2) has one or more",
                nodes.len()
            )));
        }
    };
    policy.map(Some).map_err(Failure::invalid)
}

/// Returns values in a box. A program whose heap is exhausted does not end.
fn on_heap<T>(values: impl Iterator<Item = T> + Clone) -> Result<Box<[T]>, Failure> {
    let mut list = Vec::new();
    let no_memory = |_| Failure::new(Status::ZONAL_BUSY, "the heap has no memory for the policy");
    list.try_reserve_exact(values.clone().count()).map_err(no_memory)?;
    list.extend(values);
    Ok(list.into_boxed_slice())
}

/// Returns the policy that options describe.
///
/// # Safety
/// The options must point to as many nodes and weights as they say.
unsafe fn create(pool: &Pool, slot: u32, options: &zonal_policy_options) -> Result<Created, Failure> {
    if options.reserved != 0 {
        return Err(Failure::invalid(format_args!("reserved is {}; it must be 0", options.reserved)));
    }
    // SAFETY: guaranteed by the caller.
    let numbers = unsafe { node_numbers(options.nodes, options.nodes_len) }?;
    let mask = numbers.iter().map(|&number| node_id(number)).collect::<Result<NodeMask, _>>()?;
    let needs_nodes = || {
        let why = || Failure::invalid(format_args!("policy is {} without nodes", options.policy));
        if numbers.is_empty() { Err(why()) } else { Ok(()) }
    };
    if !options.weights.is_null() && options.policy != ZONAL_POLICY_WEIGHTED_INTERLEAVE {
        return Err(Failure::invalid("weights are for ZONAL_POLICY_WEIGHTED_INTERLEAVE (4) only"));
    }
    match options.policy {
        ZONAL_POLICY_INTERLEAVE => {
            needs_nodes()?;
            let policy = pool.interleave(mask).map_err(Failure::invalid)?;
            Ok(Created { slot, policy: Some(policy), borrowed: Borrowed::Nothing })
        }
        ZONAL_POLICY_WEIGHTED_INTERLEAVE => {
            needs_nodes()?;
            check_pointer("weights", options.weights)?;
            // SAFETY: the caller guarantees a weight for each node.
            let given = unsafe { std::slice::from_raw_parts(options.weights, numbers.len()) };
            let weights = on_heap((0..1).map(|_| PoolWeights::new()))?;
            for (&number, &weight) in numbers.iter().zip(given) {
                weights[0].set(node_id(number)?, weight);
            }
            let weights = Box::into_raw(weights);
            let mut created = Created { slot, policy: None, borrowed: Borrowed::Weights(weights) };
            // SAFETY: the weights live until `created` is dropped, which drops the policy first.
            let policy = pool.weighted_interleave(mask, unsafe { &(&*weights)[0] });
            created.policy = Some(policy.map_err(Failure::invalid)?);
            Ok(created)
        }
        ZONAL_POLICY_PREFERRED_MANY => {
            needs_nodes()?;
            // The numbers were checked above.
            let order = on_heap(numbers.iter().filter_map(|&number| NodeId::new(number)))?;
            let order = Box::into_raw(order);
            let mut created = Created { slot, policy: None, borrowed: Borrowed::Nodes(order) };
            // SAFETY: the nodes live until `created` is dropped, which drops the policy first.
            let policy = pool.preferred_many(unsafe { &*order });
            created.policy = Some(policy.map_err(Failure::invalid)?);
            Ok(created)
        }
        ZONAL_POLICY_LOCAL => {
            Err(Failure::invalid("policy is ZONAL_POLICY_LOCAL (0), which needs no policy"))
        }
        kind => {
            let policy = simple(pool, kind, numbers)?;
            Ok(Created { slot, policy, borrowed: Borrowed::Nothing })
        }
    }
}

/// Creates a policy for requests to a pool, which name it in `policy_handle`, and stores its handle in `policy`.
///
/// Several threads may use it at the same time. A policy that interleaves continues with the next node in every request. A
/// policy is destroyed with its pool at the latest.
///
/// # Safety
/// `options` must point to options. `policy` must point to a handle.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zonal_policy_create(
    pool: zonal_pool,
    options: *const zonal_policy_options,
    policy: *mut zonal_policy,
) -> zonal_status {
    call(|| {
        check_pointer("policy", policy)?;
        // SAFETY: guaranteed by the caller.
        unsafe { policy.write(zonal_policy::default()) };
        // SAFETY: guaranteed by the caller.
        let options = unsafe { sized("options", options) }?;
        with_pool(pool, |found| {
            let slot = index_of(pool)? as u32;
            // SAFETY: guaranteed by the caller.
            let created = unsafe { create(found, slot, options) }?;
            let full = |_| {
                let why = "65536 policies exist, which is the limit, or the heap has no memory for more";
                Failure::new(Status::ZONAL_BUSY, why)
            };
            let id = POLICIES.add(slot, created).map_err(full)?;
            // SAFETY: guaranteed by the caller.
            unsafe { policy.write(zonal_policy { id }) };
            Ok(())
        })
    })
}

/// Destroys a policy. Requests that are using it finish first; its handle is refused at once.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
pub extern "C" fn zonal_policy_destroy(policy: zonal_policy) -> zonal_status {
    call(|| {
        let unknown =
            || Failure::invalid(format_args!("{:#x} is not a policy, or it has been destroyed", policy.id));
        if POLICIES.destroy(policy.id) { Ok(()) } else { Err(unknown()) }
    })
}
