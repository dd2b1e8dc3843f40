//! Reads decisions from bytes, one or two bytes each. After the last byte, every decision is the first choice.

/// The bytes that have not been read yet.
#[derive(Clone, Debug)]
pub struct Choices<'d>(&'d [u8]);

impl<'d> Choices<'d> {
    /// Creates decisions from all bytes of `data`.
    #[must_use]
    pub fn new(data: &'d [u8]) -> Self {
        Self(data)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn byte(&mut self) -> u8 {
        let Some((&first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        first
    }

    /// Returns a number below `bound`, which is at most 256.
    pub(crate) fn small(&mut self, bound: usize) -> usize {
        usize::from(self.byte()) % bound.max(1)
    }

    pub(crate) fn word(&mut self) -> u16 {
        u16::from_le_bytes([self.byte(), self.byte()])
    }

    /// Returns a number below `bound`, which is at most 65536.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        u64::from(self.word()) % bound.max(1)
    }

    pub(crate) fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.small(choices.len())]
    }

    /// Whether bit `bit` of a byte is set.
    pub(crate) fn has(byte: u8, bit: u32) -> bool {
        byte >> bit & 1 == 1
    }

    /// Returns the next bytes, at most `count`.
    pub(crate) fn bytes(&mut self, count: usize) -> &'d [u8] {
        let (taken, rest) = self.0.split_at(count.min(self.0.len()));
        self.0 = rest;
        taken
    }
}
