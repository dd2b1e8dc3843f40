//! Machines of all shapes.

mod shapes;
