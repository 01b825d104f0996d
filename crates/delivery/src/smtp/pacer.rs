//! Pacing of a channel: finds the mailbox providers of recipients, and stores the mails to each by day.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tocsin_connect::Clock;
use tocsin_model::{id::Name, mail_provider::ProviderDay};
use tokio::{
    task::JoinSet,
    time::{Instant, MissedTickBehavior, interval},
};

use super::{
    hold_back::signal_of,
    mailbox_providers::{ExchangerLookup, ProviderDirectory, resolver},
    pacing::PacingOptions,
};
use crate::{
    channel::{Context, Outgoing, ProviderDays},
    flow::providers::Providers,
    queue::Queue,
};

/// Interval at which numbers are stored. A crash forgets the mails of this time, so a day can exceed its limit by them.
const STORE_INTERVAL: Duration = Duration::from_secs(1);

/// The providers of a channel's recipients, with the queue that has a lane for each.
pub(super) struct Pacer {
    application: String,
    channel: Name,
    clock: Arc<dyn Clock>,
    store: Option<Arc<dyn ProviderDays>>,
    pub directory: Arc<ProviderDirectory>,
    pub queue: Arc<Queue>,
    upkeep: Mutex<JoinSet<()>>,
    /// Serializes reads and writes of the store.
    storing: tokio::sync::Mutex<()>,
}

impl Pacer {
    /// Starts pacing; the options must be free of problems.
    pub fn start(name: &Name, options: &PacingOptions, sessions: usize, context: &Context) -> Arc<Pacer> {
        let lookup = resolver(options.name_server()).inspect_err(|reason| {
            tracing::warn!(channel = %name, %reason, "mails are paced by domain: mail exchangers cannot be looked up");
        });
        Pacer::start_with(name, options, sessions, context, lookup.ok())
    }

    /// As `start`, with a lookup of mail exchangers.
    pub fn start_with(
        name: &Name,
        options: &PacingOptions,
        sessions: usize,
        context: &Context,
        lookup: Option<Arc<dyn ExchangerLookup>>,
    ) -> Arc<Pacer> {
        let providers = Providers::new(Arc::new(options.settings()), Instant::now(), context.clock.now());
        let pacer = Arc::new(Pacer {
            application: context.application.clone(),
            channel: name.clone(),
            clock: context.clock.clone(),
            store: context.provider_days.clone(),
            directory: Arc::new(ProviderDirectory::new(options.by, lookup)),
            queue: Queue::of_providers(sessions, providers, signal_of),
            upkeep: Mutex::default(),
            storing: tokio::sync::Mutex::default(),
        });
        // It ends with the pacer, which it does not keep.
        let upkept = Arc::downgrade(&pacer);
        pacer.upkeep.lock().spawn(async move {
            let mut ticks = interval(STORE_INTERVAL);
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            loop {
                ticks.tick().await;
                let Some(pacer) = upkept.upgrade() else { return };
                pacer.keep().await;
            }
        });
        pacer
    }

    /// Looks up the providers of messages that are not known.
    pub async fn prepare(&self, outgoing: &[Outgoing]) {
        self.directory.find_all(outgoing.iter().flat_map(Outgoing::addresses)).await;
    }

    /// Sets the date, reads the stored numbers if that has not been done, stores new ones and updates the metrics.
    pub async fn keep(&self) {
        let date = self.clock.now();
        let unread = self.change(|providers, now| {
            providers.set_date(now, date);
            providers.is_unread()
        });
        if unread == Some(true) {
            self.read().await;
        }
        self.queue.return_used_up().await;
        self.store().await;
        self.update_metrics();
    }

    fn change<R>(&self, change: impl FnOnce(&mut Providers, Instant) -> R) -> Option<R> {
        self.queue.change_lanes(|lanes, now| lanes.providers_mut().map(|providers| change(providers, now))).flatten()
    }

    async fn read(&self) {
        let _alone = self.storing.lock().await;
        let last = match &self.store {
            Some(store) => store.last_days(&self.application, &self.channel).await,
            None => Ok(Vec::new()),
        };
        match last {
            Ok(last) => {
                self.change(|providers, _| providers.read(last));
                self.queue.wake_sessions();
            }
            Err(reason) => {
                tracing::warn!(channel = %self.channel, reason = reason.text, "mails wait: the warm-up cannot be read");
            }
        }
    }

    async fn store(&self) {
        let Some(store) = &self.store else { return };
        let _alone = self.storing.lock().await;
        let unsaved = self.change(|providers, _| providers.take_unsaved()).unwrap_or_default();
        if unsaved.is_empty() {
            return;
        }
        let days: Vec<(Box<str>, ProviderDay)> =
            unsaved.iter().map(|(provider, day)| (Box::from(&**provider), day.clone())).collect();
        if let Err(reason) = store.add_days(&self.application, &self.channel, days).await {
            tracing::warn!(channel = %self.channel, reason = reason.text, "the warm-up cannot be stored yet");
            self.change(|providers, _| providers.give_back(unsaved));
        }
    }

    fn update_metrics(&self) {
        let counts = self.change(|providers, _| providers.take_counts()).unwrap_or_default();
        let labels = |provider: &Arc<str>| {
            let (application, channel) = (self.application.clone(), self.channel.to_string());
            [("application", application), ("channel", channel), ("provider", provider.to_string())]
        };
        for (provider, answers) in counts {
            let [application, channel, provider] = labels(&provider).map(|(_, value)| value);
            for (outcome, count) in [("accepted", answers.accepted), ("held_back", answers.held_back)] {
                metrics::counter!(
                    "tocsin_deliver_provider_recipients_total", "application" => application.clone(),
                    "channel" => channel.clone(), "provider" => provider.clone(), "outcome" => outcome
                )
                .increment(count);
            }
        }
        let held_back: BTreeMap<Arc<str>, u32> =
            self.queue.lanes(|lanes, _| lanes.held_back_counts()).unwrap_or_default();
        for (provider, count) in held_back {
            metrics::gauge!("tocsin_deliver_providers_held_back", &labels(&provider)).set(f64::from(count));
        }
    }

    /// Stores what is left. Called when no session runs.
    pub async fn finish(&self) {
        self.upkeep.lock().abort_all();
        self.keep().await;
    }
}
