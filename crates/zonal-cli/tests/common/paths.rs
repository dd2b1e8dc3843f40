//! The arguments that name paths. A unit test of the command line compares the list with its argument definitions, so a
//! new argument fails that test first, and then the tests that attack each path until they have an attack for it.

/// An argument that names a path.
#[derive(Clone, Debug)]
pub(crate) struct PathArgument {
    /// The words of the command, without `zonal`.
    pub(crate) command: Vec<&'static str>,
    /// The option, or the name of the value if the argument has no option.
    pub(crate) argument: &'static str,
}

impl PathArgument {
    /// Returns the arguments before the path: the command, and the option if there is one.
    pub(crate) fn before(&self) -> Vec<&'static str> {
        let option = self.argument.starts_with("--").then_some(self.argument);
        self.command.iter().copied().chain(option).collect()
    }
}

/// Returns the arguments whose paths the commands use in a way, such as `writes`.
pub(crate) fn paths(way: &str) -> Vec<PathArgument> {
    let lines = include_str!("../paths.txt").lines().filter(|line| !line.starts_with('#'));
    let found: Vec<PathArgument> = lines
        .filter_map(|line| {
            let mut words: Vec<&str> = line.split_whitespace().collect();
            let argument = words.pop().filter(|_| words.first() == Some(&way))?;
            Some(PathArgument { command: words.split_off(1), argument })
        })
        .collect();
    assert!(!found.is_empty(), "{way} is in the list");
    found
}
