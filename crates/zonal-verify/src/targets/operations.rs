//! Fuzz target: bytes are a machine, its configuration and a history of operations, whose answers are compared with the
//! naive model.

use crate::choices::Choices;
use crate::history::{Plain, generator};

/// Maximum number of operation groups that are read.
const OPERATIONS_MAX: usize = 3000;

/// Executes the history in `data`.
pub fn target(data: &[u8]) {
    let mut choices = Choices::new(data);
    let mut plan = generator::plan(&mut choices);
    let config = generator::config(&mut choices);
    generator::policies(&mut choices, &mut plan);
    let played = plan.with_executor::<Plain, _>(&config, |mut executor| {
        for _ in 0..OPERATIONS_MAX {
            if choices.is_empty() {
                break;
            }
            generator::operations(&mut choices, &plan, |operation| executor.apply(operation));
        }
        executor.check();
        executor.finish();
    });
    played.expect("the configuration fits every machine");
}
