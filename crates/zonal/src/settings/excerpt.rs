//! The start of a text that errors about settings quote.

use core::fmt;

/// The first bytes of a text that an error quotes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Excerpt {
    bytes: [u8; Excerpt::BYTES],
    length: u8,
    is_cut: bool,
}

impl Excerpt {
    pub(super) const BYTES: usize = 48;

    pub(super) fn new(text: &str) -> Self {
        let mut end = text.len().min(Self::BYTES);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        let mut bytes = [0; Self::BYTES];
        bytes[..end].copy_from_slice(&text.as_bytes()[..end]);
        Self { bytes, length: end as u8, is_cut: end < text.len() }
    }

    pub(super) fn text(&self) -> &str {
        core::str::from_utf8(&self.bytes[..usize::from(self.length)]).unwrap_or_default()
    }
}

/// Prints the text within one line.
impl fmt::Display for Excerpt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.text().escape_debug())?;
        f.write_str(if self.is_cut { "..." } else { "" })
    }
}
