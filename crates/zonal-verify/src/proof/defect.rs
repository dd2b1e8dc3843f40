//! The table with the rows of a defect that was fixed: a pageset that was never used, locked and put back.
//!
//! The lock word of such a head was zero, under which every pop and push succeeds. Operations began only on heads whose lock
//! word was not zero, and a head that was locked for the first time was opened by its first session. Short ways for larger
//! blocks, however, locked a head without a session and put back the zero that they had found. With these rows the proof must
//! fail, and a world must show the interleaving.

use crate::proof::table::{TEXT, Table, TableError};

/// What the defective table has instead.
const INSTEAD: [(&str, &str); 5] = [
    ("init lock[s] = Open   ", "init lock[s] = Zero   "),
    // Programs trusted this invariant because they tested the lock word before they began.
    (
        "invariant lock_words_are_never_zero for i Thread, s Set\n",
        "invariant unlocked_words_are_zero for i Thread, s Set\n",
    ),
    (
        "  lock[s] != Zero and (SawLock(pc[i]) or pc[i] = RemoteShut => lock_seen[i] != Zero)\n",
        "  lock[s] = Zero => not used[s]\n",
    ),
    (
        "row held.open : Held -> Idle\n",
        "row held.put_back : Held -> Idle\n  code   alloc/in_turn.rs, alloc/nearest.rs\n  access store release lock_word\n  when   \
         not used[my]\n  do     lock[my] := Zero, holder[my] := no_thread\nrow held.open : Held -> Idle\n",
    ),
    ("  when   not closed[my] or", "  when   used[my] and not closed[my] or"),
];

/// The rows that begin an operation, which tested the lock word before.
const BEGINS: [&str; 2] = ["row pop.begin", "row push.begin"];

/// Returns the defective table.
///
/// # Errors
/// Returns an error if the table has changed so that the defect no longer fits.
pub fn never_used_and_put_back() -> Result<Table, TableError> {
    let mut text = TEXT.to_owned();
    for (now, then) in INSTEAD {
        assert!(text.contains(now), "the table no longer has `{now}`");
        text = text.replace(now, then);
    }
    for row in BEGINS {
        let at = text.find(row).expect("the row is in the table");
        let when = at + text[at..].find("  when   ").expect("the row has a guard") + "  when   ".len();
        text.insert_str(when, "lock[s] != Zero and ");
    }
    Table::parse(&text)
}
