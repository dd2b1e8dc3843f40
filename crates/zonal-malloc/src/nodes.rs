//! The node of each CPU, of which mimalloc prefers arenas.
//!
//! By itself, mimalloc prefers node 0 for the heap that `malloc` uses, and knows the node of a thread only as it was when
//! the thread began. `native/zonal.c` updates it whenever a thread needs a page, the unit of 64 KiB or more in which
//! mimalloc divides arenas.

use std::ffi::c_int;

use zonal_linux::Pool;

use crate::mimalloc;

/// Makes threads prefer memory of the node on which they run, or of the nearest node with pool memory.
pub(crate) fn follow(pool: &Pool) {
    mimalloc::prefer_nodes(Vec::leak(nearest(pool)));
}

/// Returns the node with memory of the pool that is nearest to each CPU, or -1 for CPUs that the topology does not have.
fn nearest(pool: &Pool) -> Vec<c_int> {
    let mut nodes = Vec::new();
    for node in pool.topology().nodes() {
        let nearest = pool.fallback_order(node.id).first().map_or(-1, |nearest| c_int::from(nearest.get()));
        for cpu in &node.cpus {
            let index = cpu.get() as usize;
            if nodes.len() <= index {
                nodes.resize(index + 1, -1);
            }
            nodes[index] = nearest;
        }
    }
    nodes
}
