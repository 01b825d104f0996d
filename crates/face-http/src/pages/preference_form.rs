//! The form of the preference page, as shown and as submitted. A refused form is shown with what it contained.

use std::collections::{BTreeMap, BTreeSet};

use minijinja::{Value, context};
use tocsin_model::{
    hours::Hours,
    id::{Name, SubscriptionId},
    preferences::QUIET_HOURS_MAX,
    subscriber::DeviceState,
};
use tocsin_service::preference_page::{
    ApplicationView, DeviceView, PreferenceChange, PreferenceView, SubscriptionView, TypeChange, TypeView,
};

use super::{form::Form, hosted::HostedPages, layout::Page};

/// Days that the page offers for quiet hours; further ones are kept as they are.
const DAYS: [&str; 3] = ["", "mo-fr", "sa,su"];

/// Notice at the top of the page.
pub(super) enum Notice {
    None,
    /// A change was made.
    Done(String),
    /// Fields are invalid, by their paths.
    Invalid(BTreeSet<String>),
    /// The form is not of this page, or too old.
    Expired,
    /// The preferences were changed in the meantime.
    Changed,
}

/// A submitted form.
pub(super) struct Entered {
    pub(super) revision: u64,
    locale: String,
    time_zone: String,
    quiet: Vec<QuietRow>,
    /// Checked and known boxes, by the name of their field.
    checked: BTreeMap<&'static str, BTreeSet<String>>,
    known: BTreeMap<&'static str, BTreeSet<String>>,
}

/// A row of quiet hours, as entered.
#[derive(Debug, Clone, Default, PartialEq)]
struct QuietRow {
    from: String,
    to: String,
    days: String,
}

impl QuietRow {
    fn of(hours: &Hours) -> QuietRow {
        let text = hours.to_string();
        let (times, days) = text.split_once(' ').unwrap_or((&text, ""));
        let (from, to) = times.split_once('-').unwrap_or((times, ""));
        // An input of type `time` has no 24:00.
        let to = if to == "24:00" { "00:00" } else { to };
        QuietRow { from: from.to_owned(), to: to.to_owned(), days: days.to_owned() }
    }

    /// The hours; `None`: the row is empty.
    fn hours(&self) -> Option<Result<Hours, ()>> {
        let (from, to) = (self.from.trim(), self.to.trim());
        if from.is_empty() && to.is_empty() {
            return None;
        }
        // Browsers may add seconds.
        let minutes = |text: &str| text.get(..5).filter(|_| text.len() == 8).unwrap_or(text).to_owned();
        let (from, mut to) = (minutes(from), minutes(to));
        if to == "00:00" {
            to = "24:00".to_owned();
        }
        Some(format!("{from}-{to} {}", self.days).trim().parse().map_err(|_| ()))
    }
}

/// The names of the fields with boxes, and of the hidden fields that name the boxes of the form.
const BOXES: [(&str, &str); 4] =
    [("on", "type"), ("channel", "has_channel"), ("digest", "has_digest"), ("subscribed", "subscription")];

impl Entered {
    pub(super) fn of(form: &Form) -> Entered {
        let text = |name: &str| form.value(name).unwrap_or_default().trim().to_owned();
        let all = |name: &str| form.values(name).map(str::to_owned).collect::<BTreeSet<_>>();
        let rows = form.values("from").zip(form.values("to")).zip(form.values("days"));
        let row = |((from, to), days): ((&str, &str), &str)| QuietRow {
            from: from.to_owned(),
            to: to.to_owned(),
            days: days.to_owned(),
        };
        Entered {
            revision: form.value("revision").and_then(|text| text.parse().ok()).unwrap_or_default(),
            locale: text("locale"),
            time_zone: text("time_zone"),
            quiet: rows.take(QUIET_HOURS_MAX).map(row).collect(),
            checked: BOXES.iter().map(|(name, _)| (*name, all(name))).collect(),
            known: BOXES.iter().map(|(name, hidden)| (*name, all(hidden))).collect(),
        }
    }

    fn is_checked(&self, field: &str, value: &str) -> bool {
        self.checked.get(field).is_some_and(|checked| checked.contains(value))
    }

    /// The change.
    ///
    /// # Errors
    /// The paths of invalid fields.
    pub(super) fn change(&self) -> Result<PreferenceChange, BTreeSet<String>> {
        let mut invalid = BTreeSet::new();
        let mut quiet_hours = Vec::new();
        for (at, row) in self.quiet.iter().enumerate() {
            match row.hours() {
                Some(Ok(hours)) => quiet_hours.push(hours),
                Some(Err(())) => drop(invalid.insert(format!("quiet.{at}"))),
                None => {}
            }
        }
        let known = |field: &str| self.known.get(field).into_iter().flatten();
        let mut types = Vec::new();
        for key in known("on") {
            let Some((application, class)) = key.split_once('/') else { continue };
            let (Ok(application), Ok(class)) = (application.parse::<Name>(), class.parse::<Name>()) else { continue };
            let prefix = format!("{key}/");
            let channels = known("channel").filter_map(|value| {
                let channel = value.strip_prefix(&prefix)?.parse().ok()?;
                Some((channel, self.is_checked("channel", value)))
            });
            types.push(TypeChange {
                application,
                class,
                enabled: self.is_checked("on", key),
                channels: channels.collect(),
                digest: known("digest").any(|known| known == key).then(|| self.is_checked("digest", key)),
            });
        }
        let subscriptions = known("subscribed").filter_map(|value| {
            let id: SubscriptionId = value.parse().ok()?;
            Some((id, self.is_checked("subscribed", value)))
        });
        let text = |text: &str| Some(text.to_owned()).filter(|text| !text.is_empty());
        let change = PreferenceChange {
            locale: text(&self.locale),
            time_zone: text(&self.time_zone),
            quiet_hours,
            types,
            subscriptions: subscriptions.collect(),
        };
        if invalid.is_empty() { Ok(change) } else { Err(invalid) }
    }
}

/// The variables of the template.
pub(super) fn variables(
    page: &Page,
    pages: &HostedPages,
    view: &PreferenceView,
    entered: Option<&Entered>,
    notice: &Notice,
    form: &str,
) -> Value {
    let invalid = |path: &str| matches!(notice, Notice::Invalid(paths) if paths.contains(path));
    let locale = entered.map_or(view.locale.as_deref().unwrap_or_default(), |entered| &entered.locale);
    let time_zone = entered.map_or(view.time_zone.as_deref().unwrap_or_default(), |entered| &entered.time_zone);
    let mut quiet = match entered {
        Some(entered) => entered.quiet.clone(),
        None => view.quiet_hours.iter().map(QuietRow::of).collect(),
    };
    if quiet.len() < QUIET_HOURS_MAX && quiet.last().is_none_or(|row| *row != QuietRow::default()) {
        quiet.push(QuietRow::default());
    }
    let quiet = quiet.iter().enumerate().map(|(at, row)| {
        let mut days: Vec<&str> = DAYS.to_vec();
        if !days.contains(&row.days.as_str()) {
            days.push(&row.days);
        }
        let day = |days: &str| {
            let key = format!("preferences.days.{}", if days.is_empty() { "all" } else { days });
            let name = if page.has_text(&key) { page.text(&key, &[]) } else { days.to_owned() };
            context! { value => days, name, selected => days == row.days }
        };
        context! {
            from => row.from.as_str(),
            to => row.to.as_str(),
            days => days.into_iter().map(day).collect::<Vec<_>>(),
            invalid => invalid(&format!("quiet.{at}")),
        }
    });
    let mut languages: Vec<(String, String)> =
        pages.catalogs.all().iter().map(|catalog| (catalog.tag.clone(), catalog.name().to_owned())).collect();
    if !locale.is_empty() && !languages.iter().any(|(tag, _)| tag == locale) {
        languages.push((locale.to_owned(), locale.to_owned()));
    }
    let languages = languages.into_iter().map(|(tag, name)| {
        let selected = tag == locale;
        context! { tag, name, selected }
    });
    let (state, done) = match notice {
        Notice::None => ("none", ""),
        Notice::Done(done) => ("done", done.as_str()),
        Notice::Invalid(_) => ("invalid", ""),
        Notice::Expired => ("expired", ""),
        Notice::Changed => ("changed", ""),
    };
    let zones = jiff::tz::db().available().map(|name| name.to_string());
    context! {
        form,
        revision => view.revision,
        notice => state,
        done => (!done.is_empty()).then(|| page.text(&format!("preferences.done.{done}"), &[])),
        only_critical => view.only_critical,
        paused_until => view.paused_until.map(|end| page.date(end, view.time_zone.as_deref())),
        applications => view.applications.iter().map(|found| application(page, found, entered)).collect::<Vec<_>>(),
        devices => view.devices.iter().map(|found| device(page, found)).collect::<Vec<_>>(),
        quiet => quiet.collect::<Vec<_>>(),
        quiet_invalid => matches!(notice, Notice::Invalid(paths) if paths.iter().any(|path| path.contains("quiet"))),
        languages => languages.collect::<Vec<_>>(),
        locale => locale,
        locale_invalid => invalid("locale"),
        time_zone => time_zone,
        time_zone_invalid => invalid("time_zone"),
        zones => zones.collect::<Vec<_>>(),
    }
}

fn application(page: &Page, found: &ApplicationView, entered: Option<&Entered>) -> Value {
    let ApplicationView { name, title, description, types, subscriptions, more } = found;
    let types = types.iter().map(|found| notification_type(page, name, found, entered));
    let subscriptions = subscriptions.iter().map(|found| subscription(page, found, entered));
    context! {
        name => name.as_str(),
        title => title,
        description => description,
        types => types.collect::<Vec<_>>(),
        subscriptions => subscriptions.collect::<Vec<_>>(),
        more => more,
    }
}

fn notification_type(page: &Page, application: &Name, found: &TypeView, entered: Option<&Entered>) -> Value {
    let key = format!("{application}/{}", found.class);
    let (title, description) = page.titles(&found.texts, &found.title, found.description.as_deref());
    let checked =
        |field: &str, value: &str, stored: bool| entered.map_or(stored, |entered| entered.is_checked(field, value));
    let channels = found.channels.iter().map(|(channel, allowed)| {
        let value = format!("{key}/{channel}");
        let checked = checked("channel", &value, *allowed);
        context! { value, name => channel_title(page, channel), checked }
    });
    context! {
        title,
        description,
        critical => found.critical,
        enabled => checked("on", &key, found.enabled),
        channels => channels.collect::<Vec<_>>(),
        digest => found.digest.map(|daily| checked("digest", &key, daily)),
        key,
    }
}

fn subscription(page: &Page, found: &SubscriptionView, entered: Option<&Entered>) -> Value {
    let (title, description) = page.titles(&found.texts, &found.title, None);
    let id = found.id.to_string();
    let enabled = entered.map_or(found.enabled, |entered| entered.is_checked("subscribed", &id));
    context! { id, title, description, details => found.values.as_str(), enabled }
}

fn device(page: &Page, found: &DeviceView) -> Value {
    let state = match found.state {
        DeviceState::Active => None,
        DeviceState::Disabled => Some("disabled"),
        DeviceState::Bounced => Some("bounced"),
        DeviceState::Failed => Some("failed"),
        DeviceState::Pending => Some("pending"),
    };
    context! {
        name => found.name.as_str(),
        channel => channel_title(page, &found.channel),
        address => found.address.as_str(),
        state => state.map(|state| page.text(&format!("preferences.state.{state}"), &[])),
    }
}

/// The name of a channel: that of the language for usual names.
fn channel_title(page: &Page, channel: &Name) -> String {
    let key = format!("channel.{channel}");
    if page.has_text(&key) { page.text(&key, &[]) } else { tocsin_model::pages::title_of(channel) }
}
