//! Compiles mimalloc together with the code that this library adds to it.

use std::env;
use std::path::PathBuf;

fn main() {
    for file in ["native/mimalloc.c", "native/zonal.c"] {
        println!("cargo:rerun-if-changed={file}");
    }
    let headers = env::var("DEP_MIMALLOC_INCLUDE_DIR").expect("libmimalloc-sys names its headers");
    let headers = PathBuf::from(headers);
    let mut build = cc::Build::new();
    build
        .file("native/mimalloc.c")
        .include(headers.with_file_name("src"))
        .include(headers)
        // mimalloc without its debug checks, in every profile.
        .opt_level(3)
        .force_frame_pointer(false)
        .define("MI_DEBUG", "0")
        .define("MI_BUILD_RELEASE", None)
        .define("NDEBUG", None)
        // A forced collection at exit takes time, and follows lists that the program may have damaged.
        .define("MI_SKIP_COLLECT_ON_EXIT", None)
        .flag("-fvisibility=hidden")
        .flag_if_supported("-ftls-model=initial-exec")
        .flag_if_supported("-fno-builtin-malloc")
        // The sources of mimalloc are not this project's.
        .warnings(false)
        .flag_if_supported("-Wno-unused-function");
    if env::var_os("CARGO_FEATURE_SECURE").is_some() {
        build.define("MI_SECURE", "4");
    }
    build.compile("zonal_mimalloc");
}
