//! Notifications from feeds: each service with a feed in its configuration `notification` has a task that polls it.

use std::{collections::HashMap, sync::Arc, time::Duration};

use jiff::tz::TimeZone;
use serde_json::{Value, json};
use tocsin_notifybc::{
    jobs::Crontab,
    notifications,
    record::{self, Collection, Document, date_text, text},
    rss::{self, FeedConfiguration, Poll},
};
use tocsin_store::records::{KeyFilter, Precondition, PutDocument};
use tokio::task::JoinHandle;

use super::{Notifybc, NotifybcError, documents::Record, jobs::DUE};

/// Most feeds.
const FEEDS_MAX: usize = 1_000;
/// Longest sleep: clocks of machines can be set.
const SLEEP_MAX: Duration = Duration::from_secs(60);

/// The task of a feed. It ends when it is dropped.
struct FeedTask {
    configuration: FeedConfiguration,
    task: JoinHandle<()>,
}

impl Drop for FeedTask {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Notifybc {
    /// Starts, restarts and stops the polls of feeds at the times of the job `checkRssConfigUpdates`.
    pub(super) async fn run_feeds(self: Arc<Self>, zone: TimeZone) {
        let text = &self.configuration.cron.check_rss_config_updates;
        let times = match text.parse::<Crontab>() {
            Ok(times) => times,
            Err(error) => {
                tracing::error!(%error, "feeds of the NotifyBC interface are not polled");
                return;
            }
        };
        let mut tasks = HashMap::new();
        loop {
            match self.feed_configurations().await {
                Ok(configurations) => self.follow(&mut tasks, configurations, &zone),
                Err(error) => tracing::error!(%error, "feed configurations cannot be read"),
            }
            if !self.sleep_until_next(&times, &zone).await {
                return std::future::pending().await;
            }
        }
    }

    /// Sleeps until the next time. `false`: there is none.
    async fn sleep_until_next(&self, times: &Crontab, zone: &TimeZone) -> bool {
        let Some(next) = times.next_after(self.now(), zone) else { return false };
        while self.now() < next {
            tokio::time::sleep(next.since(self.now()).min(SLEEP_MAX)).await;
        }
        true
    }

    fn follow(
        self: &Arc<Self>,
        tasks: &mut HashMap<String, FeedTask>,
        configurations: HashMap<String, FeedConfiguration>,
        zone: &TimeZone,
    ) {
        tasks.retain(|id, task| configurations.get(id) == Some(&task.configuration) && !task.task.is_finished());
        for (id, configuration) in configurations {
            if tasks.contains_key(&id) {
                continue;
            }
            let times = match configuration.time_spec.parse::<Crontab>() {
                Ok(times) => times,
                Err(error) => {
                    tracing::warn!(service = configuration.service, %error, "a feed is not polled");
                    continue;
                }
            };
            let task = tokio::spawn(self.clone().poll_at(times, configuration.clone(), zone.clone()));
            tasks.insert(id, FeedTask { configuration, task });
        }
    }

    async fn poll_at(self: Arc<Self>, times: Crontab, configuration: FeedConfiguration, zone: TimeZone) {
        while self.sleep_until_next(&times, &zone).await {
            let service = &configuration.service;
            match self.poll_feed(&configuration).await {
                Ok(0) => {}
                Ok(count) => tracing::info!(service, count, "new items of a feed"),
                Err(error) => tracing::warn!(service, %error, "a feed was not polled"),
            }
        }
    }

    /// The feeds by the id of their configuration.
    async fn feed_configurations(&self) -> Result<HashMap<String, FeedConfiguration>, NotifybcError> {
        let (mut found, mut after) = (HashMap::new(), None);
        loop {
            let (records, next) = self.page(Collection::Configuration, KeyFilter::default(), after).await?;
            for record in records {
                if let Some(configuration) = FeedConfiguration::parse(&record.document)
                    && found.len() < FEEDS_MAX
                {
                    found.insert(record.id().to_owned(), configuration);
                }
            }
            match next {
                Some(next) => after = Some(next),
                None => return Ok(found),
            }
        }
    }

    /// Polls a feed once: sends its new items, and stores the history. Returns the number of new items.
    pub(crate) async fn poll_feed(self: &Arc<Self>, configuration: &FeedConfiguration) -> Result<usize, NotifybcError> {
        let reader = self.service.pipeline.feed_reader();
        let items = reader.read(&configuration.url).await.map_err(|error| NotifybcError::Internal(error.text))?;
        let items: Vec<Document> = items.iter().map(rss::item).collect();
        let stored = self.store.document_by_unique(Collection::Rss, &configuration.service).await?;
        let stored = stored.map(Record::of).transpose()?;
        let history: Vec<Document> = match stored.as_ref().and_then(|record| record.document.get("items")) {
            Some(Value::Array(items)) => items.iter().filter_map(Value::as_object).cloned().collect(),
            _ => Vec::new(),
        };
        let poll = configuration.poll(&history, items);
        self.send_items(configuration, stored, &poll).await?;
        Ok(poll.new.len())
    }

    /// Stores the history and the notifications of new items in one commit, and sends them. After a crash, the job
    /// `dispatchLiveNotifications` sends those that are left: they are due at once.
    async fn send_items(
        self: &Arc<Self>,
        configuration: &FeedConfiguration,
        stored: Option<Record>,
        poll: &Poll,
    ) -> Result<(), NotifybcError> {
        let now = self.now();
        let mut puts = vec![self.history_put(configuration, stored, &poll.history)?];
        let mut records = Vec::new();
        for mut body in poll.new.iter().flat_map(|item| configuration.notifications(item)) {
            if text(&body, "httpHost").is_none() {
                body.insert("httpHost".to_owned(), json!(self.own_base_url()));
            }
            body.insert("invalidBefore".to_owned(), json!(date_text(now)));
            let record = record::create(Collection::Notification, &self.new_id().to_string(), body, now, None)?;
            puts.push(self.prepared(Collection::Notification, &record, Precondition::Absent)?);
            records.push(record);
        }
        let _no_job = DUE.lock().await;
        for written in self.store.put_documents(puts, now).await? {
            written?;
        }
        for record in records.into_iter().filter_map(|record| notifications::due(record, now)) {
            if let Err(error) = self.send_stored(record).await {
                tracing::error!(service = configuration.service, %error, "an item of a feed was not sent");
            }
        }
        Ok(())
    }

    fn history_put(
        &self,
        configuration: &FeedConfiguration,
        stored: Option<Record>,
        history: &[Document],
    ) -> Result<PutDocument, NotifybcError> {
        let mut body = Document::new();
        body.insert("serviceName".to_owned(), json!(configuration.service));
        body.insert("items".to_owned(), json!(history));
        body.insert("lastPoll".to_owned(), json!(date_text(self.now())));
        match stored {
            Some(record) => {
                let changed = record::patch(Collection::Rss, &record.document, body, self.now(), None)?;
                self.prepared(Collection::Rss, &changed, Precondition::Revision(record.revision))
            }
            None => {
                let id = self.new_id().to_string();
                let created = record::create(Collection::Rss, &id, body, self.now(), None)?;
                self.prepared(Collection::Rss, &created, Precondition::Absent)
            }
        }
    }
}
