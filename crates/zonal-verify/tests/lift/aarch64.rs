//! Changes to the sequences for aarch64.

use crate::compiled::{Assembly, Change};

/// The sequences and their changes.
pub(crate) const ASSEMBLY: Assembly = Assembly {
    target: "aarch64-unknown-linux-gnu",
    source: include_str!("../../../zonal-linux/src/sequences/aarch64.rs"),
    changes: CHANGES,
};

const CHANGES: &[Change] = &[
    Change {
        what: "every load acquires",
        of: "pop_from",
        edits: &[
            (r#""ldr {t}, [{head}, #8]""#, r#""add {t}, {head}, #8" "ldar {t}, [{t}]""#),
            (r#""ldr {other}, [{head}, #16]""#, r#""add {other}, {head}, #16" "ldar {other}, [{other}]""#),
        ],
        says: None,
    },
    Change {
        what: "the lock word is loaded after the word",
        of: "pop_from",
        edits: &[
            (r#""ldar {lock_word}, [{head}]""#, ""),
            (r#""ldr {t}, [{head}, #8]""#, r#""ldr {t}, [{head}, #8]" "ldar {lock_word}, [{head}]""#),
        ],
        says: Some(&["must load with acquire the lock word", "found load2 = plain load"]),
    },
    Change {
        what: "the lock word is loaded last",
        of: "push",
        edits: &[
            (r#""ldar {lock_word}, [{head}]""#, ""),
            (r#""tst {t}, {lock_word}""#, r#""ldar {lock_word}, [{head}]" "tst {t}, {lock_word}""#),
        ],
        says: Some(&["must load with acquire the lock word"]),
    },
    Change {
        what: "the lock word is loaded without acquire",
        of: "pop",
        edits: &[("ldar {lock_word}", "ldr {lock_word}")],
        says: Some(&["must load with acquire the lock word", "found load4 = plain load of 8 bytes at load3"]),
    },
    Change {
        what: "the lock word is loaded without acquire",
        of: "pop_from",
        edits: &[("ldar {lock_word}", "ldr {lock_word}")],
        says: Some(&["must load with acquire the lock word", "found load2 = plain load"]),
    },
    Change {
        what: "the lock word is loaded without acquire",
        of: "push",
        edits: &[("ldar {lock_word}", "ldr {lock_word}")],
        says: Some(&["must load with acquire the lock word", "found load2 = plain load"]),
    },
    Change {
        what: "the lock word is loaded without acquire",
        of: "lock",
        edits: &[("ldar {t}", "ldr {t}")],
        says: Some(&["must load with acquire the lock word", "found load2 = plain load"]),
    },
    Change {
        what: "another load acquires instead",
        of: "pop",
        edits: &[
            ("ldar {lock_word}", "ldr {lock_word}"),
            (r#""ldr {t}, [{head}, #8]""#, r#""add {t}, {head}, #8" "ldar {t}, [{t}]""#),
        ],
        says: Some(&["must load with acquire the lock word"]),
    },
    Change {
        what: "the commit is not the last store",
        of: "push",
        edits: &[
            (r#""str {frame:w}, [{slots}, {t}, lsl #2]""#, ""),
            (
                r#""str {next}, [{head}, #8]""#,
                r#""str {next}, [{head}, #8]" "str {frame:w}, [{slots}, {t}, lsl #2]""#,
            ),
        ],
        says: Some(&["must end with a store of load3 - register"]),
    },
    Change {
        what: "the commit is not the last instruction",
        of: "pop_from",
        edits: &[(r#""str {next}, [{head}, #8]""#, r#""str {next}, [{head}, #8]" "mov {other}, {next}""#)],
        says: Some(&["must end with the commit"]),
    },
    Change {
        what: "the commit stores the old word",
        of: "push",
        edits: &[(
            r#""str {next}, [{head}, #8]""#,
            r#""add {next}, {next}, {step}" "str {next}, [{head}, #8]""#,
        )],
        says: Some(&["must end with a store of load3 - register"]),
    },
    Change {
        what: "the commit stores half of the word",
        of: "pop",
        edits: &[(r#""str {next}, [{head}, #8]""#, r#""str {next:w}, [{head}, #8]""#)],
        says: Some(&["must end with a store", "to 4 bytes"]),
    },
    Change {
        what: "the commit releases",
        of: "pop_from",
        edits: &[(r#""str {next}, [{head}, #8]""#, r#""add {other}, {head}, #8" "stlr {next}, [{other}]""#)],
        says: Some(&["stlr", "is of a kind that no sequence may contain"]),
    },
    Change {
        what: "a limit is stored before the commit",
        of: "push",
        edits: &[(r#""tst {t}, {lock_word}""#, r#""str {t}, [{head}, #24]" "tst {t}, {lock_word}""#)],
        says: Some(&["must abort if ", "!= 0; found store"]),
    },
    Change {
        what: "no test",
        of: "pop",
        edits: &[(r#""tst {other}, {lock_word}""#, ""), (r#""b.ne 50f""#, "")],
        says: Some(&["must abort if ", "!= 0; found load8"]),
    },
    Change {
        what: "the test comes after the slot",
        of: "push",
        edits: &[
            (
                r#""tst {t}, {lock_word}""#,
                r#""tst {t}, {lock_word}" "and {t}, {next}, #0x7ffffff" "str {frame:w}, [{slots}, {t}, lsl #2]""#,
            ),
            (
                "\"and {t}, {next}, #0x7ffffff\"\n            \"str {frame:w}, [{slots}, {t}, lsl #2]\"\n            \"str {next}",
                r#""str {next}"#,
            ),
        ],
        says: Some(&["must abort if ", "!= 0; found store"]),
    },
    Change {
        what: "the test is inverted",
        of: "pop",
        edits: &[(r#""b.ne 50f""#, r#""b.eq 50f""#)],
        says: Some(&["!= 0; found abort if ", "== 0"]),
    },
    Change {
        what: "the test is of half of the guards",
        of: "pop_from",
        edits: &[("tst {other}, {lock_word}", "tst {other:w}, {lock_word:w}")],
        says: Some(&["must abort if ", "& 0xffffffff != 0"]),
    },
    Change {
        what: "the test is of the limit for pops",
        of: "push",
        edits: &[("[{head}, #24]", "[{head}, #16]")],
        says: Some(&["must load the limit for pushes", "+ 24; found", "+ 16"]),
    },
    Change {
        what: "the sides of the difference are exchanged",
        of: "push",
        edits: &[("sub {t}, {t}, {next}", "sub {t}, {next}, {t}")],
        says: Some(&["must abort if "]),
    },
    Change {
        what: "the test uses the old word",
        of: "pop",
        edits: &[("add {other}, {other}, {next}", "add {other}, {other}, {t}")],
        says: Some(&["must abort if "]),
    },
    Change {
        what: "the mask is too wide",
        of: "pop",
        edits: &[("#0x7ffffff", "#0xfffffff")],
        says: Some(&["must load the slot, 4 bytes at load7 + 4 * (load5 & 0x7ffffff); found", "0xfffffff"]),
    },
    Change {
        what: "the mask is too narrow",
        of: "push",
        edits: &[("#0x7ffffff", "#0x3ffffff")],
        says: Some(&["must store the slot", "0x3ffffff"]),
    },
    Change {
        what: "the slot is that of the new word",
        of: "pop_from",
        edits: &[(r#""and {t}, {t}, #0x7ffffff""#, r#""and {t}, {next}, #0x7ffffff""#)],
        says: Some(&["must load the slot"]),
    },
    Change {
        what: "the slot has eight bytes",
        of: "pop_from",
        edits: &[("ldr {t:w}, [{slots}, {t}, lsl #2]", "ldr {t}, [{slots}, {t}, lsl #3]")],
        says: Some(&["must load the slot, 4 bytes", "of 8 bytes"]),
    },
    Change {
        what: "the word is at another offset",
        of: "pop",
        edits: &[("ldr {t}, [{head}, #8]", "ldr {t}, [{head}, #32]")],
        says: Some(&["must load the word, 8 bytes at load3 + 8; found", "+ 32"]),
    },
    Change {
        what: "half of the word is loaded",
        of: "push",
        edits: &[("ldr {next}, [{head}, #8]", "ldr {next:w}, [{head}, #8]")],
        says: Some(&["must load the word", "of 4 bytes"]),
    },
    Change {
        what: "a failed test does not go to the abort",
        of: "pop_from",
        edits: &[(
            "\"tst {other}, {lock_word}\"\n            \"b.ne 50f\"",
            "\"tst {other}, {lock_word}\"\n            \"b.ne 60f\"",
        )],
        says: Some(&["only conditional branches to the abort"]),
    },
    Change {
        what: "a failed test starts again",
        of: "pop",
        edits: &[(r#""b.ne 50f""#, r#""b.ne 20b""#)],
        says: Some(&["only conditional branches to the abort"]),
    },
    Change {
        what: "the CPU is not compared",
        of: "push",
        edits: &[("\"cmp {t:w}, {cpu:w}\"\n            \"b.ne 50f\"", r#""cmp {t:w}, {cpu:w}""#)],
        says: Some(&["a push must abort if load1 != the CPU in a register, or"]),
    },
    Change {
        what: "a CPU after the last is accepted",
        of: "pop",
        edits: &[(r#""b.hs 50f""#, r#""b.hi 50f""#)],
        says: Some(&["a pop must abort if load1 >= the number of CPUs in a register, or"]),
    },
    Change {
        what: "the CPU is loaded from another field",
        of: "lock",
        edits: &[(r#""ldr {t:w}, [{own}, #4]""#, r#""ldr {t:w}, [{own}]""#)],
        says: Some(&["must load the CPU, 4 bytes at"]),
    },
    Change {
        what: "a remotely locked head is locked",
        of: "lock",
        edits: &[("cmn {t}, #2", "cmn {t}, #1")],
        says: Some(&["a lock must abort if load2 >= -2; found abort if load2 >= -1"]),
    },
    Change {
        what: "a locked head is compared as a number with a sign",
        of: "lock",
        edits: &[(r#""b.hs 50f""#, r#""b.ge 50f""#)],
        says: Some(&["branches on a condition that no sequence may use"]),
    },
    Change {
        what: "the lock word of a remote lock is stored",
        of: "lock",
        edits: &[("mov {shut}, #-1", "mov {shut}, #-2")],
        says: Some(&["must store the lock word, -1 to 8 bytes", "found store of -2"]),
    },
    Change {
        what: "the commit is exclusive",
        of: "pop_from",
        edits: &[(r#""str {next}, [{head}, #8]""#, r#""stxr {other:w}, {next}, [{head}]""#)],
        says: Some(&["stxr", "is of a kind that no sequence may contain"]),
    },
    Change {
        what: "the head's address is advanced by a load",
        of: "pop_from",
        edits: &[("ldr {t}, [{head}, #8]", "ldr {t}, [{head}, #8]!")],
        says: Some(&["has the address"]),
    },
    Change {
        what: "a call",
        of: "lock",
        edits: &[(r#""cmn {t}, #2""#, r#""bl 60f" "cmn {t}, #2""#)],
        says: Some(&["bl", "is of a kind that no sequence may contain"]),
    },
    Change {
        what: "an unknown instruction",
        of: "push",
        edits: &[(r#""sub {t}, {t}, {next}""#, r#""nop" "sub {t}, {t}, {next}""#)],
        says: Some(&["is of a kind that no sequence may contain"]),
    },
    Change {
        what: "an abort returns a frame",
        of: "pop_from",
        edits: &[("mov {t}, #-1", "mov {t}, #0")],
        says: Some(&["set one register to nothing after an abort"]),
    },
    Change {
        what: "a push reports success after an abort",
        of: "push",
        edits: &[("b {refused}", "b 60f // {refused}")],
        says: Some(&["must continue elsewhere than at"]),
    },
    Change {
        what: "an abort sets another register",
        of: "pop",
        edits: &[("mov {t}, #-1", "mov {other}, #-1")],
        says: Some(&["must leave load8 in"]),
    },
    Change {
        what: "the signature is wrong",
        of: "push",
        edits: &[("0xd428bc00", "0xd428bc20")],
        says: Some(&["not the signature 0xd428bc00"]),
    },
    Change {
        what: "nothing jumps over the signature",
        of: "pop",
        edits: &[(r#""b 60f","#, r#""mov {t}, {t}","#)],
        says: Some(&["where a jump over the signature must be"]),
    },
    Change {
        what: "the commit address is too low",
        of: "pop",
        edits: &[("30b - 20b", "30b - 20b - 4")],
        says: Some(&["follows the commit, where a jump over the signature must be"]),
    },
    Change {
        what: "the commit address is too high",
        of: "pop_from",
        edits: &[("30b - 20b", "30b - 20b + 4")],
        says: Some(&["only conditional branches to the abort"]),
    },
    Change {
        what: "the commit address is within an instruction",
        of: "push",
        edits: &[("30b - 20b", "30b - 20b - 2")],
        says: Some(&["after the commit address"]),
    },
    Change {
        what: "the start is too high",
        of: "lock",
        edits: &[(r#""20:","#, ""), (r#""ldr {t:w}, [{own}, #4]","#, r#""ldr {t:w}, [{own}, #4]", "20:","#)],
        says: Some(&["does not follow instructions that store the address"]),
    },
    Change {
        what: "the descriptor is stored after the start",
        of: "pop",
        edits: &[(r#""20:","#, ""), (r#""str {t}, [{own}, #8]","#, r#""20:", "str {t}, [{own}, #8]","#)],
        says: Some(&["does not follow instructions that store the address"]),
    },
    Change {
        what: "another descriptor is stored",
        of: "push",
        edits: &[(":lo12:40f", ":lo12:40f + 32")],
        says: Some(&["does not follow instructions that store the address"]),
    },
    Change {
        what: "the descriptor is stored in another field",
        of: "push",
        edits: &[(r#""str {t}, [{own}, #8]""#, r#""str {t}, [{own}, #16]""#)],
        says: Some(&["must store the descriptor's address", "found store of", "+ 16"]),
    },
    Change {
        what: "the area is not the thread's",
        of: "pop_from",
        edits: &[(r#""mrs {own}, tpidr_el0","#, r#""mov {own}, xzr","#)],
        says: Some(&["must store the descriptor's address"]),
    },
    Change {
        what: "the descriptor's address is relaxed as by lld",
        of: "pop_from",
        edits: &[("adrp {t}, 40f", "nop"), ("add {t}, {t}, :lo12:40f", "adr {t}, 40f")],
        says: None,
    },
    Change {
        what: "another descriptor's address is relaxed",
        of: "pop_from",
        edits: &[("adrp {t}, 40f", "nop"), ("add {t}, {t}, :lo12:40f", "adr {t}, 40f + 32")],
        says: Some(&["does not follow instructions that store the address"]),
    },
    Change {
        what: "the instructions of a relaxed address are exchanged",
        of: "push",
        edits: &[("adrp {t}, 40f", "adr {t}, 40f"), ("add {t}, {t}, :lo12:40f", "nop")],
        says: Some(&["does not follow instructions that store the address"]),
    },
    Change {
        what: "nop instead of an instruction that no linker replaces",
        of: "lock",
        edits: &[("add {own}, {own}, {area}", "nop // {area}")],
        says: Some(&["does not follow instructions that store the address"]),
    },
    Change {
        what: "nop and adr inside of the sequence",
        of: "pop",
        edits: &[(r#""cmp {t}, {count}""#, r#""nop" "adr {next}, 50f" "cmp {t}, {count}""#)],
        says: Some(&["nop", "is of a kind that no sequence may contain"]),
    },
    Change {
        what: "the descriptor has flags",
        of: "lock",
        edits: &[(".long 0, 0", ".long 0, 4")],
        says: Some(&["has version 0 and flags 4"]),
    },
];
