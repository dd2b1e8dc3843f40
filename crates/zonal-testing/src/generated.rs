//! Files that are generated, and kept so that nothing has to generate them.

use std::fs;
use std::path::Path;

/// Checks that a file has the text that is generated now. With the environment variable `ZONAL_BLESS`, writes it instead.
///
/// # Panics
/// Panics if the file differs or cannot be read; names its first line that differs.
pub fn assert_generated(file: &Path, text: &str) {
    let name = file.display();
    if std::env::var_os("ZONAL_BLESS").is_some() {
        fs::write(file, text).unwrap_or_else(|error| panic!("{name}: {error}"));
    }
    let found = fs::read_to_string(file).unwrap_or_else(|error| panic!("{name}: {error}"));
    let differs = found.lines().zip(text.lines()).position(|(found, generated)| found != generated);
    let at = differs.map_or_else(|| "at the end".to_owned(), |line| format!("from line {} on", line + 1));
    let advice = "run the test with ZONAL_BLESS=1 and review the file";
    assert!(found == text, "{name} differs from what is generated {at}: {advice}");
}
