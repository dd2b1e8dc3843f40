//! The state of pools: where memory is, zones, snapshots as text, and explanations of requests.

use std::ffi::{c_char, c_void};
use std::fmt::Write;
use std::os::fd::AsRawFd;

use zonal_linux::{Locality, Pfn, Pool, PoolRequest, ZoneSnapshot};

use crate::arguments::{Output, check_pointer, node_id, sized, write_text};
use crate::blocks::check_mapped;
use crate::handle::with_pool;
use crate::request::{or_page, with_request};
use crate::status::{Failure, Status, call, zonal_status};
use crate::types::{
    ZONAL_SNAPSHOT_BUDDYINFO, ZONAL_SNAPSHOT_FALLBACK_LISTS, ZONAL_SNAPSHOT_JSON, ZONAL_SNAPSHOT_VMSTAT,
    ZONAL_SNAPSHOT_ZONEINFO, zonal_location, zonal_pool, zonal_request, zonal_residency, zonal_zone,
};

/// Returns the location of a page, if the pool has it.
fn location(pool: &Pool, frame: Pfn) -> Option<zonal_location> {
    let zone = pool
        .ranges()
        .find(|zone| frame.offset_from(zone.frames.start).is_some_and(|offset| offset < zone.frames.count))?;
    // SAFETY: this only finds out which file has the page.
    let files = unsafe { pool.memory_files() };
    let place =
        files.into_iter().find_map(|file| Some((file.descriptor().as_raw_fd(), file.offset_of(frame)?)));
    let (file, file_offset) = place.unwrap_or((-1, 0));
    Some(zonal_location {
        struct_size: size_of::<zonal_location>(),
        address: pool.ptr_of(frame).map_or(std::ptr::null_mut(), |at| at.as_ptr().cast::<c_void>()),
        frame: frame.get(),
        file_offset,
        file,
        node: zone.node.get(),
        reserved: 0,
    })
}

/// Stores what is known about the page that contains an address of a pool, whether it is allocated or not.
///
/// # Safety
/// `location` must point to a structure whose `struct_size` is set. The address is not accessed.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zonal_pool_locate(
    pool: zonal_pool,
    address: *const c_void,
    location: *mut zonal_location,
) -> zonal_status {
    call(|| {
        // SAFETY: guaranteed by the caller.
        unsafe { sized("location", location) }?;
        let found = with_pool(pool, |pool| {
            let frame = pool.pfn_of(address.cast::<u8>());
            frame.and_then(|frame| self::location(pool, frame)).ok_or_else(|| {
                Failure::new(
                    Status::ZONAL_NOT_ALLOCATED,
                    format_args!("{address:?} is not memory of the pool"),
                )
            })
        })?;
        // SAFETY: as above, and the size is right.
        unsafe { location.write(found) };
        Ok(())
    })
}

/// Stores what is known about a page with this number in a pool, whether it is allocated or not.
///
/// # Safety
/// `location` must point to a structure whose `struct_size` is set.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zonal_pool_locate_frame(
    pool: zonal_pool,
    frame: u64,
    location: *mut zonal_location,
) -> zonal_status {
    call(|| {
        // SAFETY: guaranteed by the caller.
        unsafe { sized("location", location) }?;
        let found = with_pool(pool, |pool| {
            self::location(pool, Pfn::new(frame)).ok_or_else(|| {
                Failure::new(Status::ZONAL_NOT_ALLOCATED, format_args!("the pool has no page {frame}"))
            })
        })?;
        // SAFETY: as above, and the size is right.
        unsafe { location.write(found) };
        Ok(())
    })
}

fn zone_of(pool: &Pool, zone: &ZoneSnapshot) -> zonal_zone {
    let Locality { hit, miss, foreign, .. } = zone.locality;
    let address = pool.ptr_of(zone.span.start);
    zonal_zone {
        struct_size: size_of::<zonal_zone>(),
        node: zone.node.get(),
        reserved: [0; 3],
        address: address.map_or(std::ptr::null_mut(), |at| at.as_ptr().cast::<c_void>()),
        first_frame: zone.span.start.get(),
        spanned: zone.span.count.get(),
        managed: zone.managed.get(),
        free: zone.free.get(),
        in_pagesets: zone.in_pagesets.get(),
        watermark_min: zone.watermarks.min.get(),
        watermark_low: zone.watermarks.low.get(),
        watermark_high: zone.watermarks.high.get(),
        hits: hit,
        misses: miss,
        foreign,
    }
}

/// Stores the state of a pool's zone. Zones have the indices from 0; beyond the last one, the call fails with
/// `ZONAL_INVALID_ARGUMENT` and a message with their number.
///
/// # Safety
/// `zone` must point to a structure whose `struct_size` is set.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zonal_pool_zone(
    pool: zonal_pool,
    index: usize,
    zone: *mut zonal_zone,
) -> zonal_status {
    call(|| {
        // SAFETY: guaranteed by the caller.
        unsafe { sized("zone", zone) }?;
        let found = with_pool(pool, |pool| {
            pool.zones().nth(index).map(|found| zone_of(pool, &found)).ok_or_else(|| {
                let count = pool.zones().count();
                Failure::invalid(format_args!("there is no zone {index}; the pool has {count}"))
            })
        })?;
        // SAFETY: as above, and the size is right.
        unsafe { zone.write(found) };
        Ok(())
    })
}

/// Stores a pool's zone count.
///
/// # Safety
/// `count` must point to a number.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zonal_pool_zones(pool: zonal_pool, count: *mut usize) -> zonal_status {
    call(|| {
        check_pointer("count", count)?;
        let zones = with_pool(pool, |pool| Ok(pool.zones().count()))?;
        // SAFETY: guaranteed by the caller.
        unsafe { count.write(zones) };
        Ok(())
    })
}

/// Asks the kernel where a pool's memory on a node is, page by page, and stores the result. It takes about 10 ms for
/// each GiB.
///
/// Fails with `ZONAL_UNKNOWN` if the kernel denies `move_pages(2)`. For emulated nodes, `misplaced` says nothing.
///
/// # Safety
/// `residency` must point to a structure whose `struct_size` is set.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zonal_pool_residency(
    pool: zonal_pool,
    node: u16,
    residency: *mut zonal_residency,
) -> zonal_status {
    call(|| {
        // SAFETY: guaranteed by the caller.
        unsafe { sized("residency", residency) }?;
        let node = node_id(node)?;
        let all = with_pool(pool, |pool| {
            check_mapped(pool)?;
            pool.residency().map_err(|why| {
                let why = format_args!("the kernel does not say where the memory is: move_pages(2): {why}");
                Failure::new(Status::ZONAL_UNKNOWN, why)
            })
        })?;
        let found = all
            .iter()
            .find(|one| one.node == node)
            .ok_or_else(|| Failure::invalid(format_args!("the pool has no memory on node {node}")))?;
        let filled = zonal_residency {
            struct_size: size_of::<zonal_residency>(),
            bytes: found.bytes,
            on_node: found.on_node(),
            misplaced: found.misplaced(),
            absent: found.pages.absent,
            unknown: found.pages.unknown,
        };
        // SAFETY: as above, and the size is right.
        unsafe { residency.write(filled) };
        Ok(())
    })
}

/// Stores how many bytes of a pool the kernel now backs with huge pages, whatever their kind. Fails with
/// `ZONAL_UNKNOWN` if `/proc/self/smaps` cannot be read.
///
/// # Safety
/// `bytes` must point to a number.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zonal_pool_huge_page_bytes(pool: zonal_pool, bytes: *mut u64) -> zonal_status {
    call(|| {
        check_pointer("bytes", bytes)?;
        let found = with_pool(pool, |pool| {
            let backing = pool.backing().map_err(|why| {
                Failure::new(Status::ZONAL_UNKNOWN, format_args!("/proc/self/smaps cannot be read: {why}"))
            })?;
            Ok(backing.transparent_huge + backing.explicit_huge)
        })?;
        // SAFETY: guaranteed by the caller.
        unsafe { bytes.write(found) };
        Ok(())
    })
}

/// Writes the state of a pool as text, and stores the length of the whole text in `needed` if that is not null. `format` is
/// one of `ZONAL_SNAPSHOT_*`.
///
/// The text in `buffer` is cut to `len - 1` bytes and ends with a zero.
///
/// # Safety
/// `buffer` must be null, or have room for `len` bytes. `needed` must be null, or point to a number.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zonal_pool_snapshot(
    pool: zonal_pool,
    format: u32,
    buffer: *mut c_char,
    len: usize,
    needed: *mut usize,
) -> zonal_status {
    call(|| {
        let text = with_pool(pool, |pool| {
            let snapshot = pool.snapshot();
            Ok(match format {
                ZONAL_SNAPSHOT_JSON => pool.snapshot_json(),
                ZONAL_SNAPSHOT_ZONEINFO => snapshot.zoneinfo().to_string(),
                ZONAL_SNAPSHOT_BUDDYINFO => snapshot.buddyinfo().to_string(),
                ZONAL_SNAPSHOT_VMSTAT => snapshot.vmstat().to_string(),
                ZONAL_SNAPSHOT_FALLBACK_LISTS => snapshot.fallback_lists().to_string(),
                _ => {
                    return Err(Failure::invalid(format_args!(
                        "format is {format}; values are ZONAL_SNAPSHOT_*, 0 to 4"
                    )));
                }
            })
        })?;
        // SAFETY: guaranteed by the caller.
        unsafe { write_text(&text, buffer, len, needed) }
    })
}

/// Writes the steps that a request would take now on the calling CPU as text, a line for each, and stores the length of the
/// whole text in `needed` if that is not null. Nothing is allocated. A block larger than the largest aligned block has no steps, and
/// is refused.
///
/// The text in `buffer` is cut to `len - 1` bytes and ends with a zero.
///
/// # Safety
/// `request` must be null, for one page near the calling CPU, or point to a request. `buffer` must be null, or have room for
/// `len` bytes. `needed` must be null, or point to a number.
// SAFETY: no other symbol has this name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn zonal_explain(
    pool: zonal_pool,
    request: *const zonal_request,
    buffer: *mut c_char,
    len: usize,
    needed: *mut usize,
) -> zonal_status {
    call(|| {
        // SAFETY: guaranteed by the caller.
        let request = unsafe { or_page(request) }?;
        // SAFETY: guaranteed by the caller.
        let mut output = unsafe { Output::new(buffer, len) };
        with_pool(pool, |found| {
            let explain = |wanted: &PoolRequest<'_>| {
                let bytes = request.bytes.max(request.alignment);
                let too_large =
                    || Failure::invalid(format_args!("bytes is {bytes}, more than the largest block"));
                let wanted = wanted.with_order(found.order_holding(bytes.max(1)).ok_or_else(too_large)?);
                // No text that is displayed fails.
                let served = found.explain(&wanted, |step| writeln!(output, "{step}").unwrap_or(()));
                let written = match served.map_err(Failure::invalid)? {
                    Some(zone) => writeln!(output, "served by {zone}"),
                    None => writeln!(output, "not served"),
                };
                written.ok();
                Ok(())
            };
            // SAFETY: guaranteed by the caller.
            unsafe { with_request(pool, found, request, explain) }
        })?;
        // SAFETY: guaranteed by the caller.
        unsafe { output.end(needed) }
    })
}
