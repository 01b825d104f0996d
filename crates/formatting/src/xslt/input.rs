//! A notification as XML, the input of stylesheets.

use jiff::tz::TimeZone;
use tocsin_model::{field::Fields, time::Timestamp, value::Value};

use super::XsltError;
use crate::{
    locale_data::LocaleData,
    scope::{RootsUsed, Scope},
    tree::Tree,
};

/// Most elements, attributes and texts of a document. Comparing two node sets costs the product of their sizes.
const NODES_MAX: usize = 4_000;
/// Deepest nesting of values.
const DEPTH_MAX: usize = 32;

/// The input of a stylesheet for a notification.
///
/// ```xml
/// <notifications>
///   <notification id="n-7-15" rule="near_me" matched_at="2026-11-21T21:05:09Z" accepted_at="2026-11-21T21:05:08Z">
///     <magnitude value="6.4">6,4</magnitude>
///     <place>Kobe</place>
///     <at value="2026-11-21T21:05:09Z" date="21. November 2026" time="22:05">21. November 2026 22:05</at>
///     <tags><item>coast</item></tags>
///     <more><entry key="depth" value="10">10</entry></more>
///     <event>...</event> <sub>...</sub>
///     <subscriber id="alice" locale="de" time_zone="Europe/Vienna"><attribute
///     key="name">Alice</attribute></subscriber>
///     <device name="home" channel="email" address="alice@example.org"/>
///   </notification>
/// </notifications>
/// ```
///
/// In a digest there is one `notification` element per notification, those after the first with fields and event only,
/// and `notifications` has the attributes `count` and `more`.
///
/// Numbers and times are formatted in the reader's locale; `value` has the raw value. For JSON output, each element has
/// its value as JSON in `json`. A field without a value is an empty element.
pub struct Input<'a> {
    pub fields: &'a Fields,
    pub scope: &'a Scope<'a>,
    pub locale: Option<&'a str>,
    pub uses: RootsUsed,
}

impl Input<'_> {
    /// The document.
    ///
    /// # Errors
    /// The document has more nodes than allowed.
    pub(super) fn tree(&self) -> Result<Tree, XsltError> {
        let scope = self.scope;
        let zone =
            scope.profile.time_zone.as_deref().and_then(|zone| TimeZone::get(zone).ok()).unwrap_or(TimeZone::UTC);
        let mut writer = Writer {
            tree: Tree::new("notifications"),
            locale_data: LocaleData::of(self.locale),
            zone,
            wants_json: self.uses.json,
        };
        if let Some(digest) = &scope.digest {
            writer.tree.attribute("count", &digest.count.to_string());
            writer.tree.attribute("more", &digest.count.saturating_sub(digest.items.len()).to_string());
        }
        writer.tree.open("notification");
        writer.tree.attribute("id", &scope.id.to_string());
        writer.tree.attribute("rule", scope.rule.as_str());
        writer.tree.attribute("matched_at", &scope.matched_at.to_string());
        writer.tree.attribute("accepted_at", &scope.accepted_at.to_string());
        writer.row(self.fields, scope.fields)?;
        if self.uses.event {
            writer.tree.open("event");
            writer.row(&scope.event.fields, &scope.event.row)?;
            writer.tree.close();
        }
        if self.uses.sub {
            writer.tree.open("sub");
            writer.row(scope.subscription.0, scope.subscription.1)?;
            writer.tree.close();
        }
        if self.uses.subscriber {
            writer.tree.open("subscriber");
            writer.tree.attribute("id", scope.subscriber.as_str());
            let profile = scope.profile;
            for (name, value) in [("locale", &profile.locale), ("time_zone", &profile.time_zone)] {
                if let Some(value) = value {
                    writer.tree.attribute(name, value);
                }
            }
            for (name, value) in &profile.attributes {
                writer.tree.open("attribute");
                writer.tree.attribute("key", name);
                writer.value(value, 0)?;
                writer.tree.close();
            }
            writer.tree.close();
        }
        if self.uses.device {
            writer.tree.open("device");
            writer.tree.attribute("name", scope.device.name);
            writer.tree.attribute("channel", scope.device.channel);
            writer.tree.attribute("address", scope.device.address);
            writer.tree.close();
        }
        // The first one is written above.
        for item in scope.digest.iter().flat_map(|digest| digest.items).skip(1) {
            writer.tree.close();
            writer.tree.open("notification");
            writer.tree.attribute("id", &item.id.to_string());
            writer.tree.attribute("rule", item.rule.as_str());
            writer.tree.attribute("matched_at", &item.matched_at.to_string());
            writer.tree.attribute("accepted_at", &item.accepted_at.to_string());
            writer.row(self.fields, item.fields)?;
            if self.uses.event {
                writer.tree.open("event");
                writer.row(&item.event.fields, &item.event.row)?;
                writer.tree.close();
            }
        }
        Ok(writer.tree)
    }
}

struct Writer {
    tree: Tree,
    locale_data: &'static LocaleData,
    zone: TimeZone,
    wants_json: bool,
}

impl Writer {
    fn row(&mut self, fields: &Fields, row: &[Value]) -> Result<(), XsltError> {
        for (field, value) in fields.iter().zip(row) {
            // The name of a field is an XML name as well.
            self.tree.open(field.name.as_str());
            self.value(value, 0)?;
            self.tree.close();
        }
        Ok(())
    }

    /// Writes a value into the open element.
    fn value(&mut self, value: &Value, depth: usize) -> Result<(), XsltError> {
        if self.tree.nodes() > NODES_MAX || depth > DEPTH_MAX {
            let message = format!("the notification has more than {NODES_MAX} values, the limit for stylesheets");
            return Err(XsltError::plain(message));
        }
        if self.wants_json {
            let json = serde_json::to_string(value).unwrap_or_else(|_| "null".to_owned());
            self.tree.attribute("json", &json);
        }
        match value {
            Value::Null => {}
            Value::Boolean(value) => self.tree.text(if *value { "true" } else { "false" }),
            Value::Integer(value) => {
                let plain = value.to_string();
                self.tree.attribute("value", &plain);
                self.tree.text(&self.locale_data.number(plain));
            }
            Value::Number(value) => {
                let plain = format!("{value}");
                self.tree.attribute("value", &plain);
                self.tree.text(&self.locale_data.number(plain));
            }
            Value::Text(text) => self.tree.text(text),
            Value::Timestamp(time) => self.time(*time),
            Value::List(items) => {
                for item in items.iter() {
                    self.tree.open("item");
                    self.value(item, depth + 1)?;
                    self.tree.close();
                }
            }
            Value::Map(entries) => {
                for (key, value) in entries.iter() {
                    self.tree.open("entry");
                    self.tree.attribute("key", key);
                    self.value(value, depth + 1)?;
                    self.tree.close();
                }
            }
        }
        Ok(())
    }

    fn time(&mut self, time: Timestamp) {
        self.tree.attribute("value", &time.to_string());
        let Some(local) = time.in_zone(&self.zone) else { return };
        let date = self.locale_data.date(local.date(), "long").unwrap_or_default();
        let hour = self.locale_data.time(local.time(), false);
        self.tree.attribute("date", &date);
        self.tree.attribute("time", &hour);
        self.tree.text(&format!("{date} {hour}"));
    }
}
