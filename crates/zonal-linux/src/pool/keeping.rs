//! Who holds what in a shared pool, what is kept for processes that have ended, and roots.
//!
//! Related files: `pool/joining.rs` joins, `pool/members.rs` has the processes, `pool/roots.rs` the roots.

use zonal::machine::FrameRange;
use zonal::units::PageCount;

use super::handle::Pool;
use super::members::Membership;
use super::owner::PoolOwner;
use super::roots;
use crate::error::SharedError;
use crate::shared_name::SharedName;

impl Pool {
    /// Returns this process's part in a shared pool.
    fn members_here(&self) -> Result<&Membership, SharedError> {
        let members = self.core.members().ok_or(SharedError::NotShared)?;
        if members.is_here() { Ok(members) } else { Err(SharedError::Forked) }
    }

    /// Returns the processes of a shared pool and what each holds; empty for other pools.
    #[must_use]
    pub fn owners(&self) -> Vec<PoolOwner> {
        let mut owners = Vec::new();
        self.for_each_owner(|owner| owners.push(owner));
        owners
    }

    /// Calls `each` with what [`Pool::owners`] returns. Needs no heap.
    pub fn for_each_owner(&self, each: impl FnMut(PoolOwner)) {
        let Ok(members) = self.members_here() else { return };
        let mut held = [PageCount::ZERO; 256];
        self.core.allocator().for_each_held(|process, block| {
            let held = &mut held[usize::from(process)];
            *held = held.plus(block.count);
        });
        members.for_each(|process| held[usize::from(process)], each);
    }

    /// Returns how many frames this process has allocated or taken over in a shared pool and not freed; `None` for other pools.
    /// The number is exact while no thread allocates or frees.
    #[must_use]
    pub fn allocated_here(&self) -> Option<PageCount> {
        self.members_here().ok()?;
        let mut allocated = PageCount::ZERO;
        self.for_each_held(|block| allocated = allocated.plus(block.count));
        Some(allocated)
    }

    /// Calls `each` with each block and run that this process has allocated or taken over in a shared pool and not freed, those
    /// of the processes that had its name before included; complete if no other thread allocates or frees.
    pub fn for_each_held(&self, mut each: impl FnMut(FrameRange)) {
        let Ok(here) = self.members_here().map(Membership::process) else { return };
        self.core.allocator().for_each_held(|process, block| {
            if process == here {
                each(block);
            }
        });
    }

    /// Names a block that is allocated in a shared pool, or removes the name, so that other processes find it
    /// ([`Pool::root`]). This process becomes the holder of the block.
    ///
    /// The root lasts until it is set again, or until this process ends; if the process has a name
    /// ([`Pool::join_as`]), until what is kept for it is discarded. Remove a root before its block is freed. A pool has at most
    /// 127 roots.
    ///
    /// # Errors
    /// Returns an error if the name is not valid, exactly these frames are not allocated together, or the pool has no room for a
    /// further root; nothing has changed then.
    pub fn set_root(&self, name: &str, block: Option<FrameRange>) -> Result<(), SharedError> {
        let name = SharedName::new(name).ok_or(SharedError::Name)?;
        let members = self.members_here()?;
        let _table = members.table()?;
        roots::set(members.file(), members.process(), name, block, |block| {
            let taken = self.take_over(block.start, block.count);
            taken.map_err(|source| SharedError::Root { name, source })
        })
    }

    /// Returns the block to which a process of a shared pool has given a name ([`Pool::set_root`]).
    ///
    /// # Errors
    /// Returns an error if the name is not valid, or the pool is not shared.
    pub fn root(&self, name: &str) -> Result<Option<FrameRange>, SharedError> {
        let name = SharedName::new(name).ok_or(SharedError::Name)?;
        let members = self.members_here()?;
        let _table = members.table()?;
        Ok(roots::get(members.file(), name))
    }

    /// Frees what processes of a shared pool held that have died, and returns how many frames: 0 if another thread or process
    /// has done so, for which the call waits, and for other pools. The pool does so itself once the kernel has torn down the process.
    ///
    /// # Errors
    /// Returns an error if the table of processes stays locked for ten seconds, or the kernel refuses its lock.
    pub fn recover_dead(&self) -> Result<PageCount, SharedError> {
        let Ok(members) = self.members_here() else { return Ok(PageCount::ZERO) };
        members.recover_dead(Membership::table, |process| self.core.allocator().recover(process))
    }

    /// Frees what a shared pool keeps for a process of this name that has ended ([`Pool::join_as`]), and returns how many frames.
    ///
    /// # Errors
    /// Returns an error if a process of this name lives, or the pool keeps nothing for the name.
    pub fn discard(&self, name: &str) -> Result<PageCount, SharedError> {
        let name = SharedName::new(name).ok_or(SharedError::Name)?;
        let members = self.members_here()?;
        let allocator = self.core.allocator();
        let set_on_death = |process, on_death| allocator.set_on_death(process, on_death);
        members.discard(name, set_on_death, |process| allocator.recover(process))
    }
}
