//! Memory cells of a simulated machine. A cell is a plain integer, and the world charges the running CPU for every
//! access.
//!
//! All simulated threads run on one host thread, which switches between them only where an access waits. A
//! read-modify-write therefore needs no atomic instruction on the host. Related files: `sim/charge.rs` charges the
//! accesses.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};

use zonal::platform::Atomic;

use super::access::Access;
use super::world;

macro_rules! cell {
    ($($cell:ident: $native:ident, $value:ident);*) => {$(
        #[doc = concat!("A cell of a `", stringify!($value), "`.")]
        #[derive(Debug)]
        #[repr(transparent)]
        pub struct $cell($native);

        impl $cell {
            #[inline(always)]
            fn charge(&self, access: Access) {
                world::with(|world| world.access(self.0.as_ptr().addr(), access));
            }

            #[inline(always)]
            fn modify(&self, change: impl FnOnce($value) -> $value) -> $value {
                self.charge(Access::Modify);
                let before = self.0.load(Relaxed);
                self.0.store(change(before), Relaxed);
                before
            }
        }

        // The orderings that callers pass are ignored, because a single host thread sees all its accesses in program
        // order. Relaxed is enough on the host for the same reason.
        impl Atomic<$value> for $cell {
            fn new(value: $value) -> Self {
                Self($native::new(value))
            }
            #[inline(always)]
            fn load(&self, _: Ordering) -> $value {
                self.charge(Access::Read);
                self.0.load(Relaxed)
            }
            #[inline(always)]
            fn store(&self, value: $value, _: Ordering) {
                let address = self.0.as_ptr().addr();
                world::with(|world| {
                    if size_of::<$value>() == 8 {
                        world.note_write(address, self.0.load(Relaxed).into(), value.into());
                    }
                    world.access(address, Access::Write);
                });
                self.0.store(value, Relaxed);
            }
            #[inline(always)]
            fn swap(&self, value: $value, _: Ordering) -> $value {
                self.modify(|_| value)
            }
            #[inline(always)]
            fn compare_exchange(
                &self,
                current: $value,
                new: $value,
                _: Ordering,
                _: Ordering,
            ) -> Result<$value, $value> {
                let found = self.modify(|found| if found == current { new } else { found });
                if found == current { Ok(found) } else { Err(found) }
            }
            #[inline(always)]
            fn fetch_add(&self, value: $value, _: Ordering) -> $value {
                self.modify(|found| found.wrapping_add(value))
            }
            #[inline(always)]
            fn fetch_or(&self, value: $value, _: Ordering) -> $value {
                self.modify(|found| found | value)
            }
            #[inline(always)]
            fn fetch_and(&self, value: $value, _: Ordering) -> $value {
                self.modify(|found| found & value)
            }
        }
    )*};
}
cell!(CellU8: AtomicU8, u8; CellU32: AtomicU32, u32; CellU64: AtomicU64, u64);

impl CellU8 {
    /// Whether each cell holds `value`, at no charge.
    pub(super) fn are_all(cells: &[Self], value: u8) -> bool {
        cells.iter().fold(0, |all, cell| all | (cell.0.load(Relaxed) ^ value)) == 0
    }
}
