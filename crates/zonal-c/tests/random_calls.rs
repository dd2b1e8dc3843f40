//! Random calls of the C interface, compared with a model; `fuzz/fuzz_targets/c_interface.rs` runs the same calls.
//!
//! `ZONAL_FUZZ_SEED` and `ZONAL_FUZZ_ROUNDS` set the seed and the number of inputs. A failure prints the bytes of the input.

mod calls;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

fn from_environment(name: &str, default: u64) -> u64 {
    std::env::var(name)
        .map_or(default, |text| text.parse().unwrap_or_else(|error| panic!("{name}={text}: {error}")))
}

#[test]
fn random_calls_do_what_the_model_says() {
    let seed = from_environment("ZONAL_FUZZ_SEED", 1);
    for round in 0..from_environment("ZONAL_FUZZ_ROUNDS", 60) {
        let mut random = fastrand::Rng::with_seed(seed.wrapping_mul(1_000_003).wrapping_add(round));
        let data: Vec<u8> = (0..random.usize(100..6000)).map(|_| random.u8(..)).collect();
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| calls::run(&data))) {
            let hex: String = data.iter().map(|byte| format!("{byte:02x}")).collect();
            eprintln!("seed {seed}, round {round}: the calls failed for\n{hex}");
            resume_unwind(panic);
        }
    }
}
