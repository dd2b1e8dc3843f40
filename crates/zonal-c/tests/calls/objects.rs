//! Calls that build, close, change and observe pools, and calls about policies and callbacks.

use std::ffi::{CString, c_char, c_void};

use zonal_c::blocks::{zonal_alloc, zonal_free};
use zonal_c::callbacks::{
    zonal_pool_publish, zonal_pool_reclaim, zonal_pressure_register, zonal_reclaimer_register,
    zonal_unregister,
};
use zonal_c::change::{
    zonal_pool_grow, zonal_pool_set_setting, zonal_pool_setting, zonal_pool_shrink, zonal_pool_trim,
};
use zonal_c::policy::{zonal_policy_create, zonal_policy_destroy};
use zonal_c::pool::{
    zonal_pool_build, zonal_pool_close, zonal_pool_placement, zonal_pool_verify, zonal_pool_warnings,
};
use zonal_c::state::{
    zonal_explain, zonal_pool_huge_page_bytes, zonal_pool_locate, zonal_pool_locate_frame,
    zonal_pool_residency, zonal_pool_snapshot, zonal_pool_zone, zonal_pool_zones,
};
use zonal_c::status::zonal_status::{self, *};
use zonal_c::types::*;

use super::blocks::node;
use super::world::{Bytes, POOL_BYTES_MAX, POOLS_MAX, PolicyModel, PoolModel, RegistrationModel, World};

/// Returns a text, rarely one that is not UTF-8.
fn text(bytes: &mut Bytes<'_>, choices: &[&str]) -> CString {
    let at = usize::from(bytes.byte()) % (choices.len() + 1);
    let other = || (0..bytes.byte() % 32).map(|_| bytes.byte().max(1)).collect();
    CString::new(choices.get(at).map_or_else(other, |text| text.as_bytes().to_vec())).unwrap()
}

/// A reclaimer that frees nothing, and makes calls, of which closing must be refused.
// SAFETY: the library calls it with a request.
unsafe extern "C" fn reclaim(context: *mut c_void, request: *const zonal_reclaim_request) -> u64 {
    let id = context.expose_provenance() as u64;
    // SAFETY: the library passes a request.
    assert_eq!(unsafe { (*request).struct_size }, size_of::<zonal_reclaim_request>());
    let pool = zonal_pool { id };
    let status = zonal_pool_close(pool, ZONAL_CLOSE_WITH_BLOCKS);
    assert!([ZONAL_BUSY, ZONAL_NOT_A_POOL].contains(&status), "{status:?}");
    assert_eq!(zonal_pool_verify(pool), ZONAL_BUSY);
    let mut block = zonal_block::default();
    let now = zonal_request { flags: ZONAL_REQUEST_NO_WAIT, ..zonal_request::default() };
    // SAFETY: the structures have their sizes.
    if unsafe { zonal_alloc(pool, &raw const now, &raw mut block) } == ZONAL_OK {
        // SAFETY: the block was allocated just now.
        assert_eq!(unsafe { zonal_free(pool, block.address, block.bytes) }, ZONAL_OK);
    }
    id % 3
}

// SAFETY: it does nothing.
unsafe extern "C" fn ignore(_: *mut c_void, _: *const zonal_pressure_event) {}

impl World {
    pub(super) fn build(&mut self, bytes: &mut Bytes<'_>) {
        if self.pools.len() >= POOLS_MAX {
            return;
        }
        let settings = text(
            bytes,
            &["", "min_free_kbytes=64", "node_load=assign;zone_reclaim_mode=1", "a=b", "=", "swappiness"],
        );
        let nodes = [node(bytes), node(bytes)];
        let rare = bytes.is_wrong(4);
        let mut options = zonal_pool_options {
            size: ((u64::from(bytes.byte()) % 6 + 1) * 4) << 20,
            fake_nodes: u32::from(bytes.byte()) % 5,
            huge_pages: if rare { u32::from(bytes.byte()) % 5 } else { ZONAL_HUGE_PAGES_NEVER },
            flags: u32::from(bytes.byte()) & if rare { 0x7F } else { 0x30 },
            ..zonal_pool_options::default()
        };
        if rare {
            options.settings = settings.as_ptr();
            options.nodes = nodes.as_ptr();
            options.nodes_len = usize::from(bytes.byte()) % 3;
            options.page_bytes = [0, 0, 4096, 16384, 5000][usize::from(bytes.byte()) % 5];
            options.quarantine_pages = u32::from(bytes.byte()) % 64;
            options.prefault_threads = u32::from(bytes.byte()) % 4;
            options.block_bytes_max = [0, 0, 8 << 20, 3, 1 << 63][usize::from(bytes.byte()) % 5];
            options.max_size = [0, options.size + (8 << 20), 1][usize::from(bytes.byte()) % 3];
            if bytes.is_wrong(8) {
                options.size = bytes.number().max(1 << 40);
            }
        }
        let mut handle = zonal_pool { id: 99 };
        // SAFETY: the options point to what they say.
        let status = unsafe { zonal_pool_build(&raw const options, &raw mut handle) };
        let refusals = [ZONAL_BUILD_FAILED, ZONAL_INVALID_ARGUMENT, ZONAL_REQUIREMENT_FAILED];
        let possible: &[_] = if rare { &refusals } else { &[] };
        self.expect("build", status, &[&[ZONAL_OK], possible].concat());
        assert_eq!(status == ZONAL_OK, handle.id != 0, "{status:?}");
        if status != ZONAL_OK {
            return;
        }
        assert!(options.size <= POOL_BYTES_MAX, "a pool of {} bytes", options.size);
        self.add_pool(handle, &options);
    }

    fn add_pool(&mut self, handle: zonal_pool, options: &zonal_pool_options) {
        let page = options.page_bytes.max(4096) as usize;
        let mut zones = 0;
        // SAFETY: the number has a place.
        self.expect("zones", unsafe { zonal_pool_zones(handle, &raw mut zones) }, &[ZONAL_OK]);
        let last = (0..zones).map(|at| self.zone(handle, at).node).max();
        self.pools.push(PoolModel {
            handle,
            is_open: true,
            page,
            // A pool of chosen nodes lacks others, so requests for these are refused where the model allows that.
            nodes: if options.nodes_len > 0 { 0 } else { last.map_or(0, |node| node + 1) },
            block_max: if options.block_bytes_max == 0 {
                page << 10
            } else {
                options.block_bytes_max as usize
            },
            has_shrunk: false,
        });
        if options.nodes_len > 0 {
            // The model does not follow such pools any further.
            let pool = self.pools.last_mut().expect("it was just added");
            pool.is_open = false;
            self.expect("close", zonal_pool_close(handle, 0), &[ZONAL_OK]);
        }
    }

    fn zone(&self, handle: zonal_pool, index: usize) -> zonal_zone {
        // SAFETY: the structure consists of numbers and pointers, for which zeros are valid.
        let mut zone: zonal_zone = unsafe { std::mem::zeroed() };
        zone.struct_size = size_of::<zonal_zone>();
        // SAFETY: the structure has its size.
        self.expect("zone", unsafe { zonal_pool_zone(handle, index, &raw mut zone) }, &[ZONAL_OK]);
        zone
    }

    pub(super) fn close(&mut self, bytes: &mut Bytes<'_>) {
        let (handle, pool) = self.pool(bytes);
        let flags = u32::from(bytes.byte() % 4 == 3) * u32::from(bytes.byte());
        let status = zonal_pool_close(handle, flags);
        let Some(pool) = pool else {
            let possible = [ZONAL_NOT_A_POOL, ZONAL_INVALID_ARGUMENT];
            return self.expect("close", status, &possible);
        };
        let is_empty = self.pages_of(pool) == 0;
        let possible: &[_] = match flags {
            0 if !is_empty => &[ZONAL_BUSY],
            0 | 1 => &[ZONAL_OK],
            _ => &[ZONAL_INVALID_ARGUMENT],
        };
        self.expect("close", status, possible);
        if status == ZONAL_OK {
            self.pools[pool].is_open = false;
            self.blocks.retain(|block| block.pool != pool);
            self.policies
                .iter_mut()
                .filter(|policy| policy.pool == pool)
                .for_each(|policy| policy.is_live = false);
            let registrations = self.registrations.iter_mut().filter(|one| one.pool == pool);
            registrations.for_each(|registration| registration.is_live = false);
        }
    }

    pub(super) fn create_policy(&mut self, bytes: &mut Bytes<'_>) {
        let (handle, pool) = self.pool(bytes);
        let nodes: Vec<u16> = (0..bytes.byte() % 4).map(|_| node(bytes)).collect();
        let weights: Vec<u8> = nodes.iter().map(|_| bytes.byte() % 4).collect();
        let options = zonal_policy_options {
            struct_size: size_of::<zonal_policy_options>() - usize::from(bytes.is_wrong(64)),
            policy: u32::from(bytes.byte()) % 7,
            reserved: 0,
            nodes: nodes.as_ptr(),
            nodes_len: nodes.len(),
            weights: if bytes.is_wrong(2) { std::ptr::null() } else { weights.as_ptr() },
        };
        let mut policy = zonal_policy { id: 99 };
        // SAFETY: the options point to what they say.
        let status = unsafe { zonal_policy_create(handle, &raw const options, &raw mut policy) };
        let possible: &[_] = match pool {
            None => &[ZONAL_NOT_A_POOL, ZONAL_INVALID_ARGUMENT],
            Some(_) => &[ZONAL_OK, ZONAL_INVALID_ARGUMENT],
        };
        self.expect("policy_create", status, possible);
        assert_eq!(status == ZONAL_OK, policy.id != 0);
        if let Some(pool) = pool.filter(|_| status == ZONAL_OK) {
            assert!(
                !nodes.is_empty() && nodes.iter().all(|node| *node < self.pools[pool].nodes),
                "{nodes:?}"
            );
            self.policies.push(PolicyModel { pool, handle: policy, is_live: true });
        }
    }

    pub(super) fn destroy_policy(&mut self, bytes: &mut Bytes<'_>) {
        let at = bytes.index(self.policies.len());
        let policy =
            at.map_or_else(|| zonal_policy { id: bytes.number() >> 1 }, |at| self.policies[at].handle);
        let is_live = at.is_some_and(|at| self.policies[at].is_live);
        let status = zonal_policy_destroy(policy);
        self.expect("policy_destroy", status, &[if is_live { ZONAL_OK } else { ZONAL_INVALID_ARGUMENT }]);
        at.into_iter().for_each(|at| self.policies[at].is_live = false);
    }

    pub(super) fn register(&mut self, bytes: &mut Bytes<'_>) {
        let (handle, pool) = self.pool(bytes);
        let mut registration = zonal_registration { id: 99 };
        let context = std::ptr::without_provenance_mut(handle.id as usize);
        let is_right = !bytes.is_wrong(8);
        let status = match bytes.byte() % 4 {
            0 => {
                let callback: zonal_on_pressure = if is_right { Some(ignore) } else { None };
                // SAFETY: the callback ignores its context.
                unsafe { zonal_pressure_register(handle, callback, context, &raw mut registration) }
            }
            1 => {
                let name = text(bytes, &["pool", "", "/"]);
                let path = CString::new([b"/nonexistent/", name.as_bytes()].concat()).unwrap();
                // SAFETY: the text ends with a zero.
                let status = unsafe { zonal_pool_publish(handle, path.as_ptr(), &raw mut registration) };
                let possible = [ZONAL_PUBLISH_FAILED, ZONAL_NOT_A_POOL, ZONAL_INVALID_ARGUMENT];
                return self.expect("publish", status, &possible);
            }
            _ => {
                let functions = zonal_reclaimer {
                    struct_size: size_of::<zonal_reclaimer>() + usize::from(bytes.is_wrong(32)),
                    count: Some(reclaim),
                    reclaim: if is_right { Some(reclaim) } else { None },
                    context,
                };
                // SAFETY: the functions do what their types say.
                unsafe { zonal_reclaimer_register(handle, &raw const functions, &raw mut registration) }
            }
        };
        let possible: &[_] = match (pool, is_right) {
            (Some(_), true) => &[ZONAL_OK, ZONAL_INVALID_ARGUMENT],
            (Some(_), false) => &[ZONAL_INVALID_ARGUMENT],
            (None, _) => &[ZONAL_NOT_A_POOL, ZONAL_INVALID_ARGUMENT],
        };
        self.expect("register", status, possible);
        assert_eq!(status == ZONAL_OK, registration.id != 0);
        if let Some(pool) = pool.filter(|_| status == ZONAL_OK) {
            self.registrations.push(RegistrationModel { pool, handle: registration, is_live: true });
        }
    }

    pub(super) fn unregister(&mut self, bytes: &mut Bytes<'_>) {
        let at = bytes.index(self.registrations.len());
        let other = || zonal_registration { id: bytes.number() >> 1 };
        let registration = at.map_or_else(other, |at| self.registrations[at].handle);
        let is_live = at.is_some_and(|at| self.registrations[at].is_live);
        let status = zonal_unregister(registration);
        self.expect("unregister", status, &[if is_live { ZONAL_OK } else { ZONAL_INVALID_ARGUMENT }]);
        at.into_iter().for_each(|at| self.registrations[at].is_live = false);
    }

    pub(super) fn locate(&mut self, bytes: &mut Bytes<'_>) {
        let (handle, pool) = self.pool(bytes);
        // SAFETY: the structure consists of numbers and pointers, for which zeros are valid.
        let mut found: zonal_location = unsafe { std::mem::zeroed() };
        found.struct_size = size_of::<zonal_location>();
        let block =
            bytes.index(self.blocks.len()).map(|at| self.blocks[at]).filter(|block| Some(block.pool) == pool);
        let address = block.map_or_else(|| bytes.number() as usize, |block| block.address + block.bytes - 1);
        let place = std::ptr::without_provenance::<c_void>(address);
        // SAFETY: the structure has its size.
        let status = unsafe { zonal_pool_locate(handle, place, &raw mut found) };
        let possible: &[_] = match (pool, block) {
            (None, _) => &[ZONAL_NOT_A_POOL],
            (_, Some(_)) => &[ZONAL_OK],
            _ => &[ZONAL_OK, ZONAL_NOT_ALLOCATED],
        };
        self.expect("locate", status, possible);
        if status == ZONAL_OK {
            let mut again = found;
            // SAFETY: the structure has its size.
            let status = unsafe { zonal_pool_locate_frame(handle, found.frame, &raw mut again) };
            self.expect("locate_frame", status, &[ZONAL_OK]);
            assert!(again.address == found.address && again.address.addr() <= address, "{found:?} {again:?}");
        }
    }

    /// Calls that write texts, into buffers that are often too short.
    pub(super) fn texts(&mut self, bytes: &mut Bytes<'_>) {
        let (handle, pool) = self.pool(bytes);
        let (mut request, is_valid) = self.request(pool, bytes);
        let mut buffer = vec![0x55_u8; usize::from(bytes.byte()) * 16 + 1];
        let (len, mut needed) = (buffer.len() - 1, usize::MAX);
        let (start, size): (*mut c_char, _) = (buffer.as_mut_ptr().cast(), &raw mut needed);
        let format = u32::from(bytes.byte()) % 6;
        let name = text(bytes, &["min_free_kbytes", "node_load", "stat_refresh", ""]);
        let status = match bytes.byte() % 4 {
            // SAFETY: the buffer has room for `len` bytes, here and below.
            0 => unsafe { zonal_pool_snapshot(handle, format, start, len, size) },
            // SAFETY: as above, and the request points to what it says.
            1 => unsafe { zonal_explain(handle, request.raw(), start, len, size) },
            // SAFETY: as above, and the name ends with a zero.
            2 => unsafe { zonal_pool_setting(handle, name.as_ptr(), start, len, size) },
            // SAFETY: as above.
            _ => unsafe { zonal_pool_warnings(handle, start, len, size) },
        };
        let possible: &[_] = match pool {
            None => &[ZONAL_NOT_A_POOL, ZONAL_INVALID_ARGUMENT],
            Some(_) if is_valid || status == ZONAL_OK => &[ZONAL_OK, ZONAL_INVALID_ARGUMENT],
            Some(_) => &[ZONAL_INVALID_ARGUMENT],
        };
        self.expect("texts", status, possible);
        assert_eq!(buffer[len], 0x55, "written beyond the buffer");
        if status == ZONAL_OK && len > 0 {
            let end = buffer.iter().position(|byte| *byte == 0).expect("the text ends");
            assert_eq!(end, needed.min(len - 1));
        }
    }

    pub(super) fn resize(&mut self, bytes: &mut Bytes<'_>) {
        let (handle, pool) = self.pool(bytes);
        let amount = if bytes.is_wrong(8) { bytes.number() } else { u64::from(bytes.byte()) << 16 };
        let mut done = 99;
        let place = &raw mut done;
        let status = match bytes.byte() % 4 {
            // SAFETY: the number has a place, here and below.
            0 => unsafe { zonal_pool_grow(handle, amount, place) },
            // SAFETY: as above.
            1 | 2 => unsafe { zonal_pool_shrink(handle, amount, place) },
            // SAFETY: as above.
            _ => unsafe { zonal_pool_trim(handle, place) },
        };
        let possible: &[_] =
            if pool.is_some() { &[ZONAL_OK, ZONAL_RESIZE_FAILED] } else { &[ZONAL_NOT_A_POOL] };
        self.expect("resize", status, possible);
        pool.into_iter().for_each(|at| self.pools[at].has_shrunk = true);
    }

    pub(super) fn set(&mut self, bytes: &mut Bytes<'_>) {
        let (handle, pool) = self.pool(bytes);
        let names = [
            "min_free_kbytes",
            "zone_reclaim_mode",
            "pageset_tuning",
            "zonelist_cache",
            "stat_refresh",
            "node_load",
        ];
        let (name, value) =
            (text(bytes, &names), text(bytes, &["0", "1", "auto", "depth", "fixed", "off", "999999999"]));
        // SAFETY: the texts end with zeros.
        let status = unsafe { zonal_pool_set_setting(handle, name.as_ptr(), value.as_ptr()) };
        let possible: &[_] = match pool {
            Some(_) => &[ZONAL_OK, ZONAL_INVALID_ARGUMENT],
            None => &[ZONAL_NOT_A_POOL, ZONAL_INVALID_ARGUMENT],
        };
        self.expect("set_setting", status, possible);
    }

    pub(super) fn state(&mut self, bytes: &mut Bytes<'_>) {
        let (handle, pool) = self.pool(bytes);
        let or = |status: &[zonal_status]| {
            if pool.is_some() { status.to_vec() } else { vec![ZONAL_NOT_A_POOL, ZONAL_INVALID_ARGUMENT] }
        };
        let mut residency = zonal_residency {
            struct_size: size_of::<zonal_residency>(),
            bytes: 0,
            on_node: 0,
            misplaced: 0,
            absent: 0,
            unknown: 0,
        };
        let (mut number, mut wide) = (0, 0);
        match bytes.byte() % 4 {
            // SAFETY: the structure has its size.
            0 => self.expect(
                "residency",
                unsafe { zonal_pool_residency(handle, node(bytes), &raw mut residency) },
                &or(&[ZONAL_OK, ZONAL_UNKNOWN, ZONAL_INVALID_ARGUMENT]),
            ),
            // SAFETY: the number has a place.
            1 => self.expect(
                "placement",
                unsafe { zonal_pool_placement(handle, &raw mut number) },
                &or(&[ZONAL_OK]),
            ),
            // SAFETY: as above.
            2 => self.expect(
                "huge",
                unsafe { zonal_pool_huge_page_bytes(handle, &raw mut wide) },
                &or(&[ZONAL_OK, ZONAL_UNKNOWN]),
            ),
            _ => self.expect("verify", zonal_pool_verify(handle), &or(&[ZONAL_OK])),
        }
        assert_eq!(
            residency.on_node + residency.misplaced + residency.absent + residency.unknown,
            residency.bytes
        );
    }

    pub(super) fn reclaim(&mut self, bytes: &mut Bytes<'_>) {
        let (handle, pool) = self.pool(bytes);
        let mut freed = 99;
        // SAFETY: the number has a place.
        let status = unsafe { zonal_pool_reclaim(handle, node(bytes), bytes.byte().into(), &raw mut freed) };
        let possible: &[_] = match pool {
            Some(_) => &[ZONAL_OK, ZONAL_INVALID_ARGUMENT],
            None => &[ZONAL_NOT_A_POOL, ZONAL_INVALID_ARGUMENT],
        };
        self.expect("reclaim", status, possible);
    }
}
