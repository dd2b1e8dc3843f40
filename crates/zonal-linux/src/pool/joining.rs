//! Pools that processes share: one process makes the pool in a file, and others join it.
//!
//! Related files: `pool/description.rs` describes a pool in its file, `memory/pool_file.rs` has the file, `pool/members.rs` the
//! processes, `pool/core.rs` makes or joins the allocator.

use std::io;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::Arc;

use zonal::rules::stat_threshold::ThresholdRule;
use zonal::units::{PageCount, Pfn};
use zonal::{Config, Layout};

use super::core::{PoolCore, with_machine};
use super::description::Description;
use super::entered::Entered;
use super::handle::Pool;
use super::members::{Membership, Part};
use super::platform::LinuxPlatform;
use crate::error::{PoolError, SharedError, Warnings};
use crate::memory::page_sizes::os_page_bytes;
use crate::memory::plan::ZonePlan;
use crate::memory::pool_file::{FilePlace, FileSizes, PoolFile, after_text};
use crate::memory::zones::{MapOptions, PoolMemory, Sharing, no_huge_pages};
use crate::sequences::Sequences;
use crate::shared_name::SharedName;
use crate::topology::Topology;

impl Pool {
    /// Joins the pool that another process shares at `path`, or has published on a socket there ([`Pool::publish`]), and takes part
    /// in it until this pool and its frames are dropped.
    ///
    /// Every process allocates and frees as in a pool of its own, and may free what another has allocated. When a process
    /// ends, in whatever way, what it holds is given back; frames that it has handed over stay
    /// ([`Pool::take_over`]). Frames have the same numbers in all processes, but other addresses.
    ///
    /// # Errors
    /// [`PoolError::Shared`] if the file is not that of a pool which this process can join, or enough processes share it.
    pub fn join(path: impl AsRef<Path>) -> Result<Self, PoolError> {
        joined_at(path.as_ref(), None)
    }

    /// Joins a pool like [`Pool::join`], under a name with which blocks outlive the process: they stay allocated, with their
    /// contents, when it ends in whatever way, and the next process that joins under the name has them.
    ///
    /// It finds them by roots ([`Pool::root`]) and with [`Pool::for_each_held`], and owns them with
    /// [`Pool::own_frames_raw`]. An operation that was under way when the process died may be done or not.
    ///
    /// # Errors
    /// Those of [`Pool::join`], and [`SharedError::NameInUse`] while a process of this name lives.
    pub fn join_as(path: impl AsRef<Path>, name: &str) -> Result<Self, PoolError> {
        joined_at(path.as_ref(), Some(SharedName::new(name).ok_or(SharedError::Name)?))
    }

    /// Joins the pool of a descriptor like [`Pool::join_file`], under a name like [`Pool::join_as`].
    ///
    /// # Errors
    /// Those of [`Pool::join_as`].
    pub fn join_file_as(fd: BorrowedFd<'_>, name: &str) -> Result<Self, PoolError> {
        let name = SharedName::new(name).ok_or(SharedError::Name)?;
        let (file, text) = PoolFile::of_descriptor(fd)?;
        joined(file, &text, Some(name))
    }

    /// Joins the pool whose file this descriptor has ([`Pool::shared_file`]), like [`Pool::join`].
    ///
    /// # Errors
    /// Those of [`Pool::join`].
    pub fn join_file(fd: BorrowedFd<'_>) -> Result<Self, PoolError> {
        let (file, text) = PoolFile::of_descriptor(fd)?;
        joined(file, &text, None)
    }

    /// Returns the file of a shared pool, with which other processes can join; `None` for other pools.
    #[must_use]
    pub fn shared_file(&self) -> Option<BorrowedFd<'_>> {
        self.core.members().map(Membership::descriptor)
    }

    /// Makes this process the holder of `count` frames from `first`, which any process in a shared pool has allocated together: they are then not given back when that process ends. Does nothing in other pools.
    ///
    /// # Errors
    /// When exactly these frames are not allocated together, or in a signal handler whose thread it interrupted in a call of a
    /// pool.
    pub fn take_over(&self, first: Pfn, count: PageCount) -> Result<(), zonal::error::FreeError> {
        self.core.allocator().take_over(first, count)
    }
}

/// Builds a pool that processes share, which they can join once it is [`published`].
pub(super) fn build(
    (place, name): (&FilePlace, Option<SharedName>),
    topology: Topology,
    plans: &[ZonePlan],
    config: Config,
    options: MapOptions,
    sequences: Option<Sequences>,
    mut warnings: Warnings,
) -> Result<Pool, PoolError> {
    if topology.has_emulated_cpus() {
        return Err(SharedError::Option("emulated CPUs, because a process cannot act as one").into());
    }
    let options = MapOptions { sharing: Sharing::Pool, ..options };
    let mut description = Description::of_new(&topology, plans, config, options);
    let buffers = buffer_bytes(&topology, &description)?.iter().sum();
    // A process that joins must have the same configuration.
    let read =
        Description::parse(&description.text()).map(|read| Config { past: config.past, ..read.config });
    if read != Some(config) {
        return Err(SharedError::Option(if matches!(config.counters.threshold, ThresholdRule::Form(_)) {
            "a form as `counters.threshold`, which is code of one process; use `Scaled` or `Fixed`"
        } else if config.watermarks.min_free.is_some() {
            "this `watermarks.min_free`, which is too large; use less than the pool's size"
        } else {
            "this configuration, which other processes could not read"
        })
        .into());
    }
    let mut made = None;
    for &size in options.huge_pages.explicit_sizes() {
        let sizes = description.place_zones(Some(size), buffers);
        let mut of_size = Warnings::default();
        match make(place, &description, sizes, options, &mut of_size) {
            Ok(parts) => {
                of_size.into_vec().into_iter().for_each(|warning| warnings.add(warning));
                made = Some(parts);
                break;
            }
            // The file system decides.
            Err(why) if *place != FilePlace::Memory => return Err(why),
            Err(why) => {
                let mut before = sizes.meta / size.bytes(); // pages before the first zone
                for plan in plans {
                    let missing = no_huge_pages(size, plan, options, &io::Error::other(why.to_string()));
                    warnings.add(missing.with_needed(std::mem::take(&mut before) as u64));
                }
            }
        }
    }
    let (file, memory) = match made {
        Some(made) => made,
        None => {
            let sizes = description.place_zones(None, buffers);
            make(place, &description, sizes, options, &mut warnings)?
        }
    };
    let members = Entered::enter(file, config.processes, name)?;
    let table = members.table()?;
    let text_end = after_text(description.text().len()).next_multiple_of(os_page_bytes());
    let part = (Arc::clone(&members), text_end, Part::First);
    let core = PoolCore::new(topology, memory, &config, options, sequences, warnings, Some(part))?;
    let begun = members.begin(name, |process, on_death| core.allocator().set_on_death(process, on_death));
    drop(table); // before an error drops `core`, which locks it to leave
    begun?;
    Pool::start(core)
}

/// Lets other processes find and join the pool that this one has built.
pub(super) fn published(pool: Pool) -> Result<Pool, PoolError> {
    pool.core.members().map_or(Ok(()), Membership::publish)?;
    Ok(pool)
}

/// Makes the file of a pool that processes share; returns it with the memory of its zones.
fn make(
    place: &FilePlace,
    description: &Description,
    sizes: FileSizes,
    options: MapOptions,
    warnings: &mut Warnings,
) -> Result<(PoolFile, PoolMemory), PoolError> {
    let file = PoolFile::create(place, sizes, &description.text())?;
    let memory = PoolMemory::map_file(&description.zones, file.descriptor(), options, warnings)?;
    file.reserve_zones(sizes)?;
    Ok((file, memory))
}

/// Joins the pool at a path, which errors name.
fn joined_at(path: &Path, name: Option<SharedName>) -> Result<Pool, PoolError> {
    let opened = PoolFile::open(path).map_err(PoolError::from);
    opened.and_then(|(file, text)| joined(file, &text, name)).map_err(|error| error.at(path))
}

fn joined(file: PoolFile, text: &str, name: Option<SharedName>) -> Result<Pool, PoolError> {
    let core = joined_core(file, text, name)?;
    // If the table is locked, the pool's own thread does it.
    if let Some(members) = core.members() {
        _ = members.recover_dead(Membership::free_table, |process| core.allocator().recover(process));
    }
    Pool::start(core)
}

/// Joins a pool without its threads.
fn joined_core(file: PoolFile, text: &str, name: Option<SharedName>) -> Result<Arc<PoolCore>, PoolError> {
    let corrupt = SharedError::Corrupt("its description is damaged");
    let description = Description::parse(text).ok_or(corrupt)?;
    let page = os_page_bytes();
    if (description.config.page_bytes as usize) < page {
        return Err(SharedError::Pages { found: description.config.page_bytes.into(), page }.into());
    }
    if !description
        .zones
        .iter()
        .all(|zone| file.has_zone(zone.offset, zone.range.count.get(), description.config.page_bytes))
    {
        return Err(SharedError::Corrupt("its zones do not fit in it").into());
    }
    let topology = Topology::described(description.nodes.clone(), description.is_divided);
    let text_end = after_text(text.len()).next_multiple_of(page);
    let buffers: usize = buffer_bytes(&topology, &description)?.iter().sum();
    if text_end + buffers > file.meta().bytes() {
        return Err(SharedError::Corrupt("its metadata is too short").into());
    }
    let config = description.config;
    let members = Entered::enter(file, config.processes, name)?;
    let table = members.table()?;
    let options = MapOptions {
        page_bytes: config.page_bytes,
        max_order: config.max_order,
        huge_pages: description.huge_pages,
        binding: description.binding,
        sharing: Sharing::Pool,
    };
    let mut warnings = Warnings::default();
    let memory = PoolMemory::map_file(&description.zones, members.descriptor(), options, &mut warnings)?;
    let part = (Arc::clone(&members), text_end, Part::Further);
    let core = PoolCore::new(topology, memory, &config, options, None, warnings, Some(part))?;
    let begun = members.begin(name, |process, on_death| core.allocator().set_on_death(process, on_death));
    drop(table); // before an error drops `core`, which locks it to leave
    begun?;
    Ok(core)
}

/// Returns the sizes of the allocator's buffers in the file, in their order.
fn buffer_bytes(topology: &Topology, description: &Description) -> Result<Vec<usize>, PoolError> {
    let zones: Vec<_> =
        description.zones.iter().map(|zone| (zone.node, zone.kind, zone.range, zone.range.count)).collect();
    with_machine(topology, &zones, description.config.processes, |machine| {
        let layout = Layout::new(machine, &description.config)?;
        let requests =
            layout.requests::<LinuxPlatform>().filter(|request| request.place != zonal::layout::Place::Local);
        Ok(requests.map(|request| request.bytes.next_multiple_of(os_page_bytes())).collect())
    })
}

#[cfg(test)]
mod tests {
    use zonal::error::FreeError;
    use zonal::platform::Platform as _;
    use zonal::units::{Moment, Order};

    use super::*;
    use crate::pool::request::PoolRequest;
    use crate::threads::reentrancy::Inside;

    /// A stall or a setting may record a time before the thread runs that keeps the clock.
    #[test]
    fn a_process_that_joins_has_the_time_before_its_threads_run() {
        let pool = Pool::builder().size(16 << 20).shared_by_descriptor().build().unwrap();
        let (file, text) = PoolFile::of_descriptor(pool.shared_file().unwrap()).unwrap();
        let core = joined_core(file, &text, None).unwrap();
        assert_ne!(core.platform().now(), Moment::from_ns(0));
    }

    /// As a handler that interrupts a call which holds the handover lock, or waits for it.
    #[test]
    fn no_take_over_waits_for_its_own_thread() {
        let pool = Pool::builder().size(64 << 20).shared_by_descriptor().build().unwrap();
        let other = Pool::join_file(pool.shared_file().unwrap()).unwrap();
        for order in [0, 4].map(|order| Order::new(order).unwrap()) {
            for holder in [&pool, &other] {
                let block = holder.alloc_raw(&PoolRequest::new(order)).unwrap();
                let take_over = || pool.take_over(block.first, order.pages());
                let inside = Inside::enter();
                assert_eq!(take_over(), Err(FreeError::Reentered(block.first)));
                drop(inside);
                assert_eq!(take_over(), Ok(()));
                // SAFETY: nothing uses the block.
                assert_eq!(unsafe { pool.free_raw(block.first, order) }, Ok(()));
            }
        }
    }
}
