//! Requests: orders, policies, flags, bulk calls, shortage.

mod basics;
mod bulk;
mod exhaustion;
mod faults;
mod fragmentation;
mod limits;
mod owner_table;
mod policies_and_flags;
mod shortage;
