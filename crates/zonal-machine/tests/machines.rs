//! Checks the public interface of the crate. The files form one program, because each program takes time to link.

mod boot_memory;
mod capture;
mod capture_limits;
mod errors;
mod explain;
mod hostile_files;
mod log;
mod oracle;
