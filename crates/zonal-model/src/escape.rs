//! Escapes untrusted text so that it is safe on a terminal and fits on a single line.
//!
//! A captured host name, the title of an experiment or a file name can contain characters that move the cursor, begin a
//! new line or reverse the direction of text. All code that prints such text wraps it in [`Escaped`]: errors of this
//! crate and the lab, the command line, and reports. JSON documents contain the unescaped text.

use std::fmt::{self, Display, Write};

/// Displays text without invisible characters and without characters that act on a terminal.
///
/// The following characters are written as `\uXXXX`, as in JSON (line breaks and tabs as `\n`, `\r`, `\t`): control
/// characters (C0, C1 and delete), line separators, format characters (direction overrides, zero-width characters) and
/// unassigned code points. All other characters stay, including backslashes, so escaping twice changes nothing. Inside
/// a string of a JSON document, the escaped text has the same meaning as the original.
///
/// ```
/// use zonal_model::Escaped;
/// assert_eq!(Escaped("host\u{1b}[2J\n\u{202e}").to_string(), r"host\u001b[2J\n\u202e");
/// assert_eq!(format!("{:<8}|", Escaped("größe")), "größe   |");
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Escaped<T>(pub T);

impl<T: Display> Display for Escaped<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = Escaper(String::new());
        write!(text, "{}", self.0)?;
        f.pad(&text.0)
    }
}

/// Displays text as [`Escaped`] does, and omits the middle of long text so that it fits into an error.
///
/// ```
/// use zonal_model::Excerpt;
/// assert_eq!(Excerpt::name("host\n").to_string(), r"host\n");
/// let shown = Excerpt::name("a".repeat(1_000_000) + "z").to_string();
/// assert!(shown.starts_with("aaa") && shown.contains("[...]") && shown.ends_with("aaz") && shown.len() < 210);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Excerpt<T> {
    text: T,
    /// Numbers of characters to show from the beginning and from the end.
    ends: (usize, usize),
}

impl<T> Excerpt<T> {
    /// Wraps a name, a path or a value, of which 200 characters are shown.
    pub const fn name(text: T) -> Self {
        Self { text, ends: (100, 100) }
    }

    /// Wraps a sentence with a quotation at its beginning or in the middle, of which 600 characters are shown.
    pub const fn sentence(text: T) -> Self {
        Self { text, ends: (200, 400) }
    }

    /// Wraps a complete error message, of which 2000 characters are shown.
    pub const fn line(text: T) -> Self {
        Self { text, ends: (1000, 1000) }
    }
}

impl<T: Display> Display for Excerpt<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = Escaper(String::new());
        write!(text, "{}", self.text)?;
        let (text, (head, tail)) = (text.0, self.ends);
        let Some(left_out) = text.chars().count().checked_sub(head + tail).filter(|&count| count > 0) else {
            return f.pad(&text);
        };
        let place = |letter: usize| text.char_indices().nth(letter).map_or(text.len(), |(place, _)| place);
        write!(f, "{}[...]{}", &text[..place(head)], &text[place(head + left_out)..])
    }
}

/// A buffer that escapes the text written to it.
struct Escaper(String);

impl Write for Escaper {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        text.chars().try_for_each(|letter| self.write_char(letter))
    }

    fn write_char(&mut self, letter: char) -> fmt::Result {
        match letter {
            ' '..='~' => self.0.push(letter),
            '\n' => self.0.push_str("\\n"),
            '\r' => self.0.push_str("\\r"),
            '\t' => self.0.push_str("\\t"),
            _ if can_be_seen(letter) => self.0.push(letter),
            _ => {
                for unit in letter.encode_utf16(&mut [0; 2]) {
                    write!(self.0, "\\u{unit:04x}")?;
                }
            }
        }
        Ok(())
    }
}

/// Whether a non-ASCII character is visible, or is a space between visible characters.
fn can_be_seen(letter: char) -> bool {
    if letter.is_whitespace() {
        let separates_lines = matches!(letter, '\u{2028}' | '\u{2029}');
        return !separates_lines && !letter.is_control();
    }
    if is_blank(letter) {
        return false;
    }
    // The standard library escapes exactly the characters that are not printable. It escapes combining marks only at
    // the beginning of a text, so the letter follows an `a`.
    let mut text = String::from("a");
    text.push(letter);
    text.escape_debug().nth(1) == Some(letter)
}

/// Whether a character is blank although the standard library treats it as printable. These are characters of Unicode's
/// `Default_Ignorable_Code_Point`, and the empty Braille pattern.
const fn is_blank(letter: char) -> bool {
    matches!(
        letter,
        '\u{34f}'
            | '\u{115f}'..='\u{1160}'
            | '\u{17b4}'..='\u{17b5}'
            | '\u{180b}'..='\u{180f}'
            | '\u{2800}'
            | '\u{3164}'
            | '\u{fe00}'..='\u{fe0f}'
            | '\u{ffa0}'
            | '\u{e0100}'..='\u{e01ef}'
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped() {
        for letter in (0..0x20).chain(0x7f..0xa0).filter_map(char::from_u32) {
            let text = Escaped(letter).to_string();
            assert!(
                text.starts_with('\\') && text.is_ascii() && !text.contains(letter),
                "{letter:?}: {text}"
            );
        }
        for (letter, shown) in [
            ('\u{1b}', r"\u001b"),
            ('\u{9b}', r"\u009b"),
            ('\u{ad}', r"\u00ad"),
            ('\u{200b}', r"\u200b"),
            ('\u{200d}', r"\u200d"),
            ('\u{202e}', r"\u202e"),
            ('\u{2028}', r"\u2028"),
            ('\u{2067}', r"\u2067"),
            ('\u{feff}', r"\ufeff"),
            ('\u{34f}', r"\u034f"),
            ('\u{2800}', r"\u2800"),
            ('\u{3164}', r"\u3164"),
            ('\u{fe0f}', r"\ufe0f"),
            ('\u{e000}', r"\ue000"),
            ('\u{e0041}', r"\udb40\udc41"),
        ] {
            assert_eq!(Escaped(letter).to_string(), shown);
        }
    }

    #[test]
    fn visible_characters_are_kept() {
        let text = "C:\\n \"größe\" 'naïve' a\u{301} 日本\u{3000}語 −20 % … <b>&\u{a0}🙂";
        assert_eq!(Escaped(text).to_string(), text);
        let once = Escaped("a\u{1b}\n\u{e0041}").to_string();
        assert_eq!(Escaped(&once).to_string(), once);
    }

    #[test]
    fn escaped_json_parses_to_the_same_value() {
        let text = "a\u{1b}\u{9b}\u{202e}\u{e0041}\u{2028}\"\\";
        let json = serde_json::to_string(text).unwrap();
        let escaped = Escaped(&json).to_string();
        assert_ne!(escaped, json);
        assert_eq!(serde_json::from_str::<String>(&escaped).unwrap(), text);
    }
}
