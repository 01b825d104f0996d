//! Bulk export of subscribers, subscriptions or suppressions as lines: NDJSON, or CSV safe against formula injection.
//!
//! The stream is produced on demand: a page of the records at a time, read when the previous one was taken.

use std::{collections::BTreeSet, sync::Arc};

use bytes::Bytes;
use futures_util::{Stream, stream};
use tocsin_model::{
    field::Fields,
    id::{Name, SubscriberId, SubscriptionId},
    problem::Code,
    subscriber::Subscriber,
    subscription::Subscription,
    suppression::Target,
};
use tocsin_store::records::{SubscriberFilter, SubscriberStore, SubscriptionFilter, SuppressionFilter};

use crate::{
    Service, csv_cells,
    error::ServiceError,
    imports::Format,
    keys::{Caller, Scope},
    subscribers, subscriptions, suppressions,
};

/// Page size of reads.
const PAGE: usize = 1_000;
/// Maximum number of columns of CSV.
pub const COLUMNS_MAX: usize = 1_000;

/// Lines to be written out, in pieces.
pub type ExportStream = std::pin::Pin<Box<dyn Stream<Item = Result<Bytes, ServiceError>> + Send>>;

impl Service {
    /// All subscribers that meet the filter, in the order of their ids. One that is changed meanwhile comes out as it was
    /// or as it is, once. CSV reads the records twice: first for its columns.
    ///
    /// # Errors
    /// The scope `subscribers:read` is missing; CSV would have more than [`COLUMNS_MAX`] columns. An error within the
    /// stream ends it.
    pub async fn export_subscribers(
        &self,
        caller: &Caller,
        filter: SubscriberFilter,
        format: Format,
    ) -> Result<ExportStream, ServiceError> {
        caller.needs(Scope::SubscribersRead)?;
        let columns = match format {
            Format::Ndjson => None,
            Format::Csv => Some(subscriber_columns(&*self.subscriber_store, &filter).await?),
        };
        let header = columns.as_ref().map(SubscriberColumns::header);
        let records = self.subscriber_store.clone();
        let next = move |after: Option<SubscriberId>| {
            let (records, filter, columns) = (records.clone(), filter.clone(), columns.clone());
            async move {
                let found = records.subscribers(&filter, after.as_ref(), PAGE).await?;
                let last = if found.len() < PAGE { None } else { found.last().map(|last| last.id.clone()) };
                let mut out = Vec::with_capacity(found.len() * 256);
                for subscriber in found {
                    match &columns {
                        None => json_line(&subscribers::Document::from(subscriber), &mut out),
                        Some(columns) => csv_line(columns.cells(subscriber), &mut out),
                    }
                }
                Ok((Bytes::from(out), last))
            }
        };
        Ok(pages(header, next))
    }

    /// All subscriptions that meet the filter, in the order of their numbers. CSV needs the application and class, whose
    /// fields are its columns.
    ///
    /// # Errors
    /// The scope `subscribers:read` is missing; the application or class does not exist; CSV without a class. An error within
    /// the stream ends it.
    pub async fn export_subscriptions(
        &self,
        caller: &Caller,
        filter: SubscriptionFilter,
        format: Format,
    ) -> Result<ExportStream, ServiceError> {
        caller.needs(Scope::SubscribersRead)?;
        self.check_known_class(&filter).await?;
        let fields = match (format, &filter.application, &filter.class) {
            (Format::Ndjson, _, _) => None,
            (Format::Csv, Some(application), Some(class)) => {
                Some(self.named_class(application.as_str(), class.as_str())?.fields)
            }
            (Format::Csv, _, _) => {
                let message = "CSV needs an application and a class, whose fields are its columns";
                return Err(ServiceError::invalid(Code::MissingCounterpart, "class", message));
            }
        };
        let header = fields.as_ref().map(|fields| {
            let fixed = ["id", "application", "class", "subscriber", "key", "device", "enabled"].map(str::to_owned);
            let values = fields.iter().map(|field| format!("values.{}", field.name));
            let last = ["filter", "schedule", "snoozed_until", "consent.state", "created_at", "updated_at", "revision"]
                .map(str::to_owned);
            fixed.into_iter().chain(values).chain(last).collect()
        });
        let (records, pipeline) = (self.subscription_store.clone(), self.pipeline.clone());
        let next = move |after: Option<SubscriptionId>| {
            let (records, pipeline, filter, fields) =
                (records.clone(), pipeline.clone(), filter.clone(), fields.clone());
            async move {
                let found = records.subscriptions(&filter, after, PAGE).await?;
                let last = if found.len() < PAGE { None } else { found.last().map(|last| last.id) };
                let mut out = Vec::with_capacity(found.len() * 256);
                for subscription in found {
                    match &fields {
                        None => {
                            let (application, class) = (&subscription.application, &subscription.class);
                            let fields = subscriptions::class_fields(&pipeline, application, class);
                            json_line(&subscriptions::Document::of(subscription, fields.as_ref()), &mut out);
                        }
                        Some(fields) => csv_line(subscription_cells(fields, subscription)?, &mut out),
                    }
                }
                Ok((Bytes::from(out), last))
            }
        };
        Ok(pages(header, next))
    }
}

impl Service {
    /// All suppressions that meet the filter, in the order of their targets.
    ///
    /// # Errors
    /// The scope `subscribers:read` is missing. An error within the stream ends it.
    pub fn export_suppressions(
        &self,
        caller: &Caller,
        filter: SuppressionFilter,
        format: Format,
    ) -> Result<ExportStream, ServiceError> {
        caller.needs(Scope::SubscribersRead)?;
        let header = (format == Format::Csv).then(|| SUPPRESSION_COLUMNS.map(str::to_owned).to_vec());
        let records = self.suppression_store.clone();
        let next = move |after: Option<Target>| {
            let (records, filter) = (records.clone(), filter.clone());
            async move {
                let found = records.suppressions(&filter, after.as_ref(), PAGE).await?;
                let last = if found.len() < PAGE { None } else { found.last().map(|last| last.target.clone()) };
                let mut out = Vec::with_capacity(found.len() * 256);
                for suppression in found {
                    let document = suppressions::Document::from(suppression);
                    match format {
                        Format::Ndjson => json_line(&document, &mut out),
                        Format::Csv => csv_line(suppression_cells(document), &mut out),
                    }
                }
                Ok((Bytes::from(out), last))
            }
        };
        Ok(pages(header, next))
    }
}

const SUPPRESSION_COLUMNS: [&str; 15] = [
    "protocol",
    "address",
    "subscriber",
    "device",
    "cause",
    "in_force",
    "origin",
    "detail",
    "notification",
    "bounces",
    "since",
    "updated_at",
    "expires_at",
    "application",
    "channel",
];

fn suppression_cells(found: suppressions::Document) -> Vec<String> {
    vec![
        found.protocol.unwrap_or_default(),
        found.address.unwrap_or_default(),
        found.subscriber.unwrap_or_default(),
        found.device.unwrap_or_default(),
        found.cause.to_owned(),
        found.in_force.to_string(),
        found.origin,
        found.detail,
        found.notification.map(|id| id.to_string()).unwrap_or_default(),
        found.bounces.to_string(),
        found.since.to_string(),
        found.updated_at.to_string(),
        found.expires_at.map(|end| end.to_string()).unwrap_or_default(),
        found.application.unwrap_or_default(),
        found.channel.unwrap_or_default(),
    ]
}

/// A stream of pages, each asked for with the key of the last thing of the page before.
pub(crate) fn pages<K, F, P>(header: Option<Vec<String>>, next: F) -> ExportStream
where
    K: Send + 'static,
    F: Fn(Option<K>) -> P + Send + 'static,
    P: Future<Output = Result<(Bytes, Option<K>), ServiceError>> + Send,
{
    enum At<K> {
        Header(Vec<String>),
        Page(Option<K>),
        End,
    }
    let start = header.map_or(At::Page(None), At::Header);
    Box::pin(stream::unfold((start, next), |(at, next)| async move {
        match at {
            At::Header(header) => {
                let mut out = Vec::new();
                csv_line(header, &mut out);
                Some((Ok(Bytes::from(out)), (At::Page(None), next)))
            }
            At::Page(after) => match next(after).await {
                Ok((bytes, None)) => Some((Ok(bytes), (At::End, next))),
                Ok((bytes, last)) => Some((Ok(bytes), (At::Page(last), next))),
                Err(error) => Some((Err(error), (At::End, next))),
            },
            At::End => None,
        }
    }))
}

pub(crate) fn json_line(document: &impl serde::Serialize, out: &mut Vec<u8>) {
    serde_json::to_writer(&mut *out, document).expect("a document is always JSON");
    out.push(b'\n');
}

pub(crate) fn csv_line(cells: Vec<String>, out: &mut Vec<u8>) {
    let mut writer = csv::WriterBuilder::new().terminator(csv::Terminator::CRLF).from_writer(&mut *out);
    writer
        .write_record(cells.iter().map(|cell| csv_cells::guarded(cell).into_owned()))
        .expect("memory takes everything");
    writer.flush().expect("memory takes everything");
}

#[derive(Clone)]
struct SubscriberColumns {
    attributes: Arc<BTreeSet<String>>,
    devices: Arc<BTreeSet<Name>>,
}

async fn subscriber_columns(
    records: &dyn SubscriberStore,
    filter: &SubscriberFilter,
) -> Result<SubscriberColumns, ServiceError> {
    let (mut attributes, mut devices) = (BTreeSet::new(), BTreeSet::new());
    let mut after: Option<SubscriberId> = None;
    loop {
        let found = records.subscribers(filter, after.as_ref(), PAGE).await?;
        for subscriber in &found {
            for name in
                subscriber.profile.attributes.keys().filter(|name| !attributes.contains(*name)).collect::<Vec<_>>()
            {
                attributes.insert(name.clone());
            }
            for name in subscriber.devices.keys().filter(|name| !devices.contains(*name)).collect::<Vec<_>>() {
                devices.insert(name.clone());
            }
        }
        if attributes.len() + 3 * devices.len() > COLUMNS_MAX {
            let message = format!("CSV would have more than {COLUMNS_MAX} columns; take NDJSON");
            return Err(ServiceError::invalid(Code::NotApplicable, "format", message));
        }
        if found.len() < PAGE {
            return Ok(SubscriberColumns { attributes: Arc::new(attributes), devices: Arc::new(devices) });
        }
        after = found.last().map(|last| last.id.clone());
    }
}

impl SubscriberColumns {
    fn header(&self) -> Vec<String> {
        let fixed = ["id", "enabled", "locale", "time_zone"].map(str::to_owned);
        let attributes = self.attributes.iter().map(|name| format!("attributes.{name}"));
        let devices = self
            .devices
            .iter()
            .flat_map(|name| ["channel", "address", "state"].map(|part| format!("device.{name}.{part}")));
        let last = ["created_at", "updated_at", "revision"].map(str::to_owned);
        fixed.into_iter().chain(attributes).chain(devices).chain(last).collect()
    }

    fn cells(&self, subscriber: Subscriber) -> Vec<String> {
        let profile = &subscriber.profile;
        let mut cells = vec![
            subscriber.id.to_string(),
            profile.enabled.to_string(),
            profile.locale.clone().unwrap_or_default(),
            profile.time_zone.clone().unwrap_or_default(),
        ];
        cells.extend(
            self.attributes.iter().map(|name| profile.attributes.get(name).map(csv_cells::cell).unwrap_or_default()),
        );
        for name in self.devices.iter() {
            match subscriber.devices.get(name) {
                Some(device) => {
                    let state =
                        serde_json::to_value(device.state).ok().and_then(|state| state.as_str().map(str::to_owned));
                    cells.extend([device.channel.to_string(), device.address.clone(), state.unwrap_or_default()]);
                }
                None => cells.extend([String::new(), String::new(), String::new()]),
            }
        }
        cells.extend([
            subscriber.created_at.to_string(),
            subscriber.updated_at.to_string(),
            subscriber.revision.to_string(),
        ]);
        cells
    }
}

fn subscription_cells(fields: &Fields, subscription: Subscription) -> Result<Vec<String>, ServiceError> {
    let row = fields
        .row_from_stored(&subscription.values)
        .map_err(|error| ServiceError::Unavailable(format!("{}: {error}", subscription.id).into()))?;
    let (is_active, snoozed_until) = (subscription.is_active_or_snoozed(), subscription.terms.snoozed_until);
    let mut cells = vec![
        subscription.id.to_string(),
        subscription.application.to_string(),
        subscription.class.to_string(),
        subscription.subscriber.to_string(),
        subscription.key.unwrap_or_default(),
        subscription.device.map(|device| device.to_string()).unwrap_or_default(),
        is_active.to_string(),
    ];
    cells.extend(row.iter().map(csv_cells::typed_cell));
    cells.extend([
        subscription.terms.filter.map(|filter| filter.to_string()).unwrap_or_default(),
        subscription.terms.schedule.map(String::from).unwrap_or_default(),
        snoozed_until.map(|until| until.to_string()).unwrap_or_default(),
        subscription.consent.map(|state| state.word().to_owned()).unwrap_or_default(),
        subscription.created_at.to_string(),
        subscription.updated_at.to_string(),
        subscription.revision.to_string(),
    ]);
    Ok(cells)
}
