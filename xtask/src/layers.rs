//! The picture of the layers in `ARCHITECTURE.md`, which `cargo xtask layers` draws from the actual imports.
//!
//! Crates are boxes with arrows, found in their manifests. The folders of a crate are rows and columns, found in the
//! paths in its sources. A step of `style` fails if the committed picture differs. Related files: `layers/graph.rs`
//! places boxes, `layers/draw.rs` draws them, and `arrows.rs` and `folders.rs` find the imports.

mod draw;
mod graph;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::path::Path;

use crate::steps::{Outcome, Step};
use crate::{arrows, folders};

/// The picture, relative to the root.
const PICTURE: &str = "docs/layers.svg";
/// The crates whose folders are drawn.
const CRATES: [&str; 2] = ["zonal", "zonal-linux"];

/// Crates or folders in order, each with the set of those that it uses.
type Imports = Vec<(String, BTreeSet<String>)>;

/// Returns the steps of the command, which writes the picture.
pub(crate) fn write(_root: &Path) -> Vec<Step> {
    vec![Step::new("picture of the layers", |root| {
        let written = picture(root).and_then(|text| {
            std::fs::write(root.join(PICTURE), text).map_err(|error| format!("{PICTURE}: {error}"))
        });
        written.map_or_else(Outcome::Failed, |()| Outcome::Passed)
    })]
}

/// Returns the violations in the committed picture.
pub(crate) fn violations(root: &Path) -> Vec<String> {
    let drawn = match picture(root) {
        Ok(drawn) => drawn,
        Err(problem) => return vec![problem],
    };
    let found = match std::fs::read_to_string(root.join(PICTURE)) {
        Ok(committed) if committed == drawn => None,
        Ok(_) => Some(format!("{PICTURE} differs from the imports: run `cargo xtask layers`")),
        Err(error) => Some(format!("{PICTURE}: {error}: run `cargo xtask layers`")),
    };
    found.into_iter().collect()
}

/// Returns the picture as SVG.
fn picture(root: &Path) -> Result<String, String> {
    let crates = arrows::imports(root)?;
    let folders = CRATES.map(|name| folders::imports(root, name).map(|imports| (name, imports)));
    let folders = folders.into_iter().collect::<Result<Vec<_>, _>>()?;
    Ok(draw::picture(&crates, &folders))
}
