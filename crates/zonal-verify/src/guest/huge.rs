//! Checks that explicit huge pages are on the right node or that the pool reports a fallback, and checks of transparent
//! huge pages.
//!
//! The checks set the reserve of each node through `/sys` and empty it at the end.
//!
//! Related files: `kernel.rs` reads the size of the pages behind a mapping from `smaps`.

use zonal::units::Order;
use zonal_linux::{HugePages, Pool, PoolRequest, Warning};

use super::kernel::{free_kib, memory_nodes, read, reserve, set_reserve, smaps_kib, write};
use super::pages::{MIB, all_free, every_page_on_its_node, needs_nodes, node, on_their_nodes, take};
use super::verdict::{Found, Verdict, ensure, text};

/// Huge pages in the reserve of a node whose reserve is not empty.
const RESERVED: u64 = 8;
const HUGE_KIB: u64 = 2048;
const TRANSPARENT: &str = "/sys/kernel/mm/transparent_hugepage/enabled";

/// Sets the reserves of all nodes, and empties them when dropped.
struct Reserves(Vec<u16>);

impl Reserves {
    fn set(pages: impl Fn(usize) -> u64) -> Result<Self, String> {
        let reserves = Self(memory_nodes()?);
        for (at, &of) in reserves.0.iter().enumerate() {
            set_reserve(of, pages(at))?;
        }
        Ok(reserves)
    }
}

impl Drop for Reserves {
    fn drop(&mut self) {
        for &of in &self.0 {
            if let Err(why) = set_reserve(of, 0) {
                eprintln!("guest: {why}");
            }
        }
    }
}

/// Builds a pool of `pages` explicit huge pages on node `of`.
fn of_node(of: u16, pages: u64) -> Result<Pool, String> {
    Pool::builder()
        .size(pages * 2 * MIB)
        .nodes([node(of)])
        .huge_pages(HugePages::Explicit)
        .build()
        .map_err(text)
}

/// Returns the size of the pages that back the pool's first zone, in KiB.
fn backing_kib(pool: &Pool) -> Result<u64, String> {
    let first = pool.ranges().next().ok_or("a pool without memory")?.frames.start;
    smaps_kib(pool.ptr_of(first).ok_or("a frame of the pool")?.as_ptr(), "KernelPageSize")
}

/// Returns the nodes that the pool's warnings name as having too few explicit huge pages.
fn without_explicit(pool: &Pool) -> Vec<u16> {
    let named = pool.warnings().iter().filter_map(|warning| match warning {
        Warning::NoExplicitHugePages { node, .. } => Some(node.get()),
        _ => None,
    });
    named.collect()
}

/// Reserves huge pages on every second node. Pools on these nodes must use the reserve, and pools on the other nodes
/// must fall back with a warning.
pub(super) fn explicit() -> Verdict {
    needs_nodes!();
    let reserves = Reserves::set(|at| if at % 2 == 0 { RESERVED } else { 0 })?;
    let mut found = Vec::new();
    for (at, &of) in reserves.0.iter().enumerate() {
        let pool = of_node(of, RESERVED)?;
        let (backing, left) = (backing_kib(&pool)?, reserve(of)?.1);
        if at % 2 == 0 {
            ensure!(pool.warnings().is_empty(), "node {of} has a reserve: {:?}", pool.warnings());
            ensure!(
                backing == HUGE_KIB && left == 0,
                "node {of}: pages of {backing} KiB, {left} huge pages left"
            );
        } else {
            let warnings = pool.warnings();
            let (needed, free) = (RESERVED, Some(0));
            let says = matches!(warnings, [Warning::NoExplicitHugePages { node, needed: n, free: f, .. }]
                if node.get() == of && (*n, *f) == (needed, free));
            ensure!(says, "node {of} has no reserve: {warnings:?}");
            ensure!(backing == 4, "node {of}: pages of {backing} KiB without a reserve");
            let others: Vec<_> = reserves.0.iter().step_by(2).map(|&other| reserve(other)).collect();
            ensure!(
                others.iter().all(|other| *other == Ok((RESERVED, RESERVED))),
                "a pool of node {of} took from the reserves of others: {others:?}"
            );
        }
        let tally = every_page_on_its_node(&pool)?;
        ensure!(tally.keys().eq([&of]), "node {of}: pages lie on {tally:?}");
        all_free(&pool)?;
        found.push(format!("{of}: {backing} KiB"));
    }
    over_all_nodes(&reserves)?;
    Ok(Found::Holds(found.join(", ")))
}

/// Checks that a pool over all nodes falls back only on the nodes without a reserve.
fn over_all_nodes(reserves: &Reserves) -> Result<(), String> {
    let pool = Pool::builder().size(8 * MIB * reserves.0.len() as u64).huge_pages(HugePages::Explicit);
    let pool = pool.build().map_err(text)?;
    let expected: Vec<u16> = reserves.0.iter().copied().skip(1).step_by(2).collect();
    let named = without_explicit(&pool);
    ensure!(named == expected, "nodes {named:?} are named, {expected:?} have no reserve");
    every_page_on_its_node(&pool)?;
    let mut block = take(&pool, &PoolRequest::new(Order::new(9).expect("an order")), 1)?;
    on_their_nodes(&mut block)?;
    drop(block);
    all_free(&pool)
}

/// Checks that a pool warns when another pool uses the whole reserve, and that a pool gets the reserve after the others
/// were dropped.
pub(super) fn exhausted() -> Verdict {
    needs_nodes!();
    let reserves = Reserves::set(|_| RESERVED)?;
    let &of = reserves.0.last().ok_or("no node has memory")?;
    let first = of_node(of, RESERVED)?;
    ensure!(first.warnings().is_empty(), "{:?}", first.warnings());
    let second = of_node(of, RESERVED)?;
    ensure!(without_explicit(&second) == [of], "the reserve is used up: {:?}", second.warnings());
    every_page_on_its_node(&second)?;
    for &other in reserves.0.iter().filter(|other| **other != of) {
        let now = reserve(other)?;
        ensure!(now == (RESERVED, RESERVED), "the reserve of node {other} is {now:?}");
    }
    drop((first, second));
    let third = of_node(of, RESERVED)?;
    ensure!(third.warnings().is_empty(), "the reserve is free again: {:?}", third.warnings());
    every_page_on_its_node(&third)?;
    Ok(Found::Holds(format!("node {of}")))
}

/// Checks that a pool can use a reserve that takes up most of a node's memory, although the node then has less ordinary
/// memory than the pool's size.
pub(super) fn most_of_a_node() -> Verdict {
    needs_nodes!();
    let &of = memory_nodes()?.last().ok_or("no node has memory")?;
    let pages = free_kib(of)? / HUGE_KIB * 3 / 4;
    let _reserves = Reserves::set(|_| 0)?;
    set_reserve(of, pages)?;
    let builder = Pool::builder().size(pages * 2 * MIB).nodes([node(of)]).huge_pages(HugePages::Explicit);
    let pool = builder.build().map_err(text)?;
    ensure!(pool.warnings().is_empty(), "{:?}", pool.warnings());
    Ok(Found::Holds(format!("{:?}", every_page_on_its_node(&pool)?)))
}

/// Checks that transparent huge pages back a pool that may use them. If the kernel's setting forbids them, the pool
/// must warn.
pub(super) fn transparent() -> Verdict {
    needs_nodes!();
    let usual = read(TRANSPARENT)?;
    let usual = usual.split(['[', ']']).nth(1).ok_or_else(|| format!("{TRANSPARENT}: {usual}"))?.to_owned();
    let with = |mode: &str, huge_pages: HugePages| -> Result<(Vec<Warning>, u64), String> {
        write(TRANSPARENT, mode)?;
        let pool = Pool::builder().size(32 * MIB).huge_pages(huge_pages).build().map_err(text)?;
        every_page_on_its_node(&pool)?;
        let mut huge = 0;
        for zone in pool.ranges() {
            huge += smaps_kib(
                pool.ptr_of(zone.frames.start).ok_or("a frame of the pool")?.as_ptr(),
                "AnonHugePages",
            )?;
        }
        Ok((pool.warnings().to_vec(), huge))
    };
    let found = with("madvise", HugePages::Transparent).and_then(|wanted| {
        Ok((wanted, with("always", HugePages::Never)?, with("never", HugePages::Transparent)?))
    });
    write(TRANSPARENT, usual)?;
    let (wanted, unwanted, missing) = found?;
    ensure!(wanted.0.is_empty() && wanted.1 > 0, "wanted: {wanted:?}");
    ensure!(unwanted == (Vec::new(), 0), "not wanted: {unwanted:?}");
    let says = matches!(missing.0[..], [Warning::NoTransparentHugePages { .. }]);
    ensure!(says && missing.1 == 0, "switched off: {missing:?}");
    Ok(Found::Holds(format!("{} of 32 MiB in huge pages", wanted.1 >> 10)))
}
