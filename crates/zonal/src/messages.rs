//! Enums whose values print as sentences: each variant and its sentence stand together.
//!
//! Every file below may use the macro, so this module comes first in `lib.rs`.

/// Defines enums and what their variants print.
///
/// A variant is followed by a format string, which may name the variant's values; by the string and further arguments, in
/// parentheses; or by a closure, in braces, that gets the formatter. A trait after the enum's name is implemented without
/// items.
macro_rules! messages {
    ($(
        $(#[$attribute:meta])*
        pub enum $name:ident $(: $marker:path)? { $(
            $(#[$doc:meta])*
            $variant:ident
                $(($($value:ident: $kind:ty),+))?
                $({ $($(#[$field_doc:meta])* $field:ident: $field_kind:ty),+ $(,)? })?
                => $message:tt
        ),+ $(,)? }
    )+) => {$(
        $(#[$attribute])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum $name { $(
            $(#[$doc])*
            $variant $(($($kind),+))? $({ $($(#[$field_doc])* $field: $field_kind),+ })?
        ),+ }

        impl core::fmt::Display for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                match *self { $(
                    Self::$variant $(($($value),+))? $({ $($field),+ })? => message!(f $message)
                ),+ }
            }
        }

        $(impl $marker for $name {})?
    )+};
}

/// Writes one sentence of [`messages`].
macro_rules! message {
    ($f:ident $text:literal) => { write!($f, $text) };
    ($f:ident ($text:literal, $($argument:expr),+)) => { write!($f, $text, $($argument),+) };
    ($f:ident { |$formatter:ident| $body:expr }) => {{
        let $formatter = $f;
        $body
    }};
}
