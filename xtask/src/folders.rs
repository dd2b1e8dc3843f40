//! The allowed dependencies between the folders of a crate, and between its files.
//!
//! The modules at the root of a crate, most of which are folders, are ordered. Each of them may use only the modules
//! before it. Files may use each other in a cycle only if [`LAYERS`] lists the cycle with its reason; in crates that are built on
//! the core to study it, this holds for files of different modules. Tests may use
//! everything. Related files: `folders/modules.rs` parses the sources, `folders/resolve.rs` resolves paths, and
//! `folders/circles.rs` finds cycles. `arrows.rs` checks crates.

mod circles;
mod modules;
mod resolve;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

pub(crate) use modules::is_for_tests;
use modules::{ModulePath, Modules, Reference};

/// A crate and the order of its modules.
struct Layers {
    /// Name of the crate's folder in `crates`.
    name: &'static str,
    /// The modules of the crate. Each may use only the modules before it.
    order: &'static [&'static str],
    circles: &'static [Circle],
    /// Whether files of one folder, too, may use each other in a cycle only if a circle lists them.
    by_file: bool,
}

/// Files that may use each other in a cycle.
struct Circle {
    /// The files, relative to `src`.
    files: &'static [&'static str],
    /// The reason why the cycle is allowed.
    why: &'static str,
}

const LAYERS: [Layers; 19] = [
    Layers {
        name: "zonal",
        order: &[
            "messages",
            "units",
            "node_mask",
            "machine",
            "rules",
            "error",
            "config",
            "settings",
            "platform",
            "metadata",
            "buddy",
            "zone",
            "zonelist",
            "pageset",
            "request",
            "layout",
            "allocator",
            "reclaim",
            "alloc",
            "ranges",
            "processes",
            "admin",
            "explain",
        ],
        circles: &[
            Circle {
                files: &["settings.rs", "settings/table.rs", "settings/named_rule.rs"],
                why: "the table of settings, and the types that are made from it and stand in it",
            },
            Circle {
                files: &[
                    "platform/mod.rs",
                    "platform/cells.rs",
                    "platform/cpu_local.rs",
                    "platform/pageset_slot.rs",
                    "platform/whole_words.rs",
                ],
                why: "the contract of a platform, whose parts name each other",
            },
            Circle {
                files: &["buddy/mod.rs", "buddy/active_block.rs"],
                why: "the buddy and its active block",
            },
        ],
        by_file: true,
    },
    Layers {
        name: "zonal-linux",
        order: &[
            "shared_name",
            "error",
            "topology",
            "memory",
            "threads",
            "sequences",
            "whole_words",
            "pool",
            "publish",
        ],
        circles: &[],
        by_file: true,
    },
    Layers {
        name: "zonal-lab",
        order: &[
            "bounds",
            "zeroed",
            "parallel",
            "sim",
            "checks",
            "system",
            "outcome",
            "causes",
            "page_cache",
            "workload",
            "experiment",
            "report",
            "replay",
            "what_if",
        ],
        circles: &[
            Circle { files: &["report/mod.rs", "report/page.rs"], why: "a report and its page" },
            Circle {
                files: &["workload/mod.rs", "workload/together.rs"],
                why: "the kinds of workloads, one of which is a list of workloads",
            },
        ],
        by_file: true,
    },
    Layers {
        name: "zonal-verify",
        order: &[
            "choices", "deaths", "guest", "history", "lift", "mortal", "proof", "stress", "soak", "targets",
        ],
        circles: &[Circle {
            files: &["history/platform.rs", "history/reclaimer.rs"],
            why: "a platform and its reclaimer, which calls the allocator over that platform",
        }],
        by_file: true,
    },
    Layers {
        name: "zonal-testing",
        order: &["cpus", "edges", "generated", "ledger"],
        circles: &[],
        by_file: false,
    },
    Layers {
        name: "zonal-model",
        order: &[
            "bytes",
            "escape",
            "ids",
            "input",
            "pageset_limits",
            "kernel",
            "error",
            "model",
            "file",
            "export",
            "resolve",
            "capture",
        ],
        circles: &[],
        by_file: true,
    },
    Layers {
        name: "zonal-machine",
        order: &[
            "output",
            "old_tree",
            "owned",
            "state",
            "pagesets",
            "predict",
            "filling",
            "at_boot",
            "advice",
            "report",
            "presets",
            "tree_writer",
            "log",
        ],
        circles: &[Circle {
            files: &[
                "report.rs",
                "advice/mod.rs",
                "advice/memory.rs",
                "advice/topology.rs",
                "at_boot/mod.rs",
            ],
            why: "a report, and what it consists of, which is stated in its terms",
        }],
        by_file: false,
    },
    Layers {
        name: "zonal-workload",
        order: &[
            "cpu_time", "plan", "source", "lane", "driver", "handoff", "held", "orders", "batches", "fill",
            "random", "run",
        ],
        circles: &[],
        by_file: false,
    },
    Layers {
        name: "zonal-page",
        order: &[
            "color", "figures", "text", "chart", "scale", "bars", "gauges", "heat", "lines", "table",
            "topology", "page",
        ],
        circles: &[],
        by_file: false,
    },
    Layers {
        name: "zonal-adapters",
        order: &["source", "vm_memory", "x86_64", "allocator_api2"],
        circles: &[],
        by_file: false,
    },
    Layers {
        name: "zonal-bench",
        order: &[
            "counting",
            "described",
            "pool_run",
            "spread",
            "contender",
            "floor",
            "mechanisms",
            "harness",
            "kernel_pages",
            "llfree",
            "ours",
            "peers",
            "figures",
            "report",
            "bench",
            "chart",
            "forms",
        ],
        circles: &[],
        by_file: false,
    },
    Layers {
        name: "zonal-live",
        order: &["sample", "source", "watch", "serve", "top"],
        circles: &[],
        by_file: false,
    },
    Layers {
        name: "zonal-trace",
        order: &[
            "error",
            "numbers",
            "event",
            "header",
            "block",
            "file",
            "flags",
            "tracepoint",
            "ring",
            "record",
            "import",
            "runs",
            "threads",
            "zones",
            "info",
            "export",
        ],
        circles: &[],
        by_file: false,
    },
    Layers {
        name: "zonal-c",
        order: &[
            "status",
            "types",
            "table",
            "arguments",
            "calls",
            "handle",
            "policy",
            "callbacks",
            "request",
            "blocks",
            "change",
            "processes",
            "kept",
            "pool",
            "state",
        ],
        circles: &[Circle {
            files: &["calls.rs", "handle.rs", "policy.rs", "callbacks.rs"],
            why: "after a fork, every table of the child is made usable",
        }],
        by_file: false,
    },
    Layers {
        name: "zonal-conformance",
        order: &[
            "rule",
            "harness",
            "watched",
            "world",
            "report",
            "turns",
            "duel",
            "operations",
            "load",
            "pagesets",
            "primitives",
            "handlers",
        ],
        circles: &[],
        by_file: true,
    },
    Layers {
        name: "zonal-history",
        order: &["node_load", "stat_threshold", "tuning", "zonelist_cache"],
        circles: &[],
        by_file: true,
    },
    Layers {
        name: "zonal-malloc",
        order: &["errno", "limits", "mimalloc", "options", "arenas", "nodes", "exports", "report", "start"],
        circles: &[],
        by_file: false,
    },
    Layers {
        name: "zonal-python",
        order: &["calls", "failures", "table", "machine", "pool", "lab"],
        circles: &[],
        by_file: false,
    },
    Layers {
        name: "zonal-cli",
        order: &[
            "interrupt",
            "layout",
            "outcome",
            "progress",
            "values",
            "changes",
            "capture",
            "completions",
            "explain",
            "machine",
            "man",
            "run",
            "serve",
            "settings",
            "top",
            "trace",
            "bench",
            "checkup",
            "lab",
            "mechanisms",
        ],
        circles: &[],
        by_file: false,
    },
];

/// Returns every dependency that is not allowed. Prints the cycles that are allowed.
pub(crate) fn violations(root: &Path) -> Vec<String> {
    LAYERS.iter().flat_map(|layers| layers.violations(root)).collect()
}

impl Layers {
    /// Returns the folder of the sources, relative to the root of the workspace.
    fn source(&self) -> PathBuf {
        Path::new("crates").join(self.name).join("src")
    }

    fn violations(&self, root: &Path) -> Vec<String> {
        let source = self.source();
        let file = ["lib.rs", "main.rs"].map(|name| source.join(name));
        let file = file.iter().find(|file| root.join(file).exists()).unwrap_or(&file[0]);
        let modules = match modules::read(root, file) {
            Ok(modules) => modules,
            Err(problem) => return vec![problem],
        };
        let mut found = self.without_place(&modules);
        found.extend(self.upward(&modules));
        let circles = circles::circles(&circles::arrows(&modules));
        let in_source = |file: &PathBuf| file.strip_prefix(&source).unwrap_or(file).display().to_string();
        let circles: Vec<BTreeSet<String>> =
            circles.iter().map(|circle| circle.iter().map(in_source).collect()).collect();
        found.extend(self.not_allowed(&circles));
        found
    }

    /// Returns the modules that are missing in the order, and those of the order that are missing in the crate.
    fn without_place(&self, modules: &Modules) -> Vec<String> {
        let there = &modules[&ModulePath::new()].children;
        let unknown = there.iter().filter(|module| !self.order.contains(&module.as_str()));
        let gone = self.order.iter().filter(|module| !there.contains(**module));
        let name = self.name;
        let unknown =
            unknown.map(|module| format!("{name}: module `{module}` has no place in xtask/src/folders.rs"));
        let gone = gone
            .map(|module| format!("{name}: there is no module `{module}`, which xtask/src/folders.rs has"));
        unknown.chain(gone).collect()
    }

    /// Calls `sink` for each path from one module to another, with the two modules and the path.
    fn uses<'m>(&self, modules: &'m Modules, mut sink: impl FnMut(&'m str, &str, &'m Reference)) {
        for (at, module) in modules {
            let Some(from) = at.first() else { continue }; // the root may re-export from all modules
            for reference in &module.references {
                // Paths with other first names lead to names of the module itself or to names that a `use` has
                // imported.
                let first = reference.path.first().map(String::as_str);
                if !matches!(first, Some("crate" | "self" | "super")) {
                    continue;
                }
                let target = resolve::absolute(modules, at, &reference.path);
                let to = target.and_then(|target| resolve::top(modules, &target));
                if let Some(to) = to.filter(|to| to != from && self.order.contains(&to.as_str())) {
                    sink(from, &to, reference);
                }
            }
        }
    }

    /// Returns the paths from a module to a later module.
    fn upward(&self, modules: &Modules) -> Vec<String> {
        let place = |module: &str| self.order.iter().position(|known| *known == module);
        let mut found = Vec::new();
        self.uses(modules, |from, to, reference| {
            if place(from).is_some_and(|own| place(to) > Some(own)) && !self.is_in_circle(from, to) {
                let (file, line) = (reference.file.display(), reference.line);
                found.push(format!(
                    "{file}:{line}: `{from}` must not use `{to}`, which comes after it in xtask/src/folders.rs"
                ));
            }
        });
        found
    }

    /// Whether files of both modules may use each other.
    fn is_in_circle(&self, from: &str, to: &str) -> bool {
        let of = |module: &str, file: &str| {
            file.strip_prefix(module).is_some_and(|rest| rest == ".rs" || rest.starts_with('/'))
        };
        let has = |circle: &Circle, module: &str| circle.files.iter().any(|file| of(module, file));
        self.circles.iter().any(|circle| has(circle, from) && has(circle, to))
    }

    /// Returns the files in cycles that are missing in the table, and the files of the table that are in no cycle.
    /// Prints the allowed cycles.
    fn not_allowed(&self, circles: &[BTreeSet<String>]) -> Vec<String> {
        let name = self.name;
        let allowed = |circle: &BTreeSet<String>| {
            let has_all =
                |allowed: &&Circle| circle.iter().all(|file| allowed.files.contains(&file.as_str()));
            self.circles.iter().find(has_all)
        };
        for (circle, allowed) in circles.iter().filter_map(|circle| Some((circle, allowed(circle)?))) {
            println!("{name}: {}: {} files in a circle: {}", allowed.why, circle.len(), list(circle));
        }
        let is_free = |circle: &BTreeSet<String>| {
            let mut folders = circle.iter().map(|file| file.split(['/', '.']).next());
            let first = folders.next();
            !self.by_file && folders.all(|folder| Some(folder) == first)
        };
        let new = circles.iter().filter(|circle| allowed(circle).is_none() && !is_free(circle));
        let new =
            new.map(|circle| format!("{name}: these files use each other in a circle: {}", list(circle)));
        let in_none = |file: &&&str| !circles.iter().any(|circle| circle.contains(**file));
        let opened = self.circles.iter().filter_map(|allowed| {
            let files: BTreeSet<String> =
                allowed.files.iter().filter(in_none).map(|file| (*file).to_owned()).collect();
            let gone = format!("{name}: `{}` of xtask/src/folders.rs lacks {}", allowed.why, list(&files));
            (!files.is_empty()).then(|| format!("{gone}, which are in no circle: take them out"))
        });
        new.chain(opened).collect()
    }
}

fn list(files: &BTreeSet<String>) -> String {
    files.iter().map(String::as_str).collect::<Vec<_>>().join(", ")
}
