//! Whole numbers of variable length: seven bits a byte, the lowest first, and the sign in the lowest bit.
//!
//! Related files: `block/` writes columns with this module.

/// The longest number, in bytes.
pub(crate) const BYTES_MAX: usize = 10;

/// Appends a number.
pub(crate) fn put(to: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        to.push(number as u8 | 0x80);
        number >>= 7;
    }
    to.push(number as u8);
}

/// Appends a number with a sign.
pub(crate) fn put_signed(to: &mut Vec<u8>, number: i64) {
    put(to, (number << 1 ^ number >> 63) as u64);
}

/// Takes a number from the front. Returns `None` if the bytes end within it or if it is larger than 64 bits.
pub(crate) fn take(from: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for at in 0..BYTES_MAX {
        let byte = *from.get(at)?;
        let bits = u64::from(byte & 0x7f);
        if at == BYTES_MAX - 1 && bits > 1 {
            return None;
        }
        number |= bits << (7 * at);
        if byte < 0x80 {
            *from = &from[at + 1..];
            return Some(number);
        }
    }
    None
}

/// Takes a number with a sign from the front.
pub(crate) fn take_signed(from: &mut &[u8]) -> Option<i64> {
    let number = take(from)?;
    Some((number >> 1) as i64 ^ -((number & 1) as i64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_at_the_edges_are_read_back() {
        let mut edges: Vec<u64> = (0..64).flat_map(|bit| [1 << bit, (1 << bit) - 1]).collect();
        edges.extend([u64::MAX, u64::MAX - 1]);
        for number in edges {
            let mut bytes = Vec::new();
            put(&mut bytes, number);
            put_signed(&mut bytes, number as i64);
            let mut rest = &bytes[..];
            assert_eq!((take(&mut rest), take_signed(&mut rest)), (Some(number), Some(number as i64)));
            assert!(rest.is_empty());
        }
    }

    #[test]
    fn what_is_no_number_is_refused() {
        for bytes in [&[][..], &[0x80], &[0xff; 9], &[0xff; 11]] {
            assert_eq!(take(&mut &bytes[..]), None, "{bytes:x?}");
        }
        let too_large = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2];
        assert_eq!(take(&mut &too_large[..]), None);
    }
}
