/work/main/crates/zonal/bare/target/debug/deps/zonal_bare-f5beaf8221df2a92.d: /work/main/clippy.toml src/main.rs src/exit.rs src/memory.rs Cargo.toml

/work/main/crates/zonal/bare/target/debug/deps/libzonal_bare-f5beaf8221df2a92.rmeta: /work/main/clippy.toml src/main.rs src/exit.rs src/memory.rs Cargo.toml

/work/main/clippy.toml:
src/main.rs:
src/exit.rs:
src/memory.rs:
Cargo.toml:

# env-dep:CLIPPY_ARGS=-D__CLIPPY_HACKERY__warnings__CLIPPY_HACKERY__
# env-dep:CLIPPY_CONF_DIR
