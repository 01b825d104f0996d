//! Disables devices whose address the receiver rejects for good: the device is marked as bounced. Refusals that count
//! as feedback are reported, and so are deliveries that clear their counts.

use std::sync::Arc;

use tocsin_feedback::{EnhancedStatus, policy::Evidence};
use tocsin_model::{
    feedback::Class,
    id::{Name, NotificationId, SubscriberId, SubscriptionId},
    receipt::{Reason, ReasonKind},
    subscriber::{Device, DeviceState},
    suppression::Target,
};
use tocsin_store::{
    error::StoreError,
    records::{PutDevice, Recipient},
};
use tokio::task::JoinHandle;

use crate::{
    Flow, active_version::ActiveVersion, endpoints::EndpointUpdate, feedback::FeedbackReport,
    update_endpoints::apply_endpoint_updates,
};

/// Maximum number of devices waiting to be marked. Beyond it, the next message for the device reports it again.
const WAITING_MAX: usize = 10_000;

/// Origin of feedback from the replies of servers.
const SESSION: &str = "session";

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
    /// `Gone`, `Bounced` or `SoftBounced`, with the receiver's reply.
    pub reason: Reason,
}

/// Marks devices in a background task, so that deliveries wait for no write to the records.
pub(crate) struct Disabler {
    active: Arc<ActiveVersion>,
    waiting: Vec<RejectedAddress>,
    endpoints: Vec<EndpointUpdate>,
    successes: Vec<(Target, NotificationId)>,
    at_work: Option<JoinHandle<()>>,
}

impl Disabler {
    /// Creates a disabler for an application.
    pub fn new(active: Arc<ActiveVersion>) -> Self {
        Disabler { active, waiting: Vec::new(), endpoints: Vec::new(), successes: Vec::new(), at_work: None }
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

    /// Queues a delivery to an address of which soft bounces count.
    pub fn queue_success(&mut self, target: Target, id: NotificationId) {
        if self.successes.len() < WAITING_MAX {
            self.successes.push((target, id));
        }
    }

    /// Starts on the queue once the previous run is done.
    pub fn work(&mut self, flow: &Arc<Flow>) {
        let is_anything = !(self.waiting.is_empty() && self.endpoints.is_empty() && self.successes.is_empty());
        if is_anything && self.at_work.as_ref().is_none_or(JoinHandle::is_finished) {
            let (flow, active, gone) = (flow.clone(), self.active.clone(), std::mem::take(&mut self.waiting));
            let endpoints = std::mem::take(&mut self.endpoints);
            let successes = std::mem::take(&mut self.successes);
            self.at_work = Some(tokio::spawn(async move {
                apply_endpoint_updates(&flow, &active, endpoints).await;
                for success in successes {
                    if let Err(error) = report_success(&flow, &success).await {
                        tracing::error!(%error, id = %success.1, "soft bounces before a delivery cannot be cleared");
                    }
                }
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
        ReasonKind::Bounced => report(flow, active, gone, (&recipient.id, name, device), Class::Hard).await,
        ReasonKind::SoftBounced => report(flow, active, gone, (&recipient.id, name, device), Class::Soft).await,
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

async fn report(
    flow: &Flow,
    active: &ActiveVersion,
    gone: &RejectedAddress,
    (subscriber, name, device): (&SubscriberId, &Name, &Device),
    class: Class,
) -> Result<(), StoreError> {
    let Some(channel) = active.channel(&device.channel) else { return Ok(()) };
    let text = gone.reason.text.as_str();
    let report = FeedbackReport {
        evidence: Evidence::of_session(gone.id, class),
        target: Target::address(channel.protocol(), &gone.address),
        address: None,
        device: Some((subscriber.clone(), name.clone())),
        notification: Some(gone.id),
        origin: SESSION.to_owned(),
        status: text.split_whitespace().nth(1).filter(|word| word.parse::<EnhancedStatus>().is_ok()).map(str::to_owned),
        detail: text.to_owned(),
    };
    flow.feedback.apply(&*flow.feedback_store, &*flow.clock, &[report]).await.map(drop)
}

/// A message was accepted for an address of which soft bounces in sessions count.
async fn report_success(flow: &Flow, (target, id): &(Target, NotificationId)) -> Result<(), StoreError> {
    let report = FeedbackReport {
        evidence: Evidence::of_session(*id, Class::Delivered),
        target: target.clone(),
        address: None,
        device: None,
        notification: Some(*id),
        origin: SESSION.to_owned(),
        status: None,
        detail: String::new(),
    };
    flow.feedback.apply(&*flow.feedback_store, &*flow.clock, &[report]).await.map(drop)
}
