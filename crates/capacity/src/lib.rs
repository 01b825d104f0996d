//! Capacity planning: the expected load of an installation, times the measured cost of each operation.
//!
//! A [`Profile`] describes the load, [`Vectors`] are the measured costs of operations. A [`Plan`] is their product:
//! load per resource, nodes, the bottlenecks in order, the day with its backlogs. Resources are never added up into one
//! number: processor time, bytes, syncs and memory have separate limits. No I/O, and no clock; random numbers have a
//! fixed seed, so the same input gives the same plan.

pub mod profile; // load profiles: populations, events, operations, day curve
pub mod vectors; // measured costs of operations, per resource
pub mod fit; // fits cost functions to measurements
mod schema; // schemas and parsers of profiles and vectors

pub mod demand; // demand per resource and role
pub mod day; // the daily load curve
pub mod queue; // queueing: backlogs as a fluid, waiting times by simulation
pub mod mix; // predicts a mix of operations from measurements of each one
pub mod plan; // the capacity plan: nodes, pools, bottlenecks, the day
pub mod what_if; // sweeps over assumptions, and sensitivity analysis
pub mod saturation; // saturation of a running node: headroom and trend
pub mod observed; // a profile derived from recorded activity

pub mod papers; // published sizing examples, recomputed
pub mod plot; // SVG charts
pub mod page; // self-contained HTML reports

pub use plan::{Plan, plan};
pub use profile::Profile;
pub use schema::{profile_json_schema, read_profile, read_vectors, vectors_json_schema};
pub use vectors::Vectors;
