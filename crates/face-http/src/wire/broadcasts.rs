//! Broadcasts: drafts, counts, progress, results by recipient.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use tocsin_model::{
    broadcast::{BroadcastDraft, Per},
    filter::{Dialect, Filter},
    id::{Name, SubscriberId, SubscriptionId},
    time::Timestamp,
};
use tocsin_service::broadcasts::{AudienceCount, CountDraft, Document, RecipientResult, TestRecipient};
use utoipa::ToSchema;

/// A broadcast as written by its sender.
#[derive(Debug, Clone, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = BroadcastDraft)]
pub(crate) struct BroadcastDraftBody {
    /// The application.
    #[schema(value_type = String)]
    application: Name,
    /// Name for readers; at most 200 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    title: Option<String>,
    /// Subscription class of the audience. Optional if the application has only one.
    #[schema(value_type = Option<String>)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    subscription: Option<Name>,
    /// Segment of the audience; default: all subscribers of the class.
    #[schema(value_type = Option<String>)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    segment: Option<Name>,
    /// The only subscriptions of the audience, at most 10,000; default: all of the class.
    #[schema(value_type = Option<Vec<String>>)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    subscriptions: Option<BTreeSet<SubscriptionId>>,
    /// The sender's filter: a CEL predicate over `sub`, `subscriber` and `event`, as in a rule.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    when: Option<String>,
    /// The sender's filter over the parameters of subscriptions, in the dialect `jmespath` or `notifybc`; `when` must
    /// hold too. `notifybc` reads the parameter `data`, and is not applied to a subscription without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    subscription_filter: Option<SenderFilterBody>,
    /// `subscriber` (default): one message for each subscriber, by the first of its subscriptions that match;
    /// `subscription`: one for each subscription.
    #[schema(value_type = String)]
    #[serde(default)]
    per: Per,
    /// Event class whose fields `data` has; default: the types follow from the values.
    #[schema(value_type = Option<String>)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    event_class: Option<Name>,
    /// Data of the message: merge fields, and the event that the filters of subscriptions are evaluated for. Without
    /// data and `event_class` these filters do not apply.
    #[schema(value_type = Object)]
    #[serde(default)]
    data: serde_json::Map<String, serde_json::Value>,
    /// Notification class with the delivery policy; default: the class `broadcast` of the application, or else the
    /// default policy.
    #[schema(value_type = Option<String>)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    class: Option<Name>,
    /// Content by channel and locale, as in a definition; default: that of the class.
    #[schema(value_type = Option<Object>)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    content: Option<serde_json::Value>,
    /// Start; default: at once.
    #[schema(value_type = Option<String>, format = DateTime)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    starts_at: Option<Timestamp>,
    /// After this time nothing is sent.
    #[schema(value_type = Option<String>, format = DateTime)]
    #[serde(default, skip_serializing_if = "Option::is_none")]
    expires_at: Option<Timestamp>,
}

impl From<BroadcastDraftBody> for BroadcastDraft {
    fn from(body: BroadcastDraftBody) -> Self {
        BroadcastDraft {
            application: body.application,
            title: body.title,
            subscription: body.subscription,
            segment: body.segment,
            subscriptions: body.subscriptions,
            when: body.when,
            subscription_filter: body.subscription_filter.map(Into::into),
            per: body.per,
            event_class: body.event_class,
            data: body.data,
            class: body.class,
            content: body.content,
            starts_at: body.starts_at,
            expires_at: body.expires_at,
        }
    }
}

impl From<BroadcastDraft> for BroadcastDraftBody {
    fn from(draft: BroadcastDraft) -> Self {
        BroadcastDraftBody {
            application: draft.application,
            title: draft.title,
            subscription: draft.subscription,
            segment: draft.segment,
            subscriptions: draft.subscriptions,
            when: draft.when,
            subscription_filter: draft.subscription_filter.map(Into::into),
            per: draft.per,
            event_class: draft.event_class,
            data: draft.data,
            class: draft.class,
            content: draft.content,
            starts_at: draft.starts_at,
            expires_at: draft.expires_at,
        }
    }
}

/// The sender's filter of a broadcast.
#[derive(Debug, Clone, Deserialize, Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = BroadcastSubscriptionFilter)]
pub(crate) struct SenderFilterBody {
    /// `jmespath` or `notifybc`.
    #[schema(value_type = String)]
    dialect: Dialect,
    /// The predicate.
    text: String,
}

impl From<SenderFilterBody> for Filter {
    fn from(body: SenderFilterBody) -> Self {
        Filter { dialect: body.dialect, text: body.text }
    }
}

impl From<Filter> for SenderFilterBody {
    fn from(filter: Filter) -> Self {
        SenderFilterBody { dialect: filter.dialect, text: filter.text }
    }
}

/// Input of a count.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = BroadcastCountDraft)]
pub(crate) struct CountDraftBody {
    /// The broadcast.
    broadcast: BroadcastDraftBody,
    /// Number of recipients to return, 0 to 100; default 10.
    #[serde(default)]
    sample: Option<usize>,
    /// `next` of the previous count, to continue.
    #[serde(default)]
    after: Option<String>,
}

impl From<CountDraftBody> for CountDraft {
    fn from(body: CountDraftBody) -> Self {
        CountDraft { draft: body.broadcast.into(), sample: body.sample, after: body.after }
    }
}

/// Number of recipients that a broadcast would have now.
#[derive(Serialize, ToSchema)]
#[schema(as = BroadcastCount)]
pub(crate) struct CountBody {
    /// Number of recipients among the subscriptions examined.
    recipients: u64,
    /// The same by channel; those without a device are under `unassigned`.
    channels: std::collections::BTreeMap<String, u64>,
    /// Number of subscriptions of the class that were examined.
    examined: u64,
    /// Number of subscriptions whose filter does not fit the data, or for which the sender's filter exceeds its step
    /// limit; they are no recipients.
    unusable: u64,
    /// First recipients.
    sample: Vec<SampleRecipientBody>,
    /// Cursor to continue counting, as `after`; absent if all were examined.
    #[serde(skip_serializing_if = "Option::is_none")]
    next: Option<String>,
}

/// A recipient of a sample.
#[derive(Serialize, ToSchema)]
#[schema(as = BroadcastSampleRecipient)]
pub(crate) struct SampleRecipientBody {
    /// Subscriber.
    subscriber: Option<String>,
    /// Subscription.
    subscription: String,
    /// Channel.
    channel: String,
}

impl From<AudienceCount> for CountBody {
    fn from(count: AudienceCount) -> Self {
        let sample = count.sample.into_iter().map(|found| SampleRecipientBody {
            subscriber: found.subscriber.map(|id| id.to_string()),
            subscription: found.subscription.to_string(),
            channel: found.channel.to_string(),
        });
        CountBody {
            recipients: count.recipients,
            channels: count.channels.into_iter().map(|(name, count)| (name.to_string(), count)).collect(),
            examined: count.examined,
            unusable: count.unusable,
            sample: sample.collect(),
            next: count.next,
        }
    }
}

/// Input of a test or a preview: the broadcast and one recipient.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = BroadcastTestDraft)]
pub(crate) struct TestDraftBody {
    /// The broadcast.
    pub(crate) broadcast: BroadcastDraftBody,
    /// The recipient.
    #[serde(default)]
    pub(crate) to: TestRecipientBody,
}

/// Recipient of a test or a preview.
#[derive(Default, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
#[schema(as = BroadcastTestRecipient)]
pub(crate) struct TestRecipientBody {
    /// Id of a subscriber; default: the owner of the subscription, or an anonymous recipient.
    #[schema(value_type = Option<String>)]
    subscriber: Option<SubscriberId>,
    /// Id of a subscription, whose values templates read as `sub`; default: all values null.
    #[schema(value_type = Option<String>)]
    subscription: Option<SubscriptionId>,
    /// Device of the subscriber; default: the one that delivery would choose.
    #[schema(value_type = Option<String>)]
    device: Option<Name>,
    /// Channel; default: that of the device.
    #[schema(value_type = Option<String>)]
    channel: Option<Name>,
    /// Address; default: that of the device.
    address: Option<String>,
    /// Locale; default: that of the subscriber.
    locale: Option<String>,
}

impl From<TestRecipientBody> for TestRecipient {
    fn from(body: TestRecipientBody) -> Self {
        let TestRecipientBody { subscriber, subscription, device, channel, address, locale } = body;
        TestRecipient { subscriber, subscription, device, channel, address, locale }
    }
}

/// Reason of a change, for readers.
#[derive(Default, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
#[schema(as = BroadcastChange)]
pub(crate) struct ChangeBody {
    /// Reason.
    pub(crate) reason: Option<String>,
}

/// A broadcast with its progress.
#[derive(Serialize, ToSchema)]
#[schema(as = Broadcast)]
pub(crate) struct BroadcastBody {
    /// Its id, such as `bc-7`.
    id: String,
    /// `scheduled`, `running`, `paused`, `done`, `cancelled` or `failed`.
    state: &'static str,
    /// The draft.
    broadcast: BroadcastDraftBody,
    /// Id of the key that made it.
    by: String,
    /// Description of the key.
    #[serde(skip_serializing_if = "Option::is_none")]
    by_name: Option<String>,
    /// Time of the request.
    #[schema(value_type = String, format = DateTime)]
    created_at: Timestamp,
    /// Start time.
    #[schema(value_type = String, format = DateTime)]
    starts_at: Timestamp,
    /// Time of the start. Subscriptions that were created later are not in the audience.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    started_at: Option<Timestamp>,
    /// Time at which the whole audience was matched; only then `recipients` is final.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    matched_at: Option<Timestamp>,
    /// Version of the application that it uses.
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<u32>,
    /// Number of subscriptions examined so far.
    examined: u64,
    /// Number of recipients so far.
    recipients: u64,
    /// Number of recipients that received it.
    delivered: u64,
    /// Number of recipients whose receiver refused it, or for whom it expired.
    failed: u64,
    /// Number of recipients for whom it was ended, by a cancellation or by an operator.
    ended: u64,
    /// Number of recipients that wait for an attempt.
    waiting: u64,
    /// Number of recipients whose notification is suspended and waits for an operator.
    suspended: u64,
    /// Time of the last change of the state.
    #[schema(value_type = String, format = DateTime)]
    changed_at: Timestamp,
    /// Id of the key that made this change.
    changed_by: String,
    /// Reason of the change or of the failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

impl From<Document> for BroadcastBody {
    fn from(found: Document) -> Self {
        let state = found.state();
        let Document { broadcast, draft, totals, by_name } = found;
        BroadcastBody {
            id: broadcast.id.to_string(),
            state,
            broadcast: draft.into(),
            by: broadcast.by,
            by_name,
            created_at: broadcast.created_at,
            starts_at: broadcast.starts_at,
            started_at: broadcast.started_at,
            matched_at: broadcast.matched_at,
            version: broadcast.version,
            examined: broadcast.examined,
            recipients: totals.recipients,
            delivered: totals.delivered,
            failed: totals.failed,
            ended: totals.ended(),
            waiting: totals.open.saturating_sub(totals.suspended),
            suspended: totals.suspended,
            changed_at: broadcast.changed_at,
            changed_by: broadcast.changed_by,
            reason: broadcast.reason,
        }
    }
}

/// Result of a broadcast for one recipient.
#[derive(Serialize, ToSchema)]
#[schema(as = BroadcastRecipient)]
pub(crate) struct RecipientBody {
    /// Id of the notification, such as `n-3-41`.
    notification: String,
    /// Subscriber; absent if the subscription was removed.
    #[serde(skip_serializing_if = "Option::is_none")]
    subscriber: Option<String>,
    /// Subscription.
    subscription: String,
    /// First channel.
    channel: String,
    /// `waiting`, `delivered`, `refused`, `expired`, `suspended` or `ended`.
    outcome: &'static str,
    /// Number of attempts.
    attempts: u32,
    /// Reply to the last attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    reply: Option<String>,
    /// Time of the last attempt's answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    answered_at: Option<Timestamp>,
}

impl From<RecipientResult> for RecipientBody {
    fn from(found: RecipientResult) -> Self {
        RecipientBody {
            notification: found.notification.to_string(),
            subscriber: found.subscriber.map(|id| id.to_string()),
            subscription: found.subscription.to_string(),
            channel: found.channel.to_string(),
            outcome: found.outcome,
            attempts: found.attempts,
            reply: found.reply,
            answered_at: found.answered_at,
        }
    }
}
