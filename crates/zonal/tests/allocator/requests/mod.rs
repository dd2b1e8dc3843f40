//! Tests of requests: orders, policies, flags, bulk calls and shortage.

mod basics;
mod bulk;
mod confined;
mod exhaustion;
mod explained;
mod explained_at_random;
mod faults;
mod forms;
mod fragmentation;
mod limits;
mod owner_table;
mod policies_and_flags;
mod ranges;
mod run_borders;
mod runs;
mod shortage;
