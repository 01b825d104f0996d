//! Claims and merges of subscribers.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tocsin_model::time::Timestamp;
use tocsin_service::merges::Merged;
use utoipa::ToSchema;

/// A claim that asks to be made.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = NewClaim)]
pub(crate) struct ClaimDraft {
    /// The device to which it is sent.
    pub(crate) device: String,
    /// Seconds until it ends; an hour if not given, a week at most.
    #[serde(default)]
    pub(crate) expires_in: Option<u64>,
}

/// A claim.
#[derive(Serialize, ToSchema)]
#[schema(as = Claim)]
pub(crate) struct ClaimBody {
    /// Send it to the device. The subscriber that presents it takes the device over.
    pub(crate) claim: String,
    /// When it is over.
    #[schema(value_type = String, format = DateTime)]
    pub(crate) expires_at: Timestamp,
}

/// The subscriber to merge.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = NewMerge)]
pub(crate) struct MergeDraft {
    /// The id of the one who is known by its addresses only, and is gone afterwards.
    pub(crate) from: String,
    /// The claim that was sent to one of its devices and came back.
    #[serde(default)]
    pub(crate) claim: Option<String>,
    /// Without a claim: the caller knows in another way that both are the same.
    #[serde(default)]
    pub(crate) unverified: bool,
}

/// Result of a merge.
#[derive(Serialize, ToSchema)]
#[schema(as = Merge)]
pub(crate) struct MergeBody {
    /// The merged subscriber, which was removed.
    from: String,
    /// The remaining subscriber.
    into: String,
    /// Whether it had been done before; then the rest says what was done then.
    again: bool,
    /// When it was done.
    #[schema(value_type = String, format = DateTime)]
    at: Timestamp,
    /// Subscriptions that went over, under the numbers that they had.
    subscriptions: u64,
    /// Subscriptions that the subscriber had already; these are gone.
    double_subscriptions: u64,
    /// Devices that went over: the names that they had, with those that they have.
    devices: BTreeMap<String, String>,
    /// Devices whose address the subscriber had already, with the names of these.
    double_devices: BTreeMap<String, String>,
    /// Attributes that it had not.
    attributes: Vec<String>,
}

impl From<Merged> for MergeBody {
    fn from(merged: Merged) -> Self {
        let report = merged.report;
        let texts = |names: BTreeMap<_, _>| {
            let text =
                |(old, new): (tocsin_model::id::Name, tocsin_model::id::Name)| (old.to_string(), new.to_string());
            names.into_iter().map(text).collect()
        };
        MergeBody {
            from: report.from.to_string(),
            into: report.into.to_string(),
            again: merged.again,
            at: merged.at,
            subscriptions: report.subscriptions,
            double_subscriptions: report.double_subscriptions,
            devices: texts(report.devices),
            double_devices: texts(report.double_devices),
            attributes: report.attributes,
        }
    }
}
