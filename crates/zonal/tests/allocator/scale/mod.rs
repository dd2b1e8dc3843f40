//! Tests of machines of all shapes.

mod shapes;
