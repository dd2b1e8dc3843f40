//! Compares `include/zonal.h` with the header that the sources generate.

use std::path::Path;

use zonal_testing::assert_generated;

#[test]
fn header_is_that_of_the_sources() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(root.join("cbindgen.toml")).unwrap();
    let sources =
        ["status", "types", "pool", "processes", "kept", "blocks", "policy", "change", "callbacks", "state"]
            .map(|name| root.join(format!("src/{name}.rs")));
    let builder =
        sources.iter().fold(cbindgen::Builder::new().with_config(config), cbindgen::Builder::with_src);
    let mut text = Vec::new();
    builder.generate().unwrap().write(&mut text);
    let text = String::from_utf8(text).unwrap();
    assert_generated(&root.join("include/zonal.h"), &text);
}
