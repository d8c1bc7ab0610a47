//! Decoded arrays: budget, eviction, single flight, backing files.
