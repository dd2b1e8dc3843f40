//! The figures of a report: amounts by name, and free blocks by size and migratetype.
//!
//! Kernels print amounts in kB that are exact multiples of a page, so nothing is rounded. Related files: `parse.rs` reads
//! the lines, and `decide.rs` converts the amounts to pages.

use std::fmt;

/// An amount of memory in kB (1024 bytes), as kernels print it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Kib(pub u64);

impl fmt::Display for Kib {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} kB", self.0)
    }
}

/// The largest number that is taken from a log: more pages than any machine has. It keeps sums far from an overflow.
pub(super) const NUMBER_MAX: u64 = 1 << 50;

/// Declares the figures by the names under which kernels print them.
macro_rules! figures {
    ($($figure:ident $name:literal,)*) => {
        /// An amount in a zone's line, in a node's line, or in the totals.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
        pub enum Figure {
            $(#[doc = concat!("`", $name, "`")] $figure,)*
        }

        impl Figure {
            /// All figures.
            pub const ALL: &'static [Self] = &[$(Self::$figure,)*];

            /// Returns the name under which kernels print the figure.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$figure => $name,)* }
            }
        }
    };
}

figures! {
    Free "free",
    Boost "boost",
    Min "min",
    Low "low",
    High "high",
    ReservedHighatomic "reserved_highatomic",
    FreeHighatomic "free_highatomic",
    ActiveAnon "active_anon",
    InactiveAnon "inactive_anon",
    ActiveFile "active_file",
    InactiveFile "inactive_file",
    SlabReclaimable "slab_reclaimable",
    Present "present",
    Managed "managed",
    FreePcp "free_pcp",
    LocalPcp "local_pcp",
    FreeCma "free_cma",
}

/// The figures of one zone or node in kB, or the totals in pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Figures([Option<u64>; Figure::ALL.len()]);

impl Figures {
    /// Returns a figure that was printed.
    #[must_use]
    pub const fn get(&self, figure: Figure) -> Option<u64> {
        self.0[figure as usize]
    }

    /// Sets a figure.
    pub const fn set(&mut self, figure: Figure, value: u64) {
        self.0[figure as usize] = Some(value);
    }

    /// Reads all `name:number` pairs of a text whose names are known. Returns how many pairs the text has.
    pub(super) fn read(&mut self, text: &str) -> usize {
        let mut count = 0;
        for (name, value) in pairs(text) {
            count += 1;
            if let Some(&figure) = Figure::ALL.iter().find(|figure| figure.name() == name) {
                self.set(figure, value);
            }
        }
        count
    }
}

/// Returns the `name:number` pairs of a text, with or without a unit after the number.
fn pairs(text: &str) -> impl Iterator<Item = (&str, u64)> {
    // A syslog daemon writes a line break within a message as `#012`.
    text.split_whitespace().flat_map(|word| word.split("#012")).filter_map(|word| {
        let (name, value) = word.split_once(':')?;
        Some((name, number(value)?))
    })
}

/// Returns the number at the beginning of a text, if it is possible for an amount of memory.
pub(super) fn number(text: &str) -> Option<u64> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    text[..digits].parse().ok().filter(|&value| value <= NUMBER_MAX)
}

/// The migratetypes of free blocks, by the letters that kernels print.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct MigrateTypes(u8);

impl MigrateTypes {
    /// The letters for unmovable, movable, reclaimable, high-atomic, CMA and isolated blocks.
    const LETTERS: &'static str = "UMEHCI";

    /// Returns the types with these letters, or `None` if there are others or one of them twice.
    #[must_use]
    pub fn parse(letters: &str) -> Option<Self> {
        let mut bits = letters.chars().map(|letter| Self::LETTERS.find(letter).map(|at| 1 << at));
        bits.try_fold(0, |all, bit| Some(all | bit?).filter(|&more| more != all)).map(Self)
    }

    /// Whether one of the types is among `letters`.
    #[must_use]
    pub fn any_of(self, letters: &str) -> bool {
        Self::parse(letters).is_some_and(|types| types.0 & self.0 != 0)
    }
}

impl fmt::Display for MigrateTypes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let letters = Self::LETTERS.chars().enumerate().filter(|(at, _)| self.0 >> at & 1 == 1);
        letters.map(|(_, letter)| letter).try_for_each(|letter| write!(f, "{letter}"))
    }
}

/// Free blocks with one size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FreeBlocks {
    /// Size of a block.
    pub size: Kib,
    /// Number of blocks.
    pub count: u64,
    /// Types of the blocks, if the kernel printed them.
    pub types: Option<MigrateTypes>,
}

/// The free blocks of a zone.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct BlockList {
    /// Blocks by size, in ascending order.
    pub blocks: Vec<FreeBlocks>,
    /// The sum that the kernel printed at the end of the line; `None` if the line was cut off.
    pub total: Option<Kib>,
}

impl BlockList {
    /// Orders that kernels have at most, with 64 KiB pages and large blocks.
    const SIZES_MAX: usize = 20;

    /// Reads `2*4kB (ME) 0*8kB ... = 12408kB`.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut list = Self::default();
        let mut words = text.split_whitespace();
        while let Some(word) = words.next() {
            if word == "=" {
                list.total = words.next().and_then(amount).map(Kib);
                break;
            }
            if let Some(letters) = word.strip_prefix('(') {
                let last = list.blocks.last_mut()?;
                last.types = letters.strip_suffix(')').and_then(MigrateTypes::parse);
                continue;
            }
            // The line may be cut off in the middle of a word.
            let Some((count, size)) = word.split_once('*') else { break };
            let (Some(count), Some(size)) = (number(count), amount(size)) else { break };
            let grows = list.blocks.last().is_none_or(|last| last.size.0 < size);
            if !grows || !size.is_power_of_two() || list.blocks.len() == Self::SIZES_MAX {
                break;
            }
            list.blocks.push(FreeBlocks { size: Kib(size), count, types: None });
        }
        (!list.blocks.is_empty()).then_some(list)
    }

    /// Returns the size of a page, which the first block of the list has.
    #[must_use]
    pub fn page(&self) -> Option<Kib> {
        self.blocks.first().map(|blocks| blocks.size)
    }

    /// Returns the sum of the blocks.
    #[must_use]
    pub fn sum(&self) -> Kib {
        let sizes = self.blocks.iter().map(|blocks| blocks.count.saturating_mul(blocks.size.0));
        Kib(sizes.fold(0, u64::saturating_add))
    }
}

/// Returns the number in a text that ends in `kB`.
fn amount(text: &str) -> Option<u64> {
    let digits = text.strip_suffix("kB").or_else(|| text.strip_suffix("KB"))?;
    number(digits).filter(|_| digits.bytes().all(|byte| byte.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_with_types_and_a_sum() {
        let list = BlockList::parse("2*4kB (ME) 0*8kB 1*16kB (H) = 24kB").unwrap();
        assert_eq!((list.sum(), list.total, list.page()), (Kib(24), Some(Kib(24)), Some(Kib(4))));
        let types: Vec<String> = list
            .blocks
            .iter()
            .map(|blocks| blocks.types.map_or(String::new(), |types| types.to_string()))
            .collect();
        assert_eq!(types, ["ME", "", "H"]);
        assert!(list.blocks[0].types.unwrap().any_of("UE") && !list.blocks[2].types.unwrap().any_of("UMEC"));
    }

    #[test]
    fn blocks_of_a_line_that_is_cut_off() {
        for (text, sizes) in [("2*4kB (ME) 2*8k", 1), ("2*4kB (ME) 2*8kB (", 2), ("2*4kB (ME) 2", 1)] {
            let list = BlockList::parse(text).unwrap();
            assert_eq!((list.blocks.len(), list.total), (sizes, None), "{text}");
        }
        assert_eq!(BlockList::parse("nothing"), None);
        assert_eq!(BlockList::parse("(U) 1*4kB"), None);
        for letters in ["UU", "MEM", "IIIIIIIII", "u", "UX"] {
            assert_eq!(MigrateTypes::parse(letters), None, "{letters}");
        }
        assert_eq!(MigrateTypes::parse("ICHEMU").map(|types| types.to_string()), Some("UMEHCI".to_owned()));
        assert_eq!(BlockList::parse("1*4kB 1*4kB").unwrap().blocks.len(), 1);
    }

    #[test]
    fn figures_by_name() {
        let mut figures = Figures::default();
        let count = figures.read("free:12kB boost:0kB min:99999999999999999999kB free_cma:7#012 high:x odd");
        assert_eq!(count, 3);
        assert_eq!(figures.get(Figure::Free), Some(12));
        assert_eq!(figures.get(Figure::FreeCma), Some(7));
        assert_eq!(figures.get(Figure::Min), None);
    }
}
