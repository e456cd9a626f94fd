//! Which heads matter, and layers without the others.

mod prune;
