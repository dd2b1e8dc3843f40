//! The experiments that are compiled into the lab.
//!
//! Related files: the crate's `experiments/` folder contains the experiment files. `data/published/` contains the
//! published figures that their results are compared with.

/// The file texts of a built-in experiment.
#[derive(Clone, Copy, Debug)]
pub struct BuiltIn {
    /// Name of the experiment.
    pub name: &'static str,
    /// Text of the experiment file.
    pub text: &'static str,
    /// Names and texts of the other files that the experiment refers to.
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

/// All built-in experiments, in the order in which they are listed.
pub const BUILT_IN: &[BuiltIn] = &[
    built_in!("zonelist-cache-2006", "zonelist-cache-2006.csv"),
    built_in!("zonelist-cache-2011", "zonelist-cache-2011.csv"),
    built_in!("zoned-counters-2006", "zoned-counters-2006.csv"),
    built_in!("pageset-tuning-2023", "pageset-tuning-2023.csv"),
    built_in!("fallback-order-2021", "fallback-order-2021.csv"),
    built_in!("zonelist-cache-worth",),
];

/// A commented file from which users can start their own experiment.
pub const EXAMPLE: &str = include_str!("../../experiments/example.toml");

/// Returns the built-in experiment called `name`.
#[must_use]
pub fn built_in(name: &str) -> Option<&'static BuiltIn> {
    BUILT_IN.iter().find(|known| known.name == name)
}
