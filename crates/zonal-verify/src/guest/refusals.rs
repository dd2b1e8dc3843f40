//! Checks that pools work in a container that refuses system calls, and that they report the effects.
//!
//! A container installs a filter of system calls for all its threads. Here the filter is on the thread that builds the
//! pool.
//!
//! Related files: `crates/zonal-linux/tests/denied.rs` has the refusals that need only one node.

use std::io::ErrorKind;
use std::process::Command;

use zonal_linux::{HugePages, Placement, Pool, PoolRequest, Prefault, Warning};

use super::kernel::{memory_nodes, on_cpu, online_cpus, refusing};
use super::pages::{
    MIB, all_free, needs_nodes, on_their_nodes, places, take, take_all, tally, touch_everything,
};
use super::policies;
use super::verdict::{Found, Verdict, ensure, text};

const POOL_BYTES: u64 = 32 * MIB;

/// Checks pools where the kernel refuses `mbind`, `set_mempolicy` and `move_pages` with `EPERM`, the default in
/// containers.
pub(super) fn binding() -> Verdict {
    needs_nodes!();
    let calls = [libc::SYS_mbind, libc::SYS_set_mempolicy, libc::SYS_move_pages];
    let nodes = memory_nodes()?;
    let mut found = String::new();
    for huge_pages in [HugePages::Never, HugePages::Transparent, HugePages::Explicit] {
        for prefault in [Prefault::OnUse, Prefault::AtOnce] {
            let build = || Pool::builder().size(POOL_BYTES).huge_pages(huge_pages).prefault(prefault).build();
            let pool = refusing(&calls, libc::EPERM, || build().map_err(text))?;
            says_not_bound(&pool, &nodes).map_err(|why| format!("{huge_pages:?}: {why}"))?;
            let used = take_all(&pool, &PoolRequest::page()).len() as u64 * 4096;
            ensure!(
                used > POOL_BYTES / 10 * 9,
                "only {used} bytes of a pool of {POOL_BYTES} could be allocated"
            );
            all_free(&pool)?;
            let pages = touch_everything(&pool);
            let elsewhere = places(&pages)?;
            found = format!("unbound pages lie on {:?}", tally(&elsewhere));
        }
    }
    let required = Pool::builder().size(POOL_BYTES).require_binding();
    let built = refusing(&calls, libc::EPERM, || required.build().map(drop).map_err(text));
    let why = built.err().ok_or("binding was required and refused, yet the pool was built")?;
    ensure!(why.contains("is not bound to its node"), "the error of a required binding is: {why}");
    Ok(Found::Holds(format!("{found}{}", the_command_says_so(&calls)?)))
}

/// Checks that `zonal run` reports in its JSON output whether memory is bound, and prints a warning on standard error
/// if it is not.
fn the_command_says_so(calls: &[i64]) -> Result<&'static str, String> {
    let run = || {
        let run = ["run", "touch", "--pool", "32MiB", "--seconds", "0.1", "--json"];
        Command::new("zonal").args(run).output().map_err(|error| error.kind())
    };
    let usual = match run() {
        Err(ErrorKind::NotFound) => return Ok(", no command `zonal` here"),
        usual => usual.map_err(text)?,
    };
    let refused = refusing(calls, libc::EPERM, || run().map_err(text))?;
    for (output, bound) in [(usual, true), (refused, false)] {
        let said = String::from_utf8_lossy(&output.stdout).replace(' ', "");
        let warned = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "zonal run, bound {bound}: {}: {warned}", output.status);
        ensure!(said.contains(&format!("\"bound_to_nodes\":{bound}")), "bound {bound}, yet: {said}");
        ensure!(bound || warned.contains("not bound"), "no warning on standard error: {warned}");
    }
    Ok(", and the command says so")
}

/// Checks that the pool's warnings name every node with memory as not bound, with the kernel's reason.
pub(super) fn says_not_bound(pool: &Pool, nodes: &[u16]) -> Result<(), String> {
    let named = pool.warnings().iter().find_map(|warning| match warning {
        Warning::NotBound { nodes, .. } => Some(nodes),
        _ => None,
    });
    let mut named: Vec<u16> =
        named.ok_or("no warning says that memory is not bound")?.iter().map(|node| node.get()).collect();
    named.sort_unstable();
    named.dedup();
    ensure!(
        nodes.iter().all(|node| named.contains(node)),
        "nodes {nodes:?} are not bound, {named:?} are named"
    );
    let text: String = pool.warnings().iter().map(|warning| format!("{warning}\n")).collect();
    ensure!(text.contains("not permitted"), "the kernel's reason is missing: {text}");
    ensure!(pool.placement() == Placement::NotBound, "placement is {:?}", pool.placement());
    Ok(())
}

/// Checks pools in a process to which the kernel refuses `membarrier` from the start. Their pagesets must use locks,
/// and everything else must work as usual.
///
/// A process queries only once whether the kernel supports the barrier, so a child process makes the checks.
pub(super) fn membarrier() -> Verdict {
    let usual = Pool::builder().size(POOL_BYTES).build().map_err(text)?.uses_sequences();
    for error in [libc::ENOSYS, libc::EPERM] {
        let program = std::env::current_exe().map_err(text)?;
        let child = Command::new(program).arg("--refuse-membarrier").arg(error.to_string()).output();
        let child = child.map_err(text)?;
        let said = String::from_utf8_lossy(&child.stdout);
        ensure!(child.status.success(), "refused with error {error}: {}: {}", child.status, said.trim());
    }
    Ok(Found::Holds(format!("sequences are otherwise {}", if usual { "used" } else { "not used" })))
}

/// Checks pools where the kernel refuses `membarrier` with `error`. The process must not have called `membarrier`
/// before.
pub(super) fn without_membarrier(error: i32) -> Verdict {
    refusing(&[libc::SYS_membarrier], error, || {
        let pool = Pool::builder().size(POOL_BYTES).build().map_err(text)?;
        ensure!(!pool.uses_sequences(), "sequences are used without the barrier");
        for cpu in online_cpus()? {
            on_cpu(cpu, || {
                let mut held = take(&pool, &PoolRequest::page(), 200)?;
                let nodes = memory_nodes()?;
                if nodes.len() > 1 { on_their_nodes(&mut held).map(drop) } else { Ok(()) }
            })?;
        }
        let cached = pool.accounting().in_pagesets;
        ensure!(cached.get() > 0, "no frames are in pagesets after they were used on every CPU");
        pool.drain_pagesets();
        let left = pool.accounting().in_pagesets;
        ensure!(left.get() == 0, "{left} frames are left in pagesets");
        all_free(&pool)?;
        policies::local()
    })
}
