//! The core's requests and policies, named for a [`Pool`](crate::Pool).

use zonal::mempolicy::{Policy, WeightTable};
use zonal::request::Request;

use super::platform::LinuxPlatform;

/// A request to a [`Pool`](crate::Pool): how many frames, what for, from which nodes, how urgently.
///
/// The default is one frame or block of user data, from any zone, starting at the node of the requesting CPU, that
/// may wait for reclaim.
///
/// ```
/// use zonal_linux::{NodeMask, Order, PageKind, Pool, PoolRequest};
///
/// let pool = Pool::builder().size(64 << 20).fake_nodes(2).build()?;
/// // Eight frames (32 KiB), zeroed, to be used as cache.
/// let block = PoolRequest::new(Order::new(3).unwrap()).zeroed().kind(PageKind::Cache);
/// assert!(pool.alloc(&block)?.iter().all(|&byte| byte == 0));
/// // One frame at once or not at all, from these nodes only.
/// let nodes: NodeMask = pool.memory_nodes();
/// let page = pool.alloc(&PoolRequest::page().no_wait().allowed(&nodes))?;
/// assert!(nodes.contains(page.node()));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub type PoolRequest<'a> = Request<'a>;

/// A policy for requests to a [`Pool`](crate::Pool): which nodes may serve them, and where the search starts.
///
/// A policy is made once, by a method of the pool, and used by any number of requests and threads.
///
/// ```
/// use zonal_linux::{NodeId, Pool, PoolPolicy, PoolRequest};
///
/// let pool = Pool::builder().size(64 << 20).fake_nodes(4).build()?;
/// let near_one: PoolPolicy = pool.preferred(NodeId::new(1).unwrap())?;
/// let page = pool.alloc(&PoolRequest::page().policy(&near_one))?;
/// assert_eq!(page.node().get(), 1); // another node if node 1 were full
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub type PoolPolicy<'w> = Policy<'w, LinuxPlatform>;

/// The weights of nodes for [`Pool::weighted_interleave`](crate::Pool::weighted_interleave).
pub type PoolWeights = WeightTable<LinuxPlatform>;
