//! Turns bytes into calls of the C interface, with good and with bad arguments, and compares the results with a model.
//!
//! The model knows the pools, blocks, policies and registrations that exist, so it knows which calls must succeed and which
//! status the others must return. Every block has its own pattern at both ends, which must still be there when it is freed.
//!
//! `world.rs` has the model, `blocks.rs` and `objects.rs` the calls.

mod blocks;
mod objects;
mod world;

use world::{Bytes, World};

/// Runs the calls that `data` describes.
///
/// # Panics
/// When a result differs from the model.
pub(crate) fn run(data: &[u8]) {
    let mut world = World::default();
    let mut bytes = Bytes::new(data);
    world.build(&mut bytes);
    let mut calls = 0;
    while !bytes.is_empty() {
        match bytes.byte() % 32 {
            0..=7 => world.alloc(&mut bytes),
            8..=12 => world.free(&mut bytes),
            13 | 14 => world.alloc_pages(&mut bytes),
            15 | 16 => world.free_pages(&mut bytes),
            17 | 18 => world.split(&mut bytes),
            19 => world.build(&mut bytes),
            20 => world.close(&mut bytes),
            21 | 22 => world.create_policy(&mut bytes),
            23 => world.destroy_policy(&mut bytes),
            24 => world.register(&mut bytes),
            25 => world.unregister(&mut bytes),
            26 => world.locate(&mut bytes),
            27 => world.texts(&mut bytes),
            28 => world.resize(&mut bytes),
            29 => world.set(&mut bytes),
            30 => world.state(&mut bytes),
            _ => world.reclaim(&mut bytes),
        }
        calls += 1;
        if calls % 16 == 0 {
            world.check_accounting();
        }
    }
    world.end();
}
