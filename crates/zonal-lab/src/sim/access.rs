//! Kinds of access to a cache line.

/// Kind of an access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Access {
    Read,
    Write,
    /// An atomic read-modify-write.
    Modify,
}
