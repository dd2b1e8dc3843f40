//! The modules of a crate as its sources declare them, and the paths in each module, parsed with `syn`.
//!
//! Code that is built only for tests (`#[cfg(test)]`, `#[test]`) is ignored. Attributes, visibilities and comments are
//! ignored too, because they import nothing. The arguments of macros are not parsed as Rust: any names joined by `::`
//! count as a path there. Related files: `folders/resolve.rs` resolves paths.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use proc_macro2::{Span, TokenStream, TokenTree};
use syn::punctuated::Punctuated;
use syn::visit::{self, Visit};
use syn::{Attribute, Item, Meta, Token, UseTree, Visibility};

/// A module as the list of names from the crate's root. The path of the root is empty.
pub(super) type ModulePath = Vec<String>;

/// All modules of a crate.
pub(super) type Modules = BTreeMap<ModulePath, Module>;

/// A module. It may have several files if files for different targets share a name.
#[derive(Default, Debug)]
pub(super) struct Module {
    /// The files, relative to the root of the workspace.
    pub(super) files: Vec<PathBuf>,
    pub(super) children: BTreeSet<String>,
    /// Names imported by `use`, each with its path.
    pub(super) imports: BTreeMap<String, Vec<String>>,
    /// Paths of `use ...::*`.
    pub(super) globs: Vec<Vec<String>>,
    pub(super) references: Vec<Reference>,
}

/// A path somewhere in a module.
#[derive(Clone, Debug)]
pub(super) struct Reference {
    pub(super) path: Vec<String>,
    pub(super) file: PathBuf,
    pub(super) line: usize,
    /// Whether the path only re-exports a name: `pub use` of any visibility.
    pub(super) is_reexport: bool,
}

/// Reads the crate whose `lib.rs` or `main.rs` is `file`, below `root`.
///
/// # Errors
/// Returns an error if a file is missing or is not valid Rust.
pub(super) fn read(root: &Path, file: &Path) -> Result<Modules, String> {
    let mut modules = Modules::from([(ModulePath::new(), Module::default())]);
    let folder = file.parent().unwrap_or(Path::new("")).to_path_buf();
    let mut waiting = vec![Declared { path: ModulePath::new(), file: file.to_path_buf(), folder }];
    while let Some(declared) = waiting.pop() {
        let name = declared.file.display().to_string();
        let text = std::fs::read_to_string(root.join(&declared.file)).map_err(|e| format!("{name}: {e}"))?;
        let parsed = syn::parse_file(&text)
            .map_err(|error| format!("{name}:{}: {error}", error.span().start().line))?;
        let mut reader = Reader { root, modules, waiting, at: declared };
        reader.enter();
        reader.visit_file(&parsed);
        (modules, waiting) = (reader.modules, reader.waiting);
    }
    Ok(modules)
}

/// A module that has not been read yet.
#[derive(Clone)]
struct Declared {
    path: ModulePath,
    file: PathBuf,
    /// The folder of its child modules' files.
    folder: PathBuf,
}

struct Reader<'a> {
    root: &'a Path,
    modules: Modules,
    waiting: Vec<Declared>,
    at: Declared,
}

impl Reader<'_> {
    fn here(&mut self) -> &mut Module {
        self.modules.entry(self.at.path.clone()).or_default()
    }

    fn enter(&mut self) {
        let file = self.at.file.clone();
        self.here().files.push(file);
    }

    fn note(&mut self, path: Vec<String>, span: Span, is_reexport: bool) {
        let (file, line) = (self.at.file.clone(), span.start().line);
        self.here().references.push(Reference { path, file, line, is_reexport });
    }

    /// Declares a module that has its own file: the file that `#[path]` names, or else the file in the default place.
    fn declare(&mut self, name: &str, attributes: &[Attribute]) {
        let chosen = attributes.iter().find_map(path_attribute);
        let own = self.at.folder.join(name);
        let file = match chosen {
            Some(chosen) => self.at.file.parent().unwrap_or(Path::new("")).join(chosen),
            None => {
                let beside = own.with_extension("rs");
                if self.root.join(&beside).exists() { beside } else { own.join("mod.rs") }
            }
        };
        let path = [&self.at.path[..], &[name.to_owned()]].concat();
        self.waiting.push(Declared { path, file, folder: own });
    }

    /// Adds the names at the leaves of a `use` tree.
    fn import(&mut self, tree: &UseTree, before: &[String], is_reexport: bool) {
        let joined = |name: String| [before, &[name]].concat();
        match tree {
            UseTree::Path(path) => {
                self.import(&path.tree, &joined(path.ident.to_string()), is_reexport);
            }
            UseTree::Group(group) => {
                group.items.iter().for_each(|tree| self.import(tree, before, is_reexport));
            }
            UseTree::Glob(glob) => {
                self.note(before.to_vec(), glob.star_token.spans[0], is_reexport);
                self.here().globs.push(before.to_vec());
            }
            UseTree::Name(name) => self.bind(name.ident.to_string(), &name.ident, before, is_reexport),
            UseTree::Rename(rename) => {
                self.bind(rename.rename.to_string(), &rename.ident, before, is_reexport);
            }
        }
    }

    fn bind(&mut self, known_as: String, name: &syn::Ident, before: &[String], is_reexport: bool) {
        // `use a::{self}` imports `a`.
        let (path, known_as) = match (name == "self", before.last()) {
            (true, Some(last)) if known_as == "self" => (before.to_vec(), last.clone()),
            (true, Some(_)) => (before.to_vec(), known_as),
            _ => ([before, &[name.to_string()]].concat(), known_as),
        };
        self.note(path.clone(), name.span(), is_reexport);
        // `pub(crate) use a_macro;` names a macro that this module already has.
        if path.len() > 1 || path[0] != known_as {
            self.here().imports.insert(known_as, path);
        }
    }

    /// Adds the paths in the arguments of a macro.
    fn scan(&mut self, tokens: TokenStream) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        let mut at = 0;
        while at < tokens.len() {
            match &tokens[at] {
                TokenTree::Ident(word)
                    if word == "pub" && matches!(tokens.get(at + 1), Some(TokenTree::Group(_))) =>
                {
                    at += 1; // a visibility, which uses nothing
                }
                TokenTree::Group(group) => self.scan(group.stream()),
                TokenTree::Ident(first) => {
                    let mut path = vec![first.to_string()];
                    while let Some(TokenTree::Ident(next)) = tokens.get(at + 3)
                        && tokens[at + 1..at + 3].iter().all(is_colon)
                    {
                        path.push(next.to_string());
                        at += 3;
                    }
                    self.note(path, first.span(), false);
                }
                TokenTree::Punct(_) | TokenTree::Literal(_) => {}
            }
            at += 1;
        }
    }
}

fn is_colon(token: &TokenTree) -> bool {
    matches!(token, TokenTree::Punct(punct) if punct.as_char() == ':')
}

impl<'ast> Visit<'ast> for Reader<'_> {
    fn visit_item(&mut self, item: &'ast Item) {
        if !is_for_tests(attributes_of(item)) {
            visit::visit_item(self, item);
        }
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        if !is_for_tests(&item.attrs) {
            visit::visit_impl_item_fn(self, item);
        }
    }

    fn visit_item_mod(&mut self, item: &'ast syn::ItemMod) {
        let name = item.ident.to_string();
        self.here().children.insert(name.clone());
        let Some((_, items)) = &item.content else { return self.declare(&name, &item.attrs) };
        let outer = self.at.clone();
        self.at.folder = self.at.folder.join(&name);
        self.at.path.push(name);
        self.enter();
        items.iter().for_each(|item| self.visit_item(item));
        self.at = outer;
    }

    fn visit_item_use(&mut self, item: &'ast syn::ItemUse) {
        if item.leading_colon.is_none() {
            self.import(&item.tree, &[], !matches!(item.vis, Visibility::Inherited));
        }
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if let (None, Some(first)) = (&path.leading_colon, path.segments.first()) {
            let names = path.segments.iter().map(|segment| segment.ident.to_string());
            self.note(names.collect(), first.ident.span(), false);
        }
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        self.visit_path(&call.path);
        self.scan(call.tokens.clone());
    }

    fn visit_visibility(&mut self, _: &'ast Visibility) {}

    fn visit_attribute(&mut self, _: &'ast Attribute) {}
}

/// Returns the file that `#[path = "..."]` names.
fn path_attribute(attribute: &Attribute) -> Option<String> {
    let Meta::NameValue(pair) = &attribute.meta else { return None };
    match &pair.value {
        syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(file), .. }) if pair.path.is_ident("path") => {
            Some(file.value())
        }
        _ => None,
    }
}

/// Whether an item is built only for tests.
pub(crate) fn is_for_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let asks_for_test = || attribute.parse_args::<Meta>().is_ok_and(|condition| needs_test(&condition));
        attribute.path().is_ident("test") || (attribute.path().is_ident("cfg") && asks_for_test())
    })
}

fn needs_test(condition: &Meta) -> bool {
    match condition {
        Meta::Path(path) => path.is_ident("test"),
        Meta::List(list) if list.path.is_ident("all") => list
            .parse_args_with(Punctuated::<Meta, Token![,]>::parse_terminated)
            .is_ok_and(|all| all.iter().any(needs_test)),
        Meta::List(_) | Meta::NameValue(_) => false,
    }
}

fn attributes_of(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::ExternCrate(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::ForeignMod(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::TraitAlias(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Union(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}
