//! A device whose address the far side says is gone for good is not tried again: it is marked as bounced. An address of
//! which it says that nobody has it is suppressed, where its channel wants that.

use std::sync::Arc;

use tocsin_model::{
    id::{Name, NotificationId, SubscriptionId},
    receipt::{Reason, ReasonKind},
    subscriber::{Device, DeviceState},
    suppression::{Cause, Report, Target},
};
use tocsin_store::{error::StoreError, records::Recipient};
use tokio::task::JoinHandle;

use crate::{
    Flow,
    endpoints::{Care, care_for},
    running::Running,
};

/// Those that wait to be marked, at most. What is beyond is told again by the next message for it.
const WAITING_MAX: usize = 10_000;

/// An address that is gone.
pub(crate) struct Gone {
    /// The notification that was refused.
    pub id: NotificationId,
    /// Its subscription.
    pub subscription: SubscriptionId,
    /// The channel by which it was tried.
    pub channel: Name,
    /// The address that was tried.
    pub address: String,
    /// `Gone` or `Bounced`, and the far side's words.
    pub reason: Reason,
}

/// Marks devices beside the flow, so that it waits for no write of the records.
pub(crate) struct Disabler {
    running: Arc<Running>,
    waiting: Vec<Gone>,
    endpoints: Vec<Care>,
    at_work: Option<JoinHandle<()>>,
}

impl Disabler {
    /// Marks devices of an application.
    pub fn new(running: Arc<Running>) -> Self {
        Disabler { running, waiting: Vec::new(), endpoints: Vec::new(), at_work: None }
    }

    /// The application whose devices they are.
    pub fn running(&self) -> &Running {
        &self.running
    }

    /// Takes a note of an endpoint.
    pub fn note_endpoint(&mut self, care: Care) {
        if self.endpoints.len() < WAITING_MAX {
            self.endpoints.push(care);
        }
    }

    /// Takes one note.
    pub fn note(&mut self, gone: Gone) {
        if self.waiting.len() < WAITING_MAX {
            self.waiting.push(gone);
        }
    }

    /// Begins with what was noted, once what was begun before is done.
    pub fn work(&mut self, flow: &Arc<Flow>) {
        let is_anything = !(self.waiting.is_empty() && self.endpoints.is_empty());
        if is_anything && self.at_work.as_ref().is_none_or(JoinHandle::is_finished) {
            let (flow, running, gone) = (flow.clone(), self.running.clone(), std::mem::take(&mut self.waiting));
            let endpoints = std::mem::take(&mut self.endpoints);
            self.at_work = Some(tokio::spawn(async move {
                care_for(&flow, &running, endpoints).await;
                for gone in gone {
                    if let Err(error) = mark(&flow, &running, &gone).await {
                        tracing::error!(%error, subscription = %gone.subscription, "a device that is gone cannot be marked");
                    }
                }
            }));
        }
    }

    /// Waits until all is done.
    pub async fn finish(mut self, flow: &Arc<Flow>) {
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

async fn mark(flow: &Flow, running: &Running, gone: &Gone) -> Result<(), StoreError> {
    let Some(recipient) = flow.records.recipients(&[gone.subscription]).await?.pop().flatten() else { return Ok(()) };
    // Its owner may have given another address meanwhile.
    let is_gone = |device: &Device| {
        device.channel == gone.channel && device.address == gone.address && device.state == DeviceState::Active
    };
    let Some((name, device)) = recipient.devices.iter().find(|(_, device)| is_gone(device)) else { return Ok(()) };
    match gone.reason.kind {
        ReasonKind::Bounced => suppress(flow, running, gone, device).await,
        _ => disable(flow, gone, &recipient, name, device).await,
    }
}

async fn disable(
    flow: &Flow,
    gone: &Gone,
    recipient: &Recipient,
    name: &Name,
    device: &Device,
) -> Result<(), StoreError> {
    let subscriber = &recipient.id;
    let device = Device { state: DeviceState::Bounced, ..device.clone() };
    flow.records.put_device(subscriber, name, device, flow.clock.now()).await?;
    metrics::counter!("deliver_devices_bounced_total").increment(1);
    let reason = &gone.reason.text;
    tracing::warn!(%subscriber, device = %name, reason, "a device is gone for good and not used any more");
    Ok(())
}

async fn suppress(flow: &Flow, running: &Running, gone: &Gone, device: &Device) -> Result<(), StoreError> {
    let Some(channel) = running.channel(&device.channel) else { return Ok(()) };
    let protocol = channel.protocol();
    let report = Report {
        target: Target::address(protocol, &gone.address),
        address: None,
        cause: Cause::HardBounce,
        origin: protocol.to_string(),
        detail: gone.reason.text.clone(),
        notification: Some(gone.id),
    };
    flow.records.report_suppressions(vec![report], flow.suppressions.policy(), flow.clock.now()).await?;
    metrics::counter!("suppression_reports_total", "cause" => Cause::HardBounce.word()).increment(1);
    tracing::warn!(id = %gone.id, channel = %device.channel, reason = gone.reason.text, "an address is suppressed: nobody has it");
    Ok(())
}
