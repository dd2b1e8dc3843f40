//! Requests: what a program passes, as the request that a pool serves.

use zonal_linux::{Order, Pool, PoolPolicy, PoolRequest};

use crate::arguments::{node_numbers, sized};
use crate::handle::index_of;
use crate::policy::{UsedPolicy, created, simple};
use crate::status::{Failure, check_flags};
use crate::types::{
    ZONAL_POLICY_LOCAL, ZONAL_REQUEST_NO_WAIT, ZONAL_REQUEST_THIS_NODE, ZONAL_REQUEST_ZEROED, zonal_pool,
    zonal_request,
};

/// The policy of a request, which lives as long as the request is served.
#[allow(clippy::large_enum_variant)] // it stays on the stack
enum Chosen {
    Local,
    Simple(PoolPolicy<'static>),
    Created(UsedPolicy),
}

/// Returns the request of a caller; null is one for a page near the calling CPU.
///
/// # Safety
/// `request` must be null, or point to a request.
#[inline]
pub(crate) unsafe fn or_page<'a>(request: *const zonal_request) -> Result<&'a zonal_request, Failure> {
    if request.is_null() {
        return Ok(&zonal_request::PAGE);
    }
    // SAFETY: guaranteed by the caller.
    unsafe { sized("request", request) }
}

/// Runs `body` with the request that `request` describes.
///
/// # Safety
/// The nodes of the request must be null, or point to as many numbers as it says.
#[inline]
pub(crate) unsafe fn with_request<R>(
    handle: zonal_pool,
    pool: &Pool,
    request: &zonal_request,
    body: impl FnOnce(&PoolRequest<'_>) -> Result<R, Failure>,
) -> Result<R, Failure> {
    let known = ZONAL_REQUEST_NO_WAIT | ZONAL_REQUEST_THIS_NODE | ZONAL_REQUEST_ZEROED;
    check_flags(request.flags, known)?;
    let is_local = request.policy == ZONAL_POLICY_LOCAL && request.nodes_len == 0;
    let chosen = if request.policy_handle.id == 0 && is_local {
        Chosen::Local
    } else {
        // SAFETY: guaranteed by the caller.
        unsafe { choose(pool, request) }?
    };
    let mut wanted = PoolRequest::page();
    match &chosen {
        Chosen::Local => {}
        Chosen::Simple(policy) => wanted = wanted.policy(policy),
        Chosen::Created(created) => wanted = wanted.policy(created.policy(index_of(handle)? as u32)?),
    }
    let has = |flag: u32| request.flags & flag != 0;
    if has(ZONAL_REQUEST_NO_WAIT) {
        wanted = wanted.no_wait();
    }
    if has(ZONAL_REQUEST_THIS_NODE) {
        wanted = wanted.this_node();
    }
    if has(ZONAL_REQUEST_ZEROED) {
        wanted = wanted.zeroed();
    }
    if request.alignment != 0 {
        wanted = wanted.with_order(order_of("alignment", pool, request.alignment)?);
    }
    body(&wanted)
}

/// Returns the policy of a request that names nodes or a created policy.
///
/// # Safety
/// As for [`with_request`].
#[cold]
unsafe fn choose(pool: &Pool, request: &zonal_request) -> Result<Chosen, Failure> {
    // SAFETY: guaranteed by the caller.
    let nodes = unsafe { node_numbers(request.nodes, request.nodes_len) }?;
    if request.policy_handle.id == 0 {
        return Ok(simple(pool, request.policy, nodes)?.map_or(Chosen::Local, Chosen::Simple));
    }
    if request.policy != ZONAL_POLICY_LOCAL || !nodes.is_empty() {
        return Err(Failure::invalid(format_args!(
            "policy_handle is set, and policy is {} with {} nodes; only one of the two is possible",
            request.policy,
            nodes.len()
        )));
    }
    created(request.policy_handle).map(Chosen::Created)
}

/// Returns the order of `bytes` blocks, which must be a power of two.
pub(crate) fn order_of(name: &str, pool: &Pool, bytes: usize) -> Result<Order, Failure> {
    let order = if bytes.is_power_of_two() { pool.order_holding(bytes) } else { None };
    order.ok_or_else(|| {
        // SAFETY: this only reads.
        let max_order = unsafe { pool.allocator() }.max_order();
        let most = (pool.page_bytes() as u64) << max_order.get();
        Failure::invalid(format_args!("{name} is {bytes}; it must be a power of two of at most {most} bytes"))
    })
}
