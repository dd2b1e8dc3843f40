//! Compares `include/zonal.h` with the header that the sources generate.
//!
//! With the environment variable `ZONAL_BLESS`, the test writes the file instead.

use std::fs;
use std::path::Path;

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
    let file = root.join("include/zonal.h");
    if std::env::var_os("ZONAL_BLESS").is_some() {
        fs::write(&file, &text).unwrap();
    }
    let found = fs::read_to_string(&file).unwrap();
    let differs = found.lines().zip(text.lines()).position(|(found, generated)| found != generated);
    let at = differs.map_or_else(|| "at the end".to_owned(), |line| format!("from line {} on", line + 1));
    let advice = "run the test with ZONAL_BLESS=1 and review the header";
    assert!(found == text, "{} differs from the sources {at}: {advice}", file.display());
}
