//! Pools: the classes `Pool`, `Buffer`, `Policy` and those of their results.
//!
//! `handle.rs` has the class `Pool`, and names the files for its methods.

mod arrays;
mod block;
mod buffer;
mod build;
mod callbacks;
mod dlpack;
pub(crate) mod errors;
mod fork;
mod handle;
mod kept;
mod numpy;
mod observe;
mod placement;
mod policy;
mod processes;
mod publication;
mod request;
mod settings;
mod state;
mod table;

use pyo3::prelude::*;

pub(crate) use handle::Pool;

/// Adds the classes to the module.
pub(crate) fn add(module: &Bound<'_, PyModule>) -> PyResult<()> {
    errors::load(module.py())?;
    let end_callbacks = wrap_pyfunction!(callbacks::end_callbacks, module)?;
    module.py().import("atexit")?.call_method1("register", (end_callbacks,))?;
    module.add_class::<Pool>()?;
    module.add_function(wrap_pyfunction!(processes::join, module)?)?;
    module.add_class::<buffer::Buffer>()?;
    module.add_class::<policy::Policy>()?;
    module.add_class::<placement::Placement>()?;
    module.add_class::<settings::Settings>()?;
    module.add_class::<callbacks::Handle>()?;
    module.add_class::<callbacks::Request>()?;
    module.add_class::<publication::Published>()?;
    module.add_class::<numpy::NumpyArrays>()
}
