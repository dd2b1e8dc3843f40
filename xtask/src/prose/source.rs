//! Splits a source into its prose, its identifiers, and its functions with their documentation.
//!
//! The comments of a source are its text without its tokens. Passages join neighbouring lines, so that a phrase is
//! found across the end of a line. Related files: `prose.rs` searches passages, and `prose/summaries.rs` checks
//! functions.

use std::ops::Range;

use proc_macro2::{LineColumn, Literal, Span, TokenStream, TokenTree};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Attribute, ImplItemFn, ItemFn, ItemMod, TraitItemFn};

/// Consecutive lines of prose, or one identifier.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Passage {
    /// The lines, joined by newlines.
    pub(super) text: String,
    /// Line in the file at which the text begins, counted from 1.
    line: usize,
}

/// A function.
pub(super) struct Function {
    /// The first line of its documentation.
    pub(super) summary: String,
    /// The line in the file of `summary`, counted from 1.
    pub(super) line: usize,
    /// Whether it is built only for tests.
    pub(super) is_for_tests: bool,
}

/// The parts of a source.
pub(super) struct Source {
    /// Comments.
    pub(super) comments: Vec<Passage>,
    /// String literals outside tests.
    pub(super) strings: Vec<Passage>,
    /// Identifiers in snake_case.
    pub(super) names: Vec<Passage>,
    /// The functions that have documentation.
    pub(super) functions: Vec<Function>,
}

impl Passage {
    /// Returns the line in the file of the byte at `offset` in the text.
    pub(super) fn line_at(&self, offset: usize) -> usize {
        self.line + self.text[..offset].matches('\n').count()
    }
}

impl Source {
    /// Splits a source into its parts.
    ///
    /// # Errors
    /// Returns an error if `text` is not Rust.
    pub(super) fn new(text: &str, is_for_tests: bool) -> Result<Self, String> {
        let wrong = |error: syn::Error| format!("line {}: {error}", error.span().start().line);
        let tokens: TokenStream = text.parse().map_err(|error| format!("{error}"))?;
        let file: syn::File = syn::parse2(tokens.clone()).map_err(wrong)?;
        let mut functions = Functions { found: Vec::new(), tests: Vec::new(), is_for_tests };
        functions.visit_file(&file);
        let mut leaves = Leaves::new(text);
        leaves.read(tokens);
        let tests = functions.tests;
        let is_test = |line: usize| is_for_tests || tests.iter().any(|lines| lines.contains(&line));
        // Only the first use of an identifier in a file is reported. The sort is stable, so the first use stays first.
        leaves.names.sort_by(|one, other| one.text.cmp(&other.text));
        leaves.names.dedup_by(|one, other| one.text == other.text);
        leaves.strings.retain(|passage| !is_test(passage.line));
        let comments = leaves.comments()?;
        Ok(Self { comments, strings: leaves.strings, names: leaves.names, functions: functions.found })
    }
}

/// Returns the comments of a source.
///
/// # Errors
/// Returns an error if `text` is not a sequence of Rust's tokens.
pub(super) fn comments(text: &str) -> Result<Vec<Passage>, String> {
    let mut leaves = Leaves::new(text);
    leaves.read(text.parse().map_err(|error| format!("{error}"))?);
    leaves.comments()
}

/// Returns the paragraphs of a Markdown text.
pub(super) fn paragraphs(text: &str) -> Vec<Passage> {
    passages(text, |line| line)
}

/// Returns the passages of a text. A passage is a sequence of lines whose `content` is not empty.
fn passages(text: &str, content: fn(&str) -> &str) -> Vec<Passage> {
    let mut found: Vec<Passage> = Vec::new();
    let mut continues = false;
    for (line, part) in (1..).zip(text.lines().map(content)) {
        match found.last_mut().filter(|_| continues) {
            Some(last) if !part.is_empty() => {
                last.text.push('\n');
                last.text.push_str(part);
            }
            _ if !part.is_empty() => found.push(Passage { text: part.to_owned(), line }),
            _ => {}
        }
        continues = !part.is_empty();
    }
    found
}

/// Returns a line of a comment without its slashes.
fn comment_text(line: &str) -> &str {
    line.trim().trim_start_matches("//").trim_start_matches(['/', '!']).trim()
}

/// The tokens of a source.
struct Leaves<'t> {
    text: &'t str,
    /// Offset in bytes of each line, and whether the line is ASCII, so that columns equal bytes.
    lines: Vec<(usize, bool)>,
    /// The text, in which each byte of code is replaced by a space.
    comments: Vec<u8>,
    strings: Vec<Passage>,
    names: Vec<Passage>,
}

impl<'t> Leaves<'t> {
    fn new(text: &'t str) -> Self {
        let lines = text.split_inclusive('\n').scan(0, |next, line| {
            let start = *next;
            *next += line.len();
            Some((start, line.is_ascii()))
        });
        Self {
            text,
            lines: lines.collect(),
            comments: text.as_bytes().to_vec(),
            strings: Vec::new(),
            names: Vec::new(),
        }
    }

    /// Returns the passages of the text that is left.
    fn comments(&self) -> Result<Vec<Passage>, String> {
        let text = str::from_utf8(&self.comments).map_err(|error| error.to_string())?;
        Ok(passages(text, comment_text))
    }

    fn read(&mut self, tokens: TokenStream) {
        for token in tokens {
            match token {
                TokenTree::Group(group) => {
                    // A documentation comment's group has the span of the whole comment.
                    if self.is_code(group.span()) {
                        self.blank(group.span_open());
                        self.read(group.stream());
                        self.blank(group.span_close());
                    }
                }
                TokenTree::Ident(name) => {
                    if self.blank(name.span()) {
                        self.names.push(Passage { text: words(&name.to_string()), line: line(name.span()) });
                    }
                }
                TokenTree::Literal(literal) => {
                    if self.blank(literal.span()) {
                        self.strings.extend(string(&literal));
                    }
                }
                TokenTree::Punct(sign) => {
                    self.blank(sign.span());
                }
            }
        }
    }

    /// Replaces a token by spaces, unless it is a documentation comment. Returns whether the token is code.
    fn blank(&mut self, span: Span) -> bool {
        let is_code = self.is_code(span);
        if is_code {
            let bytes = self.bytes(span);
            self.comments[bytes].iter_mut().filter(|byte| **byte != b'\n').for_each(|byte| *byte = b' ');
        }
        is_code
    }

    /// Whether a token is code and not a documentation comment.
    fn is_code(&self, span: Span) -> bool {
        let text = &self.text[self.bytes(span)];
        !text.starts_with("//") && !text.starts_with("/*")
    }

    fn bytes(&self, span: Span) -> Range<usize> {
        self.offset(span.start())..self.offset(span.end())
    }

    /// Returns the offset in bytes of a place in the text.
    fn offset(&self, place: LineColumn) -> usize {
        let (start, is_ascii) = self.lines.get(place.line - 1).copied().unwrap_or((self.text.len(), true));
        if is_ascii {
            return start + place.column;
        }
        let rest = &self.text[start..];
        start + rest.char_indices().nth(place.column).map_or(rest.len(), |(offset, _)| offset)
    }
}

/// Returns the text of a string literal.
fn string(literal: &Literal) -> Option<Passage> {
    let text = literal.to_string();
    let text = text.trim_start_matches(['b', 'c', 'r', '#']).strip_prefix('"')?;
    let text = text.trim_end_matches('#').trim_end_matches('"');
    let text = text.replace("\\n", "  "); // both texts have two bytes, so that line numbers stay correct
    Some(Passage { text, line: line(literal.span()) })
}

/// Returns an identifier as words separated by spaces: `SplitBlock` and `split_block` become `split block`.
fn words(name: &str) -> String {
    let mut words = String::new();
    let mut last = ' ';
    for c in name.chars() {
        if c == '_' {
            words.push(' ');
        } else {
            if c.is_uppercase() && last.is_lowercase() {
                words.push(' ');
            }
            words.extend(c.to_lowercase());
        }
        last = c;
    }
    words
}

fn line(span: Span) -> usize {
    span.start().line
}

/// The functions of a source, and the lines of its tests.
struct Functions {
    found: Vec<Function>,
    tests: Vec<Range<usize>>,
    is_for_tests: bool,
}

impl Functions {
    fn note(&mut self, attributes: &[Attribute]) {
        let summary = attributes.iter().find(|attribute| attribute.path().is_ident("doc"));
        let Some(attribute) = summary else { return };
        if let Ok(text) = attribute.meta.require_name_value()
            && let syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(text), .. }) = &text.value
        {
            self.found.push(Function {
                summary: text.value().trim().to_owned(),
                line: line(attribute.span()),
                is_for_tests: self.is_for_tests,
            });
        }
    }

    /// Visits an item, which counts as a test if one of its `attributes` makes it one.
    fn within(&mut self, attributes: &[Attribute], span: Span, visit: impl FnOnce(&mut Self)) {
        let before = self.is_for_tests;
        if crate::folders::is_for_tests(attributes) {
            self.is_for_tests = true;
            self.tests.push(span.start().line..span.end().line + 1);
        }
        visit(self);
        self.is_for_tests = before;
    }
}

impl<'ast> Visit<'ast> for Functions {
    fn visit_item_mod(&mut self, item: &'ast ItemMod) {
        self.within(&item.attrs, item.span(), |functions| visit::visit_item_mod(functions, item));
    }

    fn visit_item_fn(&mut self, item: &'ast ItemFn) {
        self.within(&item.attrs, item.span(), |functions| {
            functions.note(&item.attrs);
            visit::visit_item_fn(functions, item);
        });
    }

    fn visit_impl_item_fn(&mut self, item: &'ast ImplItemFn) {
        self.within(&item.attrs, item.span(), |functions| {
            functions.note(&item.attrs);
            visit::visit_impl_item_fn(functions, item);
        });
    }

    fn visit_trait_item_fn(&mut self, item: &'ast TraitItemFn) {
        self.note(&item.attrs);
        visit::visit_trait_item_fn(self, item);
    }
}
