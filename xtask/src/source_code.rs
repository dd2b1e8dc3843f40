//! Rust sources without what is not code: comments, and the contents of texts.

use std::iter::repeat_n;

/// Returns a source whose comments and texts are spaces, so that each line of code keeps its number and its columns.
pub(crate) fn without_texts(source: &str) -> String {
    let mut code = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(letter) = rest.chars().next() {
        let is_word = code.ends_with(|letter: char| letter.is_alphanumeric() || letter == '_');
        let length = match letter {
            '/' if rest.starts_with("//") => rest.find('\n').unwrap_or(rest.len()),
            '/' if rest.starts_with("/*") => comment(rest),
            '"' => quoted(rest, '"'),
            'r' if !is_word || code.ends_with('b') => raw(rest).unwrap_or(0),
            '\'' => character(rest).unwrap_or(0),
            _ => 0,
        };
        let (text, after) = rest.split_at(if length == 0 { letter.len_utf8() } else { length });
        match length {
            0 => code.push_str(text),
            _ => text.split_inclusive('\n').for_each(|line| {
                let (line, end) = line.strip_suffix('\n').map_or((line, ""), |line| (line, "\n"));
                code.extend(repeat_n(' ', line.len()));
                code.push_str(end);
            }),
        }
        rest = after;
    }
    code
}

/// Returns the length of a comment that may have others inside.
fn comment(text: &str) -> usize {
    let (mut depth, mut at) = (0_usize, 0);
    while let Some(left) = text.get(at..).filter(|left| !left.is_empty()) {
        let step = match left {
            _ if left.starts_with("/*") => {
                depth += 1;
                2
            }
            _ if left.starts_with("*/") => {
                depth -= 1;
                2
            }
            _ => left.chars().next().map_or(1, char::len_utf8),
        };
        at += step;
        if depth == 0 {
            break;
        }
    }
    at
}

/// Returns the length of a text up to a quotation mark that no backslash precedes.
fn quoted(text: &str, mark: char) -> usize {
    let mut letters = text.char_indices().skip(1);
    while let Some((at, letter)) = letters.next() {
        match letter {
            '\\' => drop(letters.next()),
            _ if letter == mark => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// Returns the length of a raw text, `r#"..."#`, or `None` if it is not one.
fn raw(text: &str) -> Option<usize> {
    let hashes = text[1..].bytes().take_while(|byte| *byte == b'#').count();
    let inside = text[1 + hashes..].strip_prefix('"')?;
    let end = format!("\"{}", "#".repeat(hashes));
    Some(inside.find(&end).map_or(text.len(), |at| 2 + hashes + at + end.len()))
}

/// Returns the length of a character, or `None` for a lifetime.
fn character(text: &str) -> Option<usize> {
    let mut letters = text[1..].char_indices();
    match letters.next()? {
        (_, '\\') => Some(quoted(text, '\'')),
        _ => letters.next().filter(|(_, letter)| *letter == '\'').map(|(at, _)| at + 2),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_code_remains() {
        for (source, code) in [
            ("a // b\nc", "a     \nc"),
            ("a /* b /* c\n */ d */ e", "a          \n         e"),
            ("x(\"// \\\" y\"); z", "x(         ); z"),
            ("r#\"a\"b\"# c", "         c"),
            ("br\"a\" c", "b     c"),
            ("for x", "for x"),
            ("'\"' a '\\'' b 'c'", "    a      b    "),
            ("fn f<'a>(x: &'a str) {}", "fn f<'a>(x: &'a str) {}"),
        ] {
            assert_eq!(without_texts(source), code, "{source}");
        }
    }
}
