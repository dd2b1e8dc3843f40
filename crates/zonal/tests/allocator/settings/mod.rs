//! Tests of settings that change at run time.

mod run_time;
