//! Codes of reasons: why a notification was not made, not sent, or waits. The stable machine-readable kind beside the
//! text.

use serde::{Serialize, Serializer};

macro_rules! reasons {
    ($($name:ident $word:literal $text:literal [$($param:literal)?] $meaning:literal;)*) => {
        /// Kind of a reason. A code never changes its meaning; new ones may be added.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum ReasonCode {
            $(#[doc = $meaning] $name,)*
        }

        impl ReasonCode {
            /// All codes.
            pub const ALL: &'static [ReasonCode] = &[$(ReasonCode::$name),*];

            /// The word of the code: `no_active_device`.
            pub fn word(self) -> &'static str {
                match self { $(ReasonCode::$name => $word,)* }
            }

            /// Meaning, one sentence.
            pub fn meaning(self) -> &'static str {
                match self { $(ReasonCode::$name => $meaning,)* }
            }

            /// The text as it is stored; `{}` stands for its parameter. Empty: the text varies.
            pub fn text(self) -> &'static str {
                match self { $(ReasonCode::$name => $text,)* }
            }

            /// The name of the parameter in the text.
            pub fn param(self) -> Option<&'static str> {
                match self { $(ReasonCode::$name => [$($param,)? ""].first().copied().filter(|name| !name.is_empty()),)* }
            }
        }
    };
}

reasons! {
    // Before the match.
    EventWaiting "event_waiting" "" [] "The event is accepted and not matched yet.";
    EventFailed "event_failed" "" [] "The event batch could not be matched.";
    RuleDisabled "rule_disabled" "" [] "The rule is disabled in the definition.";
    RuleStopped "rule_stopped" "" [] "The rule was stopped.";
    RuleSkipped "rule_skipped" "" [] "The rule failed or was skipped for this event batch.";
    RuleScheduled "rule_scheduled" "" [] "The rule is evaluated by a schedule, not for each event.";
    NoSubscription "no_subscription" "" [] "The subscriber has no subscription of the class of a rule on this event.";
    SubscriptionLater "subscription_later" "" [] "The subscription was created after the event.";
    SubscriptionInactive "subscription_inactive" "" []
        "The subscription was not active at the time of the event.";
    SubscriptionUnusable "subscription_unusable" "" []
        "The values or the filter of the subscription do not fit the version of its class.";
    SubscriberDisabled "subscriber_disabled" "" [] "The subscriber is disabled.";
    OtherSubscription "other_subscription" "" [] "The lifecycle event is of another subscription.";
    ConsentPending "consent_pending" "" [] "The subscription waits for its confirmation.";
    ConsentWithdrawn "consent_withdrawn" "" [] "The consent of the subscription is withdrawn.";
    // The match.
    OutsideAudience "outside_audience" "" [] "The subscriber is not a member of the audience of the rule.";
    ConditionFails "condition_fails" "" [] "The condition of the rule does not hold.";
    ConditionError "condition_error" "" [] "The condition of the rule has no value.";
    ConditionUnknown "condition_unknown" "" [] "The condition of the rule was not evaluated.";
    FilterFails "filter_fails" "" [] "The filter of the subscription does not match the event.";
    FilterError "filter_error" "" [] "The filter of the subscription has no value.";
    Cooldown "cooldown" "" [] "The last notification was too recently.";
    Unarmed "unarmed" "" [] "No event has re-armed the subscription since its last notification.";
    Unchanged "unchanged" "" [] "The values equal those of the last notification.";
    NoStateKey "no_state_key" "" [] "`per` or `changed` of the rule has no value for the event.";
    Delayed "delayed" "" [] "The notification is delayed by the rule.";
    NotRecorded "not_recorded" "" [] "No notification was recorded for the event.";
    Pruned "pruned" "" [] "The records of that time are no longer kept.";
    NotEvaluated "not_evaluated" "" [] "The gate was not evaluated, because an earlier one blocks.";
    // The decision before an attempt.
    Expired "expired" "its time to live expired before it was sent" [] "The notification expired before it was sent.";
    BroadcastCancelled "broadcast_cancelled" "the broadcast was cancelled" [] "The broadcast was cancelled.";
    SubscriptionRemoved "subscription_removed" "the subscription is gone" [] "The subscription was removed.";
    SubscriptionDisabled "subscription_disabled" "the subscription was switched off" []
        "The subscription or its subscriber is disabled.";
    NotificationsPaused "notifications_paused" "the subscriber has paused notifications" []
        "The subscriber has paused notifications.";
    OnlyCritical "only_critical" "the subscriber wants critical notifications only" []
        "The subscriber receives critical notifications only.";
    ClassOff "class_off" "the subscriber does not want notifications of this class" []
        "The subscriber has switched off this notification class.";
    ChannelsOff "channels_off" "the subscriber has switched off the channels of all its devices" []
        "The subscriber has switched off the channels of all its devices.";
    NamedDeviceInactive "named_device_inactive"
        "the subscriber has no active device `{}`, which its subscription names" ["device"]
        "The device that the subscription names is not active.";
    NoDeviceAtMatch "no_device_at_match"
        "the subscriber has no active device, or not the one that its subscription names" []
        "The subscriber had no active device, or not the one that its subscription names, when the event was matched.";
    NoActiveDevice "no_active_device" "the subscriber has no active device" [] "The subscriber has no active device.";
    NoDeviceOnChannel "no_device_on_channel" "the subscriber has no device that `{}` could reach" ["channel"]
        "The subscriber has no active device on the channel.";
    AddressSuppressed "address_suppressed" "the address is suppressed: {}" ["cause"] "The address is suppressed.";
    NoSendTime "no_send_time"
        "the send hours of its class and the quiet hours of its subscriber leave no time to send it" []
        "Send hours and quiet hours leave no time to send the notification.";
    OutsideHours "outside_hours" "" [] "Quiet hours or send hours delay the notification.";
    DigestWindow "digest_window" "" [] "The notification waits for the end of its digest window.";
    DeliveryOff "delivery_off" "" [] "Delivery through the channel is switched off.";
    ChannelDown "channel_down" "" [] "The channel fails; only one item at a time probes it.";
    DestinationPaused "destination_paused" "" [] "The destination is paused.";
    UndefinedChannel "undefined_channel" "the application has no channel `{}`" ["channel"]
        "The application does not define the channel.";
    DeviceRemoved "device_removed" "the device `{}` is gone" ["device"] "The device was removed.";
    // Attempts.
    NotSentYet "not_sent_yet" "" [] "No attempt was made yet.";
    RetryWaiting "retry_waiting" "" [] "The last attempt failed temporarily; another one follows.";
    AttemptsExhausted "attempts_exhausted" "" [] "Every attempt of the retry schedule failed.";
    EventRemoved "event_removed" "the event is gone, so its notification cannot be formatted" []
        "The event was removed, so the notification cannot be formatted.";
    AttemptFailed "attempt_failed" "" [] "The last attempt failed, or the notification waits for an operator.";
    Other "other" "" [] "The text is the response of the remote server, or a failure without a code of its own.";
}

impl ReasonCode {
    /// The code of a stored text, with the value of its parameter.
    pub fn of(text: &str) -> (ReasonCode, Option<&str>) {
        let text = match text.strip_suffix("` is tried next").and_then(|text| text.rsplit_once("; `")) {
            Some((text, _)) => text,
            None => text,
        };
        if text.starts_with("the only attempt failed: ")
            || text.starts_with("all ") && text.contains(" attempts failed, the last with: ")
        {
            return (ReasonCode::AttemptsExhausted, None);
        }
        let found = ReasonCode::ALL.iter().filter(|code| !code.text().is_empty()).find_map(|code| {
            match code.text().split_once("{}") {
                None => (text == code.text()).then_some((*code, None)),
                Some((before, after)) => Some((*code, Some(text.strip_prefix(before)?.strip_suffix(after)?))),
            }
        });
        found.unwrap_or((ReasonCode::Other, None))
    }

    /// The stored text with a parameter.
    pub fn with(self, value: impl std::fmt::Display) -> String {
        self.text().replacen("{}", &value.to_string(), 1)
    }
}

impl Serialize for ReasonCode {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.word())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_reason_has_a_word_of_its_own() {
        let words: BTreeSet<&str> = ReasonCode::ALL.iter().map(|code| code.word()).collect();
        assert_eq!(words.len(), ReasonCode::ALL.len());
        for word in words {
            assert!(word.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'), "{word}");
        }
    }

    #[test]
    fn a_stored_text_gives_its_code_and_parameter() {
        for code in ReasonCode::ALL.iter().filter(|code| !code.text().is_empty()) {
            let expected = code.param().map(|_| "mail");
            assert_eq!(ReasonCode::of(&code.with("mail")), (*code, expected), "{}", code.word());
            let passed_on = format!("{}; `sms` is tried next", code.with("mail"));
            assert_eq!(ReasonCode::of(&passed_on), (*code, expected), "{passed_on}");
            assert_eq!(code.param().is_some(), code.text().contains("{}"), "{}", code.word());
        }
        assert_eq!(ReasonCode::of("550 no such user"), (ReasonCode::Other, None));
        assert_eq!(ReasonCode::of("all is lost"), (ReasonCode::Other, None));
        for exhausted in ["all 3 attempts failed, the last with: 450 busy", "the only attempt failed: 450 busy"] {
            assert_eq!(ReasonCode::of(exhausted), (ReasonCode::AttemptsExhausted, None), "{exhausted}");
        }
    }
}
