//! Verification tokens of devices, and merges of subscribers.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tocsin_model::time::Timestamp;
use tocsin_service::merges::Merged;
use utoipa::ToSchema;

/// Request for a verification token.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = NewVerificationToken)]
pub(crate) struct VerificationTokenDraft {
    /// The device to which you send it.
    pub(crate) device: String,
    /// Lifetime in seconds; default an hour, at most a week.
    #[serde(default)]
    pub(crate) expires_in: Option<u64>,
}

/// Proof that a user receives the messages of a device.
#[derive(Serialize, ToSchema)]
#[schema(as = VerificationToken)]
pub(crate) struct VerificationTokenBody {
    /// Send it to the device, and nowhere else. The user who returns it receives the messages of the device.
    pub(crate) verification_token: String,
    /// End of its validity.
    #[schema(value_type = String, format = DateTime)]
    pub(crate) expires_at: Timestamp,
}

/// The subscriber to merge.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = NewMerge)]
pub(crate) struct MergeDraft {
    /// The subscriber that is known by its addresses only; it is removed.
    pub(crate) from: String,
    /// The verification token that was sent to one of its devices.
    #[serde(default, alias = "claim")]
    pub(crate) verification_token: Option<String>,
    /// Merge without a token: the caller has verified otherwise that both are the same person.
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
    /// Whether the merge was done before; then the other members describe the earlier merge.
    again: bool,
    /// When it was done.
    #[schema(value_type = String, format = DateTime)]
    at: Timestamp,
    /// Subscriptions that went over, under the numbers that they had.
    subscriptions: u64,
    /// Subscriptions that were removed because the target already has them.
    double_subscriptions: u64,
    /// Moved devices: former name and new name.
    devices: BTreeMap<String, String>,
    /// Devices that were removed because the target already has their address, with the name of the target's device.
    double_devices: BTreeMap<String, String>,
    /// Attributes that the target did not have.
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
