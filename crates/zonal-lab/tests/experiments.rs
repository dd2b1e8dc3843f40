//! Checks the public interface of the lab. The files form one program, because each program takes time to link.

mod captured_states;
mod experiment_files;
mod experiment_questions;
mod experiment_runs;
mod figure_bounds;
mod hostile_files;
mod many_entries;
mod programs;
mod programs_without_work;
