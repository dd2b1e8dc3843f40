//! Numbers of bytes as text, for errors, warnings and reports.

use std::fmt;

/// A number of bytes, printed in binary units with at most two decimals, which are not rounded up.
///
/// ```
/// assert_eq!(zonal_model::Bytes(3 << 29).to_string(), "1.5 GiB");
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Bytes(pub u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
        if self.0 < 1024 {
            return write!(f, "{} bytes", self.0);
        }
        let at = (self.0.ilog2() as usize / 10 - 1).min(UNITS.len() - 1);
        let hundredths = (u128::from(self.0) * 100) >> (10 * (at + 1));
        let (whole, part) = (hundredths / 100, hundredths % 100);
        match part {
            0 => write!(f, "{whole} {}", UNITS[at]),
            _ if part % 10 == 0 => write!(f, "{whole}.{} {}", part / 10, UNITS[at]),
            _ => write!(f, "{whole}.{part:02} {}", UNITS[at]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_have_binary_units() {
        let text = |bytes| Bytes(bytes).to_string();
        assert_eq!([text(1000), text(4096), text(64 << 20)], ["1000 bytes", "4 KiB", "64 MiB"]);
        assert_eq!([text(1 << 30), text((1 << 40) + (1 << 35))], ["1 GiB", "1.03 TiB"]);
        assert_eq!(text(u64::MAX), "16383.99 PiB");
    }
}
