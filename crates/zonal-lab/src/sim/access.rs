//! Kinds of accesses to a line.

/// What an access does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Access {
    Read,
    Write,
    /// An atomic read-modify-write.
    Modify,
}
