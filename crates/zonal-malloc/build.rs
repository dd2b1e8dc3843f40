//! Compiles the C files: one knows mimalloc's description of a thread, and one is the constructor, which is linked last.

use std::env;

fn main() {
    for file in ["native/thread_node.c", "native/constructor.c"] {
        println!("cargo:rerun-if-changed={file}");
    }
    let headers = env::var("DEP_MIMALLOC_INCLUDE_DIR").expect("libmimalloc-sys names its headers");
    cc::Build::new()
        .file("native/thread_node.c")
        .include(headers)
        // The same description as in libmimalloc-sys, which has this value in every profile.
        .define("MI_DEBUG", "0")
        .flag_if_supported("-ftls-model=initial-exec")
        // The headers of mimalloc define functions that this file does not use.
        .flag_if_supported("-Wno-unused-function")
        .flag_if_supported("-Wno-unused-parameter")
        .compile("zonal_thread_node");
    for object in cc::Build::new().file("native/constructor.c").compile_intermediates() {
        println!("cargo:rustc-cdylib-link-arg={}", object.display());
    }
}
