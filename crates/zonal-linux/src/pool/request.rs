//! Names for the request and policy types of the crate `zonal`, as a [`Pool`](crate::Pool) uses them.

use zonal::mempolicy::{Policy, WeightTable};
use zonal::request::Request;

use super::platform::LinuxPlatform;

/// A request to a [`Pool`](crate::Pool).
///
/// A request states the number of frames, their purpose, the nodes that may serve it, and its urgency. By default a
/// request is for user data and may wait for reclaim. All zones may serve it, and the search starts at the node of the
/// calling CPU.
///
/// ```
/// use zonal_linux::{NodeMask, Order, PageKind, Pool, PoolRequest};
///
/// let pool = Pool::builder().size(64 << 20).fake_nodes(2).build()?;
/// // A block of eight frames (32 KiB), zeroed, for the data of a cache.
/// let block = PoolRequest::new(Order::new(3).unwrap()).zeroed().kind(PageKind::Cache);
/// assert!(pool.alloc(&block)?.iter().all(|&byte| byte == 0));
/// // One frame from these nodes only; the request fails if it would have to wait.
/// let nodes: NodeMask = pool.memory_nodes();
/// let page = pool.alloc(&PoolRequest::page().no_wait().allowed(&nodes))?;
/// assert!(nodes.contains(page.node()));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub type PoolRequest<'a> = Request<'a>;

/// A policy for requests to a [`Pool`](crate::Pool).
///
/// A policy determines which nodes may serve a request and at which node the search starts. Methods such as
/// [`Pool::bind`](crate::Pool::bind) create policies. Any number of requests and threads can use the same policy.
///
/// ```
/// use zonal_linux::{NodeId, Pool, PoolPolicy, PoolRequest};
///
/// let pool = Pool::builder().size(64 << 20).fake_nodes(4).build()?;
/// let near_one: PoolPolicy = pool.preferred(NodeId::new(1).unwrap())?;
/// let page = pool.alloc(&PoolRequest::page().policy(&near_one))?;
/// assert_eq!(page.node().get(), 1); // would be another node if node 1 were full
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub type PoolPolicy<'w> = Policy<'w, LinuxPlatform>;

/// The weights of nodes for [`Pool::weighted_interleave`](crate::Pool::weighted_interleave).
pub type PoolWeights = WeightTable<LinuxPlatform>;
