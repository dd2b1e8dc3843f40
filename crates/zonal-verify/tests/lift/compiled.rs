//! Compiles the source file of a processor's sequences to an object, as written and with changes.
//!
//! Each change is a module with a changed copy of the source file. No program is linked, so another processor's standard
//! library is enough; lld links for any processor. Related files: `main.rs` checks the object.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The sequences for a processor.
pub(crate) struct Assembly {
    /// The target of the compiler.
    pub(crate) target: &'static str,
    /// The text of the source file.
    pub(crate) source: &'static str,
    pub(crate) changes: &'static [Change],
}

/// A change to a sequence.
pub(crate) struct Change {
    pub(crate) what: &'static str,
    /// Name of the function that contains the sequence.
    pub(crate) of: &'static str,
    /// Texts in the function, or in the macro of all functions, and what replaces them.
    pub(crate) edits: &'static [(&'static str, &'static str)],
    /// Parts of the error's text; `None` if the changed sequence still satisfies the contract.
    pub(crate) says: Option<&'static [&'static str]>,
}

/// A function that contains a sequence.
pub(crate) struct Function {
    pub(crate) name: &'static str,
    parameters: &'static str,
    result: &'static str,
    arguments: &'static str,
}

/// All functions that contain a sequence.
pub(crate) const FUNCTIONS: [Function; 4] = [
    Function {
        name: "pop",
        parameters: "area: NonZeroIsize, table: *const u8, current: *const AtomicU64, count: usize, step: u64",
        result: "(*const u8, u64)",
        arguments: "area, table, current, count, step",
    },
    Function {
        name: "pop_from",
        parameters: "area: NonZeroIsize, cpu: u64, head: *const u8, slots: usize, step: u64",
        result: "u64",
        arguments: "area, cpu, head, slots, step",
    },
    Function {
        name: "push",
        parameters: "area: NonZeroIsize, cpu: u64, head: *const u8, slots: usize, step: Push",
        result: "bool",
        arguments: "area, cpu, head, slots, step, || false",
    },
    Function {
        name: "lock",
        parameters: "area: NonZeroIsize, cpu: u32, head: *const u8",
        result: "u64",
        arguments: "area, cpu, head",
    },
];

/// Stands for the types of the core that the source files use.
const CORE: &str = "
pub mod core_types {
    #[derive(Clone, Copy)]
    pub struct Step(u64);
    impl Step {
        pub fn bits(self) -> u64 {
            self.0
        }
    }
    #[derive(Clone, Copy)]
    pub struct Push {
        pub step: Step,
        pub frame: u32,
    }
}
";

impl Function {
    /// Returns the symbol of the function in the object, as written or with the change of this number.
    pub(crate) fn symbol(&self, change: Option<usize>) -> String {
        let name = self.name;
        change.map_or_else(|| format!("{name}_as_written"), |number| format!("{name}_with_change_{number}"))
    }

    /// Returns a function that contains a copy of the sequence.
    fn copy(&self, change: Option<usize>) -> String {
        let Self { name, parameters, result, arguments } = self;
        let symbol = self.symbol(change);
        format!(
            "#[unsafe(no_mangle)]\npub unsafe fn {symbol}({parameters}) -> {result} {{\n    \
             {name}({arguments})\n}}\n"
        )
    }
}

/// Returns the function's text in a source file, and where it begins.
fn body<'a>(source: &'a str, begin: &str) -> (usize, &'a str) {
    let at = source.find(begin).unwrap_or_else(|| panic!("no {begin} in the source file"));
    let length = source[at..].find("\n}\n").expect("the end of an item");
    (at, &source[at..at + length])
}

/// Returns the source file with a change.
fn changed(source: &str, change: &Change) -> String {
    let mut source = source.to_owned();
    for (find, replace) in change.edits {
        let in_function = body(&source, &format!("unsafe fn {}(", change.of));
        let in_macro = body(&source, "macro_rules! sequence");
        let (at, text) = if in_function.1.contains(find) { in_function } else { in_macro };
        let found: Vec<_> = text.match_indices(find).collect();
        let &[(offset, _)] = found.as_slice() else {
            panic!("{}, {}: {find:?} is there {} times", change.of, change.what, found.len());
        };
        source.replace_range(at + offset..at + offset + find.len(), replace);
    }
    source
}

/// Writes the sources of all sequences to `folder` and compiles them. Returns the path of the object.
pub(crate) fn compile(assembly: &Assembly, folder: &Path) -> PathBuf {
    let source =
        assembly.source.replace("use zonal::platform::cpu_local::Push;", "use crate::core_types::Push;");
    let mut root = CORE.to_owned();
    let mut add = |module: String, text: String| {
        writeln!(root, "pub mod {module};").expect("text can be written");
        std::fs::write(folder.join(format!("{module}.rs")), text).expect("the folder is writable");
    };
    let copies: String = FUNCTIONS.iter().map(|function| function.copy(None)).collect();
    add("as_written".into(), format!("{source}\n{copies}"));
    for (number, change) in assembly.changes.iter().enumerate() {
        let function =
            FUNCTIONS.iter().find(|function| function.name == change.of).expect("a known function");
        let text = format!("{}\n{}", changed(&source, change), function.copy(Some(number)));
        add(format!("change_{number}"), text);
    }
    let (root_file, object) = (folder.join("lib.rs"), folder.join("sequences.o"));
    std::fs::write(&root_file, root).expect("the folder is writable");
    let mut rustc = Command::new("rustc");
    rustc.args([
        "--edition=2024",
        "--crate-type=lib",
        "--cap-lints=allow",
        "-Copt-level=1",
        "-Ccodegen-units=1",
    ]);
    rustc.args(["--target", assembly.target, "--emit=obj", "-o"]).arg(&object).arg(&root_file);
    let compiled = rustc.output().expect("rustc starts");
    assert!(compiled.status.success(), "rustc failed: {}", String::from_utf8_lossy(&compiled.stderr));
    object
}

/// Links an object to a library with the linker that rustup installs. Returns the library's path, or `None` if there is no
/// such linker.
pub(crate) fn link_with_lld(object: &Path) -> Option<PathBuf> {
    let query = Command::new("rustc").args(["--print", "target-libdir"]).output().expect("rustc starts");
    let libraries = PathBuf::from(String::from_utf8_lossy(&query.stdout).trim());
    let linker = libraries.with_file_name("bin").join("rust-lld");
    if !linker.exists() {
        return None;
    }
    let library = object.with_extension("so");
    let linked =
        Command::new(linker).args(["-flavor", "gnu", "-shared", "-o"]).arg(&library).arg(object).output();
    let linked = linked.expect("the linker starts");
    assert!(linked.status.success(), "rust-lld failed: {}", String::from_utf8_lossy(&linked.stderr));
    Some(library)
}

/// Whether the compiler has the standard library of a target.
pub(crate) fn is_installed(target: &str) -> bool {
    let query = Command::new("rustc").args(["--print", "target-libdir", "--target", target]).output();
    query.is_ok_and(|query| {
        query.status.success() && Path::new(String::from_utf8_lossy(&query.stdout).trim()).is_dir()
    })
}
