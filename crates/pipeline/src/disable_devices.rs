//! A device whose address the far side says is gone for good is not tried again: it is marked as bounced.

use std::sync::Arc;

use tocsin_model::{
    id::SubscriptionId,
    subscriber::{Device, DeviceState},
};
use tocsin_store::error::StoreError;
use tokio::task::JoinHandle;

use crate::Flow;

/// Those that wait to be marked, at most. What is beyond is told again by the next message for it.
const WAITING_MAX: usize = 10_000;

/// An address that is gone.
pub(crate) struct Gone {
    /// The subscription whose notification was refused.
    pub subscription: SubscriptionId,
    /// The address that was tried.
    pub address: String,
    /// The far side's words.
    pub reason: String,
}

/// Marks devices beside the flow, so that it waits for no write of the records.
#[derive(Default)]
pub(crate) struct Disabler {
    waiting: Vec<Gone>,
    at_work: Option<JoinHandle<()>>,
}

impl Disabler {
    /// Takes one note.
    pub fn note(&mut self, gone: Gone) {
        if self.waiting.len() < WAITING_MAX {
            self.waiting.push(gone);
        }
    }

    /// Begins with what was noted, once what was begun before is done.
    pub fn work(&mut self, flow: &Arc<Flow>) {
        if !self.waiting.is_empty() && self.at_work.as_ref().is_none_or(JoinHandle::is_finished) {
            let (flow, gone) = (flow.clone(), std::mem::take(&mut self.waiting));
            self.at_work = Some(tokio::spawn(async move {
                for gone in gone {
                    if let Err(error) = disable(&flow, &gone).await {
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

async fn disable(flow: &Flow, gone: &Gone) -> Result<(), StoreError> {
    let Some(recipient) = flow.records.recipients(&[gone.subscription]).await?.pop().flatten() else { return Ok(()) };
    // Its owner may have given another address meanwhile.
    let is_gone = |device: &Device| device.address == gone.address && device.state == DeviceState::Active;
    let Some((name, device)) = recipient.devices.into_iter().find(|(_, device)| is_gone(device)) else { return Ok(()) };
    let (subscriber, device) = (&recipient.subscription.subscriber, Device { state: DeviceState::Bounced, ..device });
    flow.records.put_device(subscriber, &name, device, flow.clock.now()).await?;
    metrics::counter!("deliver_devices_bounced_total").increment(1);
    tracing::warn!(%subscriber, device = %name, reason = gone.reason, "a device is gone for good and not used any more");
    Ok(())
}
