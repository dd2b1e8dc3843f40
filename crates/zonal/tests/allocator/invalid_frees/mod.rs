//! Frees that are wrong, and frees that race.

mod races;
mod single;
mod table;
