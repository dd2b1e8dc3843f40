//! Structures that consist only of the platform's cells, and the macros that declare them.
//!
//! All shared state of the allocator is declared with [`all_zero!`], so every cell is initially zero. If the platform
//! promises that zero bytes are valid cells ([`ZeroedCells`](super::ZeroedCells)), a zeroed buffer needs no
//! initialization.
//!
//! Related files: `metadata/arena.rs` builds the structures in buffers.

use super::Platform;

/// A value that consists only of platform cells, in its initial state.
///
/// # Safety
/// Every field must be a cell or lock of `P`, or a structure of these, and `all_zero` must construct each with
/// `new(0)` or `new()`. Zero bytes are then equivalent to the value if `P::ZEROED_CELLS` is set.
#[allow(unsafe_code)]
pub(crate) unsafe trait AllZero<P: Platform> {
    /// Returns the initial value.
    fn all_zero() -> Self;
}

/// Declares structures of cells and implements [`AllZero`] for them.
///
/// A field is a `u32` or `u64` cell, a `lock`, an array `[kind; n]` of these, `(line kind)` for a field on cache
/// lines that no other field shares, or `{Type<P>}` for another structure declared with this macro.
macro_rules! all_zero {
    ($(
        $(#[$attribute:meta])*
        $visibility:vis struct $name:ident<P> {
            $($(#[$field_attribute:meta])* $field_visibility:vis $field:ident: $kind:tt),* $(,)?
        }
    )*) => {$(
        $(#[$attribute])*
        $visibility struct $name<P: Platform> {
            $($(#[$field_attribute])* $field_visibility $field: $crate::platform::cells::cell!(type P $kind)),*
        }

        // SAFETY: `cell!` constructs cells with `new(0)`, locks with `new()`, and values of structures declared
        // here.
        #[allow(unsafe_code)]
        unsafe impl<P: Platform> $crate::platform::cells::AllZero<P> for $name<P> {
            fn all_zero() -> Self {
                Self { $($field: $crate::platform::cells::cell!(zero P $kind)),* }
            }
        }
    )*};
}
pub(crate) use all_zero;

/// Expands to the type or the initial value for a field of [`all_zero!`].
macro_rules! cell {
    (type $P:ident u32) => { $P::U32 };
    (type $P:ident u64) => { $P::U64 };
    (type $P:ident lock) => { $P::Lock };
    (type $P:ident [$kind:tt; $count:expr]) => { [$crate::platform::cells::cell!(type $P $kind); $count] };
    (type $P:ident (line $kind:tt)) => {
        $crate::platform::cells::Line<$crate::platform::cells::cell!(type $P $kind)>
    };
    (type $P:ident {$type:ty}) => { $type };
    (zero $P:ident u32) => { <$P::U32 as $crate::platform::Atomic<u32>>::new(0) };
    (zero $P:ident u64) => { <$P::U64 as $crate::platform::Atomic<u64>>::new(0) };
    (zero $P:ident lock) => { <$P::Lock as $crate::platform::RawLock>::new() };
    (zero $P:ident [$kind:tt; $count:expr]) => {
        core::array::from_fn(|_| $crate::platform::cells::cell!(zero $P $kind))
    };
    (zero $P:ident (line $kind:tt)) => {
        $crate::platform::cells::Line($crate::platform::cells::cell!(zero $P $kind))
    };
    (zero $P:ident {$type:ty}) => { <$type as $crate::platform::cells::AllZero<$P>>::all_zero() };
}
pub(crate) use cell;

/// A value on cache lines that it shares with no other value.
#[repr(C, align(64))]
pub(crate) struct Line<T>(pub(crate) T);

/// Makes views `Copy` for every platform; `derive` would require the platform to be `Copy`.
macro_rules! copy_view {
    ($($view:ident $(<$item:ident>)?),*) => {$(
        impl<P: Platform $(, $item)?> Clone for $view<'_, P $(, $item)?> {
            fn clone(&self) -> Self {
                *self
            }
        }

        impl<P: Platform $(, $item)?> Copy for $view<'_, P $(, $item)?> {}
    )*};
}
pub(crate) use copy_view;
