//! `Fallback order for Node N: ...`: the lines that a kernel logs after it has built its zonelists.

use core::fmt;

use super::text::Snapshot;
use crate::platform::Platform;

pub(super) struct FallbackLists<'a, 'm, P: Platform>(pub(super) Snapshot<'a, 'm, P>);

impl<P: Platform> fmt::Display for FallbackLists<'_, '_, P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for node in self.0.node_ids() {
            write!(f, "Fallback order for Node {node}: ")?;
            let mut written = Ok(());
            self.0.0.fallback_order(node, |next| written = written.and_then(|()| write!(f, "{next} ")));
            written?;
            writeln!(f)?;
        }
        Ok(())
    }
}
