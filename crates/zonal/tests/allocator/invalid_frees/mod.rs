//! Tests of invalid frees, and of frees that race.

mod races;
mod single;
mod table;
