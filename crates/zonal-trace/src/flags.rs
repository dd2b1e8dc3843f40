//! The names of request flags, from the kernel's description of `mm_page_alloc`.
//!
//! The bits of flags differ between kernels and configurations. The description has them as constant expressions of C,
//! with shifts, casts, `|`, `&` and `~`, in the order in which the kernel tries them.
//!
//! Related files: `tracepoint.rs` reads the fields of the same description.

/// How deeply parentheses may be nested.
const DEPTH_MAX: usize = 100;

/// Returns the flags of a `print fmt` with their names. Entries that are not understood are left out.
pub(crate) fn flags(print_fmt: &str) -> Vec<(u64, String)> {
    let Some((_, list)) = print_fmt.split_once("__print_flags(") else { return Vec::new() };
    let Some((_, list)) = list.split_once("\"|\",") else { return Vec::new() };
    let mut found = Vec::new();
    for entry in list.split('{').skip(1) {
        let entry = entry.split('}').next().unwrap_or_default();
        let Some((value, name)) = entry.rsplit_once(',') else { continue };
        let name = name.trim().strip_prefix('"').and_then(|name| name.strip_suffix('"'));
        if let (Some(name), Some(value)) = (name, value_of(value)) {
            found.push((value, name.to_owned()));
        }
    }
    found
}

/// Returns the value of a constant expression.
fn value_of(text: &str) -> Option<u64> {
    let mut parser = Parser { rest: text.trim() };
    let value = parser.binary(0, 0)?;
    parser.rest.is_empty().then_some(value)
}

/// Operators with two operands by how strongly they bind, the weakest first.
const OPERATORS: [&[&str]; 4] = [&["|"], &["&"], &["<<", ">>"], &["+", "-"]];

struct Parser<'t> {
    rest: &'t str,
}

impl Parser<'_> {
    fn skip(&mut self, token: &str) -> bool {
        match self.rest.strip_prefix(token) {
            Some(rest) => {
                self.rest = rest.trim_start();
                true
            }
            None => false,
        }
    }

    fn binary(&mut self, level: usize, depth: usize) -> Option<u64> {
        let Some(operators) = OPERATORS.get(level) else { return self.unary(depth) };
        let mut value = self.binary(level + 1, depth)?;
        while let Some(operator) = operators.iter().find(|operator| self.skip(operator)) {
            let right = self.binary(level + 1, depth)?;
            value = match *operator {
                "|" => value | right,
                "&" => value & right,
                "<<" => value.checked_shl(right.try_into().ok()?)?,
                ">>" => value.checked_shr(right.try_into().ok()?)?,
                "+" => value.wrapping_add(right),
                _ => value.wrapping_sub(right),
            };
        }
        Some(value)
    }

    fn unary(&mut self, depth: usize) -> Option<u64> {
        if depth > DEPTH_MAX {
            return None;
        }
        if self.skip("~") {
            return self.unary(depth + 1).map(|value| !value);
        }
        if !self.skip("(") {
            return self.number();
        }
        let is_type = |letter: char| letter.is_ascii_alphanumeric() || letter == '_' || letter == ' ';
        let (inner, after) = self.rest.split_once(')')?;
        if inner.starts_with(|first: char| first.is_ascii_alphabetic() || first == '_')
            && inner.chars().all(is_type)
        {
            self.rest = after.trim_start();
            return self.unary(depth + 1);
        }
        let value = self.binary(0, depth + 1)?;
        self.skip(")").then_some(value)
    }

    fn number(&mut self) -> Option<u64> {
        let end = self.rest.find(|letter: char| !letter.is_ascii_alphanumeric()).unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest.trim_start();
        let word = word.trim_end_matches(['u', 'U', 'l', 'L']);
        match word.strip_prefix("0x") {
            Some(digits) => u64::from_str_radix(digits, 16).ok(),
            None => word.parse().ok(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_of_several_kernels_have_their_values() {
        for (text, value) in [
            ("(unsigned long)(((((gfp_t)(0x400u|0x800u)) | ((gfp_t)0x40u)) | ((gfp_t)0x80u)))", 0xcc0),
            ("( unsigned long)(( gfp_t)((((1UL))) << (22)))", 1 << 22),
            ("( unsigned long)((( gfp_t)(0)) & ~(( gfp_t)1))", 0),
            ("~(( gfp_t)0x400u) & 0xc00", 0x800),
            ("1 << 2 | 3 & 2", 6),
        ] {
            assert_eq!(value_of(text), Some(value), "{text}");
        }
        for text in ["", "(", "1 |", "1 << 64", "(1", "1)", "zero", &"(".repeat(200_000)] {
            assert_eq!(value_of(text), None, "{text:.20}");
        }
    }

    #[test]
    fn names_are_in_the_kernels_order() {
        let text = r#""gfp_flags=%s", (REC->gfp_flags) ? __print_flags(REC->gfp_flags, "|", {(unsigned long)((gfp_t)0xcc0), "GFP_KERNEL"}, {( unsigned long)(( gfp_t)((((1UL))) << (3))), "__GFP_MOVABLE"}, {odd, "LOST"}, { 0, ((void *)0) } ) : "none""#;
        let expected = vec![(0xcc0, "GFP_KERNEL".to_owned()), (8, "__GFP_MOVABLE".to_owned())];
        assert_eq!(flags(text), expected);
        assert!(flags("no flags").is_empty() && flags("__print_flags(").is_empty());
    }
}
