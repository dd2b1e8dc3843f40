//! The core's requests and policies, named for a [`Pool`](crate::Pool).

use zonal::mempolicy::Policy;
use zonal::request::Request;

use super::platform::LinuxPlatform;

/// A request to a [`Pool`](crate::Pool).
pub type PoolRequest<'a> = Request<'a>;

/// A policy for requests to a [`Pool`](crate::Pool).
pub type PoolPolicy<'w> = Policy<'w, LinuxPlatform>;
