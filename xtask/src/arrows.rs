//! The allowed dependencies between crates, which form a directed acyclic graph. The core has no dependencies.
//!
//! There are two groups of crates: those that embedders and users build, and those that study them by simulation,
//! measurement, prediction and verification. Crates of the first group never use the second, so programs with pools
//! contain nothing of it. The dependencies are read from the manifests. Build scripts and tests must follow the same
//! rules, apart from [`TESTING`] and [`TESTS`], but may use external crates. Related files: `folders.rs` checks dependencies within crates, and `style.rs` checks the sources.

use std::path::Path;

use toml::Table;

/// The crate that the tests of every crate may use.
const TESTING: &str = "zonal-testing";

/// A crate and the workspace crates that it may use.
type Arrow = (&'static str, &'static [&'static str]);

/// The crates that embedders and users build. None of them may use a crate that is missing here.
const BUILT: [Arrow; 8] = [
    // Its tests replay the past forms.
    ("zonal", &["zonal-history"]),
    ("zonal-conformance", &["zonal"]),
    ("zonal-history", &["zonal"]),
    ("zonal-model", &["zonal", "zonal-history"]),
    ("zonal-linux", &["zonal", "zonal-history", "zonal-model"]),
    // Its tests use the crate with all of its features on.
    ("zonal-adapters", &["zonal", "zonal-linux", "zonal-adapters"]),
    ("zonal-c", &["zonal", "zonal-linux"]),
    ("zonal-malloc", &["zonal-model", "zonal-linux"]),
];

/// The crates that study those, and their front ends.
const STUDY: [Arrow; 10] = [
    ("zonal-machine", &["zonal", "zonal-model"]),
    ("zonal-workload", &["zonal"]),
    ("zonal-page", &[]),
    (
        "zonal-bench",
        &[
            "zonal",
            "zonal-history",
            "zonal-machine",
            "zonal-workload",
            "zonal-linux",
            "zonal-page",
            "zonal-lab",
        ],
    ),
    ("zonal-lab", &["zonal", "zonal-history", "zonal-machine", "zonal-page", "zonal-trace"]),
    ("zonal-live", &["zonal-machine", "zonal-linux", "zonal-page"]),
    ("zonal-trace", &["zonal", "zonal-machine"]),
    (
        "zonal-cli",
        &[
            "zonal",
            "zonal-history",
            "zonal-machine",
            "zonal-workload",
            "zonal-linux",
            "zonal-page",
            "zonal-bench",
            "zonal-lab",
            "zonal-live",
            "zonal-trace",
        ],
    ),
    ("zonal-python", &["zonal", "zonal-machine", "zonal-linux", "zonal-lab"]),
    (
        "zonal-verify",
        &[TESTING, "zonal", "zonal-history", "zonal-machine", "zonal-linux", "zonal-lab", "zonal-trace"],
    ),
];

/// The crates that only development uses.
const DEVELOPMENT: [Arrow; 2] = [(TESTING, &[]), ("xtask", &[])];

/// Crates whose tests may use more than the crates themselves.
const TESTS: [Arrow; 2] = [
    // Pools are compared with what the kernel's rules predict for the presets. The scenarios run on their platform.
    ("zonal-linux", &["zonal-conformance", "zonal-machine"]),
    // The scenarios run on the simulator's platform, too.
    ("zonal-lab", &["zonal-conformance"]),
];

/// Returns every dependency that is not allowed, and every crate that is missing in the table.
pub(crate) fn violations(root: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut folders = vec![root.join("xtask")];
    match std::fs::read_dir(root.join("crates")) {
        Ok(entries) => folders.extend(entries.flatten().map(|entry| entry.path())),
        Err(error) => found.push(format!("crates: {error}")),
    }
    folders.sort();
    for manifest in folders.iter().map(|folder| folder.join("Cargo.toml")).filter(|file| file.exists()) {
        let name = manifest.strip_prefix(root).unwrap_or(&manifest).display().to_string();
        match std::fs::read_to_string(&manifest).map_err(|e| e.to_string()).and_then(|text| check(&text)) {
            Ok(wrong) => found.extend(wrong.iter().map(|what| format!("{name}: {what}"))),
            Err(error) => found.push(format!("{name}: {}", error.lines().next().unwrap_or_default())),
        }
    }
    found
}

fn check(manifest: &str) -> Result<Vec<String>, String> {
    let manifest: Table = manifest.parse().map_err(|error: toml::de::Error| error.to_string())?;
    let name =
        manifest.get("package").and_then(|p| p.get("name")).and_then(|n| n.as_str()).unwrap_or_default();
    let Some(allowed) = arrow(name) else {
        return Ok(vec![format!("crate `{name}` is missing in xtask/src/arrows.rs")]);
    };
    let mut wrong = Vec::new();
    for (kind, used) in dependencies(&manifest) {
        if arrow(&used).is_some() && !(kind == "dev-dependencies" && may_test_with(name, &used)) {
            if is_built(name) && !is_built(&used) {
                wrong.push(format!("`{name}`, which users build, must not use `{used}`, which they do not"));
            } else if !allowed.contains(&used.as_str()) {
                wrong.push(format!("`{name}` must not use `{used}`"));
            }
        }
        if name == "zonal" && kind != "dev-dependencies" {
            wrong.push(format!("the core has no dependency, yet uses `{used}`"));
        }
    }
    Ok(wrong)
}

/// Returns the crates that a crate of the workspace may use.
fn arrow(name: &str) -> Option<&'static [&'static str]> {
    let mut all = BUILT.iter().chain(&STUDY).chain(&DEVELOPMENT);
    all.find(|(known, _)| *known == name).map(|(_, allowed)| *allowed)
}

fn is_built(name: &str) -> bool {
    BUILT.iter().any(|(known, _)| *known == name)
}

/// Whether only the tests of a crate may use `used`.
fn may_test_with(name: &str, used: &str) -> bool {
    used == TESTING || TESTS.iter().any(|(known, more)| *known == name && more.contains(&used))
}

/// Returns the kind and the crate of every dependency, including dependencies of specific targets.
fn dependencies(manifest: &Table) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for (key, value) in manifest {
        let Some(table) = value.as_table() else { continue };
        if key == "target" {
            found.extend(table.values().filter_map(|v| v.as_table()).flat_map(dependencies));
        } else if key.ends_with("dependencies") {
            let real = |(name, entry): (&String, &toml::Value)| {
                entry.get("package").and_then(|p| p.as_str()).unwrap_or(name).to_owned()
            };
            found.extend(table.iter().map(|entry| (key.clone(), real(entry))));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(name: &str, rest: &str) -> Vec<String> {
        check(&format!("[package]\nname = \"{name}\"\n{rest}")).unwrap()
    }

    #[test]
    fn arrows_point_one_way() {
        assert!(of("zonal-linux", "[dependencies]\nzonal.workspace = true\nrustix = \"1\"").is_empty());
        assert_eq!(of("zonal-linux", "[dependencies]\nzonal-lab.workspace = true").len(), 1);
        assert_eq!(of("zonal-lab", "[dev-dependencies]\nzonal-linux.workspace = true").len(), 1);
        assert_eq!(of("zonal-machine", "[target.'cfg(unix)'.dependencies]\nzonal-cli = \"0\"").len(), 1);
        assert_eq!(
            of("zonal-lab", "[dependencies]\nhost = { package = \"zonal-linux\", path = \"x\" }").len(),
            1
        );
    }

    #[test]
    fn nothing_that_users_build_uses_what_studies_it() {
        let uses =
            |name: &str, used: &str, kind: &str| of(name, &format!("[{kind}]\n{used}.workspace = true"));
        for (built, allowed) in BUILT {
            assert!(allowed.iter().all(|used| is_built(used)), "{built}");
            for (studies, _) in STUDY {
                for kind in ["dependencies", "build-dependencies"] {
                    assert!(uses(built, studies, kind)[0].contains("which users build"), "{built} {studies}");
                }
            }
        }
        assert!(uses("zonal-linux", "zonal-machine", "dev-dependencies").is_empty());
        assert_eq!(uses("zonal-malloc", "zonal-machine", "dev-dependencies").len(), 1);
        assert!(uses("zonal-lab", "zonal-conformance", "dev-dependencies").is_empty());
        assert_eq!(uses("zonal-lab", "zonal-conformance", "dependencies").len(), 1);
        assert!(uses("zonal-machine", "zonal-model", "dependencies").is_empty());
    }

    #[test]
    fn the_core_uses_nothing() {
        assert!(of("zonal", "[dev-dependencies]\nproptest = \"1\"").is_empty());
        assert_eq!(of("zonal", "[dependencies]\nspin = \"0.9\"").len(), 1);
    }

    #[test]
    fn tests_of_every_crate_may_use_what_tests_share() {
        let uses = |kind: &str| format!("[{kind}]\nzonal-testing.workspace = true");
        for name in ["zonal", "zonal-cli", "xtask"] {
            assert!(of(name, &uses("dev-dependencies")).is_empty());
            assert!(!of(name, &uses("dependencies")).is_empty());
        }
        assert_eq!(of("zonal-testing", "[dev-dependencies]\nzonal.workspace = true").len(), 1);
    }

    #[test]
    fn a_new_crate_needs_a_place() {
        assert_eq!(of("zonal-new", "").len(), 1);
    }
}
