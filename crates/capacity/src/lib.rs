//! Says how large it must be: what others will ask of the platform, times what each operation was measured to cost.
//!
//! A [`Profile`] says who does how much of what, [`Vectors`] what one of it costs. A [`Plan`] is their product: load for each
//! resource, nodes, the bottleneck and the next one, the day with its backlogs. Resources are never added up into one
//! number: processor time, bytes, syncs and memory run out one by one. No I/O, and no clock; chance has a fixed seed, so
//! the same texts give the same plan.

pub mod profile; // who does how much of what
pub mod vectors; // what one of it costs
pub mod fit; // measurements become costs
mod language; // the words of both, as tables; texts become values, or every problem in them

pub mod demand; // the product: how much of each resource, role by role
pub mod day; // how busy which minute is
pub mod queue; // who waits for how long
pub mod mix; // many kinds at once, from what each does alone
pub mod plan; // nodes, pools, the bottleneck, the day
pub mod what_if; // the same with other assumptions, and which assumption matters most
pub mod saturation; // the other way round: what a running node does, and how far it is from its bounds

pub mod papers; // examples that others published, and whether their arithmetic holds
pub mod plot; // curves and bars as SVG
pub mod page; // a page that needs nothing else

pub use language::{profile_json_schema, read_profile, read_vectors, vectors_json_schema};
pub use plan::{Plan, plan};
pub use profile::Profile;
pub use vectors::Vectors;
