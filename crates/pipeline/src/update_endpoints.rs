//! Handles endpoints that fail: writes their state, warns, and disables the device of one that has failed for too long.
//!
//! An application can receive events about its endpoints. They are accepted before the device is changed:
//! at-least-once, if the process ends in between.

use std::{sync::Arc, time::Duration};

use tocsin_delivery::redact;
use tocsin_model::{
    application::endpoint_source,
    event::EventPacker,
    field::Field,
    id::{Name, SubscriberId},
    subscriber::{Device, DeviceState},
    value::Value,
};
use tocsin_store::{
    error::StoreError,
    records::{EndpointKey, FailingEndpoint, PutDevice},
};

use crate::{
    Flow,
    accept_events::{self, AcceptError, Submission},
    active_version::ActiveVersion,
    endpoints::{Due, EndpointUpdate},
};

/// Handles endpoint tasks of a recorder in order, outside of the delivery path.
pub(crate) async fn apply_endpoint_updates(flow: &Arc<Flow>, active: &ActiveVersion, updates: Vec<EndpointUpdate>) {
    for update in updates {
        if let Err(error) = apply_update(flow, active, update).await {
            tracing::error!(%error, "the state of an endpoint cannot be stored");
        }
    }
}

/// Carries out a task about an endpoint.
async fn apply_update(flow: &Flow, active: &ActiveVersion, update: EndpointUpdate) -> Result<(), StoreError> {
    let records = &*flow.recipient_store;
    let (key, subscription) = match update {
        EndpointUpdate::Recovered(key) => return records.remove_failing_endpoints(vec![key]).await,
        EndpointUpdate::Failing(key, subscription) => (key, subscription),
    };
    let Some(limit) = active.disable_after(&key.channel) else { return Ok(()) };
    let recipient = records.recipients(&[subscription]).await?.pop().flatten();
    let is_it = |device: &Device| device.channel == key.channel && device.address == key.address;
    let found = recipient.as_ref().and_then(|recipient| {
        let (name, device) = recipient.devices.iter().find(|(_, device)| is_it(device))?;
        Some((&recipient.id, name, device))
    });
    // The device was removed, or its address changed.
    let Some((subscriber, name, device)) = found else { return flow.endpoints.remove(records, key).await };
    if device.state != DeviceState::Active {
        // The message was in flight when the device was disabled.
        return Ok(());
    }
    let Some((due, mut known)) = flow.endpoints.due_for(&key, subscriber, name, limit) else { return Ok(()) };
    let (since, failures, reason) = (known.since.to_string(), known.failures, known.reason.clone());
    let channel = &key.channel;
    match due {
        Due::Disable => {
            // Before any change: if the event cannot be accepted, the next failure tries again.
            accept_endpoint_event(flow, active, &known, true, limit).await?;
            known.disabled_at = Some(flow.clock.now());
            let off = Device { state: DeviceState::Failed, ..device.clone() };
            flow.subscriber_store
                .put_device(PutDevice { id: subscriber, name, device: off, keeps_state: false, now: flow.clock.now() })
                .await?;
            metrics::counter!("tocsin_deliver_endpoints_disabled_total").increment(1);
            tracing::warn!(%subscriber, device = %name, %channel, since, failures, reason,
                    "an endpoint has failed for too long and is switched off; `tocsin endpoints` lists it");
        }
        Due::Warn => {
            accept_endpoint_event(flow, active, &known, false, limit).await?;
            known.warned_at = Some(flow.clock.now());
            metrics::counter!("tocsin_deliver_endpoints_warned_total").increment(1);
            tracing::warn!(%subscriber, device = %name, %channel, since, failures, reason,
                "an endpoint has only failed for half the time after which it is switched off");
        }
        Due::Nothing | Due::Write | Due::Again => {}
    }
    flow.endpoints.set_handled(&known);
    records.put_failing_endpoints(vec![known]).await
}

/// Accepts an event about an endpoint, if its channel names an event class for that: it is about to be disabled, or
/// now is.
async fn accept_endpoint_event(
    flow: &Flow,
    active: &ActiveVersion,
    endpoint: &FailingEndpoint,
    disabled: bool,
    limit: Duration,
) -> Result<(), StoreError> {
    let FailingEndpoint { key: EndpointKey { application, channel, .. }, .. } = endpoint;
    let compiled = active.compiled();
    let definition = &compiled.application;
    let Some(event) = definition.channels.get(channel).and_then(|channel| channel.endpoint_event.clone()) else {
        return Ok(());
    };
    let Some(class) = definition.events.get(&event) else { return Ok(()) };
    let text = |name: Option<&str>| name.map_or(Value::Null, |name| Value::Text(name.into()));
    let value = |field: &Field| match field.name.as_str() {
        "owner" => text(endpoint.subscriber.as_ref().map(SubscriberId::as_str)),
        "endpoint" => text(endpoint.device.as_ref().map(Name::as_str)),
        "via" => text(Some(channel.as_str())),
        "disabled" => Value::Boolean(disabled),
        "since" => Value::Timestamp(endpoint.since),
        "until" => Value::Timestamp(endpoint.since + limit),
        "failures" => Value::Integer(i64::try_from(endpoint.failures).unwrap_or(i64::MAX)),
        "reason" => text(Some(&redact::text(&endpoint.reason))),
        _ => field.default.clone(),
    };
    let row: Vec<Value> = class.fields.iter().map(value).collect();
    let mut events = EventPacker::new(class.fields.clone());
    events.push(&row);
    let submission = Submission {
        application: application.clone(),
        version: compiled.version,
        class: event,
        source: endpoint_source(),
        received_at: flow.clock.now(),
        events: events.finish(),
        idempotency: None,
        marks: Vec::new(),
    };
    match accept_events::accept(flow, submission).await {
        Ok(_) => Ok(()),
        Err(AcceptError::Store(error)) => Err(error),
        Err(error) => Err(StoreError::Full(error.to_string())),
    }
}
