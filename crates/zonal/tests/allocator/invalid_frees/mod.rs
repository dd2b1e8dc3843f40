//! Invalid frees, and frees that race.

mod races;
mod single;
mod table;
