//! Tests of settings that change at run time, and of their table.

mod by_name;
mod every_row;
mod run_time;
