//! Resolves paths of a crate to the module that a path names, and to the module that defines the item.
//!
//! Names that a module imports by `use` are followed to their definition. Related files: `folders/modules.rs` reads the
//! modules.

use super::modules::{ModulePath, Modules};

/// Maximum number of consecutive aliases to follow. Rust has no cycles of aliases, but this parser might find some.
const FOLLOWED_MAX: usize = 16;

/// Resolves `path`, which occurs in module `at`, to a path from the root of the crate. Returns `None` if it leads out
/// of the crate or to a name in the module itself.
pub(super) fn absolute(modules: &Modules, at: &[String], path: &[String]) -> Option<ModulePath> {
    follow(modules, at, path, FOLLOWED_MAX)
}

fn follow(modules: &Modules, at: &[String], path: &[String], most: usize) -> Option<ModulePath> {
    let (first, rest) = path.split_first()?;
    match first.as_str() {
        "crate" => Some(rest.to_vec()),
        "self" if rest.first().is_some_and(|next| next == "super") => follow(modules, at, rest, most),
        "self" => Some([at, rest].concat()),
        "super" => {
            let supers = path.iter().take_while(|name| *name == "super").count();
            let outer = &at[..at.len().checked_sub(supers)?];
            Some([outer, &path[supers..]].concat())
        }
        name => {
            let module = modules.get(at)?;
            if let Some(import) = module.imports.get(name).filter(|import| import[0] != name) {
                let target = follow(modules, at, import, most.checked_sub(1)?)?;
                return Some([&target[..], rest].concat());
            }
            // A single name may be a variable, even if a module has that name.
            let is_child = module.children.contains(name) && !rest.is_empty();
            is_child.then(|| [at, path].concat())
        }
    }
}

/// Returns the top-level module to which `path`, relative to the root, leads. Returns `None` for items that the root
/// itself defines.
pub(super) fn top(modules: &Modules, path: &[String]) -> Option<String> {
    let root = modules.get(&ModulePath::new())?;
    let mut path = path.to_vec();
    for _ in 0..FOLLOWED_MAX {
        let first = path.first()?;
        if root.children.contains(first) {
            return Some(first.clone());
        }
        let import = root.imports.get(first)?;
        path = match import[0].as_str() {
            "crate" | "self" => [&import[1..], &path[1..]].concat(),
            _ => [&import[..], &path[1..]].concat(),
        };
    }
    None
}

/// Returns the module that defines the item at `path`, relative to the root. Returns `None` if the item is not in this
/// crate.
pub(super) fn definition(modules: &Modules, path: &[String]) -> Option<ModulePath> {
    define(modules, path, FOLLOWED_MAX)
}

fn define(modules: &Modules, path: &[String], most: usize) -> Option<ModulePath> {
    let mut at = ModulePath::new();
    for (place, name) in path.iter().enumerate() {
        let module = modules.get(&at)?;
        if module.children.contains(name) {
            at.push(name.clone());
            continue;
        }
        let rest = &path[place + 1..];
        if let Some(import) = module.imports.get(name) {
            let target = follow(modules, &at, import, most)?;
            return define(modules, &[&target[..], rest].concat(), most.checked_sub(1)?);
        }
        return Some(at);
    }
    Some(at)
}
