//! Pages with known contents.
#![allow(unreachable_pub)] // included by test files

use zonal_linux::{Frames, Pool, PoolRequest};

/// Allocates `count` pages, and fills the page at each index with the index, truncated and made odd.
pub fn filled(pool: &Pool, count: usize) -> Vec<Frames> {
    let page = |at: usize| {
        let mut page = pool.alloc(&PoolRequest::page()).unwrap();
        page.fill(at as u8 | 1);
        page
    };
    (0..count).map(page).collect()
}
