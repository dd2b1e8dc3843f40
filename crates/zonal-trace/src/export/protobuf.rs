//! Messages in the encoding of Protocol Buffers: as much as a trace for Perfetto needs.
//!
//! Source of the encoding: <https://protobuf.dev/programming-guides/encoding/>. Related files: `export/perfetto.rs` has
//! the messages.

use crate::numbers::put;

/// The number of a field in a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Field(pub(super) u32);

/// A message that is being written.
#[derive(Clone, Default, Debug)]
pub(super) struct Message(Vec<u8>);

impl Message {
    const VARINT: u64 = 0;
    const LENGTH: u64 = 2;

    fn key(&mut self, field: Field, wire: u64) {
        put(&mut self.0, u64::from(field.0) << 3 | wire);
    }

    /// Adds an unsigned number, an enumeration or a flag.
    #[must_use]
    pub(super) fn number(mut self, field: Field, number: u64) -> Self {
        self.key(field, Self::VARINT);
        put(&mut self.0, number);
        self
    }

    /// Adds a number of type `int64`.
    #[must_use]
    pub(super) fn signed(self, field: Field, number: i64) -> Self {
        self.number(field, number as u64)
    }

    /// Adds a text.
    #[must_use]
    pub(super) fn text(self, field: Field, text: &str) -> Self {
        self.bytes(field, text.as_bytes())
    }

    /// Adds a message.
    #[must_use]
    pub(super) fn message(self, field: Field, message: &Self) -> Self {
        self.bytes(field, &message.0)
    }

    fn bytes(mut self, field: Field, bytes: &[u8]) -> Self {
        self.key(field, Self::LENGTH);
        put(&mut self.0, bytes.len() as u64);
        self.0.extend_from_slice(bytes);
        self
    }

    /// Returns the encoded message.
    pub(super) fn encoded(&self) -> &[u8] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_have_the_bytes_of_the_specification() {
        // The examples of the specification's page: 150 in field 1, "testing" in field 2, and the first message in field 3.
        let first = Message::default().number(Field(1), 150);
        assert_eq!(first.encoded(), [0x08, 0x96, 0x01]);
        let text = Message::default().text(Field(2), "testing");
        assert_eq!(text.encoded(), [0x12, 0x07, b't', b'e', b's', b't', b'i', b'n', b'g']);
        assert_eq!(Message::default().message(Field(3), &first).encoded(), [0x1a, 0x03, 0x08, 0x96, 0x01]);
        let negative = Message::default().signed(Field(1), -2);
        assert_eq!(negative.encoded(), [8, 0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1]);
    }
}
