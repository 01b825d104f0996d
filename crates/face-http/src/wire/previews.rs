//! Input of previews and test messages.

use serde::Deserialize;
use serde_json::value::RawValue;
use tocsin_model::id::Name;
use tocsin_service::preview::PreviewDraft;
use utoipa::ToSchema;

/// Input of a preview: rule, event, subscription and recipient.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = NotificationPreviewDraft)]
pub(crate) struct NotificationPreviewDraft {
    /// Rule. Optional if the application has only one.
    #[schema(value_type = Option<String>)]
    #[serde(default)]
    rule: Option<Name>,
    /// Id of a stored event, such as `e-12-7`, or an object with the fields of its class.
    #[schema(value_type = Object)]
    event: Option<Box<RawValue>>,
    /// Id of a subscription, such as `s-15`, or an object with the fields of its class; default: all fields null.
    #[schema(value_type = Option<Object>)]
    #[serde(default)]
    subscription: Option<Box<RawValue>>,
    /// Id of a subscriber, or an object with `locale`, `time_zone` and `attributes`; default: the owner of the
    /// subscription, or an anonymous recipient.
    #[schema(value_type = Option<Object>)]
    #[serde(default)]
    subscriber: Option<Box<RawValue>>,
    /// Device of the subscriber; default: the one that delivery would choose.
    #[schema(value_type = Option<String>)]
    #[serde(default)]
    device: Option<Name>,
    /// Channel; default: that of the device.
    #[schema(value_type = Option<String>)]
    #[serde(default)]
    channel: Option<Name>,
    /// Address; default: that of the device.
    #[serde(default)]
    address: Option<String>,
    /// Locale; default: that of the subscriber.
    #[serde(default)]
    locale: Option<String>,
    /// Definition to use instead of the running one; for previews only.
    #[serde(default)]
    definition: Option<String>,
}

impl From<NotificationPreviewDraft> for PreviewDraft {
    fn from(draft: NotificationPreviewDraft) -> Self {
        PreviewDraft {
            rule: draft.rule,
            event: draft.event,
            subscription: draft.subscription,
            subscriber: draft.subscriber,
            device: draft.device,
            channel: draft.channel,
            address: draft.address,
            locale: draft.locale,
            definition: draft.definition,
        }
    }
}
