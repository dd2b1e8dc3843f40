//! The names of threads while a trace is read: those of the header, and those that events give.
//!
//! Related files: `info/` and `export/` use this.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::event::{Action, Event, Tid};
use crate::header::Header;

/// The names of threads when the last taken event happened.
#[derive(Clone, Debug)]
pub struct Threads {
    names: HashMap<Tid, Arc<str>>,
    idle: Arc<str>,
    unknown: Arc<str>,
    recorder: HashSet<Tid>,
    own: Arc<str>,
}

impl Threads {
    /// Reads the names of a header.
    #[must_use]
    pub fn new(header: &Header) -> Self {
        let name = |(id, name): (&i32, &String)| (Tid(*id), Arc::from(name.as_str()));
        Self {
            names: header.names.iter().map(name).collect(),
            idle: "(idle)".into(),
            unknown: "(unknown)".into(),
            recorder: header.recorder.iter().map(|id| Tid(*id)).collect(),
            own: "(recorder)".into(),
        }
    }

    /// Learns a name, if the event gives one.
    pub fn take(&mut self, event: &Event) {
        if let Action::Named { thread, name } = &event.action {
            self.names.insert(*thread, Arc::clone(name));
        }
    }

    /// Returns a thread's name. Threads of the recorder have one name.
    #[must_use]
    pub fn name(&self, thread: Tid) -> &Arc<str> {
        if self.recorder.contains(&thread) {
            return &self.own;
        }
        let without_name = if thread.0 == 0 { &self.idle } else { &self.unknown };
        self.names.get(&thread).unwrap_or(without_name)
    }
}
