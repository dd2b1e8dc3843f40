//! Checks of a pool in a control group that allows only some nodes and limited memory.
//!
//! The process moves into the group, and back at the end.
//!
//! Related files: `refusals.rs` has the checks for containers that refuse system calls.

use std::fs;
use std::path::Path;

use zonal_linux::{HugePages, Limit, Placement, Pool, PoolError, PoolRequest, Warning};

use super::kernel::{memory_nodes, read, write};
use super::pages::{
    MIB, Tally, all_free, every_page_on_its_node, flawless, needs_nodes, node, places, take, take_all, tally,
    touch_everything,
};
use super::verdict::{Found, Verdict, ensure, text};

const ROOT: &str = "/sys/fs/cgroup";
const GROUP: &str = "/sys/fs/cgroup/zonal-guest";
const POOL_BYTES: u64 = 48 * MIB;
/// Limit of the group's memory, in bytes.
const LIMIT: u64 = 160 * MIB;

/// A control group that contains only this process. When dropped, it moves the process back and removes the group.
struct Group;

impl Group {
    /// Moves this process into a new group.
    fn enter(settings: &[(&str, String)]) -> Result<Self, String> {
        write(format!("{ROOT}/cgroup.subtree_control"), "+cpuset +memory")?;
        fs::create_dir_all(GROUP).map_err(|error| format!("{GROUP}: {error}"))?;
        let group = Self;
        for (name, value) in settings {
            write(format!("{GROUP}/{name}"), value)?;
        }
        write(format!("{GROUP}/cgroup.procs"), std::process::id())?;
        Ok(group)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let back = write(format!("{ROOT}/cgroup.procs"), std::process::id());
        let gone = back.and_then(|()| fs::remove_dir(GROUP).map_err(text));
        if let Err(why) = gone {
            eprintln!("guest: leaving {GROUP}: {why}");
        }
    }
}

/// Checks that pools name the nodes outside the cpuset as not bound, and that allowed nodes work as usual. A pool
/// larger than the memory limit must fail with an error that names the control group.
pub(super) fn limited() -> Verdict {
    needs_nodes!();
    if !Path::new(ROOT).join("cgroup.controllers").exists() {
        return Ok(Found::Skipped(format!("no control groups of version 2 at {ROOT}")));
    }
    let controllers = read(format!("{ROOT}/cgroup.controllers"))?;
    if !["cpuset", "memory"].iter().all(|one| controllers.split(' ').any(|has| has == *one)) {
        return Ok(Found::Skipped(format!("available control group controllers: {controllers}")));
    }
    let nodes = memory_nodes()?;
    let (allowed, denied) = nodes.split_at(2.min(nodes.len() - 1));
    let list = allowed.iter().map(u16::to_string).collect::<Vec<_>>().join(",");
    let _group = Group::enter(&[("cpuset.mems", list.clone()), ("memory.max", LIMIT.to_string())])?;
    let pool = Pool::builder().size(POOL_BYTES).huge_pages(HugePages::Never).build().map_err(text)?;
    let named: Vec<u16> = pool
        .warnings()
        .iter()
        .filter_map(|warning| match warning {
            Warning::NotBound { nodes, .. } => Some(nodes.iter().map(|node| node.get())),
            _ => None,
        })
        .flatten()
        .collect();
    ensure!(
        denied.iter().all(|node| named.contains(node)),
        "nodes {denied:?} are denied, {named:?} are named"
    );
    ensure!(
        allowed.iter().all(|node| !named.contains(node)),
        "nodes {allowed:?} are allowed, {named:?} are named"
    );
    ensure!(pool.placement() == Placement::NotBound, "placement is {:?}", pool.placement());
    let elsewhere = tally(&places(&touch_everything(&pool))?);
    ensure!(
        elsewhere.keys().all(|node| allowed.contains(node)),
        "pages lie on {elsewhere:?}, allowed is {list}"
    );
    drop(take(&pool, &PoolRequest::page(), 1000)?);
    all_free(&pool)?;
    drop(pool);
    let inside = Pool::builder()
        .size(POOL_BYTES)
        .huge_pages(HugePages::Never)
        .nodes(allowed.iter().map(|&of| node(of)));
    let tally = every_page_on_its_node(&flawless(inside)?)?;
    let moved = moved_to_other_nodes(denied)?;
    let too_large = Pool::builder().size(2 * LIMIT).build().map(drop);
    ensure!(
        matches!(too_large, Err(PoolError::TooLarge { limited_by: Limit::ControlGroup, .. })),
        "a pool of {} in a group of {LIMIT} bytes gives {too_large:?}",
        2 * LIMIT
    );
    Ok(Found::Holds(format!(
        "allowed {list}: {tally:?}; of all nodes: {elsewhere:?}; after the group moved: {moved:?}"
    )))
}

/// Moves the group to other nodes while a pool is in use. The kernel moves the pool's pages to these nodes with their
/// contents and rebinds the memory, so frames keep their numbers and contents, but their pages are on other nodes.
/// Returns the number of pages on each node.
fn moved_to_other_nodes(others: &[u16]) -> Result<Tally, String> {
    let pool = Pool::builder().size(POOL_BYTES / 2).huge_pages(HugePages::Never).build().map_err(text)?;
    let mut held = take_all(&pool, &PoolRequest::page());
    for (at, frames) in held.iter_mut().enumerate() {
        frames[..8].copy_from_slice(&at.to_ne_bytes());
    }
    let list = others.iter().map(u16::to_string).collect::<Vec<_>>().join(",");
    write(format!("{GROUP}/cpuset.mems"), list)?;
    for (at, frames) in held.iter().enumerate() {
        ensure!(frames[..8] == at.to_ne_bytes(), "frame {:?} lost its contents", frames.first());
    }
    drop(held);
    let lie = tally(&places(&touch_everything(&pool))?);
    all_free(&pool).map(|()| lie)
}
