//! Tests of settings that change at run time.

mod by_name;
mod run_time;
