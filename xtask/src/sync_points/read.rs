//! Finds the orderings in a source, and the comment of each.
//!
//! Related file: `sync_points.rs` has the form of comments and compares partners.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::path::Path;
use std::sync::LazyLock;

use regex::Regex;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Attribute, Ident, ImplItemFn, ItemFn, ItemImpl, ItemMod, ItemTrait, Stmt, TraitItemFn};

use super::{Comment, Function, Ordering, What};
use crate::folders::is_for_tests;
use crate::source_code::without_texts;

/// An ordering, with that of a failed exchange. A path before it must be the type of orderings.
static ORDERING: LazyLock<Regex> = LazyLock::new(|| {
    let named = "(Acquire|Release|AcqRel|SeqCst)";
    regex(&format!(r"(?-u)(?:(\w+)\s*::\s*)?\b{named}\b(?:\s*,\s*(?:Ordering\s*::\s*)?{named}\b)?"))
});
/// The beginning of a comment that states an ordering.
static BEGINNING: LazyLock<Regex> = LazyLock::new(|| regex(r"^(Acquire|Release|AcqRel|SeqCst):"));
/// What follows it: what is ordered, and the partners or the reason why there are none.
static FORM: LazyLock<Regex> = LazyLock::new(|| regex(r"^ ([a-z]+) .+; (pairs with|unpaired:) ([^;]+?)\.?$"));
/// A party outside the sources: a page of the manual, or a part of another program or this thread.
static OUTSIDE: LazyLock<Regex> =
    LazyLock::new(|| regex(r"^(?:[a-z_]+\([0-9]\)|(?:the|this) [A-Za-z ]+'s [a-z ]+)$"));

fn regex(pattern: &str) -> Regex {
    Regex::new(pattern).expect("the pattern is constant")
}

/// Returns the functions of a source that are not only for tests, and what is wrong with the comments in them. Returns
/// nothing for a source that names no ordering, which need not be parsed.
pub(super) fn functions(file: &Path, text: &str) -> (Vec<Function>, Vec<String>) {
    if !Ordering::ALL.iter().any(|ordering| text.contains(ordering.name())) {
        return (Vec::new(), Vec::new());
    }
    let mut items =
        Items { file, owner: String::new(), in_tests: false, functions: vec![], statements: vec![] };
    match syn::parse_file(text) {
        Ok(parsed) => items.visit_file(&parsed),
        Err(error) => return (Vec::new(), vec![format!("{}: {error}", file.display())]),
    }
    let code = without_texts(text);
    let lines = Lines::new(text, &code);
    let (mut comments, mut found) = items.comments(&lines);
    let mut used = Vec::new();
    for point in ORDERING.captures_iter(&code) {
        let (path, name) = (point.get(1), point.get(2).expect("the group is not optional"));
        let line = 1 + code[..name.start()].matches('\n').count();
        let ordering = Ordering::named(name.as_str()).expect("the pattern has the names");
        let Some(at) = items.innermost(line) else { continue };
        if path.is_some_and(|path| path.as_str() != "Ordering") {
            continue;
        }
        items.functions[at].orderings.push(ordering);
        let covers = |line: &usize| comments.get(line).is_some_and(|one| one.ordering.covers(ordering));
        match lines.comments_at(line, items.statement(line)).find(covers) {
            Some(comment) => used.push((at, comment)),
            None => found.push((line, format!("{ordering:?} has no comment; write {}", ordering.form()))),
        }
    }
    used.sort_unstable();
    used.dedup();
    for (at, line) in used {
        let Some(comment) = comments.remove(&line) else { continue };
        let own = &mut items.functions[at].comments;
        let is_known = own.iter().any(|one| one.ordering == comment.ordering && one.what != What::AsAbove);
        if comment.what == What::AsAbove && !is_known {
            found.push((line, "no comment above in this function states this ordering; write it out".into()));
        }
        own.push(comment);
    }
    let unused = "the comment describes no ordering of its line or statement; remove it";
    found.extend(comments.into_keys().map(|line| (line, unused.to_owned())));
    found.sort();
    let found = found.into_iter().map(|(line, what)| format!("{}:{line}: {what}", file.display()));
    (items.outside_tests(), found.collect())
}

/// Returns all functions of a source, those for tests included, without their orderings and comments.
pub(super) fn outline(file: &Path, text: &str) -> Result<Vec<Function>, syn::Error> {
    let mut items =
        Items { file, owner: String::new(), in_tests: false, functions: vec![], statements: vec![] };
    items.visit_file(&syn::parse_file(text)?);
    Ok(items.functions)
}

/// Parses what follows `ORDERING:` in a comment.
fn what(ordering: Ordering, rest: &str) -> Result<What, String> {
    if rest.trim_end_matches('.') == " as above" {
        return Ok(What::AsAbove);
    }
    let wrong = || format!("the comment is not of the form {}", ordering.form());
    let parts = FORM.captures(rest).ok_or_else(wrong)?;
    if !ordering.verbs().contains(&&parts[1]) {
        return Err(wrong());
    }
    if &parts[2] == "unpaired:" {
        return Ok(What::Unpaired);
    }
    let mut partners = Vec::new();
    for partner in parts[3].split(", ").map(|partner| partner.trim_start_matches("and ")) {
        match partner.strip_prefix('`').and_then(|path| path.strip_suffix('`')) {
            Some(path) => partners.push(path.to_owned()),
            None if OUTSIDE.is_match(partner) => {}
            None => {
                return Err(format!(
                    "`{partner}` is no partner; allowed are `Type::function`, fork(2), the embedder's interrupts"
                ));
            }
        }
    }
    Ok(What::PairsWith(partners))
}

/// The lines of a source.
struct Lines<'t> {
    /// The comment of each line, without its slashes, and whether there is code before it.
    comments: Vec<Option<(&'t str, bool)>>,
}

impl<'t> Lines<'t> {
    fn new(text: &'t str, code: &str) -> Self {
        let comment = |(line, code): (&'t str, &str)| {
            let code = code.trim_end();
            let comment = line.get(code.len()..)?.trim_start().strip_prefix("//")?;
            Some((comment.trim(), !code.is_empty()))
        };
        Self { comments: text.lines().zip(code.lines()).map(comment).collect() }
    }

    /// Returns the comment of a line, counted from 1.
    fn comment(&self, line: usize) -> Option<(&'t str, bool)> {
        *self.comments.get(line.checked_sub(1)?)?
    }

    /// Returns the lines with comments at their end, above it, and above its statement.
    fn comments_at(&self, line: usize, statement: usize) -> impl Iterator<Item = usize> {
        let is_alone = |line: &usize| self.comment(*line).is_some_and(|(_, has_code)| !has_code);
        let above = move |line: usize| (1..line).rev().take_while(is_alone);
        std::iter::once(line).chain(above(line)).chain(above(statement))
    }
}

/// The functions and statements of a source.
struct Items<'a> {
    file: &'a Path,
    owner: String,
    in_tests: bool,
    functions: Vec<Function>,
    statements: Vec<RangeInclusive<usize>>,
}

impl Items<'_> {
    /// Returns the comments that state an ordering, by line, and those of another form.
    fn comments(&self, lines: &Lines<'_>) -> (BTreeMap<usize, Comment>, Vec<(usize, String)>) {
        let (mut comments, mut found) = (BTreeMap::new(), Vec::new());
        for line in 1..=lines.comments.len() {
            let Some((text, _)) = lines.comment(line).filter(|_| self.innermost(line).is_some()) else {
                continue;
            };
            let Some(name) = BEGINNING.captures(text) else { continue };
            let ordering = Ordering::named(&name[1]).expect("the pattern has the names");
            match what(ordering, &text[name[0].len()..]) {
                Ok(what) => drop(comments.insert(line, Comment { line, ordering, what })),
                Err(problem) => {
                    comments.insert(line, Comment { line, ordering, what: What::PairsWith(Vec::new()) });
                    found.push((line, problem));
                }
            }
        }
        (comments, found)
    }

    fn outside_tests(self) -> Vec<Function> {
        self.functions.into_iter().filter(|function| !function.is_for_tests).collect()
    }

    /// Returns the index of the innermost function with a line, unless it is only for tests.
    fn innermost(&self, line: usize) -> Option<usize> {
        let with = (0..self.functions.len()).filter(|&at| self.functions[at].lines.contains(&line));
        let innermost =
            with.min_by_key(|&at| self.functions[at].lines.end() - self.functions[at].lines.start());
        innermost.filter(|&at| !self.functions[at].is_for_tests)
    }

    /// Returns the first line of the innermost statement that contains a line.
    fn statement(&self, line: usize) -> usize {
        let with = self.statements.iter().filter(|lines| lines.contains(&line));
        with.map(|lines| *lines.start()).max().unwrap_or(line)
    }

    fn function(
        &mut self,
        name: &Ident,
        attributes: &[Attribute],
        item: &impl Spanned,
        visit: impl FnOnce(&mut Self),
    ) {
        let before = self.in_tests;
        self.in_tests |= is_for_tests(attributes);
        self.functions.push(Function {
            file: self.file.to_path_buf(),
            owner: self.owner.clone(),
            name: name.to_string(),
            lines: lines(item),
            is_for_tests: self.in_tests,
            orderings: Vec::new(),
            comments: Vec::new(),
        });
        let owner = std::mem::take(&mut self.owner); // functions inside have no owner
        visit(self);
        (self.in_tests, self.owner) = (before, owner);
    }

    /// Visits what belongs to a type or module.
    fn within(&mut self, owner: String, attributes: &[Attribute], visit: impl FnOnce(&mut Self)) {
        let before = (std::mem::replace(&mut self.owner, owner), self.in_tests);
        self.in_tests |= is_for_tests(attributes);
        visit(self);
        (self.owner, self.in_tests) = before;
    }
}

fn lines(item: &impl Spanned) -> RangeInclusive<usize> {
    item.span().start().line..=item.span().end().line
}

impl<'ast> Visit<'ast> for Items<'_> {
    fn visit_item_fn(&mut self, item: &'ast ItemFn) {
        self.function(&item.sig.ident, &item.attrs, item, |items| visit::visit_item_fn(items, item));
    }

    fn visit_impl_item_fn(&mut self, item: &'ast ImplItemFn) {
        self.function(&item.sig.ident, &item.attrs, item, |items| visit::visit_impl_item_fn(items, item));
    }

    fn visit_trait_item_fn(&mut self, item: &'ast TraitItemFn) {
        self.function(&item.sig.ident, &item.attrs, item, |items| visit::visit_trait_item_fn(items, item));
    }

    fn visit_item_impl(&mut self, item: &'ast ItemImpl) {
        let owner = match &*item.self_ty {
            syn::Type::Path(path) => path.path.segments.last().map(|last| last.ident.to_string()),
            _ => None,
        };
        self.within(owner.unwrap_or_default(), &item.attrs, |items| visit::visit_item_impl(items, item));
    }

    fn visit_item_trait(&mut self, item: &'ast ItemTrait) {
        self.within(item.ident.to_string(), &item.attrs, |items| visit::visit_item_trait(items, item));
    }

    fn visit_item_mod(&mut self, item: &'ast ItemMod) {
        self.within(String::new(), &item.attrs, |items| visit::visit_item_mod(items, item));
    }

    fn visit_stmt(&mut self, statement: &'ast Stmt) {
        self.statements.push(lines(statement));
        visit::visit_stmt(self, statement);
    }
}
