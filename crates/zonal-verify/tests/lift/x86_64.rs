//! Changes to the sequences for x86-64.

use crate::compiled::{Assembly, Change};

/// The sequences and their changes.
pub(crate) const ASSEMBLY: Assembly = Assembly {
    target: "x86_64-unknown-linux-gnu",
    source: include_str!("../../../zonal-linux/src/sequences/x86_64.rs"),
    changes: CHANGES,
};

const CHANGES: &[Change] = &[
    Change {
        what: "the slots' address is loaded before the test",
        of: "pop",
        edits: &[
            (r#""mov {limit}, [{slot} + 8]""#, ""),
            (r#""mov {head}, [{slot}]""#, r#""mov {head}, [{slot}]" "mov {current}, [{slot} + 8]""#),
            ("[{limit} + {t} * 4]", "[{current} + {t} * 4]"),
            ("current = in(reg) current", "current = inout(reg) current => _"),
        ],
        says: None,
    },
    Change {
        what: "the lock word is loaded after the word",
        of: "pop_from",
        edits: &[
            (r#""mov {cpu_lock_word}, [{head}]""#, ""),
            (r#""mov {t}, [{head} + 8]""#, r#""mov {t}, [{head} + 8]" "mov {cpu_lock_word}, [{head}]""#),
        ],
        says: Some(&[
            "must load with acquire the lock word",
            "found load2 = load with acquire of 8 bytes at rdx + 8",
        ]),
    },
    Change {
        what: "the lock word is loaded last",
        of: "pop",
        edits: &[
            (r#""mov {count_lock_word}, [{head}]""#, ""),
            (r#""add {limit}, {next}""#, r#""add {limit}, {next}" "mov {count_lock_word}, [{head}]""#),
        ],
        says: Some(&["must load with acquire the lock word"]),
    },
    Change {
        what: "the lock word is not loaded",
        of: "push",
        edits: &[(r#""mov {cpu_lock_word}, [{head}]""#, r#""mov {cpu_lock_word}, -1""#)],
        says: Some(&["must load with acquire the lock word"]),
    },
    Change {
        what: "the commit is not the last store",
        of: "push",
        edits: &[
            (r#""mov [{slots} + {t} * 4], {frame:e}""#, ""),
            (
                r#""mov [{head} + 8], {next}""#,
                r#""mov [{head} + 8], {next}" "mov [{slots} + {t} * 4], {frame:e}""#,
            ),
        ],
        says: Some(&["must end with a store of load3 - register"]),
    },
    Change {
        what: "the commit is not the last instruction",
        of: "pop_from",
        edits: &[(r#""mov [{head} + 8], {next}""#, r#""mov [{head} + 8], {next}" "mov {limit}, {next}""#)],
        says: Some(&["must end with the commit"]),
    },
    Change {
        what: "the slot is loaded after the commit",
        of: "pop_from",
        edits: &[
            (r#""mov {t:e}, [{slots} + {t} * 4]""#, ""),
            (
                r#""mov [{head} + 8], {next}""#,
                r#""mov [{head} + 8], {next}" "mov {t:e}, [{slots} + {t} * 4]""#,
            ),
        ],
        says: Some(&["must end with a store of load3 + register"]),
    },
    Change {
        what: "the commit stores another value",
        of: "pop",
        edits: &[(r#""mov [{head} + 8], {next}""#, r#""mov [{head} + 8], {limit}""#)],
        says: Some(&["must end with a store of load5 + register", "found store of load7"]),
    },
    Change {
        what: "the commit stores half of the word",
        of: "pop_from",
        edits: &[(r#""mov [{head} + 8], {next}""#, r#""mov [{head} + 8], {next:e}""#)],
        says: Some(&["must end with a store", "to 4 bytes"]),
    },
    Change {
        what: "a limit is stored before the commit",
        of: "push",
        edits: &[(
            r#""test {cpu_lock_word}, {t}""#,
            r#""mov [{head} + 24], {t}" "test {cpu_lock_word}, {t}""#,
        )],
        says: Some(&["must abort if (", "!= 0; found store"]),
    },
    Change {
        what: "no test",
        of: "pop_from",
        edits: &[(r#""jnz 50f""#, "")],
        says: Some(&["must abort if (", "!= 0; found load5"]),
    },
    Change {
        what: "the test comes after the slot",
        of: "push",
        edits: &[
            (
                "\"test {cpu_lock_word}, {t}\"\n            \"jnz 50f\"",
                r#""mov {cpu_lock_word}, {cpu_lock_word}""#,
            ),
            (
                r#""mov [{head} + 8], {next}""#,
                r#""test {cpu_lock_word}, {t}" "jnz 50f" "mov [{head} + 8], {next}""#,
            ),
        ],
        says: Some(&["must abort if (", "!= 0; found store"]),
    },
    Change {
        what: "the test is inverted",
        of: "pop",
        edits: &[(r#""jnz 50f""#, r#""jz 50f""#)],
        says: Some(&["must abort if (", "!= 0; found abort if (", "== 0"]),
    },
    Change {
        what: "the test is of half of the guards",
        of: "push",
        edits: &[(r#""test {cpu_lock_word}, {t}""#, r#""test {cpu_lock_word:e}, {t:e}""#)],
        says: Some(&["must abort if (", "& 0xffffffff != 0"]),
    },
    Change {
        what: "the test is of the limit for pushes",
        of: "pop",
        edits: &[("[{head} + 16]", "[{head} + 24]")],
        says: Some(&["must load the limit for pops, 8 bytes at load3 + 16; found", "at load3 + 24"]),
    },
    Change {
        what: "the limit is added instead of being subtracted from",
        of: "push",
        edits: &[(r#""sub {t}, {next}""#, r#""add {t}, {next}""#)],
        says: Some(&["must abort if ("]),
    },
    Change {
        what: "the test uses the old word",
        of: "pop_from",
        edits: &[(r#""add {limit}, {next}""#, r#""add {limit}, {t}""#)],
        says: Some(&["must abort if ("]),
    },
    Change {
        what: "the mask is too wide",
        of: "pop",
        edits: &[("0x7ffffff", "0xfffffff")],
        says: Some(&["must load the slot, 4 bytes at load7 + 4 * (load5 & 0x7ffffff); found", "0xfffffff"]),
    },
    Change {
        what: "the slot is that of the new word",
        of: "pop_from",
        edits: &[(r#""and {t:e}, 0x7ffffff""#, r#""mov {t:e}, {next:e}" "and {t:e}, 0x7ffffff""#)],
        says: Some(&["must load the slot"]),
    },
    Change {
        what: "the slot has eight bytes",
        of: "pop_from",
        edits: &[("mov {t:e}, [{slots} + {t} * 4]", "mov {t}, [{slots} + {t} * 8]")],
        says: Some(&["must load the slot, 4 bytes", "found load5 = load with acquire of 8 bytes"]),
    },
    Change {
        what: "the word is at another offset",
        of: "push",
        edits: &[("mov {next}, [{head} + 8]", "mov {next}, [{head} + 16]")],
        says: Some(&["must load the word", "+ 16"]),
    },
    Change {
        what: "the slots' address is at another offset",
        of: "pop",
        edits: &[("[{slot} + 8]", "[{slot} + 16]")],
        says: Some(&["must load the slot", "at the address in the pageset slot"]),
    },
    Change {
        what: "a failed test does not go to the abort",
        of: "pop_from",
        edits: &[(r#""jnz 50f""#, r#""jnz 60f""#)],
        says: Some(&["only conditional branches to the abort"]),
    },
    Change {
        what: "a failed test starts again",
        of: "pop",
        edits: &[(r#""jnz 50f""#, r#""jnz 20b""#)],
        says: Some(&["only conditional branches to the abort"]),
    },
    Change {
        what: "the CPU is not compared",
        of: "pop_from",
        edits: &[(r#""jne 50f""#, "")],
        says: Some(&["a pop from a given slot must abort if load1 != the CPU in a register, or"]),
    },
    Change {
        what: "the wrong CPUs are accepted",
        of: "lock",
        edits: &[(r#""jne 50f""#, r#""je 50f""#)],
        says: Some(&["a lock must abort if load1 != the CPU in a register; found abort if", "=="]),
    },
    Change {
        what: "a CPU after the last is accepted",
        of: "pop",
        edits: &[(r#""jae 50f""#, r#""ja 50f""#)],
        says: Some(&["a pop must abort if load1 >= the number of CPUs in a register, or"]),
    },
    Change {
        what: "the CPU is loaded from another field",
        of: "push",
        edits: &[("fs:[{area} + 4]", "fs:[{area}]")],
        says: Some(&["must load the CPU, 4 bytes at"]),
    },
    Change {
        what: "the CPU is not loaded from the thread's area",
        of: "push",
        edits: &[("fs:[{area} + 4]", "[{area} + 4]")],
        says: Some(&["must load the CPU, 4 bytes at"]),
    },
    Change {
        what: "a remotely locked head is locked",
        of: "lock",
        edits: &[("cmp {t}, -2", "cmp {t}, -1")],
        says: Some(&["a lock must abort if load2 >= -2; found abort if load2 >= -1"]),
    },
    Change {
        what: "the lock word of a remote lock is stored",
        of: "lock",
        edits: &[("[{head}], -1", "[{head}], -2")],
        says: Some(&["must store the lock word, -1 to 8 bytes", "found store of -2"]),
    },
    Change {
        what: "the commit is atomic",
        of: "pop_from",
        edits: &[(r#""mov [{head} + 8], {next}""#, r#""lock xchg [{head} + 8], {next}""#)],
        says: Some(&["has a prefix that no sequence may contain"]),
    },
    Change {
        what: "the commit exchanges",
        of: "pop_from",
        edits: &[(r#""mov [{head} + 8], {next}""#, r#""xchg [{head} + 8], {next}""#)],
        says: Some(&["xchg", "is of a kind that no sequence may contain"]),
    },
    Change {
        what: "the commit adds",
        of: "pop",
        edits: &[(r#""mov [{head} + 8], {next}""#, r#""add [{head} + 8], {next}""#)],
        says: Some(&["changes memory"]),
    },
    Change {
        what: "a call",
        of: "lock",
        edits: &[(r#""cmp {t}, -2""#, r#""call 60f" "cmp {t}, -2""#)],
        says: Some(&["call", "is of a kind that no sequence may contain"]),
    },
    Change {
        what: "an unknown instruction",
        of: "push",
        edits: &[(r#""sub {t}, {next}""#, r#""nop" "sub {t}, {next}""#)],
        says: Some(&["nop", "is of a kind that no sequence may contain"]),
    },
    Change {
        what: "the pageset slot's register is overwritten",
        of: "pop",
        edits: &[(r#""mov [{head} + 8], {next}""#, r#""mov {slot}, {head}" "mov [{head} + 8], {next}""#)],
        says: Some(&["and write nothing else to"]),
    },
    Change {
        what: "an abort returns a frame",
        of: "pop_from",
        edits: &[("mov {t}, -1", "mov {t}, 0")],
        says: Some(&["set one register to nothing after an abort"]),
    },
    Change {
        what: "a push reports success after an abort",
        of: "push",
        edits: &[("jmp {refused}", "jmp 60f # {refused}")],
        says: Some(&["must continue elsewhere than at"]),
    },
    Change {
        what: "an abort sets another register",
        of: "pop_from",
        edits: &[("mov {t}, -1", "mov {limit}, -1")],
        says: Some(&["must leave load5 in"]),
    },
    Change {
        what: "the frame is lost",
        of: "pop",
        edits: &[("mov {t:e}, [{limit} + {t} * 4]", "mov {limit:e}, [{limit} + {t} * 4]")],
        says: Some(&["must leave load8 in"]),
    },
    Change {
        what: "the signature is wrong",
        of: "push",
        edits: &[("0x53053053", "0x53053054")],
        says: Some(&["not the signature 0x53053053"]),
    },
    Change {
        what: "the commit address is too low",
        of: "pop",
        edits: &[("30b - 20b", "30b - 20b - 4")],
        says: Some(&["must end with a store of load5 + register"]),
    },
    Change {
        what: "the commit address is within the commit",
        of: "pop_from",
        edits: &[("30b - 20b", "30b - 20b - 1")],
        says: Some(&["after the commit address"]),
    },
    Change {
        what: "the commit address is too high",
        of: "push",
        edits: &[(r#""60:","#, r#""60:", "mov {t}, {t}","#), ("30b - 20b", "30b - 20b + 3")],
        says: Some(&["must end with the commit"]),
    },
    Change {
        what: "the start is too high",
        of: "lock",
        edits: &[(r#""20:","#, ""), (r#""jne 50f""#, r#""jne 50f" "20:""#)],
        says: Some(&["does not follow instructions that store the address"]),
    },
    Change {
        what: "the descriptor is stored after the start",
        of: "pop",
        edits: &[
            (r#""20:","#, ""),
            (r#""mov qword ptr fs:[{area} + 8], {t}","#, r#""20:", "mov qword ptr fs:[{area} + 8], {t}","#),
        ],
        says: Some(&["does not follow instructions that store the address"]),
    },
    Change {
        what: "the descriptor is stored in another field",
        of: "push",
        edits: &[("fs:[{area} + 8]", "fs:[{area} + 16]")],
        says: Some(&["must store the descriptor's address", "found store of", "+ 16"]),
    },
    Change {
        what: "the descriptor has flags",
        of: "lock",
        edits: &[(".long 0, 0", ".long 0, 4")],
        says: Some(&["has version 0 and flags 4"]),
    },
    Change {
        what: "the abort is inside of the sequence",
        of: "lock",
        edits: &[("30b - 20b, 50b", "30b - 20b, 20b + 4")],
        says: Some(&["inside of the sequence"]),
    },
];
