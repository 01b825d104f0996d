//! The variables of a template: the fields of its notification by name, and `event`, `sub`, `subscriber`, `device` and
//! `notification`.

use std::{
    cmp::Ordering,
    collections::BTreeMap,
    fmt,
    sync::{Arc, OnceLock},
};

use minijinja::value::{DynObject, Enumerator, Object, ObjectExt, ObjectRepr, Value as Jinja, ValueKind};
use tocsin_model::{
    application::{Application, TemplateText},
    field::Fields,
    id::{Name, NotificationId, SubscriberId},
    subscriber::Profile,
    time::Timestamp,
    value::Value,
};

use crate::{locale_data::LocaleData, merge::MergedNotification};

/// The input for formatting one notification. Borrowed: only values that the templates use are copied.
#[derive(Debug, Clone, Copy)]
pub struct Scope<'a> {
    /// The id of the notification.
    pub id: NotificationId,
    /// The rule that made it.
    pub rule: &'a Name,
    /// When it was matched.
    pub matched_at: Timestamp,
    /// When its event was accepted.
    pub accepted_at: Timestamp,
    /// The time of formatting, from which `relative` counts.
    pub now: Timestamp,
    /// The row of its class's fields, those that the formatter was compiled with.
    pub fields: &'a [Value],
    /// The event that caused it.
    pub event: &'a EventScope,
    /// The recipient.
    pub subscriber: &'a SubscriberId,
    /// The subscriber's locale, time zone and attributes.
    pub profile: &'a Profile,
    /// The fields and the row of the subscription that was matched.
    pub subscription: (&'a Fields, &'a [Value]),
    /// The device that it goes to.
    pub device: DeviceScope<'a>,
    /// All notifications of the digest, if its class has digests; this one is the first of them.
    pub digest: Option<DigestScope<'a>>,
    /// Links to hosted pages.
    pub links: LinkScope<'a>,
}

/// Links of a recipient to hosted pages. A missing one is null in templates.
#[derive(Debug, Clone, Copy, Default)]
pub struct LinkScope<'a> {
    /// `preferences_link`: the preference page.
    pub preferences: Option<&'a str>,
    /// `confirm_link`: the page that confirms a pending subscription.
    pub confirm: Option<&'a str>,
    /// `confirm_code`: the code that confirms a pending subscription.
    pub code: Option<&'a str>,
}

impl LinkScope<'_> {
    fn named(&self, name: &str) -> Option<Option<&str>> {
        match name {
            "preferences_link" => Some(self.preferences),
            "confirm_link" => Some(self.confirm),
            "confirm_code" => Some(self.code),
            _ => None,
        }
    }
}

/// The notifications of a digest.
#[derive(Debug, Clone, Copy)]
pub struct DigestScope<'a> {
    /// The notifications that templates can read one by one, in the order of their acceptance.
    pub items: &'a [DigestItem<'a>],
    /// Total number of notifications.
    pub count: usize,
}

/// A notification of a digest.
#[derive(Debug, Clone, Copy)]
pub struct DigestItem<'a> {
    /// The id of the notification.
    pub id: NotificationId,
    /// The rule that made it.
    pub rule: &'a Name,
    /// When it was matched.
    pub matched_at: Timestamp,
    /// When its event was accepted.
    pub accepted_at: Timestamp,
    /// The row of its class's fields.
    pub fields: &'a [Value],
    /// The event that caused it.
    pub event: &'a EventScope,
}

/// The device of a notification.
#[derive(Debug, Clone, Copy)]
pub struct DeviceScope<'a> {
    /// The name of the device.
    pub name: &'a str,
    /// The channel of the device.
    pub channel: &'a str,
    /// The address of the device.
    pub address: &'a str,
}

/// An event as a template variable. Built once per event and shared by all its notifications; cheap to clone.
#[derive(Debug, Clone)]
pub struct EventScope {
    pub(crate) jinja: Jinja,
    pub(crate) fields: Fields,
    pub(crate) row: Arc<[Value]>,
    /// The event for texts with the tokens of NotifyBC, converted once for all recipients.
    merged: Arc<OnceLock<MergedNotification>>,
}

impl EventScope {
    /// The row of an event of these fields.
    pub fn new(fields: &Fields, row: &[Value]) -> Self {
        EventScope { jinja: record(fields, row), fields: fields.clone(), row: row.into(), merged: Arc::default() }
    }

    /// The event for texts with the tokens of NotifyBC.
    pub(crate) fn merged(&self) -> &MergedNotification {
        self.merged.get_or_init(|| MergedNotification::new(&self.fields, &self.row))
    }
}

/// The names that templates of a notification class can use, so that a misspelled name is reported at compile time.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct KnownVariables {
    /// The fields of the notification class.
    pub fields: Fields,
    /// Computed fields, by their expressions.
    pub computed: BTreeMap<Name, String>,
    /// The partials that its templates can include, extend or import.
    pub partials: BTreeMap<Name, TemplateText>,
    /// The event classes of the rules that make this notification. Empty: any name may follow `event.`.
    pub events: Vec<(Name, Fields)>,
    /// The subscription classes of these rules. Empty: any name may follow `sub.`.
    pub subscriptions: Vec<(Name, Fields)>,
    /// Whether the class has digests, so that `digest` exists.
    pub digest: bool,
}

impl KnownVariables {
    /// The names for a notification class of an application, from the rules that make it. Empty if there is no such
    /// class.
    pub fn of(application: &Application, class: &Name) -> Self {
        let mut known = KnownVariables::default();
        if let Some(class) = application.notifications.get(class) {
            known.fields = class.fields.clone();
            known.digest = class.delivery_policy.digest.is_some();
            known.computed = class.computed.clone();
        }
        known.partials = application.partials.clone();
        for rule in application.rules.values().filter(|rule| rule.notify == *class) {
            if let Some(event) = application.events.get(&rule.on)
                && !known.events.iter().any(|(name, _)| *name == rule.on)
            {
                known.events.push((rule.on.clone(), event.fields.clone()));
            }
            if let Some(subscription) = application.subscriptions.get(&rule.subscription)
                && !known.subscriptions.iter().any(|(name, _)| *name == rule.subscription)
            {
                known.subscriptions.push((rule.subscription.clone(), subscription.fields.clone()));
            }
        }
        known
    }
}

/// The variables beside the fields of the notification.
pub(crate) const ROOTS: [&str; 5] = ["event", "sub", "subscriber", "device", "notification"];
/// The variables of [`LinkScope`].
pub(crate) const LINKS: [&str; 3] = ["preferences_link", "confirm_link", "confirm_code"];
pub(crate) const SUBSCRIBER: [&str; 4] = ["id", "locale", "time_zone", "attributes"];
pub(crate) const DEVICE: [&str; 3] = ["name", "channel", "address"];
pub(crate) const NOTIFICATION: [&str; 4] = ["id", "rule", "matched_at", "accepted_at"];
pub(crate) const DIGEST: [&str; 3] = ["items", "count", "more"];

/// The roots that templates use, so that others are not built.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct RootsUsed {
    pub subscriber: bool,
    /// For stylesheets only: Jinja always has the event.
    pub event: bool,
    /// For stylesheets only: values as JSON.
    pub json: bool,
    pub sub: bool,
    pub device: bool,
    pub notification: bool,
    pub digest: bool,
    /// Links to hosted pages.
    pub links: bool,
    /// Locale-aware filters.
    pub reader: bool,
}

impl RootsUsed {
    /// The roots in a template's source. May report too many, from prose or `{% raw %}`, but never too few.
    pub fn in_text(source: &str) -> RootsUsed {
        let mentions = |word: &str| {
            source.match_indices(word).any(|(at, _)| {
                !source[at + word.len()..].starts_with(|next: char| next.is_ascii_alphanumeric() || next == '_')
            })
        };
        RootsUsed {
            subscriber: mentions("subscriber"),
            event: mentions("event"),
            json: mentions("json"),
            sub: mentions("sub"),
            device: mentions("device"),
            notification: mentions("notification"),
            digest: mentions("digest"),
            links: LINKS.into_iter().any(mentions),
            reader: ["number", "date", "time", "money", "percent", "plural", "ordinal", "relative"]
                .into_iter()
                .any(mentions),
        }
    }

    /// Whether the output may differ between recipients of the same event with the same fields.
    pub fn is_personal(self) -> bool {
        self.subscriber || self.sub || self.device || self.notification || self.digest || self.links
    }

    /// The union of both.
    pub fn or(self, other: RootsUsed) -> RootsUsed {
        RootsUsed {
            subscriber: self.subscriber || other.subscriber,
            event: self.event || other.event,
            json: self.json || other.json,
            sub: self.sub || other.sub,
            device: self.device || other.device,
            notification: self.notification || other.notification,
            digest: self.digest || other.digest,
            links: self.links || other.links,
            reader: self.reader || other.reader,
        }
    }
}

/// The root object of a template's variables.
#[derive(Debug, Clone)]
pub(crate) struct TemplateRoot {
    fields: Fields,
    values: Vec<Jinja>,
    event: Jinja,
    sub: Jinja,
    subscriber: Jinja,
    device: Jinja,
    notification: Jinja,
    digest: Jinja,
    links: Vec<(&'static str, Jinja)>,
    reader: Jinja,
    computed: Vec<(Name, Jinja)>,
}

/// The name under which filters find the [`ReaderFormat`]; templates cannot spell it.
pub(crate) const READER: &str = "\u{0}reader";

/// Locale data and time zone of the recipient.
#[derive(Debug)]
pub(crate) struct ReaderFormat {
    pub locale_data: &'static LocaleData,
    pub time_zone: Option<String>,
    pub now: Timestamp,
}

impl Object for ReaderFormat {}

impl TemplateRoot {
    pub fn new(fields: &Fields, scope: &Scope<'_>, locale: Option<&str>, uses: RootsUsed) -> TemplateRoot {
        let made = |requested: bool, make: &dyn Fn() -> Jinja| if requested { make() } else { Jinja::UNDEFINED };
        let profile = scope.profile;
        TemplateRoot {
            computed: Vec::new(),
            fields: fields.clone(),
            values: scope.fields.iter().map(jinja).collect(),
            event: scope.event.jinja.clone(),
            sub: made(uses.sub, &|| record(scope.subscription.0, scope.subscription.1)),
            subscriber: made(uses.subscriber, &|| {
                Jinja::from_object(NamedValues(vec![
                    ("id", Jinja::from(scope.subscriber.as_str())),
                    ("locale", Jinja::from(profile.locale.as_deref())),
                    ("time_zone", Jinja::from(profile.time_zone.as_deref())),
                    ("attributes", Jinja::from_object(SubscriberAttributes(attributes(profile)))),
                ]))
            }),
            device: made(uses.device, &|| {
                Jinja::from_object(NamedValues(vec![
                    ("name", Jinja::from(scope.device.name)),
                    ("channel", Jinja::from(scope.device.channel)),
                    ("address", Jinja::from(scope.device.address)),
                ]))
            }),
            notification: made(uses.notification, &|| {
                notification(scope.id, scope.rule, scope.matched_at, scope.accepted_at)
            }),
            digest: made(uses.digest && scope.digest.is_some(), &|| {
                let digest = scope.digest.expect("its presence was checked");
                let item = |item: &DigestItem<'_>| {
                    Jinja::from_object(DigestEntry {
                        fields: fields.clone(),
                        values: item.fields.iter().map(jinja).collect(),
                        event: item.event.jinja.clone(),
                        notification: notification(item.id, item.rule, item.matched_at, item.accepted_at),
                    })
                };
                Jinja::from_object(NamedValues(vec![
                    ("items", digest.items.iter().map(item).collect()),
                    ("count", Jinja::from(digest.count)),
                    ("more", Jinja::from(digest.count.saturating_sub(digest.items.len()))),
                ]))
            }),
            links: match uses.links {
                true => LINKS.iter().map(|name| (*name, Jinja::from(scope.links.named(name).flatten()))).collect(),
                false => Vec::new(),
            },
            reader: made(uses.reader, &|| {
                let time_zone = profile.time_zone.clone();
                Jinja::from_object(ReaderFormat { locale_data: LocaleData::of(locale), time_zone, now: scope.now })
            }),
        }
    }

    /// Adds the computed fields.
    pub fn with_computed(self, computed: Vec<(Name, Jinja)>) -> TemplateRoot {
        TemplateRoot { computed, ..self }
    }
}

fn attributes(profile: &Profile) -> Vec<(Arc<str>, Jinja)> {
    profile.attributes.iter().map(|(name, value)| (Arc::from(name.as_str()), jinja(value))).collect()
}

impl Object for TemplateRoot {
    fn get_value(self: &Arc<Self>, key: &Jinja) -> Option<Jinja> {
        self.get_value_by_str(key.as_str()?)
    }

    fn get_value_by_str(self: &Arc<Self>, key: &str) -> Option<Jinja> {
        if let Some(at) = self.fields.position(key) {
            return self.values.get(at).cloned();
        }
        match key {
            "event" => Some(self.event.clone()),
            "sub" => Some(self.sub.clone()),
            "subscriber" => Some(self.subscriber.clone()),
            "device" => Some(self.device.clone()),
            "notification" => Some(self.notification.clone()),
            "digest" => Some(self.digest.clone()),
            READER => Some(self.reader.clone()),
            _ => {
                let computed = self.computed.iter().find(|(name, _)| name.as_str() == key).map(|(_, value)| value);
                let link = || self.links.iter().find(|(name, _)| *name == key).map(|(_, value)| value);
                computed.or_else(link).cloned()
            }
        }
    }
}

fn notification(id: NotificationId, rule: &Name, matched_at: Timestamp, accepted_at: Timestamp) -> Jinja {
    Jinja::from_object(NamedValues(vec![
        ("id", Jinja::from(id.to_string())),
        ("rule", Jinja::from(rule.as_str())),
        ("matched_at", Jinja::from_object(TemplateTimestamp(matched_at))),
        ("accepted_at", Jinja::from_object(TemplateTimestamp(accepted_at))),
    ]))
}

/// One notification of a digest.
#[derive(Debug)]
struct DigestEntry {
    fields: Fields,
    values: Vec<Jinja>,
    event: Jinja,
    notification: Jinja,
}

impl Object for DigestEntry {
    fn get_value(self: &Arc<Self>, key: &Jinja) -> Option<Jinja> {
        self.get_value_by_str(key.as_str()?)
    }

    fn get_value_by_str(self: &Arc<Self>, key: &str) -> Option<Jinja> {
        match key {
            "event" => Some(self.event.clone()),
            "notification" => Some(self.notification.clone()),
            key => self.values.get(self.fields.position(key)?).cloned(),
        }
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Values(self.fields.iter().map(|field| Jinja::from(field.name.as_str())).collect())
    }
}

/// A row with the names of its fields.
#[derive(Debug)]
struct Record {
    fields: Fields,
    values: Vec<Jinja>,
}

fn record(fields: &Fields, row: &[Value]) -> Jinja {
    Jinja::from_object(Record { fields: fields.clone(), values: row.iter().map(jinja).collect() })
}

impl Object for Record {
    fn get_value(self: &Arc<Self>, key: &Jinja) -> Option<Jinja> {
        self.get_value_by_str(key.as_str()?)
    }

    fn get_value_by_str(self: &Arc<Self>, key: &str) -> Option<Jinja> {
        self.values.get(self.fields.position(key)?).cloned()
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Values(self.fields.iter().map(|field| Jinja::from(field.name.as_str())).collect())
    }
}

/// An object with a few fixed names.
#[derive(Debug)]
struct NamedValues(Vec<(&'static str, Jinja)>);

impl Object for NamedValues {
    fn get_value(self: &Arc<Self>, key: &Jinja) -> Option<Jinja> {
        self.get_value_by_str(key.as_str()?)
    }

    fn get_value_by_str(self: &Arc<Self>, key: &str) -> Option<Jinja> {
        self.0.iter().find(|(name, _)| *name == key).map(|(_, value)| value.clone())
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Values(self.0.iter().map(|(name, _)| Jinja::from(*name)).collect())
    }
}

/// A subscriber's attributes. Their names are free, so a missing one is none, not an error.
#[derive(Debug)]
struct SubscriberAttributes(Vec<(Arc<str>, Jinja)>);

impl Object for SubscriberAttributes {
    fn get_value(self: &Arc<Self>, key: &Jinja) -> Option<Jinja> {
        self.get_value_by_str(key.as_str()?)
    }

    fn get_value_by_str(self: &Arc<Self>, key: &str) -> Option<Jinja> {
        let found = self.0.iter().find(|(name, _)| **name == *key).map(|(_, value)| value.clone());
        Some(found.unwrap_or_else(|| Jinja::from(())))
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Values(self.0.iter().map(|(name, _)| Jinja::from(name.clone())).collect())
    }
}

/// A template value as JSON.
pub(crate) fn json(value: &Jinja) -> serde_json::Value {
    if let Some(TemplateTimestamp(time)) = value.downcast_object_ref::<TemplateTimestamp>() {
        return time.to_string().into();
    }
    match value.kind() {
        ValueKind::Bool => value.is_true().into(),
        ValueKind::Number => match (whole(value), f64::try_from(value.clone())) {
            (Some(integer), _) => integer.into(),
            (_, Ok(number)) => number.into(),
            _ => value.to_string().into(),
        },
        ValueKind::Seq | ValueKind::Iterable => {
            value.try_iter().map(|items| items.map(|item| json(&item)).collect()).unwrap_or_default()
        }
        ValueKind::Map => {
            let keys = value.try_iter().into_iter().flatten();
            let entry = |key: Jinja| Some((key.to_string(), json(&value.get_item(&key).ok()?)));
            serde_json::Value::Object(keys.filter_map(entry).collect())
        }
        ValueKind::None | ValueKind::Undefined => serde_json::Value::Null,
        _ => value.to_string().into(),
    }
}

/// A map of an event, in its own order.
#[derive(Debug)]
struct MapEntries(Vec<(Arc<str>, Jinja)>);

impl Object for MapEntries {
    fn get_value(self: &Arc<Self>, key: &Jinja) -> Option<Jinja> {
        self.get_value_by_str(key.as_str()?)
    }

    fn get_value_by_str(self: &Arc<Self>, key: &str) -> Option<Jinja> {
        self.0.iter().find(|(name, _)| **name == *key).map(|(_, value)| value.clone())
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        self.mapped_enumerator(|this| Box::new(this.0.iter().map(|(name, _)| Jinja::from(name.clone()))))
    }
}

/// A timestamp. By default it is rendered in RFC 3339; the filters `date` and `time` format it for people.
#[derive(Debug)]
pub(crate) struct TemplateTimestamp(pub Timestamp);

impl Object for TemplateTimestamp {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Plain
    }

    fn is_true(self: &Arc<Self>) -> bool {
        true
    }

    fn custom_cmp(self: &Arc<Self>, other: &DynObject) -> Option<Ordering> {
        Some(self.0.cmp(&other.downcast_ref::<TemplateTimestamp>()?.0))
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

fn jinja(value: &Value) -> Jinja {
    match value {
        Value::Null => Jinja::from(()),
        Value::Boolean(value) => Jinja::from(*value),
        Value::Integer(value) => Jinja::from(*value),
        Value::Number(value) => Jinja::from(*value),
        Value::Text(text) => Jinja::from(text.clone()),
        Value::Timestamp(time) => Jinja::from_object(TemplateTimestamp(*time)),
        Value::List(items) => Jinja::from(items.iter().map(jinja).collect::<Vec<_>>()),
        Value::Map(entries) => {
            Jinja::from_object(MapEntries(entries.iter().map(|(key, value)| (key.clone(), jinja(value))).collect()))
        }
    }
}

/// An integer. The engine's conversion constructs an error for other values first, which costs more than the rest of
/// the filter.
pub(crate) fn whole(value: &Jinja) -> Option<i64> {
    value.is_integer().then(|| value.as_i64()).flatten()
}
