//! Somebody who was known by an address only has an account: one subscriber becomes a part of another.

use std::time::Duration;

use tocsin_delivery::Claim;
use tocsin_model::{
    id::{Name, SubscriberId},
    mailbox,
    problem::Problem,
    subscriber::{DEVICES_MAX, Subscriber, check_attributes},
    time::Timestamp,
};
use tocsin_store::{
    error::StoreError,
    records::{Merge, MergeReport, NotMerged, United},
};

use crate::{
    Service,
    error::ServiceError,
    keys::{Caller, Scope},
};

/// How long a claim lasts if nobody says, and at most.
const CLAIM_LASTS: Duration = Duration::from_secs(60 * 60);
const CLAIM_LASTS_MAX: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// Why it is believed that both are the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Proof {
    /// What was sent to a device of the one who is merged.
    Claim(String),
    /// The caller knows, and answers for it.
    OfCaller,
}

/// What became of two.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Merged {
    /// What the records did.
    pub report: MergeReport,
    /// When.
    pub at: Timestamp,
    /// Whether it had been done before.
    pub again: bool,
}

impl Service {
    /// Makes a claim, to be sent to a device of a subscriber: whoever shows it gets what is sent there. Gives when it ends.
    ///
    /// # Errors
    /// There is no such subscriber or device; it would last for too long.
    pub async fn make_claim(
        &self,
        caller: &Caller,
        id: &SubscriberId,
        device: &Name,
        lasts: Option<Duration>,
    ) -> Result<(String, Timestamp), ServiceError> {
        caller.needs(Scope::SubscribersWrite)?;
        let lasts = lasts.unwrap_or(CLAIM_LASTS);
        if !(Duration::from_secs(1)..=CLAIM_LASTS_MAX).contains(&lasts) {
            let most = CLAIM_LASTS_MAX.as_secs();
            return Err(ServiceError::invalid("expires_in", format!("should be from 1 to {most} seconds")));
        }
        let found = self.find_subscriber(id).await?;
        let device = found
            .devices
            .get(device)
            .ok_or_else(|| ServiceError::Missing(format!("the device `{device}` of the subscriber `{id}`")))?;
        let end = self.clock.now() + lasts;
        let expires_at = Timestamp::from_millis(end.as_millis().div_euclid(1_000) * 1_000);
        let address = mailbox::comparable(&device.address);
        let device = (device.channel.as_str(), &*address);
        Ok((self.signet.claim(&Claim { subscriber: found.number, device, expires_at }), expires_at))
    }

    /// Makes `from` a part of `into` and forgets it. Doing it again tells what was done.
    ///
    /// # Errors
    /// One of them is not there; they are the same; there is no good claim; `from` has a password or stands in another
    /// container; together they have too many devices or attributes; `from` is a part of another already.
    pub async fn merge_subscribers(
        &self,
        caller: &Caller,
        from: &SubscriberId,
        into: &SubscriberId,
        proof: &Proof,
    ) -> Result<Merged, ServiceError> {
        caller.needs(Scope::SubscribersWrite)?;
        if from == into {
            return Err(not_merged(NotMerged::Itself, from, into));
        }
        let Some(source) = self.records.subscriber(from).await? else {
            return self.merged_before(from, into).await;
        };
        let account = self.find_subscriber(into).await?;
        self.check_proof(&source, proof)?;
        check_bounds(&United::of(&source, &account))?;
        let merge = match self.records.merge_subscribers(from, into, self.clock.now()).await {
            Ok(Ok(merge)) => merge,
            Ok(Err(why)) => return Err(not_merged(why, from, into)),
            // Somebody was faster.
            Err(StoreError::Missing(_)) => return self.merged_before(from, into).await,
            Err(error) => return Err(error.into()),
        };
        metrics::counter!("subscriber_merges_total").increment(1);
        tracing::info!(%from, %into, subscriptions = merge.report.subscriptions, "one subscriber became a part of another");
        self.move_feed(&merge).await?;
        Ok(Merged { report: merge.report, at: merge.at, again: false })
    }

    /// Moves the feeds of merges in the middle of which the process died. Gives how many these were.
    ///
    /// # Errors
    /// A store does not answer.
    pub async fn finish_merges(&self) -> Result<usize, ServiceError> {
        let open = self.records.unfinished_merges().await?;
        for merge in &open {
            self.move_feed(merge).await?;
        }
        Ok(open.len())
    }

    async fn move_feed(&self, merge: &Merge) -> Result<(), ServiceError> {
        self.inbox.move_feed(merge.from_number, merge.into_number).await?;
        Ok(self.records.finish_merge(merge.from_number).await?)
    }

    async fn merged_before(&self, from: &SubscriberId, into: &SubscriberId) -> Result<Merged, ServiceError> {
        let missing = || ServiceError::Missing(format!("the subscriber `{from}`"));
        let merge = self.records.merge_of(from).await?.ok_or_else(missing)?;
        if merge.report.into != *into {
            let other = &merge.report.into;
            let message = format!("`{from}` has become a part of `{other}` already");
            return Err(ServiceError::Invalid(vec![Problem::at("from", message)]));
        }
        self.move_feed(&merge).await?;
        Ok(Merged { report: merge.report, at: merge.at, again: true })
    }

    fn check_proof(&self, source: &Subscriber, proof: &Proof) -> Result<(), ServiceError> {
        let Proof::Claim(claim) = proof else { return Ok(()) };
        // Versions before made claims of addresses as they are spelled.
        let comparable: Vec<_> =
            source.devices.values().map(|device| (device, mailbox::comparable(&device.address))).collect();
        let devices = comparable.iter().flat_map(|(device, comparable)| {
            [(device.channel.as_str(), device.address.as_str()), (device.channel.as_str(), &**comparable)]
        });
        let wrong = |message: &str| {
            let hint =
                "make one with `POST /v1/subscribers/{id}/claim`, send it to the device, and give what comes back";
            Err(ServiceError::Invalid(vec![Problem::at("claim", message).hint(hint)]))
        };
        match self.signet.shown_claim(claim, source.number, devices) {
            None => wrong("is none of a device that this subscriber has now"),
            Some(end) if end <= self.clock.now() => wrong("has expired"),
            Some(_) => Ok(()),
        }
    }
}

fn check_bounds(united: &United) -> Result<(), ServiceError> {
    let mut problems = check_attributes(&united.profile.attributes);
    problems.extend(united.preferences.check());
    let devices = united.devices.len();
    if devices > DEVICES_MAX {
        let message = format!("has {devices} devices together with it; at most {DEVICES_MAX} fit");
        problems.push(Problem::at("from", message).hint("remove some of one of the two first"));
    }
    if problems.is_empty() { Ok(()) } else { Err(ServiceError::Invalid(problems)) }
}

fn not_merged(why: NotMerged, from: &SubscriberId, into: &SubscriberId) -> ServiceError {
    let problem = match why {
        NotMerged::Itself => Problem::at("from", format!("`{into}` cannot become a part of itself")),
        NotMerged::HasPassword => Problem::at("from", format!("`{from}` has a password, so it is an account itself"))
            .hint("only those who have none become parts of others; take its password away first"),
        NotMerged::OtherContainer => {
            Problem::at("from", format!("`{from}` stands in another container of the directory than `{into}`"))
                .hint("move one of them first")
        }
    };
    ServiceError::Invalid(vec![problem])
}
