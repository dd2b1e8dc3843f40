//! Runs programs at the same time on one simulated machine.
//!
//! Related files: `sim/programs.rs` describes how programs share the machine.

use super::engine::RunError;
use super::fiber::{Fiber, Progress};
use super::world::World;

impl World {
    /// Runs programs at the same time. Each of them adds its threads with [`World::run`], once, which returns to the
    /// programs when all foreground threads have ended.
    ///
    /// # Errors
    /// Returns an error if the host has no address space for a program's stack. A program that returns early, because its
    /// own run failed, ends the others without a result.
    pub fn run_together<'a>(&self, programs: Vec<Box<dyn FnOnce() + 'a>>) -> Result<(), RunError> {
        let no_memory = |error: std::io::Error| RunError::NoMemory {
            what: "the stack of a program",
            reason: error.to_string(),
        };
        let mut fibers: Vec<Fiber<'a>> = Vec::new();
        for program in programs {
            fibers.push(Fiber::new(program).map_err(no_memory)?);
        }
        self.programs.several.set(true);
        let done = self.schedule(&mut fibers);
        self.set_charging(false);
        self.undisturbed(|| drop(fibers));
        self.programs.several.set(false);
        done
    }

    fn schedule(&self, fibers: &mut [Fiber<'_>]) -> Result<(), RunError> {
        // Indices of the threads after each program's last one.
        let mut ends = Vec::new();
        for fiber in &mut *fibers {
            if fiber.resume() == Progress::Ended {
                return Ok(());
            }
            ends.push(self.threads());
        }
        let entered = self.enter();
        let mut turn = 0;
        while self.programs.left.get() > 0 {
            self.set_charging(true);
            if fibers[turn].resume() == Progress::Ended {
                return Ok(());
            }
            if let Some((time, id)) = self.programs.passed_on.take() {
                turn = ends.partition_point(|&end| end <= id.index());
                self.programs.passed_on.set(Some((time, id)));
            }
        }
        drop(entered);
        // The first round drops the threads of each program that still schedules them, the second one lets the programs
        // measure.
        for (at, fiber) in fibers.iter_mut().enumerate() {
            if at != turn {
                fiber.resume();
            }
        }
        fibers.iter_mut().for_each(|fiber| while fiber.resume() == Progress::Suspended {});
        Ok(())
    }
}
