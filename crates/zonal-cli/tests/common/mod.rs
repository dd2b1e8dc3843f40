//! Parts that several tests of the command share.

pub(crate) mod paths;
