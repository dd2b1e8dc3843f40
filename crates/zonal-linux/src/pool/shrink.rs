//! Shrinks and grows a running pool by whole parts of its zones.
//!
//! A *part* is the unit in which memory leaves and comes back: 2 MiB, or more in very large pools and in pools of larger
//! pages. Related files: `pool/change.rs` takes a given range offline, and brings it online.

use std::cmp::Reverse;
use std::io;

use zonal::error::{OnlineError, UsedFrames};
use zonal::machine::FrameRange;
use zonal::units::{PageCount, Pfn};

use super::change::{OfflineError, OnlineMemoryError};
use super::emit::emit;
use super::handle::Pool;
use crate::topology::limits::available_bytes;

/// Maximum number of parts in a pool, so that a search of all parts takes a few seconds at most.
const PARTS_MAX: u64 = 1 << 16;
const PART_BYTES_MIN: u64 = 2 << 20;
/// Maximum number of blocks that an error lists.
const LISTED_MAX: usize = 64;

/// Why a pool did not shrink as far as requested.
#[derive(Debug, thiserror::Error)]
pub enum ShrinkError {
    /// Too many frames are in use, in every part of the pool.
    #[error(
        "{done} of {asked} bytes were returned to the kernel; the rest is in use, for example the block ({example}); \
         free frames, or register a reclaimer that does",
        example = Listed(in_use)
    )]
    InUse {
        /// Bytes to return.
        asked: u64,
        /// Bytes that were returned.
        done: u64,
        /// The first blocks and runs that stayed, at most 64.
        in_use: Vec<UsedFrames>,
    },
    /// The kernel did not take the memory of a range back, which is offline; or the pool cannot shrink, because processes share
    /// it.
    #[error("{done} of {asked} bytes were returned to the kernel; {why}")]
    NotReturned {
        /// Bytes to return.
        asked: u64,
        /// Bytes that were returned before this range.
        done: u64,
        /// Bytes that are offline: `done`, and this range.
        offline: u64,
        /// The reason.
        why: OfflineError,
    },
}

/// Why a pool did not grow.
#[derive(Debug, thiserror::Error)]
pub enum GrowError {
    /// The pool has too little memory offline; it has not grown.
    #[error("the pool cannot grow by {asked} bytes; {available} of its {max} bytes are offline")]
    TooLarge {
        /// Bytes to bring online.
        asked: u64,
        /// Bytes that are offline.
        available: u64,
        /// Size of the pool with all its memory online, in bytes.
        max: u64,
    },
    /// The system has less memory available; the pool has not grown.
    #[error("the pool cannot grow by {asked} bytes; {available} bytes are available")]
    NotAvailable {
        /// Bytes to bring online.
        asked: u64,
        /// Bytes available.
        available: u64,
    },
    /// The kernel has too little memory.
    #[error("the pool grew by {done} of {asked} bytes; the kernel has no more memory: {why}")]
    NoMemory {
        /// Bytes to bring online.
        asked: u64,
        /// Bytes that came online.
        done: u64,
        /// The kernel's error.
        why: io::Error,
    },
}

/// Shows the first of some blocks.
struct Listed<'a>(&'a [UsedFrames]);

impl std::fmt::Display for Listed<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0.first() {
            Some(used) => write!(f, "{}", used.block),
            None => f.write_str("freed meanwhile"),
        }
    }
}

impl Pool {
    /// Returns at least `bytes` of the pool's memory to the kernel, and returns how many bytes.
    ///
    /// The pool tries each part once, those with the fewest frames in use first. It calls reclaimers for the part, takes it
    /// offline, and returns its memory. Other threads can allocate and free meanwhile; frames of a part that is leaving are not
    /// allocated again. Parts are of 2 MiB, or larger if the pool has larger pages or more than 128 GiB. [`Pool::grow`]
    /// brings the memory back.
    ///
    /// ```
    /// # use zonal_linux::Pool;
    /// let pool = Pool::builder().size(64 << 20).build()?;
    /// let returned = pool.shrink(16 << 20)?;
    /// assert!(returned >= 16 << 20);
    /// assert_eq!(pool.accounting().managed.get() * 4096, (64 << 20) - returned);
    /// assert_eq!(pool.grow(returned)?, returned);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`ShrinkError::NotReturned`] when the kernel refuses, or processes share the pool; [`ShrinkError::InUse`] when too many
    /// frames stay in use. What has been returned until then stays offline. Each part
    /// that could not be emptied is online as before.
    pub fn shrink(&self, bytes: u64) -> Result<u64, ShrinkError> {
        self.shrink_with(bytes, |_| {})
    }

    /// Shrinks the pool like [`Pool::shrink`]; `mover` moves what reclaimers leave in use, as for
    /// [`Pool::offline_memory_with`].
    ///
    /// # Errors
    /// The errors of [`Pool::shrink`].
    pub fn shrink_with(&self, bytes: u64, mut mover: impl FnMut(UsedFrames)) -> Result<u64, ShrinkError> {
        let (allocator, page_bytes) = (self.core.allocator(), self.page_bytes() as u64);
        let mut online = Vec::new();
        // Less than a unit of the kernel's memory would not be returned.
        let least = self.core.memory().unit_frames();
        self.parts().for_each(|part| self.add_ranges(part, PartState::Online, least, &mut online));
        let mut parts: Vec<(PageCount, FrameRange)> =
            online.into_iter().map(|part| (allocator.count_free(part), part)).collect();
        parts.sort_by_key(|&(free, part)| (Reverse(free), Reverse(part.start)));
        let (mut done, mut in_use) = (0, Vec::new());
        for (_, part) in parts {
            if done >= bytes {
                break;
            }
            match self.offline_memory_with(part, &mut mover) {
                Ok(()) => done += part.count.get() * page_bytes,
                // Another thread has fenced the part, or has taken it offline.
                Err(OfflineError::Refused(OnlineError::Fenced { .. } | OnlineError::NotOnline(_))) => {}
                Err(why @ OfflineError::Refused(OnlineError::Shared)) => {
                    return Err(ShrinkError::NotReturned { asked: bytes, done, offline: done, why });
                }
                Err(OfflineError::Refused(_)) if in_use.len() == LISTED_MAX => {}
                Err(OfflineError::Refused(_)) => allocator.for_each_used(part, |used| {
                    if in_use.len() < LISTED_MAX {
                        in_use.push(used);
                    }
                }),
                Err(why @ OfflineError::NotReturned { .. }) => {
                    self.report_shrunk(bytes, done);
                    let offline = done + part.count.get() * page_bytes;
                    return Err(ShrinkError::NotReturned { asked: bytes, done, offline, why });
                }
            }
        }
        self.report_shrunk(bytes, done);
        if done >= bytes { Ok(done) } else { Err(ShrinkError::InUse { asked: bytes, done, in_use }) }
    }

    /// Brings at least `bytes` of the pool's offline memory online, and returns how many bytes.
    ///
    /// The memory is divided over the zones in proportion to their offline parts. Other calls that change which memory is
    /// online, and [`Pool::trim`], wait until this one has ended. The call adds no [`Warning::Overcommitted`](crate::Warning::Overcommitted), but
    /// pools that are built later count the memory.
    ///
    /// # Errors
    /// [`GrowError::TooLarge`] when less memory is offline, [`GrowError::NotAvailable`] when less memory is
    /// [available](crate::available_bytes); nothing has changed then. [`GrowError::NoMemory`] when the kernel has too
    /// little memory, which is possible as for [`Pool::online_memory`].
    pub fn grow(&self, bytes: u64) -> Result<u64, GrowError> {
        // Other threads cannot bring the listed parts online before this one does.
        let alone = self.core.hotplug.lock();
        let parts = self.parts_to_grow(bytes)?;
        let (mut online, mut done, mut refused) = (Vec::new(), 0, None);
        for part in parts {
            if done >= bytes {
                break;
            }
            match self.online_alone(&alone, part) {
                Ok(()) => {
                    done += part.count.get() * self.page_bytes() as u64;
                    online.push(part);
                }
                Err(OnlineMemoryError::Refused(_)) => {} // `Pool::allocator` forbids what would refuse it
                Err(OnlineMemoryError::NoMemory(why)) => {
                    refused = Some(why);
                    break;
                }
            }
        }
        drop(alone);
        online.into_iter().for_each(|part| self.report_online(part));
        self.report_grown(bytes, done);
        refused.map_or(Ok(done), |why| Err(GrowError::NoMemory { asked: bytes, done, why }))
    }

    /// Returns the offline parts of all zones, in the order in which they come online, if they have `bytes` that the system
    /// has too.
    fn parts_to_grow(&self, bytes: u64) -> Result<Vec<FrameRange>, GrowError> {
        let page_bytes = self.page_bytes() as u64;
        let mut offline = Vec::new();
        let least = PageCount::new(1);
        self.parts().for_each(|part| self.add_ranges(part, PartState::Offline, least, &mut offline));
        let available = offline.iter().map(|part| part.count.get()).sum::<u64>() * page_bytes;
        if available < bytes {
            let max = self.frames().get() * page_bytes;
            return Err(GrowError::TooLarge { asked: bytes, available, max });
        }
        let parts = spread(&offline, |part| self.ranges().position(|zone| zone.frames.contains(part)));
        // Where the system does not report its memory, the pool grows without this check.
        let needed = self.available_bytes_needed(&parts, bytes);
        match available_bytes().ok().filter(|&available| available < needed) {
            Some(available) => Err(GrowError::NotAvailable { asked: bytes, available }),
            None => Ok(parts),
        }
    }

    fn report_shrunk(&self, asked: u64, bytes: u64) {
        if bytes > 0 {
            emit!(self.core.platform(), INFO, asked, bytes, "pool shrunk");
        }
    }

    fn report_grown(&self, asked: u64, bytes: u64) {
        if bytes > 0 {
            emit!(self.core.platform(), INFO, asked, bytes, "pool grown");
        }
    }

    /// Returns all parts of all zones, online or not. The last part of a zone may be smaller.
    fn parts(&self) -> impl Iterator<Item = FrameRange> + '_ {
        let least = (PART_BYTES_MIN / self.page_bytes() as u64).max(1);
        let wanted = self.frames().get().div_ceil(PARTS_MAX).next_power_of_two();
        let step = wanted.max(least).max(self.core.memory().unit_frames().get());
        self.ranges().flat_map(move |zone| {
            let (start, end) = (zone.frames.start.get(), zone.frames.end().get());
            (start..end).step_by(step as usize).map(move |first| FrameRange {
                start: Pfn::new(first),
                count: PageCount::new(step.min(end - first)),
            })
        })
    }

    /// Returns how much of the first `bytes` bytes in `parts` the kernel takes from the available memory. Explicit huge
    /// pages come from the kernel's reserve, which does not count as available.
    fn available_bytes_needed(&self, parts: &[FrameRange], bytes: u64) -> u64 {
        let zones = self.core.memory().zones();
        let comes_on_use =
            |part: &FrameRange| zones.iter().any(|zone| zone.comes_on_use() && zone.range.contains(part));
        let (mut left, mut needed) = (bytes, 0);
        for part in parts {
            let of_part = left.min(part.count.get() * self.page_bytes() as u64);
            left -= of_part;
            needed += if comes_on_use(part) { of_part } else { 0 };
        }
        needed
    }

    /// Adds the ranges of `range` that are in `state` as a whole to `found`. Ranges are divided if they have more than
    /// `least` frames.
    fn add_ranges(&self, range: FrameRange, state: PartState, least: PageCount, found: &mut Vec<FrameRange>) {
        let online = self.core.allocator().online_frames(range);
        let count = match state {
            PartState::Online => online,
            PartState::Offline => range.count.saturating_minus(online),
        };
        if count == range.count {
            found.push(range);
        } else if count > PageCount::ZERO && range.count > least {
            let half = PageCount::new(range.count.get() / 2);
            self.add_ranges(FrameRange { start: range.start, count: half }, state, least, found);
            let rest =
                FrameRange { start: range.start.plus(half), count: range.count.saturating_minus(half) };
            self.add_ranges(rest, state, least, found);
        }
    }
}

/// Whether a part of a pool is online.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum PartState {
    Online,
    Offline,
}

/// Orders ranges so that every prefix has about the same share of each group.
fn spread(ranges: &[FrameRange], group: impl Fn(&FrameRange) -> Option<usize>) -> Vec<FrameRange> {
    let mut groups: Vec<(Option<usize>, Vec<FrameRange>)> = Vec::new();
    for &range in ranges {
        let of = group(&range);
        match groups.iter_mut().find(|(known, _)| *known == of) {
            Some((_, ranges)) => ranges.push(range),
            None => groups.push((of, vec![range])),
        }
    }
    let placed = groups.iter().flat_map(|(_, ranges)| {
        let last = ranges.len();
        ranges.iter().enumerate().map(move |(at, &range)| ((at << 32) / last, range))
    });
    let mut placed: Vec<_> = placed.collect();
    placed.sort_by_key(|&(place, range)| (place, range.start));
    placed.into_iter().map(|(_, range)| range).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_of_groups_alternate_by_their_share() {
        let range = |start| FrameRange { start: Pfn::new(start), count: PageCount::new(1) };
        let ranges: Vec<FrameRange> = [0, 1, 2, 3, 100, 101].map(range).to_vec();
        let spread = spread(&ranges, |range| Some(usize::from(range.start.get() >= 100)));
        assert_eq!(spread, [0, 100, 1, 2, 101, 3].map(range));
    }
}
