//! Preview of a stored notification as it would be sent now. Nothing is sent or stored.

use std::sync::Arc;

use tocsin_model::{
    content::{Content, PartsUsed},
    id::{Name, NotificationId, WorkItemId},
    receipt::{Reason, ReasonKind},
    subscriber::Device,
    time::Timestamp,
};
use tocsin_store::{
    error::StoreError,
    journal::{Claim, WorkItem, WorkState},
};

use crate::{
    Flow,
    decide::{Chosen, Unsent, check_preferences, choose_device, suppression},
    load_work::{Loaded, Unreadable},
    render::{Member, render},
    render_cache::RenderCache,
};

/// A rendered notification and its destination.
#[derive(Debug, Clone, PartialEq)]
pub struct Preview {
    /// The device.
    pub device: Name,
    /// Its channel.
    pub channel: Name,
    /// The address.
    pub address: String,
    /// Content. A notification of a digest is shown alone.
    pub content: Content,
}

/// Renders a notification for work of this channel. The inner error says why it could not be sent.
pub(crate) async fn preview(
    flow: &Flow,
    id: NotificationId,
    channel: &Name,
    work_state: WorkState,
) -> Result<Result<Preview, Reason>, StoreError> {
    let now = flow.clock.now();
    let claim = Claim { id: WorkItemId(0), token: 0 };
    let item =
        WorkItem { claim, batch: id.batch, ordinals: Some(vec![id.ordinal]), attempts: 0, due_at: now, work_state };
    let loaded = match Loaded::read(flow, &item).await {
        Ok(loaded) => loaded,
        Err(Unreadable::Temporary(error)) => return Err(error),
        Err(Unreadable::Permanent(what)) => {
            return Ok(Err(Reason::new(ReasonKind::Internal, what)));
        }
    };
    let subscription = loaded.notifications().subscriptions[id.ordinal as usize];
    let recipient = flow.recipient_store.recipients(&[subscription]).await?.pop().flatten();
    flow.suppressions.refresh(&*flow.suppression_store).await?;
    Ok(shown(flow, &loaded, id.ordinal, recipient, channel, now).map_err(|unsent| unsent.reason))
}

fn shown(
    flow: &Flow,
    loaded: &Loaded,
    ordinal: u32,
    recipient: Option<tocsin_store::records::Recipient>,
    channel: &Name,
    now: Timestamp,
) -> Result<Preview, Unsent> {
    use tocsin_model::receipt::Outcome;
    let unreachable = |text| Unsent::closed(Outcome::Refused, ReasonKind::Unreachable, text);
    let recipient = recipient.ok_or_else(|| unreachable("the subscription is gone"))?;
    let suppressed =
        |name: &Name, device: &Device| suppression(&flow.suppressions, loaded, &recipient, (name, device), now);
    check_preferences(loaded, &recipient, now)?;
    let device = match choose_device(loaded, &recipient, channel, suppressed)? {
        Chosen::Device(device) => device,
        Chosen::Suppressed(cause) => {
            let text = format!("the address is suppressed: {}", cause.phrase());
            return Err(Unsent::closed(Outcome::Refused, ReasonKind::Suppressed, &text));
        }
        Chosen::NoDevice => return Err(unreachable("the subscriber has no device that its channel could reach")),
    };
    let target = &recipient.devices[device];
    let (members, to, cache) = (&[Member { loaded, ordinal }], (device, target), &mut RenderCache::default());
    let message = render(flow, members, &recipient, to, PartsUsed::ALL, cache, now)?;
    let edited = loaded.edit.as_ref().and_then(|edit| edit.address.clone());
    Ok(Preview {
        device: device.clone(),
        channel: target.channel.clone(),
        address: edited.unwrap_or_else(|| target.address.clone()),
        content: Arc::unwrap_or_clone(message.content),
    })
}

/// Renders a notification again as of a time, for the device that its subscription names, else one on the channel of its
/// batch. Preferences, suppressions and the state of the device are not considered.
async fn render_again(flow: &Flow, id: NotificationId, at: Timestamp) -> Result<Result<Preview, Reason>, StoreError> {
    let failed = |text: String| Ok(Err(Reason::new(ReasonKind::Unreachable, text)));
    let claim = Claim { id: WorkItemId(0), token: 0 };
    let (batch, ordinals, work_state) = (id.batch, Some(vec![id.ordinal]), WorkState::default());
    let item = WorkItem { claim, batch, ordinals, attempts: 0, due_at: at, work_state };
    let loaded = match Loaded::read(flow, &item).await {
        Ok(loaded) => loaded,
        Err(Unreadable::Temporary(error)) => return Err(error),
        Err(Unreadable::Permanent(what)) => return Ok(Err(Reason::new(ReasonKind::Internal, what))),
    };
    let Some(subscription) = loaded.notifications().subscriptions.get(id.ordinal as usize).copied() else {
        return failed("the batch has no such notification".to_owned());
    };
    let recipient = match flow.recipient_store.recipients(&[subscription]).await?.pop().flatten() {
        Some(recipient) => Some(recipient),
        None => flow.recipient_store.former_recipients(&[subscription]).await?.pop().flatten(),
    };
    let Some(recipient) = recipient else { return failed("the subscription is gone".to_owned()) };
    let (named, channel) = (recipient.interest.device.as_ref(), &loaded.batch.head.channel);
    let by_name = named.and_then(|named| recipient.devices.iter().find(|(name, _)| *name == named));
    let by_channel = || recipient.devices.iter().find(|(_, device)| device.channel == *channel);
    let Some((name, device)) = by_name.or_else(by_channel) else {
        return failed(format!("the subscriber has no device on the channel `{channel}`"));
    };
    let members = &[Member { loaded: &loaded, ordinal: id.ordinal }];
    let message =
        match render(flow, members, &recipient, (name, device), PartsUsed::ALL, &mut RenderCache::default(), at) {
            Ok(message) => message,
            Err(reason) => return Ok(Err(reason)),
        };
    Ok(Ok(Preview {
        device: name.clone(),
        channel: device.channel.clone(),
        address: device.address.clone(),
        content: Arc::unwrap_or_clone(message.content),
    }))
}

impl crate::Pipeline {
    /// Renders a notification again as of a time, from the version that made it. The inner error says why it cannot be
    /// rendered.
    ///
    /// # Errors
    /// The store is unavailable, or its data is damaged.
    pub async fn render_again(&self, id: NotificationId, at: Timestamp) -> Result<Result<Preview, Reason>, StoreError> {
        render_again(&self.flow, id, at).await
    }

    /// Renders a notification as it would be sent now, for work of this channel in this state, with its destination.
    /// The inner error says why it could not be sent.
    ///
    /// # Errors
    /// The store is unavailable, or its data is damaged.
    pub async fn preview(
        &self,
        id: NotificationId,
        channel: &Name,
        edit: Option<Arc<str>>,
        fallback: u8,
    ) -> Result<Result<Preview, Reason>, StoreError> {
        let work_state = WorkState { edit, fallback, ..WorkState::default() };
        preview(&self.flow, id, channel, work_state).await
    }
}
