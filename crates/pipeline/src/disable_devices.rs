//! Disables devices whose address the receiver rejects for good: the device is marked as bounced. An unknown mailbox
//! is also suppressed, if its channel asks for that.

use std::sync::Arc;

use tocsin_model::{
    id::{Name, NotificationId, SubscriptionId},
    receipt::{Reason, ReasonKind},
    subscriber::{Device, DeviceState},
    suppression::{Cause, Report, Target},
};
use tocsin_store::{
    error::StoreError,
    records::{PutDevice, Recipient},
};
use tokio::task::JoinHandle;

use crate::{Flow, active_version::ActiveVersion, endpoints::EndpointUpdate, update_endpoints::apply_endpoint_updates};

/// Maximum number of devices waiting to be marked. Beyond it, the next message for the device reports it again.
const WAITING_MAX: usize = 10_000;

/// A permanently rejected address.
pub(crate) struct RejectedAddress {
    /// The refused notification.
    pub id: NotificationId,
    /// Its subscription.
    pub subscription: SubscriptionId,
    /// The channel that was used.
    pub channel: Name,
    /// The rejected address.
    pub address: String,
    /// `Gone` or `Bounced`, with the receiver's reply.
    pub reason: Reason,
}

/// Marks devices in a background task, so that deliveries wait for no write to the records.
pub(crate) struct Disabler {
    active: Arc<ActiveVersion>,
    waiting: Vec<RejectedAddress>,
    endpoints: Vec<EndpointUpdate>,
    at_work: Option<JoinHandle<()>>,
}

impl Disabler {
    /// Creates a disabler for an application.
    pub fn new(active: Arc<ActiveVersion>) -> Self {
        Disabler { active, waiting: Vec::new(), endpoints: Vec::new(), at_work: None }
    }

    /// Queues an endpoint to be handled.
    pub fn queue_endpoint_update(&mut self, update: EndpointUpdate) {
        if self.endpoints.len() < WAITING_MAX {
            self.endpoints.push(update);
        }
    }

    /// Queues a rejected address.
    pub fn queue(&mut self, gone: RejectedAddress) {
        if self.waiting.len() < WAITING_MAX {
            self.waiting.push(gone);
        }
    }

    /// Starts on the queue once the previous run is done.
    pub fn work(&mut self, flow: &Arc<Flow>) {
        let is_anything = !(self.waiting.is_empty() && self.endpoints.is_empty());
        if is_anything && self.at_work.as_ref().is_none_or(JoinHandle::is_finished) {
            let (flow, active, gone) = (flow.clone(), self.active.clone(), std::mem::take(&mut self.waiting));
            let endpoints = std::mem::take(&mut self.endpoints);
            self.at_work = Some(tokio::spawn(async move {
                apply_endpoint_updates(&flow, &active, endpoints).await;
                for gone in gone {
                    if let Err(error) = mark(&flow, &active, &gone).await {
                        tracing::error!(%error, subscription = %gone.subscription, "a device that is gone cannot be marked");
                    }
                }
            }));
        }
    }

    /// Waits until the queue is empty.
    pub async fn finish(&mut self, flow: &Arc<Flow>) {
        for _ in 0..2 {
            if let Some(work) = self.at_work.take() {
                let _ = work.await;
            }
            self.work(flow);
        }
        if let Some(work) = self.at_work.take() {
            let _ = work.await;
        }
    }
}

async fn mark(flow: &Flow, active: &ActiveVersion, gone: &RejectedAddress) -> Result<(), StoreError> {
    let Some(recipient) = flow.recipient_store.recipients(&[gone.subscription]).await?.pop().flatten() else {
        return Ok(());
    };
    // The owner may have changed the address meanwhile.
    let is_gone = |device: &Device| {
        device.channel == gone.channel && device.address == gone.address && device.state == DeviceState::Active
    };
    let Some((name, device)) = recipient.devices.iter().find(|(_, device)| is_gone(device)) else { return Ok(()) };
    match gone.reason.kind {
        ReasonKind::Bounced => suppress(flow, active, gone, device).await,
        _ => disable(flow, gone, &recipient, name, device).await,
    }
}

async fn disable(
    flow: &Flow,
    gone: &RejectedAddress,
    recipient: &Recipient,
    name: &Name,
    device: &Device,
) -> Result<(), StoreError> {
    let subscriber = &recipient.id;
    let device = Device { state: DeviceState::Bounced, ..device.clone() };
    flow.subscriber_store
        .put_device(PutDevice { id: subscriber, name, device, keeps_state: false, now: flow.clock.now() })
        .await?;
    metrics::counter!("tocsin_deliver_devices_bounced_total").increment(1);
    let reason = &gone.reason.text;
    tracing::warn!(%subscriber, device = %name, reason, "a device is gone for good and not used any more");
    Ok(())
}

async fn suppress(
    flow: &Flow,
    active: &ActiveVersion,
    gone: &RejectedAddress,
    device: &Device,
) -> Result<(), StoreError> {
    let Some(channel) = active.channel(&device.channel) else { return Ok(()) };
    let protocol = channel.protocol();
    let report = Report {
        target: Target::address(protocol, &gone.address),
        address: None,
        cause: Cause::HardBounce,
        origin: protocol.to_string(),
        detail: gone.reason.text.clone(),
        notification: Some(gone.id),
    };
    flow.suppression_store.report_suppressions(vec![report], flow.suppressions.policy(), flow.clock.now()).await?;
    metrics::counter!("tocsin_suppression_reports_total", "cause" => Cause::HardBounce.word()).increment(1);
    tracing::warn!(id = %gone.id, channel = %device.channel, reason = gone.reason.text, "an address is suppressed: the mailbox does not exist");
    Ok(())
}
