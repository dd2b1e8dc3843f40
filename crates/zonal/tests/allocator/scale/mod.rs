//! Tests of machines with all shapes.

mod shapes;
