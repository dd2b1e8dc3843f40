//! Checks that the core builds without std, without a heap and without a C library.
//!
//! `crates/zonal/bare` is a program with its own entry point and panic handler. It links only the core, so a missing
//! symbol is a link error. The linked program is then checked symbol by symbol, and run. If the target of a real kernel
//! is installed, the core is also built for it. The target is not downloaded. Related files: `plan.rs` includes these
//! steps.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;

use object::read::archive::ArchiveFile;
use object::{Object, ObjectSymbol};

use crate::steps::{self, Outcome, succeeds};

/// The manifest of the bare program, relative to the root.
pub(crate) const MANIFEST: &str = "crates/zonal/bare/Cargo.toml";
/// A target for which kernels are built.
pub(crate) const KERNEL_TARGET: &str = "x86_64-unknown-none";

/// Crates that the core must not use.
const FORBIDDEN_CRATES: [&str; 2] = ["std", "alloc"];
/// Prefixes of heap function names, in Rust and C.
const FORBIDDEN_NAMES: [&str; 5] = ["__rust_alloc", "__rust_dealloc", "__rust_realloc", "__rg_", "__rdl_"];

/// Builds the bare program, checks its symbols and those of the core's library, and runs it.
pub(crate) fn proves_itself(root: &Path) -> Outcome {
    match succeeds(&mut cargo(root, ["build"], &["--release"])) {
        Outcome::Passed => {}
        other => return other,
    }
    let output = target_folder(root).join("release");
    match symbol_faults(&output) {
        Ok(faults) if faults.is_empty() => {}
        Ok(faults) => return Outcome::Failed(faults.join("; ")),
        Err(error) => return Outcome::Failed(error),
    }
    succeeds(&mut Command::new(output.join("zonal-bare")))
}

/// Builds the core for [`KERNEL_TARGET`], if the toolchain has that target.
pub(crate) fn builds_for_a_kernel(root: &Path) -> Outcome {
    if !is_installed(KERNEL_TARGET) {
        return Outcome::Skipped(format!("target not installed (rustup target add {KERNEL_TARGET})"));
    }
    succeeds(&mut steps::cargo(root, ["build", "-p", "zonal", "--target", KERNEL_TARGET]))
}

/// Whether the toolchain can build for a target.
pub(crate) fn is_installed(target: &str) -> bool {
    let query = Command::new("rustc").args(["--print", "target-libdir", "--target", target]).output();
    let folder = query.map(|out| String::from_utf8_lossy(&out.stdout).trim().to_owned()).unwrap_or_default();
    !folder.is_empty() && Path::new(&folder).exists()
}

/// Whether the toolchain can build for a target. Adds the target if possible.
pub(crate) fn is_there(target: &str) -> bool {
    is_installed(target) || installs(target)
}

/// Adds a target to the toolchain if rustup manages the toolchain. Returns whether it succeeded.
fn installs(target: &str) -> bool {
    let added = Command::new("rustup").args(["target", "add", target]).status();
    added.is_ok_and(|status| status.success()) && is_installed(target)
}

/// Returns a call of cargo for the bare program, with its own link arguments and output folder.
pub(crate) fn cargo<const N: usize>(root: &Path, command: [&str; N], rest: &[&str]) -> Command {
    let folder = root.join(MANIFEST).parent().map(Path::to_path_buf).unwrap_or_default();
    let mut call = steps::cargo(&folder, command);
    // Flags from the environment would replace the link arguments in the program's own configuration.
    call.env_remove("RUSTFLAGS").arg("--target-dir").arg(target_folder(root)).args(rest);
    call
}

/// Returns the output folder of the bare programs.
pub(crate) fn target_folder(root: &Path) -> PathBuf {
    steps::target_folder(root).join("bare")
}

fn symbol_faults(output: &Path) -> Result<Vec<String>, String> {
    let program = output.join("zonal-bare");
    let mut faults = program_faults(&read(&program)?)?;
    let library = newest_library(&output.join("deps")).ok_or("the core's library was not built")?;
    faults.extend(library_faults(&read(&library)?)?);
    Ok(faults)
}

fn read(file: &Path) -> Result<Vec<u8>, String> {
    std::fs::read(file).map_err(|error| format!("{}: {error}", file.display()))
}

fn newest_library(folder: &Path) -> Option<PathBuf> {
    let ours = |name: &str| name.starts_with("libzonal-") && name.ends_with(".rlib");
    let files = std::fs::read_dir(folder).ok()?.flatten();
    let libraries = files.filter(|entry| entry.file_name().to_str().is_some_and(ours));
    let age = |entry: &std::fs::DirEntry| {
        entry.metadata().and_then(|m| m.modified()).unwrap_or(SystemTime::UNIX_EPOCH)
    };
    libraries.max_by_key(age).map(|entry| entry.path())
}

/// Returns the faults of a linked program, such as undefined symbols.
fn program_faults(data: &[u8]) -> Result<Vec<String>, String> {
    let program = object::File::parse(data).map_err(|error| format!("zonal-bare: {error}"))?;
    let mut faults = name_faults(&program);
    for symbol in program.symbols().chain(program.dynamic_symbols()) {
        let name = symbol.name().unwrap_or_default();
        if symbol.is_undefined() && !name.is_empty() {
            faults.push(format!("zonal-bare requires the external symbol `{name}`"));
        }
    }
    Ok(faults)
}

fn library_faults(data: &[u8]) -> Result<Vec<String>, String> {
    let archive = ArchiveFile::parse(data).map_err(|error| format!("the core's library: {error}"))?;
    let mut faults = Vec::new();
    for member in archive.members() {
        let member = member.and_then(|member| member.data(data)).map_err(|error| error.to_string())?;
        // Members that are not object files contain the compiler's own metadata.
        if let Ok(object) = object::File::parse(member) {
            faults.extend(name_faults(&object));
        }
    }
    Ok(faults)
}

fn name_faults(object: &object::File<'_>) -> Vec<String> {
    let names = object.symbols().filter_map(|symbol| symbol.name().ok().map(str::to_owned));
    names.filter(|name| is_forbidden(name)).map(|name| format!("`{name}` is referenced")).collect()
}

/// Whether a symbol belongs to a heap, or to a crate that the core must not use.
fn is_forbidden(symbol: &str) -> bool {
    if FORBIDDEN_NAMES.iter().any(|name| symbol.contains(name)) || matches!(symbol, "malloc" | "free") {
        return true;
    }
    let path = format!("{:#}", rustc_demangle::demangle(symbol));
    FORBIDDEN_CRATES.iter().any(|name| {
        let root = format!("{name}::");
        path.match_indices(&root).any(|(at, _)| {
            let inside_a_path = |c: char| c.is_alphanumeric() || matches!(c, '_' | ':');
            !path[..at].ends_with(inside_a_path)
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heaps_and_std_are_distinguished_from_our_modules() {
        for name in ["__rust_alloc", "malloc", "_ZN5alloc7raw_vec12handle_error17h0123456789abcdefE"] {
            assert!(is_forbidden(name), "{name}");
        }
        assert!(is_forbidden("_RNvCs5QKde7ScR4H_7___rustc12___rust_alloc"));
        assert!(is_forbidden("_RNvNtCs1234_3std2io5stdio"));
        for name in [
            "memcpy",
            "_ZN5zonal5alloc4take17h0123456789abcdefE",
            "_ZN4core9panicking5panic17h0123456789abcdefE",
        ] {
            assert!(!is_forbidden(name), "{name}");
        }
    }

    #[test]
    fn a_program_with_std_is_found_out() {
        let own = read(&std::env::current_exe().unwrap()).unwrap();
        assert!(!program_faults(&own).unwrap().is_empty());
    }
}
