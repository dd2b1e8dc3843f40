//! The experiments that come with the lab.
//!
//! Neighbours: `experiments/` has their files, `data/published/` the figures they are held against.

/// An experiment that comes with the lab, as files.
#[derive(Clone, Copy, Debug)]
pub struct BuiltIn {
    /// Its name.
    pub name: &'static str,
    /// Its file.
    pub text: &'static str,
    /// The files it names, and what is in them.
    pub files: &'static [(&'static str, &'static str)],
}

macro_rules! built_in {
    ($name:literal, $($file:literal),*) => {
        BuiltIn {
            name: $name,
            text: include_str!(concat!("../../experiments/", $name, ".toml")),
            files: &[$((
                concat!("../data/published/", $file),
                include_str!(concat!("../../data/published/", $file)),
            )),*],
        }
    };
}

/// All of them, in the order of listing.
pub const BUILT_IN: &[BuiltIn] = &[
    built_in!("zonelist-cache-2006", "zonelist-cache-2006.csv"),
    built_in!("zonelist-cache-2011", "zonelist-cache-2011.csv"),
    built_in!("zoned-counters-2006", "zoned-counters-2006.csv"),
    built_in!("pageset-tuning-2023", "pageset-tuning-2023.csv"),
    built_in!("fallback-order-2021", "fallback-order-2021.csv"),
    built_in!("zonelist-cache-worth",),
];

/// A commented file to start an experiment of one's own from.
pub const EXAMPLE: &str = include_str!("../../experiments/example.toml");

/// An experiment by its name.
#[must_use]
pub fn built_in(name: &str) -> Option<&'static BuiltIn> {
    BUILT_IN.iter().find(|known| known.name == name)
}
