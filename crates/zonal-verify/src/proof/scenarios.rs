//! The worlds in which the table runs.
//!
//! Related files: `worlds.rs` explores them.

use crate::proof::worlds::Size;

/// Rows of a setup: one thread locks a pageset, uses it, fills it, sets limits, closes it, and allocates.
const SETUP: &[&str] = &[
    "own",
    "locks",
    "held.use",
    "held.pop_limit",
    "held.push_limit",
    "held.close",
    "held.push_slot",
    "held.push_word",
    "held.open",
    "area.take",
    "area.hold",
    "area.lock",
    "area.unlock",
    "refill",
    "held.serve",
    "alloc.mark",
];

/// What a thread of a world does: pop a frame, free and push one, work under its own CPU's lock, or drain from another CPU.
const ROLES: [&[&str]; 4] = [
    &["pop", "alloc.mark", "retire.poisoned"],
    &["free.claim", "free.is_here", "push"],
    &["own", "locks", "held.open", "held.pop", "held.push_slot", "held.push_word", "held.use", "held.put_"],
    &[
        "remote",
        "locks",
        "held.open",
        "held.pop",
        "held.close",
        "held.push_slot",
        "held.push_word",
        "held.put_",
        "held.lane_limit",
        "hint",
    ],
];

const MODES: [&str; 3] = ["Sequences", "Locks", "Pinned"];

/// Rows of frames that no pageset has.
const FRAMES: &[&str] = &[
    "watch",
    "alloc.",
    "area.",
    "split",
    "run",
    "fence",
    "claim",
    "retire",
    "hotplug",
    "free",
    "held.take_back",
    "drain",
];
/// Rows that move words of frames under the lock, and those that count a step in the store that commits it.
const WORDS: &[&str] = &["own", "held.open", "word", "refill"];
const STEPS: &[&str] = &["own", "held.open", "step", "free.claim", "free.is_here", "alloc.mark"];
/// Pops and pushes under try locks.
const TRIES: [&[&str]; 2] = [
    &["locks", "held.open", "try_pop", "alloc.mark", "retire.poisoned"],
    &["locks", "held.open", "try_push", "free.claim", "free.is_here"],
];
/// Rows of blocks that CPUs own, with those around them.
const OWNED: &[&str] = &["block", "area", "alloc.mark", "alloc.direct", "free"];
/// Two processes, the first of which may die.
struct Deaths {
    name: &'static str,
    frames: usize,
    setup: &'static [&'static str],
    /// Rows of the process that dies, and those of the other one, meanwhile and afterwards.
    roles: [&'static [&'static str]; 2],
}

const DEATHS: [Deaths; 5] = [
    Deaths {
        name: "blocks",
        frames: 1,
        setup: &[],
        roles: [
            &["area.", "alloc.direct", "free.claim", "free.is_here", "free.undo", "handover", "process.dies"],
            &[
                "handover",
                "area.lock",
                "area.unlock",
                "recover.live",
                "recover.cached",
                "recover.free",
                "recover.give",
            ],
        ],
    },
    Deaths {
        name: "areas",
        frames: 1,
        setup: &[],
        roles: [
            &["area.", "process.dies"],
            &["area.", "process", "handover.lock", "handover.unlock", "recover.free", "recover.give"],
        ],
    },
    Deaths {
        name: "runs",
        frames: 2,
        setup: &[],
        roles: [
            &["area.take", "area.hold", "area.lock", "area.unlock", "run", "process.dies"],
            &["handover", "area.lock", "area.unlock", "recover.run", "recover.part"],
        ],
    },
    Deaths {
        name: "splits",
        frames: 2,
        setup: &[],
        roles: [
            &[
                "area.take",
                "area.hold",
                "area.lock",
                "area.unlock",
                "area.merge",
                "alloc.direct",
                "split",
                "process.dies",
            ],
            &["handover", "area.lock", "area.unlock", "recover.split"],
        ],
    },
    Deaths {
        name: "a pageset",
        frames: 2,
        setup: SETUP,
        roles: [
            &["pop", "alloc.mark", "free.claim", "free.is_here", "free.defer", "push", "process.dies"],
            &["process.begins", "process.thread", "reset", "handover.lock", "area.lock", "recover.cached"],
        ],
    },
];
/// Rows that change the counters of a pageset and the totals.
const FREE_COUNTS: &[&str] = &["own", "held.open", "held.use", "area", "lane"];
const COUNTS: &[&str] = &[
    "own",
    "held",
    "count",
    "recover.total",
    "recover.free_total",
    "refill",
    "drain",
    "area.hold",
    "area.give",
    "free.is_here",
    "area.take",
    "area.put",
    "area.lock",
    "alloc",
    "free.claim",
];

fn world(mode: &'static str, roles: Vec<&'static [&'static str]>, slots: i8, frames: usize) -> Size {
    Size {
        mode,
        roles,
        cpus: vec![0],
        processes: 0,
        slots,
        frames,
        operations: 1,
        setup: SETUP,
        setups: 1,
        states: 20_000_000,
    }
}

/// Returns the worlds with two threads in every mode and pair of roles, on one CPU's pageset and on those of two CPUs, and
/// those for frames and counters.
pub fn small() -> Vec<(String, Size)> {
    let mut worlds = Vec::new();
    for mode in MODES {
        for (a, first) in ROLES.iter().enumerate() {
            for (b, second) in ROLES.iter().enumerate().skip(a) {
                worlds.push((format!("{mode}: roles {a} and {b}"), world(mode, vec![first, second], 2, 3)));
            }
        }
    }
    for (a, role) in ROLES.iter().enumerate() {
        let two = Size { cpus: vec![0, 1], ..world("Sequences", vec![role, ROLES[3]], 1, 2) };
        worlds.push((format!("Sequences, two CPUs: roles {a} and 3"), two));
    }
    for (a, role) in ROLES.iter().enumerate() {
        worlds.push((format!("Sequences: role {a} and words"), world("Sequences", vec![role, WORDS], 2, 3)));
    }
    for (a, role) in [0, 3].map(|a| (a, ROLES[a])) {
        worlds.push((format!("Sequences: role {a} and steps"), world("Sequences", vec![role, STEPS], 1, 2)));
    }
    for (name, roles) in [
        ("two pops", [TRIES[0], TRIES[0]]),
        ("a pop and a push", TRIES),
        ("two pushes", [TRIES[1], TRIES[1]]),
        ("a pop and a drain", [TRIES[0], ROLES[3]]),
        ("a push and a drain", [TRIES[1], ROLES[3]]),
    ] {
        worlds.push((format!("Locks: {name}"), world("Locks", roles.to_vec(), 2, 3)));
    }
    worlds.push((
        "two threads, hits".to_owned(),
        Size { setup: &[], ..world("Sequences", vec![&["hit"], &["hit"]], 1, 1) },
    ));
    worlds.push((
        "two threads, free frames".to_owned(),
        Size { setup: &[], ..world("Sequences", vec![FREE_COUNTS, FREE_COUNTS], 1, 2) },
    ));
    worlds.push((
        "two threads, owned blocks".to_owned(),
        Size { setup: &[], cpus: vec![0, 1], ..world("Sequences", vec![OWNED, OWNED], 1, 2) },
    ));
    for Deaths { name, frames, setup, roles } in DEATHS {
        let one = world("Sequences", roles.to_vec(), 1, frames);
        worlds
            .push((format!("two processes, {name}"), Size { cpus: vec![0, 1], processes: 2, setup, ..one }));
    }
    worlds.push((
        "two threads, frames".to_owned(),
        Size { setup: &[], ..world("Sequences", vec![FRAMES, FRAMES], 1, 2) },
    ));
    worlds.push((
        "one thread, counters".to_owned(),
        Size { setup: &[], ..world("Sequences", vec![COUNTS], 1, 1) },
    ));
    worlds
}

/// Returns the worlds with three threads and three frames, for every three different roles.
pub fn large() -> Vec<(String, Size)> {
    let mut worlds = Vec::new();
    for (a, first) in ROLES.iter().enumerate() {
        for (b, second) in ROLES.iter().enumerate().skip(a + 1) {
            for (c, third) in ROLES.iter().enumerate().skip(b + 1) {
                let roles = vec![*first, *second, *third];
                worlds.push((format!("Sequences: roles {a}, {b} and {c}"), world("Sequences", roles, 2, 3)));
            }
        }
    }
    worlds
}
