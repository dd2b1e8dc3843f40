//! Style rule: every ordering stronger than relaxed states what it orders and names its partner.
//!
//! Such a *sync point* has a comment of one line, at the end of its line, or above its line or innermost statement:
//! ``// Release: publishes the slots; pairs with `slot`, `Table::get`.`` An acquire *takes*, a release *publishes*, and
//! each may *order*. A partner is a function that has an ordering of the other side and whose comments name this
//! function, or a party outside the sources: `fork(2)`, `the embedder's interrupts`. `unpaired: ` and a reason replace
//! the partners of an ordering that has none. `as above` stands for the comment before it in the function. A name is
//! looked up in the file, then in the crate, then in the workspace. Assembly has no such names and is not checked.
//! Related files: `sync_points/read.rs` finds orderings and comments, and `sync_points/writes.rs` compares all writes of
//! the core with the table of transitions.

mod read;
#[cfg(test)]
mod tests;
pub(crate) mod writes;

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use crate::opened_files::is_test;
use crate::style::sources;

/// A function that is not only for tests, and its sync points.
struct Function {
    file: PathBuf,
    /// The type or trait that has the function, or nothing.
    owner: String,
    name: String,
    lines: RangeInclusive<usize>,
    is_for_tests: bool,
    /// The orderings of its sync points.
    orderings: Vec<Ordering>,
    comments: Vec<Comment>,
}

/// Functions by name.
type Functions = BTreeMap<String, Vec<Function>>;

/// An ordering stronger than relaxed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Ordering {
    Acquire,
    Release,
    AcqRel,
    SeqCst,
}

/// The comment of a sync point.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Comment {
    line: usize,
    ordering: Ordering,
    what: What,
}

/// What a comment says about partners.
#[derive(Clone, PartialEq, Eq, Debug)]
enum What {
    /// The functions among the partners, as paths.
    PairsWith(Vec<String>),
    Unpaired,
    AsAbove,
}

impl Ordering {
    const ALL: [Self; 4] = [Self::Acquire, Self::Release, Self::AcqRel, Self::SeqCst];

    fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|ordering| ordering.name() == name)
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Acquire => "Acquire",
            Self::Release => "Release",
            Self::AcqRel => "AcqRel",
            Self::SeqCst => "SeqCst",
        }
    }

    /// Whether a comment with this ordering may describe a sync point with the other one.
    fn covers(self, other: Self) -> bool {
        self == other || (self == Self::AcqRel && other != Self::SeqCst)
    }

    /// Whether the ordering is that of a partner.
    fn can_pair_with(self, other: Self) -> bool {
        !matches!((self, other), (Self::Acquire, Self::Acquire) | (Self::Release, Self::Release))
    }

    /// Returns the verbs with which a comment with this ordering may begin.
    const fn verbs(self) -> &'static [&'static str] {
        match self {
            Self::Acquire => &["takes", "orders"],
            Self::Release => &["publishes", "orders"],
            Self::AcqRel => &["takes", "publishes", "orders"],
            Self::SeqCst => &["orders"],
        }
    }

    /// Returns the form of a comment with this ordering.
    fn form(self) -> String {
        format!("// {}: {} WHAT; pairs with `FUNCTION`.", self.name(), self.verbs()[0])
    }
}

impl Function {
    /// Returns the function's name with that of its type.
    fn path(&self) -> String {
        if self.owner.is_empty() { self.name.clone() } else { format!("{}::{}", self.owner, self.name) }
    }

    /// Whether a path names this function. Only its last two names count, the first of which may be a module's.
    fn is_named(&self, path: &str) -> bool {
        let mut names = path.rsplit("::");
        let is_own = names.next() == Some(&self.name);
        is_own
            && names.next().is_none_or(|outer| {
                outer == self.owner || self.file.file_stem().is_some_and(|stem| stem == outer)
            })
    }

    /// Returns how far apart two functions are: 0 in one file, 1 in one crate, and 2 elsewhere.
    fn distance(&self, other: &Self) -> u8 {
        let same = |parts: usize| self.file.iter().take(parts).eq(other.file.iter().take(parts));
        if self.file == other.file { 0 } else { 2 - u8::from(same(2)) }
    }

    /// Returns the functions that a comment of this function names by a path: the nearest ones with that name.
    fn named<'a>(&self, path: &str, all: &'a Functions) -> Vec<&'a Self> {
        let name = path.rsplit("::").next().unwrap_or_default();
        let named = || all.get(name).into_iter().flatten().filter(|function| function.is_named(path));
        let nearest = named().map(|function| self.distance(function)).min();
        named().filter(|function| Some(self.distance(function)) == nearest).collect()
    }

    /// Whether a comment of this function names the other one.
    fn names(&self, other: &Self, all: &Functions) -> bool {
        let paths = self.comments.iter().filter_map(|comment| match &comment.what {
            What::PairsWith(paths) => Some(paths),
            What::Unpaired | What::AsAbove => None,
        });
        paths.flatten().any(|path| self.named(path, all).iter().any(|named| std::ptr::eq(*named, other)))
    }
}

/// Returns every violation, and prints how many sync points there are.
pub(crate) fn violations(root: &Path) -> Vec<String> {
    let is_covered = |file: &Path| {
        let parts: Vec<_> = file.iter().filter_map(|part| part.to_str()).collect();
        !is_test(file) && matches!(parts[..], ["crates", _, "src" | "examples", ..] | ["kernel", ..])
    };
    let files = sources(root).into_iter().filter(|file| is_covered(file));
    let texts = files.map(|file| (std::fs::read_to_string(root.join(&file)).unwrap_or_default(), file));
    let (functions, found) = examine(texts);
    let points: usize = functions.values().flatten().map(|function| function.orderings.len()).sum();
    let comments = || functions.values().flatten().flat_map(|function| &function.comments);
    let unpaired = comments().filter(|comment| comment.what == What::Unpaired).count();
    println!(
        "{points} sync points with {} comments, {unpaired} of which state no partner",
        comments().count()
    );
    found
}

/// Reads sources, and returns their functions and every violation.
fn examine(texts: impl Iterator<Item = (String, PathBuf)>) -> (Functions, Vec<String>) {
    let (mut functions, mut found) = (Functions::new(), Vec::new());
    for (text, file) in texts {
        let (read, wrong) = read::functions(&file, &text);
        found.extend(wrong);
        for function in read {
            functions.entry(function.name.clone()).or_default().push(function);
        }
    }
    found.extend(check(&functions));
    (functions, found)
}

/// Compares the partners in comments with the functions.
fn check(all: &Functions) -> Vec<String> {
    let mut found = Vec::new();
    for function in all.values().flatten() {
        for comment in &function.comments {
            let What::PairsWith(paths) = &comment.what else { continue };
            let wrong = paths.iter().filter_map(|path| wrong_partner(function, comment, path, all));
            let place = |what| format!("{}:{}: {what}", function.file.display(), comment.line);
            found.extend(wrong.map(place));
        }
    }
    found
}

/// Returns what is wrong with a partner, if anything is.
fn wrong_partner(function: &Function, comment: &Comment, path: &str, all: &Functions) -> Option<String> {
    let named = function.named(path, all);
    let ordering = comment.ordering;
    let pairs = |one: &&&Function| one.orderings.iter().any(|other| ordering.can_pair_with(*other));
    if named.is_empty() {
        Some(format!(
            "there is no function `{path}` in a source with orderings; name one as `function` or `Type::function`"
        ))
    } else if !named.iter().any(|one| pairs(&one)) {
        let other = if ordering == Ordering::Acquire { "release" } else { "acquire" };
        let other = if matches!(ordering, Ordering::Acquire | Ordering::Release) { other } else { "strong" };
        Some(format!("`{path}` has no {other} ordering; name the function that has it"))
    } else if !named.iter().filter(pairs).any(|one| one.names(function, all)) {
        let own = function.path();
        Some(format!("`{path}` does not name `{own}` as its partner; add it there, or correct this comment"))
    } else {
        None
    }
}
