//! The model: what exists, and what a call must return.

use std::ffi::{CStr, c_void};

use zonal_c::callbacks::zonal_unregister;
use zonal_c::pool::{zonal_pool_accounting, zonal_pool_close, zonal_pool_verify};
use zonal_c::status::{zonal_last_error, zonal_status};
use zonal_c::types::*;

/// Bytes of a page that are filled with a pattern, at either end of a block.
const PATTERN: usize = 16;
/// The most pools in a run, and the largest size of each.
pub(super) const POOLS_MAX: usize = 4;
pub(super) const POOL_BYTES_MAX: u64 = 24 << 20;

/// The rest of the input. Reading beyond its end returns zeros.
pub(super) struct Bytes<'d>(&'d [u8]);

impl<'d> Bytes<'d> {
    pub(super) fn new(data: &'d [u8]) -> Self {
        Self(data)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    pub(super) fn number(&mut self) -> u64 {
        (0..8).fold(0, |number, _| number << 8 | u64::from(self.byte()))
    }

    /// Whether an argument shall be wrong, once in `one_in` times.
    pub(super) fn is_wrong(&mut self, one_in: u8) -> bool {
        self.byte() % one_in == one_in - 1
    }

    /// Returns an index below `len`, or `None` if there is none.
    pub(super) fn index(&mut self, len: usize) -> Option<usize> {
        (len > 0).then(|| usize::from(self.byte()) % len)
    }
}

pub(super) struct PoolModel {
    pub(super) handle: zonal_pool,
    pub(super) is_open: bool,
    pub(super) page: usize,
    /// Nodes with memory are 0 to this number less one.
    pub(super) nodes: u16,
    pub(super) block_max: usize,
    /// Whether memory was returned to the kernel, so that a node may have none.
    pub(super) has_shrunk: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct BlockModel {
    pub(super) pool: usize,
    pub(super) address: usize,
    pub(super) bytes: usize,
    pub(super) pattern: u64,
}

pub(super) struct PolicyModel {
    pub(super) pool: usize,
    pub(super) handle: zonal_policy,
    pub(super) is_live: bool,
}

pub(super) struct RegistrationModel {
    pub(super) pool: usize,
    pub(super) handle: zonal_registration,
    pub(super) is_live: bool,
}

#[derive(Default)]
pub(super) struct World {
    pub(super) pools: Vec<PoolModel>,
    pub(super) blocks: Vec<BlockModel>,
    pub(super) policies: Vec<PolicyModel>,
    pub(super) registrations: Vec<RegistrationModel>,
    pub(super) next_pattern: u64,
}

/// A handle of a call, and the pool that it names if that is open.
pub(super) type Named = (zonal_pool, Option<usize>);

impl World {
    /// Returns the handle of a pool: open, closed, or not a handle.
    pub(super) fn pool(&mut self, bytes: &mut Bytes<'_>) -> Named {
        let choice = usize::from(bytes.byte());
        match self.pools.get(choice % (self.pools.len() + 1)) {
            Some(pool) if choice < 250 => {
                (pool.handle, pool.is_open.then_some(choice % (self.pools.len() + 1)))
            }
            _ if self.pools.len() < POOLS_MAX + 1 && choice < 250 => self.first_open(),
            _ => (zonal_pool { id: bytes.number() | 1 << 63 }, None),
        }
    }

    fn first_open(&self) -> Named {
        let at = self.pools.iter().position(|pool| pool.is_open);
        (at.map_or(zonal_pool::default(), |at| self.pools[at].handle), at)
    }

    /// Checks a status against those that are possible.
    pub(super) fn expect(&self, call: &str, status: zonal_status, possible: &[zonal_status]) {
        // SAFETY: the message is a text that ends with a zero.
        let message = unsafe { CStr::from_ptr(zonal_last_error()) };
        assert!(
            possible.contains(&status),
            "{call}: {status:?}, not one of {possible:?}; last error: {message:?}"
        );
        assert!(
            status == zonal_status::ZONAL_OK || !message.is_empty(),
            "{call}: {status:?} without a message"
        );
    }

    /// Records a new block, after checking that it is free memory of the pool, and marks it.
    pub(super) fn add(&mut self, pool: usize, address: usize, bytes: usize) {
        let overlaps =
            |other: &BlockModel| other.address < address + bytes && address < other.address + other.bytes;
        assert!(!self.blocks.iter().any(overlaps), "{bytes} bytes at {address:#x} are allocated twice");
        let page = self.pools[pool].page;
        assert!(address != 0 && address.is_multiple_of(page) && bytes.is_multiple_of(page));
        self.next_pattern += 1;
        let block = BlockModel { pool, address, bytes, pattern: self.next_pattern };
        block.ends().for_each(|at| {
            let place = std::ptr::with_exposed_provenance_mut::<u64>(at);
            // SAFETY: the block belongs to this model.
            unsafe { place.write(block.pattern) };
        });
        self.blocks.push(block);
    }

    /// Forgets a block that was freed, and whose pattern was there before.
    pub(super) fn remove(&mut self, at: usize) {
        self.blocks.swap_remove(at);
    }

    /// Checks the pattern of a block.
    pub(super) fn check(&self, block: &BlockModel) {
        for at in block.ends() {
            let place = std::ptr::with_exposed_provenance::<u64>(at);
            // SAFETY: the block belongs to this model.
            assert_eq!(unsafe { place.read() }, block.pattern, "{block:?} was overwritten");
        }
    }

    /// Returns the block that exactly these arguments name.
    pub(super) fn block_at(&self, pool: usize, address: usize, bytes: usize) -> Option<usize> {
        let is_same = |block: &BlockModel| (block.pool, block.address, block.bytes) == (pool, address, bytes);
        self.blocks.iter().position(is_same)
    }

    pub(super) fn pages_of(&self, pool: usize) -> u64 {
        let blocks = self.blocks.iter().filter(|block| block.pool == pool);
        blocks.map(|block| (block.bytes / self.pools[pool].page) as u64).sum()
    }

    pub(super) fn check_accounting(&self) {
        for (at, pool) in self.pools.iter().enumerate().filter(|(_, pool)| pool.is_open) {
            let mut found = zonal_accounting { struct_size: size_of::<zonal_accounting>(), ..EMPTY };
            // SAFETY: the structure has its size.
            let status = unsafe { zonal_pool_accounting(pool.handle, &raw mut found) };
            self.expect("accounting", status, &[zonal_status::ZONAL_OK]);
            // A reclaimer may have allocated a page on a thread of the pool.
            let is_called = self.registrations.iter().any(|one| one.is_live && one.pool == at);
            if !is_called {
                assert_eq!(found.allocated, self.pages_of(at), "{found:?}");
            }
            assert_eq!(found.page_bytes, pool.page as u64);
        }
    }

    /// Frees and closes everything, and checks that nothing is left.
    pub(super) fn end(&mut self) {
        use zonal_c::blocks::zonal_free;
        for block in std::mem::take(&mut self.blocks) {
            self.check(&block);
            let address = std::ptr::with_exposed_provenance_mut::<c_void>(block.address);
            // SAFETY: the block is not used any more.
            let status = unsafe { zonal_free(self.pools[block.pool].handle, address, block.bytes) };
            self.expect("free at the end", status, &[zonal_status::ZONAL_OK]);
        }
        for registration in self.registrations.iter_mut().filter(|one| one.is_live) {
            assert_eq!(zonal_unregister(registration.handle), zonal_status::ZONAL_OK);
            registration.is_live = false;
        }
        self.check_accounting();
        for pool in self.pools.iter().filter(|pool| pool.is_open) {
            self.expect("verify", zonal_pool_verify(pool.handle), &[zonal_status::ZONAL_OK]);
            self.expect("close", zonal_pool_close(pool.handle, 0), &[zonal_status::ZONAL_OK]);
            self.expect("close again", zonal_pool_close(pool.handle, 0), &[zonal_status::ZONAL_NOT_A_POOL]);
        }
    }
}

const EMPTY: zonal_accounting = zonal_accounting {
    struct_size: 0,
    page_bytes: 0,
    managed: 0,
    free: 0,
    in_pagesets: 0,
    allocated: 0,
    unavailable: 0,
};

impl BlockModel {
    /// Returns the addresses at which the block has its pattern.
    fn ends(&self) -> impl Iterator<Item = usize> + use<> {
        [self.address, self.address + self.bytes - PATTERN].into_iter()
    }
}
