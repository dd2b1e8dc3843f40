//! Checks all commands as people and scripts call them. The files form one program, because each program takes time to link.
//!
//! Related files: `top/` has the program that checks `zonal top` in a terminal.

mod common {
    pub(crate) mod paths;
    pub(crate) mod readers;
    pub(crate) mod supplies;
}
mod bench;
mod explain;
mod explain_pool;
mod hostile_names;
mod hostile_trees;
mod lab;
mod lab_what_if;
mod machine;
mod machine_page;
mod manual;
mod mechanisms;
mod planted_files;
mod readme;
mod run;
mod run_publish;
mod run_settings;
mod run_shared;
mod serve;
mod settings;
mod trace;
mod trace_replay;
mod width;
