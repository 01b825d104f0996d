//! Preferences of a subscriber: classes, channels and quiet hours.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{
    delivery_policy::DigestWindow,
    hours::Hours,
    id::Name,
    problem::{Code, Problem},
    time::Timestamp,
};

/// Most quiet hours of one subscriber.
pub const QUIET_HOURS_MAX: usize = 14;
/// Most preferences of one subscriber.
pub const PREFERENCES_MAX: usize = 1_000;
/// Most channels in one preference.
const CHANNELS_MAX: usize = 64;

/// Preferences of a subscriber. They do not apply to critical notifications.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Preferences {
    /// Quiet hours in the subscriber's time zone. Notifications in these hours wait for their end.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub quiet_hours: Vec<Hours>,
    /// End of a pause: until then no notifications are sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paused_until: Option<Timestamp>,
    /// Whether the subscriber receives critical notifications only.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub only_critical: bool,
    /// Preferences by scope: `<application>/<notification class>`, `<application>` or `*`. For each setting the most
    /// specific scope that has it applies.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub notifications: BTreeMap<String, Preference>,
}

/// A preference for some notifications.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Preference {
    /// Whether the subscriber receives these notifications.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// Channels that are switched on or off.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub channels: BTreeMap<Name, bool>,
    /// Preferred channels, the most preferred first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub prefer: Vec<Name>,
    /// Digest window, `hourly` or `daily 08:00`, in place of that of a class with digests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub digest: Option<DigestWindow>,
}

/// Preferences that apply to one class.
#[derive(Debug, Clone, Copy)]
pub struct Choice<'a> {
    /// From the most specific to the most general.
    places: [Option<&'a Preference>; 3],
}

impl Preferences {
    /// Whether there are no preferences.
    pub fn is_empty(&self) -> bool {
        *self == Preferences::default()
    }

    /// Whether the subscriber receives nothing but critical notifications now.
    pub fn is_only_critical(&self, now: Timestamp) -> bool {
        self.only_critical || self.is_paused(now)
    }

    /// Whether the notifications are paused.
    pub fn is_paused(&self, now: Timestamp) -> bool {
        self.paused_until.is_some_and(|end| now < end)
    }

    /// The preferences for a class.
    pub fn of<'a>(&'a self, application: &Name, class: &Name) -> Choice<'a> {
        if self.notifications.is_empty() {
            return Choice { places: [None; 3] };
        }
        let keys = [format!("{application}/{class}"), application.to_string(), "*".to_owned()];
        Choice { places: keys.map(|key| self.notifications.get(&key)) }
    }

    /// Every problem, their paths beginning with `preferences`.
    pub fn check(&self) -> Vec<Problem> {
        let mut problems = Vec::new();
        let mut too_many = |path: String, count: usize, most: usize| {
            if count > most {
                problems.push(Problem::too_many(path, count, most));
            }
        };
        too_many("preferences.quiet_hours".to_owned(), self.quiet_hours.len(), QUIET_HOURS_MAX);
        too_many("preferences.notifications".to_owned(), self.notifications.len(), PREFERENCES_MAX);
        for (key, preference) in &self.notifications {
            let path = format!("preferences.notifications.{key}");
            too_many(format!("{path}.channels"), preference.channels.len(), CHANNELS_MAX);
            too_many(format!("{path}.prefer"), preference.prefer.len(), CHANNELS_MAX);
        }
        for (key, preference) in &self.notifications {
            if let Some(window @ (DigestWindow::Batch | DigestWindow::After(_))) = preference.digest {
                problems.push(
                    Problem::new(
                        Code::UnknownValue,
                        format!("preferences.notifications.{key}.digest"),
                        format!("`{window}` has no fixed times"),
                    )
                    .param("value", window.to_string())
                    .hint("give `hourly` or `daily 08:00`"),
                );
            }
        }
        for key in self.notifications.keys().filter(|key| !is_key(key)) {
            problems.push(
                Problem::new(
                    Code::UnknownReference,
                    "preferences.notifications",
                    format!("`{key}` names no notifications"),
                )
                .param("kind", "notification_class")
                .param("value", key.to_string())
                .hint("give `<application>/<notification class>`, `<application>` or `*`"),
            );
        }
        problems
    }
}

fn is_key(key: &str) -> bool {
    let is_name = |text: &str| text.parse::<Name>().is_ok();
    key == "*"
        || key
            .split_once('/')
            .map_or_else(|| is_name(key), |(application, class)| is_name(application) && is_name(class))
}

impl<'a> Choice<'a> {
    /// Whether the subscriber receives these notifications.
    pub fn is_enabled(&self) -> bool {
        self.declared().find_map(|preference| preference.enabled).unwrap_or(true)
    }

    /// Whether a channel may be used.
    pub fn allows(&self, channel: &Name) -> bool {
        self.declared().find_map(|preference| preference.channels.get(channel).copied()).unwrap_or(true)
    }

    /// The digest window.
    pub fn digest(&self) -> Option<DigestWindow> {
        self.declared().find_map(|preference| preference.digest)
    }

    /// The preferred channels.
    pub fn preferred(&self) -> &'a [Name] {
        self.declared().map(|preference| &preference.prefer[..]).find(|prefer| !prefer.is_empty()).unwrap_or_default()
    }

    fn declared(&self) -> impl Iterator<Item = &'a Preference> {
        self.places.into_iter().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Name {
        text.parse().expect("a name")
    }

    #[test]
    fn the_most_special_that_says_something_counts() {
        let preferences: Preferences = serde_json::from_str(
            r#"{
                "quiet_hours": ["22:00-07:00"],
                "notifications": {
                    "*": { "channels": { "sms": false }, "prefer": ["inbox"] },
                    "quakes": { "enabled": false, "channels": { "sms": true } },
                    "quakes/alert": { "enabled": true }
                }
            }"#,
        )
        .expect("preferences");
        let check = |application: &str, class: &str, expected: (bool, bool, &str)| {
            let choice = preferences.of(&name(application), &name(class));
            let preferred = choice.preferred().iter().map(Name::as_str).collect::<Vec<_>>().join(",");
            assert_eq!((choice.is_enabled(), choice.allows(&name("sms")), preferred.as_str()), expected);
        };
        check("quakes", "alert", (true, true, "inbox"));
        check("quakes", "summary", (false, true, "inbox"));
        check("stock", "alert", (true, false, "inbox"));
        assert!(preferences.check().is_empty());
        let again: Preferences =
            serde_json::from_str(&serde_json::to_string(&preferences).expect("JSON")).expect("preferences");
        assert_eq!(again, preferences);
    }

    #[test]
    fn a_pause_ends_and_digest_windows_have_fixed_times() {
        let preferences: Preferences = serde_json::from_str(
            r#"{"paused_until": "2026-12-06T10:00:00Z", "only_critical": false,
                "notifications": {"quakes": {"digest": "daily 08:00"}, "stock": {"digest": "10m"}}}"#,
        )
        .expect("preferences");
        let at = |text: &str| preferences.is_only_critical(text.parse().expect("a time"));
        assert!(at("2026-12-06T09:59:59Z") && !at("2026-12-06T10:00:00Z"));
        let digest = preferences.of(&name("quakes"), &name("alert")).digest();
        assert_eq!(digest, Some(DigestWindow::Daily(480)));
        let paths: Vec<String> = preferences.check().into_iter().map(|problem| problem.path).collect();
        assert_eq!(paths, ["preferences.notifications.stock.digest"]);
        let always = Preferences { only_critical: true, ..Preferences::default() };
        assert!(always.is_only_critical(Timestamp(0)) && !always.is_empty());
    }

    #[test]
    fn what_cannot_be_meant_is_refused() {
        let mut preferences = Preferences::default();
        for key in ["", "quakes/", "a/b/c", "no name"] {
            preferences.notifications.insert(key.to_owned(), Preference::default());
        }
        preferences.quiet_hours = vec!["22:00-07:00".parse().expect("hours"); QUIET_HOURS_MAX + 1];
        assert_eq!(preferences.check().len(), 5);
        assert!(serde_json::from_str::<Preferences>(r#"{ "quiet_hours": ["late"] }"#).is_err());
    }
}
