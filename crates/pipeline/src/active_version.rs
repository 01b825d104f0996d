//! The running version of an application with its open channels.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use arc_swap::ArcSwap;
use tocsin_delivery::{Destination, DestinationState, HeldBackMail, MailSender, OpenChannel};
use tocsin_model::{application::Channel, delivery_policy::Priority, id::Name};

use crate::{compile::Compiled, lanes::Lanes};

/// Default time for which an endpoint may fail.
const DISABLE_AFTER: Duration = Duration::from_secs(5 * 86_400);

/// An open channel with its definition.
pub(crate) struct OpenedChannel {
    definition: Channel,
    is_endpoint: bool,
    channel: Box<dyn OpenChannel>,
}

impl OpenedChannel {
    pub fn new(definition: &Channel, channel: Box<dyn OpenChannel>) -> Self {
        OpenedChannel { definition: definition.clone(), is_endpoint: tocsin_delivery::is_endpoint(definition), channel }
    }

    fn disable_after(&self) -> Option<Duration> {
        let after = self.definition.disable_after.unwrap_or(DISABLE_AFTER);
        Some(after).filter(|after| !after.is_zero() && self.is_endpoint)
    }

    /// Closes the channel.
    pub async fn close(self) {
        self.channel.close().await;
    }

    /// Its protocol.
    pub fn protocol(&self) -> &Name {
        &self.definition.protocol
    }

    /// Whether the channel can stay open for a definition: changes of retries and leases concern the workers only.
    pub fn serves(&self, definition: &Channel) -> bool {
        self.definition.protocol == definition.protocol
            && self.definition.concurrency == definition.concurrency
            && self.definition.flow == definition.flow
            && self.definition.options == definition.options
            && self.definition.disable_after == definition.disable_after
    }
}

impl std::ops::Deref for OpenedChannel {
    type Target = dyn OpenChannel;
    fn deref(&self) -> &Self::Target {
        &*self.channel
    }
}

/// The running version of an application. Workers and recorders read it; the pipeline changes it.
pub(crate) struct ActiveVersion {
    pub name: Name,
    /// Lanes of ordered delivery.
    pub lanes: Lanes,
    compiled: ArcSwap<Compiled>,
    channels: ArcSwap<BTreeMap<Name, Arc<OpenedChannel>>>,
}

impl ActiveVersion {
    /// A version without channels.
    pub fn new(compiled: Arc<Compiled>) -> Arc<Self> {
        Arc::new(ActiveVersion {
            name: compiled.application.name.clone(),
            lanes: Lanes::default(),
            compiled: ArcSwap::new(compiled),
            channels: ArcSwap::default(),
        })
    }

    /// Switches to another version and its channels. Returns the channels before.
    pub fn replace(
        &self,
        compiled: Arc<Compiled>,
        channels: BTreeMap<Name, Arc<OpenedChannel>>,
    ) -> Arc<BTreeMap<Name, Arc<OpenedChannel>>> {
        let before = self.channels.swap(Arc::new(channels));
        self.compiled.store(compiled);
        before
    }

    /// Removes all channels and returns them.
    pub fn take_channels(&self) -> Arc<BTreeMap<Name, Arc<OpenedChannel>>> {
        self.channels.swap(Arc::default())
    }

    /// All open channels.
    pub fn channels(&self) -> Arc<BTreeMap<Name, Arc<OpenedChannel>>> {
        self.channels.load_full()
    }

    /// The running version.
    pub fn compiled(&self) -> Arc<Compiled> {
        self.compiled.load_full()
    }

    /// Whether some notification class has urgent or high priority.
    pub fn has_high_priority(&self) -> bool {
        let compiled = self.compiled.load();
        compiled.application.notifications.values().any(|class| class.delivery_policy.priority <= Priority::High)
    }

    /// Time for which the endpoint of a device may fail on a channel; `None`: no limit, or the channel has no
    /// per-device endpoints.
    pub fn disable_after(&self, channel: &Name) -> Option<Duration> {
        self.channels.load().get(channel)?.disable_after()
    }

    /// Returns an open channel.
    pub fn channel(&self, name: &Name) -> Option<Arc<OpenedChannel>> {
        self.channels.load().get(name).cloned()
    }

    /// Probes every channel.
    pub async fn probe(&self) -> Vec<(Name, Result<String, String>)> {
        let channels = self.channels.load_full();
        let mut answers = Vec::with_capacity(channels.len());
        for (name, open) in channels.iter() {
            answers.push((name.clone(), open.probe().await.map_err(|reason| reason.text)));
        }
        answers
    }

    /// Identities of the mail channels.
    pub fn mail_senders(&self) -> Vec<(Name, MailSender)> {
        let channels = self.channels.load();
        channels.iter().filter_map(|(name, open)| Some((name.clone(), open.mail_sender()?))).collect()
    }

    /// Known destinations of every channel; at most `limit` per channel.
    pub fn destinations(&self, limit: usize) -> Vec<(Name, Vec<Destination>)> {
        self.channels.load().iter().map(|(name, open)| (name.clone(), open.destinations(limit))).collect()
    }

    /// Mailbox providers of every channel that hold mail back.
    pub fn held_back(&self) -> Vec<(Name, Name, Vec<HeldBackMail>)> {
        let channels = self.channels.load();
        let held_back = channels.iter().map(|(name, open)| (self.name.clone(), name.clone(), open.held_back()));
        held_back.filter(|(_, _, found)| !found.is_empty()).collect()
    }

    /// Records that mail to this address is delayed, for one channel or all.
    pub fn note_delay(&self, channel: Option<&Name>, address: &str, said: &str) {
        let channels = self.channels.load();
        for (_, open) in channels.iter().filter(|(name, _)| channel.is_none_or(|channel| channel == *name)) {
            open.note_delay(address, said);
        }
    }

    /// Number of destinations of every channel by state.
    pub fn destination_counts(&self) -> Vec<(Name, Name, [usize; DestinationState::ALL.len()])> {
        let channels = self.channels.load();
        channels.iter().map(|(name, open)| (self.name.clone(), name.clone(), open.destination_counts())).collect()
    }

    /// Its channels with their protocols.
    pub fn channel_protocols(&self) -> Vec<(Name, Name, Name)> {
        let compiled = self.compiled.load();
        let channels = compiled.application.channels.iter();
        channels.map(|(name, channel)| (self.name.clone(), name.clone(), channel.protocol.clone())).collect()
    }
}
