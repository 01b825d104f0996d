//! Conformance suite of the facet `OperatorActions`.

mod resending; // resend requests
mod suspending; // suspensions, failed event batches, switches, removal of an application
