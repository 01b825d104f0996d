//! Scheduled jobs of the NotifyBC interface, by the times of `cron` in its configuration.

use std::{future::Future, sync::Arc, time::Duration};

use jiff::tz::TimeZone;
use serde_json::Value;
use tocsin_model::time::Timestamp;
use tocsin_notifybc::{
    bounces,
    jobs::{self, Crontab},
    notifications,
    record::{Collection, Document},
};
use tocsin_store::records::{DocumentScan, KeyFilter};
use tokio::sync::Mutex;

use super::{Notifybc, NotifybcError, documents::Record};

/// Documents of a page of the store.
const PAGE: usize = 1_000;
/// Longest sleep: clocks of machines can be set.
const SLEEP_MAX: Duration = Duration::from_secs(60);
/// Most notifications of one run of a job.
const DUE_MAX: usize = 10_000;

/// Held while notifications that are due are sent, so that each is sent once.
pub(super) static DUE: Mutex<()> = Mutex::const_new(());

/// A job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Job {
    PurgeData,
    DispatchLiveNotifications,
    DeleteBounces,
    ReDispatchBroadcasts,
}

/// A job with its times and its next run.
struct Scheduled {
    job: Job,
    times: Crontab,
    next: Option<Timestamp>,
}

impl Notifybc {
    /// Runs the scheduled jobs until `stopping` ends.
    pub async fn run_jobs(self: Arc<Self>, stopping: impl Future<Output = ()> + Send) {
        let zone = TimeZone::system();
        let mut scheduled = self.schedule(&zone);
        let feeds = tokio::spawn(self.clone().run_feeds(zone.clone()));
        let run = async {
            loop {
                let now = self.now();
                for entry in &mut scheduled {
                    if entry.next.is_some_and(|next| next <= now) {
                        self.run_job(entry.job).await;
                        entry.next = entry.times.next_after(now, &zone);
                    }
                }
                let Some(next) = scheduled.iter().filter_map(|entry| entry.next).min() else {
                    return std::future::pending().await;
                };
                tokio::time::sleep(next.since(self.now()).min(SLEEP_MAX)).await;
            }
        };
        tokio::select! {
            () = stopping => {}
            () = run => {}
        }
        feeds.abort();
    }

    fn schedule(&self, zone: &TimeZone) -> Vec<Scheduled> {
        let cron = &self.configuration.cron;
        let jobs = [
            (Job::PurgeData, &cron.purge_data),
            (Job::DispatchLiveNotifications, &cron.dispatch_live_notifications),
            (Job::DeleteBounces, &cron.delete_bounces),
            (Job::ReDispatchBroadcasts, &cron.re_dispatch_broadcasts),
        ];
        let mut scheduled = Vec::new();
        for (job, text) in jobs {
            match text.parse::<Crontab>() {
                Ok(times) => {
                    let next = times.next_after(self.now(), zone);
                    scheduled.push(Scheduled { job, times, next });
                }
                Err(error) => tracing::error!(?job, %error, "a job of the NotifyBC interface has no times"),
            }
        }
        scheduled
    }

    async fn run_job(self: &Arc<Self>, job: Job) {
        let result = match job {
            Job::PurgeData => self.purge_data().await,
            Job::DispatchLiveNotifications => self.dispatch_live_notifications().await,
            Job::DeleteBounces => self.clear_bounces().await,
            Job::ReDispatchBroadcasts => self.resume_stale_broadcasts().await,
        };
        match result {
            Ok(0) => {}
            Ok(count) => tracing::info!(?job, count, "a job of the NotifyBC interface changed records"),
            Err(error) => tracing::error!(?job, %error, "a job of the NotifyBC interface failed"),
        }
    }

    /// Deletes old records for good.
    pub(crate) async fn purge_data(&self) -> Result<u64, NotifybcError> {
        let collections =
            [Collection::Notification, Collection::Subscription, Collection::Bounce, Collection::AccessToken];
        let (now, retention) = (self.now(), &self.configuration.cron.retention);
        let mut count = 0;
        for collection in collections {
            let purged = |record: &Document| jobs::is_purged(collection, record, retention, now);
            let mut after = None;
            loop {
                let (records, next) = self.page(collection, KeyFilter::default(), after).await?;
                let old: Vec<String> = records
                    .iter()
                    .filter(|record| purged(&record.document))
                    .map(|record| record.id().to_owned())
                    .collect();
                if !old.is_empty() {
                    count += self.remove(collection, old).await?;
                }
                match next {
                    Some(next) => after = Some(next),
                    None => break,
                }
            }
        }
        Ok(count)
    }

    /// Sends the notifications whose `invalidBefore` has passed.
    pub(crate) async fn dispatch_live_notifications(self: &Arc<Self>) -> Result<u64, NotifybcError> {
        let _once = DUE.lock().await;
        let now = self.now();
        let due = self.notifications_in("new", |record| notifications::due(record, now)).await?;
        let count = due.len() as u64;
        for record in due {
            if let Err(error) = self.send_stored(record).await {
                tracing::error!(%error, "a notification of a later time was not sent");
            }
        }
        Ok(count)
    }

    /// Clears bounce records whose address was reached since.
    pub(crate) async fn clear_bounces(&self) -> Result<u64, NotifybcError> {
        let (now, hours) = (self.now(), self.configuration.cron.bounce_hours_min);
        let filter = KeyFilter { states: Some(vec!["active".to_owned()]), ..KeyFilter::default() };
        let deleted = Document::from_iter([("state".to_owned(), Value::from("deleted"))]);
        let (mut count, mut after) = (0, None);
        loop {
            let (records, next) = self.page(Collection::Bounce, filter.clone(), after).await?;
            for record in records.iter().filter(|record| bounces::is_cleared(&record.document, hours, now)) {
                match self.change_by(Collection::Bounce, record.id(), &deleted, None).await {
                    Ok(_) => count += 1,
                    Err(NotifybcError::Missing) => {}
                    Err(error) => return Err(error),
                }
            }
            match next {
                Some(next) => after = Some(next),
                None => return Ok(count),
            }
        }
    }

    /// Resumes broadcasts in state `sending` that were not touched for ten minutes: those of other installations, and
    /// those whose process ended. Native broadcasts are resumed at start.
    pub(crate) async fn resume_stale_broadcasts(self: &Arc<Self>) -> Result<u64, NotifybcError> {
        let now = self.now();
        let stale = |mut record: Document| {
            // A native broadcast goes on by itself.
            let is_native = record.keys().any(|name| name.starts_with(notifications::INTERNAL_PREFIX));
            if is_native || !jobs::is_stale(&record, now) {
                return None;
            }
            record.insert("asyncBroadcastPushNotification".to_owned(), Value::Bool(true));
            Some(record)
        };
        let stale = self.notifications_in("sending", stale).await?;
        let count = stale.len() as u64;
        for record in stale {
            self.send_stored(record).await?;
        }
        Ok(count)
    }

    /// Notifications in a state for which a function returns a record.
    async fn notifications_in(
        &self,
        state: &str,
        mut choose: impl FnMut(Document) -> Option<Document>,
    ) -> Result<Vec<Document>, NotifybcError> {
        let filter = KeyFilter { states: Some(vec![state.to_owned()]), ..KeyFilter::default() };
        let (mut found, mut after) = (Vec::new(), None);
        loop {
            let (records, next) = self.page(Collection::Notification, filter.clone(), after).await?;
            found.extend(records.into_iter().filter_map(|record| choose(record.document)));
            match next {
                Some(next) if found.len() < DUE_MAX => after = Some(next),
                _ => return Ok(found),
            }
        }
    }

    /// A page of documents, and the id after which the next begins.
    pub(super) async fn page(
        &self,
        collection: Collection,
        filter: KeyFilter,
        after: Option<String>,
    ) -> Result<(Vec<Record>, Option<String>), NotifybcError> {
        let page = self.store.scan_documents(DocumentScan { collection, filter, after, limit: PAGE }).await?;
        let records = page.items.into_iter().map(Record::of).collect::<Result<Vec<Record>, NotifybcError>>()?;
        Ok((records, page.next))
    }
}
