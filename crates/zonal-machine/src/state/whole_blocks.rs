//! How many aligned ranges of 1 GiB a node could give in one piece, from `/proc/kpageflags`.
//!
//! The lists of free blocks end at 4 MiB, so they say nothing about larger pieces. A range can be had if every frame in it
//! is free or can be moved. Frames in pagesets look like frames of the kernel, so the count is a lower bound.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use zonal::units::NodeId;
use zonal_model::MachineModel;

/// Bits of `/proc/kpageflags`, from the kernel's `Documentation/admin-guide/mm/pagemap.rst`.
const LRU: u64 = 1 << 5;
const BUDDY: u64 = 1 << 10;
const UNEVICTABLE: u64 = 1 << 18;
const NO_PAGE: u64 = 1 << 20;
const THP: u64 = 1 << 22;
const OFFLINE: u64 = 1 << 23;

const GIB: u64 = 1 << 30;
const ENTRY_BYTES: usize = 8;

/// Counts the aligned ranges of 1 GiB in which every frame is free or movable, for each online node. The model must have
/// this machine's zones where the kernel has them.
///
/// # Errors
/// When `/proc/kpageflags` cannot be read, which takes the superuser.
pub fn whole_gib(model: &MachineModel) -> io::Result<Vec<(NodeId, u64)>> {
    let flags = File::open("/proc/kpageflags")?;
    let frames = GIB / u64::from(model.page_bytes);
    let node = |id| {
        let mut count = 0;
        for zone in model.zones_of(id) {
            let (start, end) = (zone.start.get(), zone.start.get() + zone.spanned.get());
            let mut at = start.next_multiple_of(frames);
            while at + frames <= end {
                count += u64::from(is_movable(&flags, at, frames)?);
                at += frames;
            }
        }
        Ok((id, count))
    };
    model.online_nodes().map(|online| node(online.id)).collect()
}

fn is_movable(flags: &File, start: u64, frames: u64) -> io::Result<bool> {
    let mut part = vec![0; 64 << 10];
    let end = (start + frames) * ENTRY_BYTES as u64;
    let mut at = start * ENTRY_BYTES as u64;
    while at < end {
        let wanted = part.len().min((end - at) as usize);
        let read = flags.read_at(&mut part[..wanted], at)?;
        let whole = read - read % ENTRY_BYTES;
        // The file ends with the last frame.
        if whole == 0 || !entries(&part[..whole]).all(can_move) {
            return Ok(false);
        }
        at += whole as u64;
    }
    Ok(true)
}

fn entries(bytes: &[u8]) -> impl Iterator<Item = u64> + '_ {
    bytes.chunks_exact(ENTRY_BYTES).map(|entry| u64::from_ne_bytes(entry.try_into().unwrap_or_default()))
}

const fn can_move(flags: u64) -> bool {
    flags & (NO_PAGE | OFFLINE) == 0 && flags & (BUDDY | LRU | UNEVICTABLE | THP) != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_and_movable_frames() {
        assert!(can_move(BUDDY) && can_move(LRU | 1) && can_move(THP) && can_move(UNEVICTABLE));
        assert!(!can_move(0) && !can_move(1 << 7) && !can_move(NO_PAGE) && !can_move(BUDDY | OFFLINE));
    }
}
