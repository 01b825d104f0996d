//! Merges of subscribers: one known by an address only becomes part of an account.

use std::time::Duration;

use tocsin_delivery::Claim;
use tocsin_model::{
    id::{Name, SubscriberId},
    mailbox,
    problem::{Code, Problem},
    subscriber::{DEVICES_MAX, Subscriber, check_attributes},
    time::Timestamp,
};
use tocsin_store::{
    error::StoreError,
    records::{Merge, MergeRefusal, MergeReport, MergedSubscriber},
};

use crate::{
    Service,
    error::ServiceError,
    keys::{Caller, Scope},
};

/// Default and maximum lifetime of a verification token.
const TOKEN_LIFETIME: Duration = Duration::from_secs(60 * 60);
const TOKEN_LIFETIME_MAX: Duration = Duration::from_secs(7 * 24 * 60 * 60);

/// Evidence that both are the same person.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Proof {
    /// A verification token that was sent to a device of the merged subscriber.
    VerificationToken(String),
    /// The caller vouches for it.
    OfCaller,
}

/// Result of a merge.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Merged {
    /// Result in the records.
    pub report: MergeReport,
    /// Time of the merge.
    pub at: Timestamp,
    /// Whether it was done before.
    pub again: bool,
}

impl Service {
    /// Makes a verification token to be sent to a device of a subscriber: the user who returns it receives the messages
    /// of that device. Returns its expiry too.
    ///
    /// # Errors
    /// The subscriber or device does not exist; the lifetime is too long.
    pub async fn make_verification_token(
        &self,
        caller: &Caller,
        id: &SubscriberId,
        device: &Name,
        lasts: Option<Duration>,
    ) -> Result<(String, Timestamp), ServiceError> {
        caller.needs(Scope::SubscribersWrite)?;
        let lasts = lasts.unwrap_or(TOKEN_LIFETIME);
        if !(Duration::from_secs(1)..=TOKEN_LIFETIME_MAX).contains(&lasts) {
            let most = TOKEN_LIFETIME_MAX.as_secs();
            return Err(ServiceError::from(
                Problem::new(Code::OutOfRange, "expires_in", format!("should be from 1 to {most} seconds"))
                    .param("least", 1)
                    .param("most", most),
            ));
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
        Ok((self.token_signer.claim(&Claim { subscriber: found.number, device, expires_at }), expires_at))
    }

    /// Merges `from` into `into` and removes it. Idempotent: a repetition returns the result.
    ///
    /// # Errors
    /// A subscriber does not exist; both are the same; the token is invalid; `from` has a password or is in another
    /// container; together they have too many devices or attributes; `from` is merged already.
    pub async fn merge_subscribers(
        &self,
        caller: &Caller,
        from: &SubscriberId,
        into: &SubscriberId,
        proof: &Proof,
    ) -> Result<Merged, ServiceError> {
        caller.needs(Scope::SubscribersWrite)?;
        if from == into {
            return Err(not_merged(MergeRefusal::Itself, from, into));
        }
        let Some(source) = self.subscriber_store.subscriber(from).await? else {
            return self.merged_before(from, into).await;
        };
        let account = self.find_subscriber(into).await?;
        self.check_proof(&source, proof)?;
        check_bounds(&MergedSubscriber::of(&source, &account))?;
        let merge = match self.subscriber_store.merge_subscribers(from, into, self.clock.now()).await {
            Ok(Ok(merge)) => merge,
            Ok(Err(why)) => return Err(not_merged(why, from, into)),
            // Another request was faster.
            Err(StoreError::Missing(_)) => return self.merged_before(from, into).await,
            Err(error) => return Err(error.into()),
        };
        metrics::counter!("tocsin_subscriber_merges_total").increment(1);
        tracing::info!(%from, %into, subscriptions = merge.report.subscriptions, "one subscriber became a part of another");
        self.move_feed(&merge).await?;
        Ok(Merged { report: merge.report, at: merge.at, again: false })
    }

    /// Completes merges that a crash interrupted, by moving their feeds. Returns their number.
    ///
    /// # Errors
    /// A store is unavailable.
    pub async fn finish_merges(&self) -> Result<usize, ServiceError> {
        let open = self.subscriber_store.unfinished_merges().await?;
        for merge in &open {
            self.move_feed(merge).await?;
        }
        Ok(open.len())
    }

    async fn move_feed(&self, merge: &Merge) -> Result<(), ServiceError> {
        self.inbox.move_feed(merge.from_number, merge.into_number).await?;
        Ok(self.subscriber_store.finish_merge(merge.from_number).await?)
    }

    async fn merged_before(&self, from: &SubscriberId, into: &SubscriberId) -> Result<Merged, ServiceError> {
        let missing = || ServiceError::Missing(format!("the subscriber `{from}`"));
        let merge = self.subscriber_store.merge_of(from).await?.ok_or_else(missing)?;
        if merge.report.into != *into {
            let other = &merge.report.into;
            let message = format!("`{from}` has become a part of `{other}` already");
            return Err(ServiceError::Invalid(vec![Problem::new(Code::Conflict, "from", message)]));
        }
        self.move_feed(&merge).await?;
        Ok(Merged { report: merge.report, at: merge.at, again: true })
    }

    fn check_proof(&self, source: &Subscriber, proof: &Proof) -> Result<(), ServiceError> {
        let Proof::VerificationToken(token) = proof else { return Ok(()) };
        // Earlier versions made tokens with addresses as spelled.
        let comparable: Vec<_> =
            source.devices.values().map(|device| (device, mailbox::comparable(&device.address))).collect();
        let devices = comparable.iter().flat_map(|(device, comparable)| {
            [(device.channel.as_str(), device.address.as_str()), (device.channel.as_str(), &**comparable)]
        });
        let wrong = |code: Code, message: &str| {
            let hint = "create one with `POST /v1/subscribers/{id}/verification-token`, send it to the device, and give the returned one";
            Err(ServiceError::Invalid(vec![Problem::new(code, "verification_token", message).hint(hint)]))
        };
        match self.token_signer.verify_claim(token, source.number, devices) {
            None => wrong(Code::Mismatch, "belongs to no present device of this subscriber"),
            Some(end) if end <= self.clock.now() => wrong(Code::Expired, "has expired"),
            Some(_) => Ok(()),
        }
    }
}

fn check_bounds(united: &MergedSubscriber) -> Result<(), ServiceError> {
    let mut problems = check_attributes(&united.profile.attributes);
    problems.extend(united.preferences.check());
    let devices = united.devices.len();
    if devices > DEVICES_MAX {
        let message = format!("has {devices} devices together with it; at most {DEVICES_MAX} fit");
        problems.push(
            Problem::new(Code::TooMany, "from", message)
                .param("given", devices)
                .param("limit", DEVICES_MAX)
                .hint("remove some of one of the two first"),
        );
    }
    if problems.is_empty() { Ok(()) } else { Err(ServiceError::Invalid(problems)) }
}

fn not_merged(why: MergeRefusal, from: &SubscriberId, into: &SubscriberId) -> ServiceError {
    let problem = match why {
        MergeRefusal::Itself => Problem::new(Code::Cyclic, "from", format!("`{into}` cannot become a part of itself"))
            .param("value", into.to_string()),
        MergeRefusal::HasPassword => {
            Problem::new(Code::Conflict, "from", format!("`{from}` has a password, so it is an account itself"))
                .hint("only those who have none become parts of others; take its password away first")
        }
        MergeRefusal::OtherContainer => Problem::new(
            Code::Conflict,
            "from",
            format!("`{from}` stands in another container of the directory than `{into}`"),
        )
        .hint("move one of them first"),
    };
    ServiceError::Invalid(vec![problem])
}
