//! The text after the options of a help text, split into tables and paragraphs.
//!
//! The text has the form that `layout::entries` and `Width::paragraph` write without a limit of the width: a table is
//! a title that ends with a colon, followed by indented lines, each with a label and a description.

/// A part of the text.
#[derive(PartialEq, Eq, Debug)]
pub(super) enum Block {
    /// A title, and the entries with their descriptions, which may be empty.
    Table { title: String, entries: Vec<(String, String)> },
    /// Lines of prose, joined.
    Paragraph(String),
}

/// Splits a text into its parts.
pub(super) fn blocks(text: &str) -> Vec<Block> {
    let parts = text.split("\n\n").map(str::trim_end).filter(|part| !part.trim().is_empty());
    parts.map(|part| table(part).unwrap_or_else(|| Block::Paragraph(joined(part)))).collect()
}

fn joined(part: &str) -> String {
    part.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn table(part: &str) -> Option<Block> {
    let mut lines = part.trim_start_matches('\n').lines();
    let title = lines.next()?.strip_suffix(':')?.to_owned();
    let entries: Option<Vec<(String, String)>> =
        lines.map(|line| line.strip_prefix("  ").map(entry)).collect();
    entries.filter(|entries| !entries.is_empty()).map(|entries| Block::Table { title, entries })
}

fn entry(line: &str) -> (String, String) {
    let (label, text) = line.split_once("  ").unwrap_or((line, ""));
    (label.trim().to_owned(), text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(label: &str, text: &str) -> (String, String) {
        (label.to_owned(), text.to_owned())
    }

    #[test]
    fn tables_have_titles_and_entries() {
        let text = "Workloads, for each thread:\n  touch  all out, all back\n  pair   one\n\nPeers: talc\n\nIt\nends.\n\nExamples:\n  zonal run\n";
        let entries = vec![pair("touch", "all out, all back"), pair("pair", "one")];
        let paragraph = |text: &str| Block::Paragraph(text.to_owned());
        let expected = [
            Block::Table { title: "Workloads, for each thread".to_owned(), entries },
            paragraph("Peers: talc"),
            paragraph("It ends."),
            Block::Table { title: "Examples".to_owned(), entries: vec![pair("zonal run", "")] },
        ];
        assert_eq!(blocks(text), expected);
    }

    #[test]
    fn a_title_without_entries_is_a_paragraph() {
        assert_eq!(blocks("Note:\nnot indented"), [Block::Paragraph("Note: not indented".to_owned())]);
        assert_eq!(blocks("Alone:"), [Block::Paragraph("Alone:".to_owned())]);
        assert_eq!(blocks("\n\n  \n"), []);
    }
}
