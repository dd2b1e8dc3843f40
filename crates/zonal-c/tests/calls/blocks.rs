//! Calls that allocate, free and split.

use std::ffi::c_void;

use zonal_c::blocks::{
    zonal_alloc, zonal_alloc_pages, zonal_check_block, zonal_free, zonal_free_pages, zonal_split,
};
use zonal_c::status::zonal_status::{self, *};
use zonal_c::types::*;

use super::world::{BlockModel, Bytes, Named, World};

/// A request with the memory that it points to.
pub(super) struct Request {
    nodes: Vec<u16>,
    raw: zonal_request,
}

impl Request {
    pub(super) fn raw(&mut self) -> *const zonal_request {
        self.raw.nodes = self.nodes.as_ptr();
        &raw const self.raw
    }
}

impl World {
    /// Returns a request, and whether it is valid for the pool.
    pub(super) fn request(&mut self, pool: Option<usize>, bytes: &mut Bytes<'_>) -> (Request, bool) {
        let mut raw = zonal_request {
            bytes: size(bytes),
            alignment: alignment(bytes),
            flags: u32::from(bytes.byte()) & if bytes.is_wrong(16) { !0 } else { 7 },
            ..zonal_request::default()
        };
        let mut nodes = Vec::new();
        if bytes.is_wrong(4) {
            let policy = bytes
                .index(self.policies.len())
                .map_or(zonal_policy { id: 0 }, |at| self.policies[at].handle);
            raw.policy_handle = if bytes.is_wrong(16) { zonal_policy { id: bytes.number() } } else { policy };
        }
        if raw.policy_handle.id == 0 || bytes.is_wrong(8) {
            raw.policy = u32::from(bytes.byte()) % if bytes.is_wrong(16) { 9 } else { 3 };
            let count =
                if raw.policy == 1 { 1 } else { usize::from(raw.policy > 0) * usize::from(bytes.byte() % 3) };
            nodes = (0..count).map(|_| node(bytes)).collect();
        }
        raw.nodes_len = nodes.len();
        if bytes.is_wrong(64) {
            raw.struct_size = bytes.byte().into();
        }
        let is_valid = pool.is_some_and(|pool| self.is_valid(pool, &raw, &nodes));
        (Request { nodes, raw }, is_valid)
    }

    fn is_valid(&self, pool: usize, raw: &zonal_request, nodes: &[u16]) -> bool {
        let model = &self.pools[pool];
        let has = |node: &u16| *node < model.nodes;
        let is_policy_valid = if raw.policy_handle.id == 0 {
            match raw.policy {
                ZONAL_POLICY_LOCAL => nodes.is_empty(),
                ZONAL_POLICY_PREFERRED => nodes.len() == 1 && nodes.iter().all(has),
                ZONAL_POLICY_BIND => !nodes.is_empty() && nodes.iter().all(has),
                _ => false,
            }
        } else {
            let found = self.policies.iter().find(|policy| policy.handle == raw.policy_handle);
            let is_usable = found.is_some_and(|policy| policy.is_live && policy.pool == pool);
            is_usable && raw.policy == ZONAL_POLICY_LOCAL && nodes.is_empty()
        };
        let is_aligned =
            raw.alignment == 0 || raw.alignment.is_power_of_two() && raw.alignment <= model.block_max;
        raw.struct_size == size_of::<zonal_request>() && raw.flags & !7 == 0 && is_policy_valid && is_aligned
    }

    pub(super) fn alloc(&mut self, bytes: &mut Bytes<'_>) {
        let (handle, pool) = self.pool(bytes);
        let (mut request, is_valid) = self.request(pool, bytes);
        let mut block =
            zonal_block { address: std::ptr::without_provenance_mut(7), ..zonal_block::default() };
        if bytes.is_wrong(64) {
            block.struct_size -= 1;
            // SAFETY: the structures have their sizes, or say that they have others.
            let status = unsafe { zonal_alloc(handle, request.raw(), &raw mut block) };
            return self.expect("alloc", status, &[ZONAL_INVALID_ARGUMENT]);
        }
        // SAFETY: as above.
        let status = unsafe { zonal_alloc(handle, request.raw(), &raw mut block) };
        self.expect_of("alloc", status, pool, &request.raw, is_valid);
        let Some(pool) = pool.filter(|_| status == ZONAL_OK) else {
            return assert!(block.address.is_null(), "{block:?} after {status:?}");
        };
        let (address, page) = (block.address.expose_provenance(), self.pools[pool].page);
        assert_eq!(block.bytes, request.raw.bytes.max(1).next_multiple_of(page));
        assert!(
            block.node < self.pools[pool].nodes && address as u64 / page as u64 == block.frame,
            "{block:?}"
        );
        let natural = if block.bytes.is_power_of_two() && block.bytes <= self.pools[pool].block_max {
            block.bytes
        } else {
            page
        };
        assert!(address % request.raw.alignment.max(natural) == 0, "{block:?} is not aligned");
        if request.raw.policy == ZONAL_POLICY_BIND {
            assert!(request.nodes.contains(&block.node), "{block:?} is not on {:?}", request.nodes);
        }
        if request.raw.flags & ZONAL_REQUEST_ZEROED != 0 {
            for at in (0..block.bytes).step_by(page / 2 + 8) {
                let place = block.address.cast::<u8>().wrapping_add(at);
                // SAFETY: the block was allocated just now.
                assert_eq!(unsafe { place.read() }, 0, "byte {at} of {block:?}");
            }
        }
        self.add(pool, address, block.bytes);
    }

    /// Checks the status of a call with a request.
    fn expect_of(
        &self,
        call: &str,
        status: zonal_status,
        pool: Option<usize>,
        raw: &zonal_request,
        is_valid: bool,
    ) {
        let is_sized = raw.struct_size == size_of::<zonal_request>();
        let possible: &[_] = match (pool, is_valid) {
            _ if !is_sized => &[ZONAL_INVALID_ARGUMENT],
            (None, _) => &[ZONAL_NOT_A_POOL],
            // A policy may exclude the node of the CPU, or have nodes whose memory has been returned.
            (Some(at), true) if raw.flags & ZONAL_REQUEST_THIS_NODE != 0 || self.pools[at].has_shrunk => {
                &[ZONAL_OK, ZONAL_OUT_OF_MEMORY, ZONAL_INVALID_ARGUMENT]
            }
            (_, true) => &[ZONAL_OK, ZONAL_OUT_OF_MEMORY],
            (_, false) => &[ZONAL_INVALID_ARGUMENT],
        };
        self.expect(call, status, possible);
    }

    /// Returns the arguments of a free: those of a block, or others.
    fn block_arguments(&mut self, bytes: &mut Bytes<'_>) -> (Named, usize, usize) {
        let named = self.pool(bytes);
        let Some(at) = bytes.index(self.blocks.len()) else {
            return (named, bytes.number() as usize, size(bytes));
        };
        let BlockModel { pool, address, bytes: length, .. } = self.blocks[at];
        let own = (self.pools[pool].handle, Some(pool));
        match bytes.byte() % 16 {
            0 => (own, address + 4096, length),
            1 => (own, address, length + 4096),
            2 => (own, address, length / 2),
            3 => (own, address + length / 2, length - length / 2),
            4 => (own, address + 8, length),
            5 => (own, address, size(bytes)),
            6 => (own, bytes.number() as usize, length),
            7 => (named, address, length),
            _ => (own, address, length),
        }
    }

    pub(super) fn free(&mut self, bytes: &mut Bytes<'_>) {
        let ((handle, pool), address, length) = self.block_arguments(bytes);
        let block = pool.and_then(|pool| self.block_at(pool, address, length));
        if let Some(at) = block {
            self.check(&self.blocks[at]);
        }
        let possible = match (pool, block) {
            (None, _) => ZONAL_NOT_A_POOL,
            (_, None) => ZONAL_NOT_ALLOCATED,
            _ => ZONAL_OK,
        };
        let place = std::ptr::with_exposed_provenance_mut(address);
        self.expect("check_block", zonal_check_block(handle, place, length), &[possible]);
        // SAFETY: if the call succeeds, the block is not used any more.
        let status = unsafe { zonal_free(handle, place, length) };
        self.expect("free", status, &[possible]);
        block.into_iter().for_each(|at| self.remove(at));
    }

    pub(super) fn alloc_pages(&mut self, bytes: &mut Bytes<'_>) {
        let (handle, pool) = self.pool(bytes);
        let (mut request, mut is_valid) = self.request(pool, bytes);
        let page = pool.map_or(4096, |pool| self.pools[pool].page);
        if !bytes.is_wrong(8) {
            (request.raw.bytes, request.raw.alignment) = (0, 0);
            is_valid = pool.is_some_and(|pool| self.is_valid(pool, &request.raw, &request.nodes));
        }
        is_valid &= request.raw.bytes <= page && request.raw.alignment <= page;
        let mut places = vec![std::ptr::null_mut::<c_void>(); usize::from(bytes.byte()) + 1];
        let len = places.len() - 1;
        let mut count = 99;
        // SAFETY: there is room for the addresses.
        let status =
            unsafe { zonal_alloc_pages(handle, request.raw(), places.as_mut_ptr(), len, &raw mut count) };
        self.expect_of("alloc_pages", status, pool, &request.raw, is_valid);
        assert!(places[len].is_null() && (status == ZONAL_OK || count == 0) && count <= len);
        let Some(pool) = pool else { return };
        places[..count].iter().for_each(|place| self.add(pool, place.expose_provenance(), page));
    }

    pub(super) fn free_pages(&mut self, bytes: &mut Bytes<'_>) {
        let (handle, pool) = self.pool(bytes);
        let page = pool.map_or(4096, |pool| self.pools[pool].page);
        let count = usize::from(bytes.byte()) % 100;
        let step = usize::from(bytes.byte() % 3) + 1;
        let pages = self.blocks.iter().filter(|block| Some(block.pool) == pool && block.bytes == page);
        let mut list: Vec<usize> = pages.step_by(step).take(count).map(|block| block.address).collect();
        if bytes.is_wrong(4) {
            let wrong = [
                bytes.number() as usize,
                list.first().copied().unwrap_or(8),
                list.last().map_or(0, |at| at + 8),
            ];
            list.insert(usize::from(bytes.byte()) % (list.len() + 1), wrong[usize::from(bytes.byte()) % 3]);
        }
        let mut freed_of_model = 0;
        for &address in pool.map(|_| &list[..]).unwrap_or_default() {
            let Some(at) = pool.and_then(|pool| self.block_at(pool, address, page)) else { break };
            self.check(&self.blocks[at]);
            self.remove(at);
            freed_of_model += 1;
        }
        let places: Vec<_> =
            list.iter().map(|&at| std::ptr::with_exposed_provenance_mut::<c_void>(at)).collect();
        let mut freed = 99;
        // SAFETY: the pages that are freed are not used any more.
        let status = unsafe { zonal_free_pages(handle, places.as_ptr(), places.len(), &raw mut freed) };
        let possible = match pool {
            None => ZONAL_NOT_A_POOL,
            Some(_) if freed_of_model < list.len() => ZONAL_NOT_ALLOCATED,
            Some(_) => ZONAL_OK,
        };
        self.expect("free_pages", status, &[possible]);
        assert_eq!(freed, freed_of_model, "{} pages", list.len());
    }

    pub(super) fn split(&mut self, bytes: &mut Bytes<'_>) {
        let ((handle, pool), address, length) = self.block_arguments(bytes);
        let piece = if bytes.is_wrong(8) { bytes.number() as usize } else { 4096 << (bytes.byte() % 12) };
        let status = zonal_split(handle, std::ptr::with_exposed_provenance_mut(address), length, piece);
        let Some(at) = pool else { return self.expect("split", status, &[ZONAL_NOT_A_POOL]) };
        let (page, most) = (self.pools[at].page, self.pools[at].block_max);
        let block = self.block_at(at, address, length);
        if !piece.is_power_of_two() || piece < page || piece > most {
            return self.expect("split", status, &[ZONAL_INVALID_ARGUMENT]);
        }
        let Some(block) = block else {
            // A block of at most a piece is refused before it is looked up.
            return self.expect("split", status, &[ZONAL_NOT_ALLOCATED, ZONAL_INVALID_ARGUMENT]);
        };
        let is_one = length.is_power_of_two() && length <= piece && address % length == 0;
        self.expect("split", status, &[if is_one { ZONAL_INVALID_ARGUMENT } else { ZONAL_OK }]);
        if !is_one {
            self.check(&self.blocks[block]);
            self.remove(block);
            let mut from = address;
            while from < address + length {
                let mut size = piece;
                while from % size != 0 || from + size > address + length {
                    size /= 2;
                }
                self.add(at, from, size);
                from += size;
            }
        }
    }
}

/// Returns a number of bytes, rarely an absurd one.
fn size(bytes: &mut Bytes<'_>) -> usize {
    match bytes.byte() % 8 {
        0 => 0,
        1 | 2 => usize::from(bytes.byte()) * 4096,
        3 => 4096 << (bytes.byte() % 12),
        4 => usize::from(bytes.byte()) * 97 + 1,
        5 => (5 << 20) + usize::from(bytes.byte()) * 4096,
        6 if bytes.is_wrong(8) => bytes.number() as usize,
        _ => 4096,
    }
}

fn alignment(bytes: &mut Bytes<'_>) -> usize {
    match bytes.byte() % 8 {
        0 => 1 << (bytes.byte() % 24),
        1 if bytes.is_wrong(4) => bytes.number() as usize,
        _ => 0,
    }
}

pub(super) fn node(bytes: &mut Bytes<'_>) -> u16 {
    let choice = bytes.byte();
    if choice < 240 { u16::from(choice % 4) } else { bytes.number() as u16 }
}
