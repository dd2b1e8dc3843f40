//! Kinds of access to a cache line.

/// Size of a line, as a shift.
pub(super) const LINE_SHIFT: u32 = 6;

/// Kind of an access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Access {
    Read,
    Write,
    /// An atomic read-modify-write.
    Modify,
}
