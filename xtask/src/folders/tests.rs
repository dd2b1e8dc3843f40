//! Tests with small crates that have one violation each.

use std::path::Path;

use super::{Circle, Layers};

/// Layers in order: `middle` may use `low`, and `high` may use both.
const ORDER: &[&str] = &["low", "middle", "high"];
const ROOT: &str = "mod high;\nmod low;\nmod middle;\n";

/// Returns the violations of a crate with these files in `src`. Modules of the order that have no file are added.
fn found_with(circles: &'static [Circle], files: &[(&str, &str)]) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    let write = |file: &str, text: &str| {
        let file = folder.path().join("crates/small/src").join(file);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, text).unwrap();
    };
    let usual =
        [("lib.rs", ROOT), ("low.rs", ""), ("middle/mod.rs", "pub(crate) mod inner;"), ("high.rs", "")];
    usual.iter().chain(&[("middle/inner.rs", "pub(crate) struct Thing;")]).for_each(|(f, t)| write(f, t));
    files.iter().for_each(|(file, text)| write(file, text));
    Layers { name: "small", order: ORDER, circles, by_file: true }.violations(folder.path())
}

fn found(files: &[(&str, &str)]) -> Vec<String> {
    found_with(&[], files)
}

/// Returns the only violation.
#[track_caller]
fn only(files: &[(&str, &str)]) -> String {
    let found = found(files);
    assert_eq!(found.len(), 1, "{found:?}");
    found.into_iter().next().unwrap()
}

fn upward(place: &str, from: &str, to: &str) -> String {
    let (place, order) = (Path::new("crates/small/src").join(place), "xtask/src/folders.rs");
    format!("{}: `{from}` must not use `{to}`, which comes after it in {order}", place.display())
}

#[test]
fn what_comes_before_may_be_used() {
    assert_eq!(
        found(&[
            ("high.rs", "use crate::{low, middle::inner::Thing};\nfn f() { crate::middle::g() }"),
            (
                "middle/mod.rs",
                "pub(crate) mod inner;\ncells! { pub(super) struct Thing { pub(crate) one: u8 } }"
            ),
            ("middle/inner.rs", "use super::super::low;\nuse super::super::middle;\npub struct Thing;"),
        ]),
        Vec::<String>::new()
    );
}

#[test]
fn a_use_of_what_comes_later_is_found() {
    let text = "\nuse std::fmt;\nuse crate::{\n    units as u,\n    middle::inner::{Thing, Other},\n};\n";
    let root = format!("{ROOT}pub use low as units;");
    let all = found(&[("lib.rs", &root), ("low.rs", text)]);
    assert_eq!(all, [upward("low.rs:5", "low", "middle"), upward("low.rs:5", "low", "middle")]);
    assert_eq!(only(&[("low.rs", "pub(crate) use crate::high::*;")]), upward("low.rs:1", "low", "high"));
}

#[test]
fn a_path_in_the_middle_of_code_is_found() {
    for code in [
        "fn f() -> u32 { crate::high::g() }",
        "struct S { field: Option<crate::high::T> }",
        "impl crate::high::T for u8 {}",
        "fn f() { assert_eq!(1, crate::high::g()); }",
        "macro_rules! m { () => { $crate::high::g() }; }",
        "fn f() { use crate::high::g; }",
        "fn f(x: u8) { match x { crate::high::ONE => {} _ => {} } }",
        "mod within { fn f() { super::super::high::g() } }",
    ] {
        assert_eq!(only(&[("low.rs", code)]), upward("low.rs:1", "low", "high"), "{code}");
    }
}

#[test]
fn paths_up_from_where_the_file_stands_are_found() {
    let inner = "use super::sibling;\n\nuse super::super::high::T;\n";
    let files = [
        ("middle/mod.rs", "mod inner;\nmod sibling;"),
        ("middle/sibling.rs", ""),
        ("middle/inner.rs", inner),
    ];
    assert_eq!(only(&files), upward("middle/inner.rs:3", "middle", "high"));
    for path in ["super::high::T", "self::super::high::T"] {
        assert_eq!(only(&[("low.rs", &*format!("use {path};"))]), upward("low.rs:1", "low", "high"));
    }
}

#[test]
fn names_of_the_root_are_followed_to_their_module() {
    for root in [
        "pub use high::Top;",
        "pub use crate::high::deep::Other as Top;",
        "pub use face::Top;\npub use high as face;",
    ] {
        let root = format!("{ROOT}{root}");
        let files = [("lib.rs", &*root), ("low.rs", "use crate::Top;")];
        assert_eq!(only(&files), upward("low.rs:1", "low", "high"), "{root}");
    }
    let root = format!("{ROOT}pub use low::Bottom;\npub struct Own;");
    let uses = "use crate::{Bottom, Own};";
    assert!(
        found(&[("lib.rs", &root), ("low.rs", "pub struct Bottom;"), ("middle/inner.rs", uses)]).is_empty()
    );
}

#[test]
fn modules_and_the_order_name_each_other() {
    let root = "mod low;\nmod middle;\nmod new;\n#[cfg(test)]\nmod testing;\n";
    let all = found(&[("lib.rs", root), ("new.rs", "")]);
    assert_eq!(all.len(), 2, "{all:?}");
    assert!(all[0].contains("`new` has no place"), "{all:?}");
    assert!(all[1].contains("no module `high`"), "{all:?}");
}

#[test]
fn tests_comments_and_visibilities_use_nothing() {
    let text = "//! [`crate::high`]\n/// [`T`](crate::high::T)\npub(in crate::middle) struct S;\n\
        #[cfg(test)]\nmod tests { use crate::high::T; }\n#[cfg(all(test, unix))]\nuse crate::high::T;\n\
        impl S { #[cfg(test)] fn f() { crate::high::g() } }\n#[test]\nfn t() { crate::high::g() }\n";
    assert!(found(&[("middle/inner.rs", text)]).is_empty());
    // These conditions also hold without tests.
    for text in ["#[cfg(not(test))]\nuse crate::high::T;", "#[cfg(any(test, unix))]\nuse crate::high::T;"] {
        assert_eq!(only(&[("low.rs", text)]), upward("low.rs:2", "low", "high"));
    }
}

#[test]
fn files_of_other_targets_are_read_too() {
    let low = "#[cfg(unix)]\n#[path = \"low/a.rs\"]\nmod target;\n#[cfg(not(unix))]\n#[path = \"low/b.rs\"]\nmod target;";
    let files = [("low.rs", low), ("low/a.rs", ""), ("low/b.rs", "use crate::high::T;")];
    assert_eq!(only(&files), upward("low/b.rs:1", "low", "high"));
}

#[test]
fn what_cannot_be_read_is_said() {
    assert!(only(&[("lib.rs", "mod low;\nmod middle;\nmod high;\nmod gone;")]).contains("gone/mod.rs"));
    assert!(only(&[("low.rs", "\nfn f( {}")]).starts_with("crates/small/src/low.rs:2: "));
}

/// Two files of `middle` that use each other. One of them uses a name that the folder re-exports.
const TWO: &[(&str, &str)] = &[
    ("middle/mod.rs", "mod a;\nmod inner;\npub(crate) use a::A;\n"),
    ("middle/a.rs", "use super::inner::Thing;\npub(crate) struct A(Thing);"),
    ("middle/inner.rs", "pub(crate) struct Thing(Option<Box<super::A>>);"),
];
const ALLOWED: &[Circle] = &[Circle { files: &["middle/a.rs", "middle/inner.rs"], why: "one subject" }];

#[test]
fn files_that_use_each_other_are_found_unless_allowed() {
    let circle = "small: these files use each other in a circle: middle/a.rs, middle/inner.rs";
    assert_eq!(only(TWO), circle);
    assert!(found_with(ALLOWED, TWO).is_empty());
    let three = [
        TWO,
        &[
            ("middle/mod.rs", "mod a;\nmod inner;\npub use a::A;\nfn f(_: A) {}\npub struct B;"),
            ("middle/inner.rs", "pub(crate) struct Thing(Option<Box<super::A>>, super::B);"),
        ],
    ]
    .concat();
    assert_eq!(found_with(ALLOWED, &three).len(), 1, "a larger circle is another one");
}

#[test]
fn modules_brought_in_by_name_are_followed_further() {
    for import in ["use crate::middle::inner::{self};", "use super::inner;", "use super::inner as known;"] {
        let name = if import.contains("known") { "known" } else { "inner" };
        let files = [
            ("middle/mod.rs", "mod a;\nmod inner;"),
            ("middle/a.rs", &*format!("{import}\nfn f() {{ {name}::deep::g() }}")),
            ("middle/inner.rs", "pub(super) mod deep;"),
            ("middle/inner/deep.rs", "fn g() { crate::middle::a::f() }"),
        ];
        let circle = "small: these files use each other in a circle: middle/a.rs, middle/inner/deep.rs";
        assert_eq!(only(&files), circle, "{import}");
    }
}

#[test]
fn names_passed_on_and_visibilities_make_no_circle() {
    let passes_on = ("middle/mod.rs", "mod inner;\npub(crate) use inner::Thing;\npub struct B;");
    assert!(found(&[passes_on, ("middle/inner.rs", "pub(crate) struct Thing(super::B);")]).is_empty());
    let uses = ("middle/mod.rs", "mod inner;\nuse inner::Thing;");
    let thing = "pub(super) struct Thing { pub(in crate::middle) field: u32 }";
    assert!(found(&[uses, ("middle/inner.rs", thing)]).is_empty());
}

#[test]
fn circles_that_are_open_leave_the_table() {
    let found = found_with(ALLOWED, &[]);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(
        found[0].contains("`one subject`") && found[0].contains("middle/a.rs, middle/inner.rs"),
        "{found:?}"
    );
}
