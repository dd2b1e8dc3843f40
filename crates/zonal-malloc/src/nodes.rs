//! The node of each thread, of which mimalloc prefers arenas.
//!
//! By itself, mimalloc prefers node 0 for the heap that `malloc` uses, and knows the node of a thread only as it was when
//! the thread began. [`refresh_now`] updates it. It is
//! called for each large request, when memory of the pool is used for the first time or again after it was returned, and
//! once in 1000 calls that the free lists of a thread cannot serve.

use std::ffi::{c_int, c_ulonglong, c_void};
use std::sync::OnceLock;

use zonal_linux::Pool;

use crate::mimalloc;

/// The node with memory of the pool that is nearest to each CPU. `None` for CPUs that the topology does not have.
static NODES: OnceLock<Vec<Option<u16>>> = OnceLock::new();

/// Records the nodes of the CPUs, and keeps the node of every thread up to date from then on.
pub(crate) fn follow(pool: &Pool) {
    NODES.get_or_init(|| nearest(pool));
    mimalloc::prefer_nodes_of_threads();
    mimalloc::on_slow_path(refresh);
}

fn nearest(pool: &Pool) -> Vec<Option<u16>> {
    let mut nodes = Vec::new();
    for node in pool.topology().nodes() {
        let nearest = pool.fallback_order(node.id).first().map(|nearest| nearest.get());
        for cpu in &node.cpus {
            let index = cpu.get() as usize;
            if nodes.len() <= index {
                nodes.resize(index + 1, None);
            }
            nodes[index] = nearest;
        }
    }
    nodes
}

/// Updates the node of the calling thread, which allocates.
// SAFETY: it may be called with any arguments.
unsafe extern "C" fn refresh(_force: bool, _beat: c_ulonglong, _argument: *mut c_void) {
    refresh_now();
}

/// Makes mimalloc prefer the node on which the calling thread is running.
#[cold]
pub(crate) fn refresh_now() {
    // SAFETY: the call has no argument.
    let cpu: c_int = unsafe { libc::sched_getcpu() };
    let node = NODES.get().and_then(|nodes| *nodes.get(usize::try_from(cpu).ok()?)?);
    if let Some(node) = node {
        mimalloc::set_thread_node(node);
    }
}
