//! Import of subscribers.

use std::{collections::BTreeMap, sync::Arc};

use tocsin_model::{
    field::{FieldType, Fields},
    id::Name,
    mailbox::MailChannels,
    problem::{Code, Problem},
    time::Timestamp,
    value::Value,
};
use tocsin_store::{
    error::StoreError,
    records::{NewSubscriber, SubscriberStore},
};

use super::lines::{
    LineKind, PASSED_OVER, ReadLine, Written, boolean, in_line, is_exported, joined, unknown_column, written,
};
use crate::{
    Service, csv_cells,
    error::read_object,
    subscribers::{self, DeviceDraft, Draft, SubscriberLine},
};

/// Attribute types declared by applications.
pub(super) struct DeclaredAttributes(BTreeMap<String, FieldType>);

impl DeclaredAttributes {
    /// Merges the declarations of all applications. If two differ about an attribute, text wins if either declares
    /// it; otherwise no type is declared.
    pub(super) fn of(applications: impl Iterator<Item = Fields>) -> DeclaredAttributes {
        let mut declared: BTreeMap<String, Option<FieldType>> = BTreeMap::new();
        for fields in applications {
            for field in fields.iter() {
                let known = declared.entry(field.name.to_string()).or_insert(Some(field.kind));
                if *known != Some(field.kind) {
                    let is_text = *known == Some(FieldType::String) || field.kind == FieldType::String;
                    *known = is_text.then_some(FieldType::String);
                }
            }
        }
        DeclaredAttributes(declared.into_iter().filter_map(|(name, kind)| Some((name, kind?))).collect())
    }

    /// Parses a cell. A cell of an export that does not fit its declared type is read as untyped.
    fn read(&self, name: &str, cell: &str, exported: bool, problems: &mut Vec<Problem>) -> Value {
        let Some(kind) = self.0.get(name) else { return csv_cells::value(cell) };
        let value = csv_cells::attribute_value(cell, *kind);
        if let Err(problem) = kind.accept(value.clone()) {
            let shown: String = cell.chars().take(60).collect();
            problems.push(Problem::new(Code::WrongType, format!("attributes.{name}"), format!("{problem}: `{shown}`")));
            if exported {
                return csv_cells::value(cell);
            }
        }
        value
    }
}

/// Lines of subscribers.
pub(super) struct SubscriberLines {
    pub(super) declared: DeclaredAttributes,
    pub(super) mail: MailChannels,
}

impl SubscriberLines {
    /// Checks a draft; `exported`: its line is of an export.
    fn check(&self, draft: Draft, exported: bool) -> Result<ReadLine<NewSubscriber>, Vec<Problem>> {
        match exported {
            true => subscribers::check_export(draft, &self.mail),
            false => Ok((subscribers::check(draft, None, &BTreeMap::new(), &self.mail)?, Vec::new())),
        }
    }
}

impl LineKind for SubscriberLines {
    type Item = NewSubscriber;
    type Store = dyn SubscriberStore;

    fn facet(service: &Service) -> Arc<dyn SubscriberStore> {
        service.subscriber_store.clone()
    }

    fn read_json(&self, line: &[u8]) -> Result<ReadLine<NewSubscriber>, Vec<Problem>> {
        let line: SubscriberLine = read_object(line).map_err(|problem| vec![in_line(problem)])?;
        let exported = line.is_exported();
        self.check(line.into(), exported)
    }

    fn check_column(&self, name: &str, _exported: bool) -> Option<Problem> {
        let known = ["id", "enabled", "locale", "time_zone"];
        let is_device = name.strip_prefix("device.").and_then(|rest| rest.rsplit_once('.'));
        let fits = known.contains(&name)
            || PASSED_OVER.contains(&name)
            || name.strip_prefix("attributes.").is_some_and(|name| !name.is_empty())
            || is_device.is_some_and(|(name, part)| {
                name.parse::<Name>().is_ok() && matches!(part, "channel" | "address" | "state")
            });
        let all = known.into_iter().chain([
            "attributes.<name>",
            "device.<name>.channel",
            "device.<name>.address",
            "device.<name>.state",
        ]);
        (!fits).then(|| unknown_column(name, all))
    }

    fn read_cells(&self, header: &[String], cells: &[String]) -> Result<ReadLine<NewSubscriber>, Vec<Problem>> {
        let (mut problems, mut passed_over) = (Vec::new(), Vec::new());
        let exported = is_exported(header, cells);
        let mut draft = Draft::default();
        let mut attributes: BTreeMap<String, Value> = BTreeMap::new();
        let mut devices: BTreeMap<&str, [Option<&str>; 3]> = BTreeMap::new();
        let mut has_devices = false;
        for (name, cell) in header.iter().map(String::as_str).zip(cells) {
            let cell = csv_cells::unguarded(cell);
            if let Some(device) = name.strip_prefix("device.") {
                has_devices = true;
                if let Some((device, part)) = device.rsplit_once('.')
                    && !cell.is_empty()
                {
                    let at = ["channel", "address", "state"].iter().position(|known| *known == part);
                    devices.entry(device).or_default()[at.expect("the column was checked")] = Some(cell);
                }
            } else if cell.is_empty() {
            } else if let Some(attribute) = name.strip_prefix("attributes.") {
                let differing = if exported { &mut passed_over } else { &mut problems };
                attributes.insert(attribute.to_owned(), self.declared.read(attribute, cell, exported, differing));
            } else {
                match name {
                    "id" => draft.id = Some(cell.to_owned()),
                    "enabled" => draft.enabled = boolean("enabled", cell, &mut problems),
                    "locale" => draft.locale = Some(cell.to_owned()),
                    "time_zone" => draft.time_zone = Some(cell.to_owned()),
                    _ => {}
                }
            }
        }
        let devices = devices.into_iter().filter_map(|(name, [channel, address, state])| {
            let mut needed = |part: &str, cell: Option<&str>| {
                if cell.is_none() {
                    problems.push(Problem::new(
                        Code::Required,
                        format!("device.{name}.{part}"),
                        "is required where the device is given",
                    ));
                }
                cell.map(str::to_owned)
            };
            let (channel, address) = (needed("channel", channel), needed("address", address));
            let state = match state.map(|state| serde_json::from_value(serde_json::Value::from(state))) {
                None => None,
                Some(Ok(state)) => Some(state),
                Some(Err(_)) => {
                    let problem = Problem::new(Code::UnknownValue, format!("device.{name}.state"), "is not a state");
                    problems.push(problem.hint("states are active, disabled, bounced, failed, pending"));
                    return None;
                }
            };
            Some((name.to_owned(), DeviceDraft { channel: channel?, address: address?, state }))
        });
        let devices: BTreeMap<_, _> = devices.collect();
        draft.attributes = Some(attributes);
        draft.devices = has_devices.then_some(devices);
        let (item, warnings) = joined(problems, self.check(draft, exported))?;
        passed_over.extend(warnings);
        Ok((item, passed_over))
    }

    async fn store(
        records: &dyn SubscriberStore,
        items: Vec<NewSubscriber>,
        now: Timestamp,
    ) -> Result<Vec<Written>, StoreError> {
        Ok(records.put_subscribers(items, now).await?.into_iter().map(written).collect())
    }
}
