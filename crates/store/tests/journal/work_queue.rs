//! Conformance suite of the facet `WorkQueue`.

mod claiming; // claims and leases
mod priorities; // priorities and digest windows
mod stepping; // steps: atomic and exactly once
