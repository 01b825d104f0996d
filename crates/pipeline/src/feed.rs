//! The notifications of a job are decided on, formatted and handed over, one after the other or together.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use tocsin_delivery::{Answer, Message, Outgoing, Ticket, redact};
use tocsin_model::{
    application::DeliveryLog,
    conduct::{Digest, DigestWindow},
    content::PartsUsed,
    id::{Name, SubscriptionId},
    receipt::{Outcome, Reason, ReasonKind},
    subscriber::Device,
    suppression::Cause,
    time::Timestamp,
};
use tocsin_store::{error::StoreError, records::Recipient};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::{
    alike::Alike,
    decide::{Chosen, Unsent, choose_device, time_to_send},
    deliver_work::{REST_AFTER_FAILURE, Worker, next_key},
    digest::{Group, GroupKey, Groups, group_key},
    load_work::Loaded,
    multicast::Multicasts,
    record_receipts::Report,
    render::{Member, render},
    running::Open,
};

/// Notifications whose recipients are read, and which are formatted and handed over, at a time.
const RECIPIENTS: usize = 512;

/// A work item of a job, and how far feeding it came.
pub(crate) struct Feeding {
    /// Its recorder knows it by this.
    pub key: u64,
    pub loaded: Loaded,
    /// Which of its notifications are fed now.
    pub ordinals: Vec<u32>,
    /// How many were reported or handed over.
    pub fed: usize,
    /// Those that were not, to be tried from `due_at` on.
    pub left: Vec<u32>,
    pub due_at: Timestamp,
}

/// A notification of a job: the place of its item, and its own.
pub(crate) type Place = (usize, u32);

/// What becomes of a notification for now.
enum Taken {
    /// It leaves by this channel.
    Ready(Arc<Open>, Outgoing),
    /// It is told together with others.
    Grouped,
    /// It waits until then, for its subscriber.
    Later(Timestamp),
    /// It waits until then, for its destination, which this channel reaches.
    Held(Name, Timestamp),
    /// It waits for the end of this window.
    Gathered(Timestamp),
    /// The channel has no device of its subscriber.
    Passed(Reason),
    /// Nothing may go to its device.
    Suppressed(Cause),
}

/// What becomes of a digest for now. It is decided for all of it at once, so that it stays one.
enum Told {
    Now(Arc<Open>, Outgoing),
    /// Its destination, which this channel reaches, is better let be until then.
    Later(Name, Timestamp),
}

/// What gathers while a job is fed.
#[derive(Default)]
struct Gathered {
    groups: Groups<Place>,
    multicasts: Multicasts,
    alike: Alike,
    /// Windows that this job has put something into.
    placed: BTreeSet<(usize, Timestamp)>,
}

impl Worker {
    /// Feeds the items of a job, until all are, or `stop`, or the records fail.
    pub(crate) async fn feed(&self, items: &mut [Feeding], stop: &CancellationToken) {
        let mut gathered = Gathered::default();
        for at in 0..items.len() {
            if let Err(Broken(due_at)) = self.feed_item(items, at, &mut gathered, stop).await {
                leave(items, due_at, gathered.groups.drain().flat_map(|group| group.members));
                for rest in &mut items[at + 1..] {
                    rest.left.extend(&rest.ordinals);
                    rest.due_at = due_at.unwrap_or(rest.due_at);
                }
                return;
            }
        }
        let groups = gathered.groups.drain().collect();
        self.feed_digests(items, groups, stop).await;
    }

    /// Feeds one item; those of it that are told together with others are only gathered.
    async fn feed_item(
        &self,
        items: &mut [Feeding],
        at: usize,
        gathered: &mut Gathered,
        stop: &CancellationToken,
    ) -> Result<(), Broken> {
        let Feeding { key, loaded, ordinals, fed, left, .. } = &mut items[at];
        let key = *key;
        let limit = loaded.conduct.multicast.map_or(0, |limit| limit as usize);
        // Whole multicasts, so that none is cut in two.
        let chunk_size = RECIPIENTS.next_multiple_of(limit.max(1));
        for (chunk_at, chunk) in ordinals.chunks(chunk_size).enumerate() {
            let rest = &ordinals[chunk_at * chunk_size..];
            if (chunk_at > 0 || at > 0) && stop.is_cancelled() {
                left.extend(rest);
                return Err(Broken(None));
            }
            let recipients = match self.recipients(loaded, chunk).await {
                Ok(recipients) => self.flow.suppressions.follow(&*self.flow.records).await.map(|()| recipients),
                failed => failed,
            };
            let recipients = match recipients {
                Ok(recipients) => recipients,
                Err(error) => {
                    left.extend(rest);
                    return Err(self.unreadable(&error));
                }
            };
            let mut ready = Ready::default();
            let mut now = self.flow.clock.now();
            for (ordinal, recipient) in chunk.iter().copied().zip(recipients) {
                // Of a multicast most are only added, which takes no time.
                if limit == 0 {
                    now = self.flow.clock.now();
                }
                let taken = match recipient {
                    Ok(recipient) => {
                        self.take(loaded, (at, ordinal), recipient, Ticket { key, ordinal }, now, gathered).await
                    }
                    Err(unsent) => Err(unsent),
                };
                let report = match taken {
                    Ok(Taken::Grouped) => continue,
                    Ok(Taken::Ready(channel, outgoing)) => {
                        self.log_attempt(&outgoing);
                        *fed += 1;
                        ready.push(channel, outgoing);
                        continue;
                    }
                    Ok(Taken::Later(due_at)) => Report::Snoozed { key, ordinal, due_at },
                    Ok(Taken::Held(channel, due_at)) => Report::Held { key, ordinal, channel, at: now, due_at },
                    Ok(Taken::Gathered(window)) => {
                        let placing = gathered.placed.insert((at, window)).then(|| self.windows.placing(window));
                        Report::Gathered { key, ordinal, window, placing }
                    }
                    Ok(Taken::Passed(reason)) => Report::Passed { key, ordinal, at: now, reason },
                    Ok(Taken::Suppressed(cause)) => Report::Suppressed { key, ordinal, at: now, cause },
                    Err(Unsent { outcome, reason }) => Report::Unsent { key, ordinal, at: now, outcome, reason },
                };
                *fed += 1;
                if self.reports.send(report).await.is_err() {
                    return Err(Broken(None));
                }
            }
            ready.send(&self.answers).await;
            tokio::task::yield_now().await;
        }
        Ok(())
    }

    fn unreadable(&self, error: &StoreError) -> Broken {
        tracing::error!(%error, channel = %self.channel, "recipients cannot be read yet");
        Broken(Some(self.flow.clock.now() + REST_AFTER_FAILURE))
    }

    /// What becomes of one notification.
    async fn take(
        &self,
        loaded: &Loaded,
        place: Place,
        recipient: Option<Recipient>,
        ticket: Ticket,
        now: Timestamp,
        gathered: &mut Gathered,
    ) -> Result<Taken, Unsent> {
        let (_, ordinal) = place;
        let recipient = self.tellable(loaded, recipient, now)?;
        let device = match self.choose(loaded, &recipient, now)? {
            Chosen::Device(device) => device,
            Chosen::Suppressed(cause) => return Ok(Taken::Suppressed(cause)),
            Chosen::Nobody => {
                let text = format!("the subscriber has no device that `{}` could reach", self.channel);
                return Ok(Taken::Passed(Reason::new(ReasonKind::Unreachable, text)));
            }
        };
        if let Some(digest) = self.waits_for_others(loaded) {
            let key = group_key(loaded, digest, ordinal, &recipient, device)?;
            self.recover_windows(loaded, digest).await?;
            return Ok(Taken::Gathered(self.window(loaded, digest, key, &recipient, now)?));
        }
        let time = time_to_send(&loaded.conduct, &recipient, now)?;
        if time > now {
            return Ok(Taken::Later(time));
        }
        if let Some(digest) = &loaded.conduct.digest {
            gathered.groups.add(group_key(loaded, digest, ordinal, &recipient, device)?, device.clone(), place);
            return Ok(Taken::Grouped);
        }
        let (channel, target) = self.open(&recipient, device)?;
        if let Some(wait) = channel.hold(&target.address, loaded.conduct.priority) {
            return Ok(Taken::Held(target.channel.clone(), now + wait));
        }
        let (used, to) = (self.parts_used(&channel), (device, target));
        let Gathered { multicasts, alike, .. } = gathered;
        let mut made = || render(&self.flow, &[Member { loaded, ordinal }], &recipient, to, used, alike, now);
        let message = match loaded.conduct.multicast {
            Some(limit) if loaded.edit.is_none() => {
                multicasts.message(loaded, ordinal, &recipient, target, limit, made)?
            }
            _ => Arc::new(made()?),
        };
        Ok(Taken::Ready(channel, self.outgoing(loaded, ordinal, &recipient, target, ticket, message)))
    }

    fn choose<'r>(&self, loaded: &Loaded, recipient: &'r Recipient, now: Timestamp) -> Result<Chosen<'r>, Unsent> {
        choose_device(loaded, recipient, &self.channel, |name, device| {
            self.flow.suppressions.of(loaded, recipient, name, device, now)
        })
    }

    /// The recipient, if it may be told at all.
    fn tellable(&self, loaded: &Loaded, recipient: Option<Recipient>, now: Timestamp) -> Result<Recipient, Unsent> {
        if loaded.batch.head.expires_at.is_some_and(|end| end <= now) {
            let text = "its time was over before it was sent";
            return Err(Unsent::closed(Outcome::Expired, ReasonKind::Expired, text));
        }
        let refused = |text| Unsent::closed(Outcome::Refused, ReasonKind::Unreachable, text);
        let recipient = recipient.ok_or_else(|| refused("the subscription is gone"))?;
        if !recipient.profile.enabled || !recipient.interest.enabled {
            return Err(refused("the subscription was switched off"));
        }
        Ok(recipient)
    }

    /// The digest for whose window a notification waits that comes alone.
    fn waits_for_others<'l>(&self, loaded: &'l Loaded) -> Option<&'l Digest> {
        let digest = loaded.conduct.digest.as_ref()?;
        (digest.window != DigestWindow::Batch && loaded.course.window.is_none()).then_some(digest)
    }

    /// When the window closes for which a notification waits, at an hour at which it may be sent.
    fn window(
        &self,
        loaded: &Loaded,
        digest: &Digest,
        key: GroupKey,
        recipient: &Recipient,
        now: Timestamp,
    ) -> Result<Timestamp, Unsent> {
        let end = || {
            let end = digest.window.end(recipient.profile.time_zone.as_deref(), now).unwrap_or(now);
            time_to_send(&loaded.conduct, recipient, end)
        };
        match digest.window {
            // Only these depend on who came first; the others are the same for all who come.
            DigestWindow::After(_) => self.windows.place(key, now, end),
            _ => end(),
        }
    }

    /// After a restart: finds out which windows the first of their notifications have opened.
    async fn recover_windows(&self, loaded: &Loaded, digest: &Digest) -> Result<(), Unsent> {
        if !matches!(digest.window, DigestWindow::After(_)) || self.windows.recovered.initialized() {
            return Ok(());
        }
        let application = &loaded.batch.head.application;
        let recovering = self.windows.recovered.get_or_try_init(|| self.recover_all(application));
        recovering.await.map(|_| ()).map_err(|error| {
            let text = format!("the windows of digests cannot be read: {error}");
            Unsent::suspended(ReasonKind::Internal, text)
        })
    }

    async fn recover_all(&self, application: &Name) -> Result<(), StoreError> {
        let now = self.flow.clock.now();
        let mut after = tocsin_model::id::WorkItemId(0);
        loop {
            let items = self.flow.journal.gathering(application, &self.channel, now, after, 64).await?;
            let Some(last) = items.last() else { return Ok(()) };
            after = last.claim.id;
            for item in &items {
                let Ok(loaded) = Loaded::read(&self.flow, item).await else { continue };
                let (Some(digest), Some(end)) = (&loaded.conduct.digest, item.course.window) else { continue };
                if !matches!(digest.window, DigestWindow::After(_)) {
                    continue;
                }
                for chunk in loaded.ordinals.chunks(RECIPIENTS) {
                    let recipients = self.recipients(&loaded, chunk).await?;
                    for (ordinal, recipient) in chunk.iter().zip(recipients) {
                        let Ok(Some(recipient)) = recipient else { continue };
                        let Ok(Chosen::Device(device)) = self.choose(&loaded, &recipient, now) else { continue };
                        if let Ok(key) = group_key(&loaded, digest, *ordinal, &recipient, device) {
                            self.windows.recover(key, end);
                        }
                    }
                }
            }
        }
    }

    /// The device of this name, and its channel.
    fn open<'r>(&self, recipient: &'r Recipient, device: &Name) -> Result<(Arc<Open>, &'r Device), Unsent> {
        let target = recipient
            .devices
            .get(device)
            .ok_or_else(|| Unsent::suspended(ReasonKind::Unreachable, format!("the device `{device}` is gone")))?;
        let open = self.running.channel(&target.channel).ok_or_else(|| {
            let text = format!("the application has no channel `{}`", target.channel);
            Unsent::suspended(ReasonKind::Unreachable, text)
        })?;
        Ok((open, target))
    }

    /// Formats digests and hands them over, each for all its notifications.
    async fn feed_digests(&self, items: &mut [Feeding], mut groups: Vec<Group<Place>>, stop: &CancellationToken) {
        let event_of = |items: &[Feeding], (at, ordinal): Place| items[at].loaded.event_of[ordinal as usize];
        for group in &mut groups {
            // Must stay a stable sort: a digest tells events in the order they were accepted.
            group.members.sort_by_key(|place| event_of(items, *place));
        }
        groups.reverse();
        while !groups.is_empty() {
            if stop.is_cancelled() {
                return leave(items, None, groups.into_iter().flat_map(|group| group.members));
            }
            let some = groups.split_off(groups.len().saturating_sub(RECIPIENTS));
            let heads: Vec<SubscriptionId> = some
                .iter()
                .rev()
                .map(|group| {
                    items[group.members[0].0].loaded.notifications().subscriptions[group.members[0].1 as usize]
                })
                .collect();
            let recipients = match self.recipients_of(&heads).await {
                Ok(recipients) => recipients,
                Err(error) => {
                    let Broken(due_at) = self.unreadable(&error);
                    groups.extend(some);
                    return leave(items, due_at, groups.into_iter().flat_map(|group| group.members));
                }
            };
            let mut ready = Ready::default();
            for (recipient, Group { device, members }) in recipients.into_iter().zip(some.into_iter().rev()) {
                let now = self.flow.clock.now();
                let joined = next_key();
                let rendered = recipient.and_then(|recipient| {
                    let told: Vec<Member<'_>> = members
                        .iter()
                        .map(|(at, ordinal)| Member { loaded: &items[*at].loaded, ordinal: *ordinal })
                        .collect();
                    let recipient = self.tellable(told[0].loaded, recipient, Timestamp(i64::MIN))?;
                    let (channel, target) = self.open(&recipient, &device)?;
                    if let Some(wait) = channel.hold(&target.address, told[0].loaded.conduct.priority) {
                        return Ok(Told::Later(target.channel.clone(), now + wait));
                    }
                    let (used, to) = (self.parts_used(&channel), (&device, target));
                    let message = render(&self.flow, &told, &recipient, to, used, &mut Alike::default(), now)?;
                    let ticket = Ticket { key: joined, ordinal: 0 };
                    let (loaded, ordinal) = (told[0].loaded, told[0].ordinal);
                    let outgoing = self.outgoing(loaded, ordinal, &recipient, target, ticket, Arc::new(message));
                    Ok(Told::Now(channel, outgoing))
                });
                let tickets: Vec<Ticket> = members
                    .into_iter()
                    .map(|(at, ordinal)| {
                        items[at].fed += 1;
                        Ticket { key: items[at].key, ordinal }
                    })
                    .collect();
                let sent = match rendered {
                    Ok(Told::Now(channel, outgoing)) => {
                        metrics::counter!("deliver_digests_total").increment(1);
                        self.log_attempt(&outgoing);
                        ready.push(channel, outgoing);
                        self.reports.send(Report::Joined { key: joined, members: tickets }).await.is_ok()
                    }
                    Ok(Told::Later(channel, due_at)) => {
                        let held = |Ticket { key, ordinal }| Report::Held {
                            key,
                            ordinal,
                            channel: channel.clone(),
                            at: now,
                            due_at,
                        };
                        self.report(tickets.into_iter().map(held)).await
                    }
                    Err(Unsent { outcome, reason }) => {
                        let unsent = |Ticket { key, ordinal }| Report::Unsent {
                            key,
                            ordinal,
                            at: now,
                            outcome,
                            reason: reason.clone(),
                        };
                        self.report(tickets.into_iter().map(unsent)).await
                    }
                };
                if !sent {
                    return;
                }
            }
            ready.send(&self.answers).await;
            tokio::task::yield_now().await;
        }
    }

    /// What of a content a channel has a use for, or the log.
    fn parts_used(&self, channel: &Open) -> PartsUsed {
        if self.log.text { PartsUsed::ALL } else { channel.parts_used() }
    }

    /// The message on its way to a device.
    fn outgoing(
        &self,
        loaded: &Loaded,
        ordinal: u32,
        recipient: &Recipient,
        target: &Device,
        ticket: Ticket,
        message: Arc<Message>,
    ) -> Outgoing {
        let edited = loaded.edit.as_ref().and_then(|edit| edit.address.clone());
        let address = edited.unwrap_or_else(|| target.address.clone());
        let unsubscribe = self.flow.context.unsubscribe_link(recipient.subscription);
        let subscriber = Some(recipient.number);
        Outgoing { id: loaded.id(ordinal), subscriber, address, ticket, unsubscribe, message, others: Vec::new() }
    }

    /// Tells the log what is about to be sent, as far as its channel wants it.
    fn log_attempt(&self, outgoing: &Outgoing) {
        let DeliveryLog { attempts, text, .. } = self.log;
        if !attempts && !text {
            return;
        }
        let (id, channel, address) = (outgoing.id, &self.channel, redact::address(&outgoing.address));
        if !text {
            return tracing::info!(%id, %channel, address, "sending");
        }
        let content = &outgoing.message.content;
        let subject = content.subject.as_deref().map(redact::text);
        let body = content.text.as_deref().or(content.json.as_deref()).or(content.html.as_deref()).map(redact::text);
        tracing::info!(%id, %channel, address, subject, body, "sending");
    }

    /// Gives whether anybody still listens.
    async fn report(&self, reports: impl Iterator<Item = Report>) -> bool {
        for report in reports {
            if self.reports.send(report).await.is_err() {
                return false;
            }
        }
        true
    }

    /// The recipients of some notifications.
    async fn recipients(&self, loaded: &Loaded, chunk: &[u32]) -> Result<Vec<Found>, StoreError> {
        let of = |ordinal: &u32| loaded.notifications().subscriptions[*ordinal as usize];
        self.recipients_of(&chunk.iter().map(of).collect::<Vec<_>>()).await
    }

    /// The recipients of some subscriptions. If one of them is damaged, only what goes there is suspended.
    async fn recipients_of(&self, subscriptions: &[SubscriptionId]) -> Result<Vec<Found>, StoreError> {
        match self.flow.records.recipients(subscriptions).await {
            Ok(recipients) => return Ok(recipients.into_iter().map(Ok).collect()),
            Err(StoreError::Damaged(_)) => {}
            Err(error) => return Err(error),
        }
        let mut apart = Vec::with_capacity(subscriptions.len());
        for subscription in subscriptions {
            apart.push(match self.flow.records.recipients(&[*subscription]).await {
                Ok(found) => Ok(found.into_iter().next().flatten()),
                Err(StoreError::Damaged(what)) => {
                    let text = format!("the records of subscription {subscription} are damaged: {what}");
                    Err(Unsent::suspended(ReasonKind::Internal, text))
                }
                Err(error) => return Err(error),
            });
        }
        Ok(apart)
    }
}

/// A recipient, nobody if the subscription is gone, or why it cannot be known.
type Found = Result<Option<Recipient>, Unsent>;

/// Feeding breaks off; what is left is due then, or as it was.
struct Broken(Option<Timestamp>);

/// Notes what is left of each item.
fn leave(items: &mut [Feeding], due_at: Option<Timestamp>, places: impl Iterator<Item = Place>) {
    places.for_each(|(at, ordinal)| items[at].left.push(ordinal));
    if let Some(due_at) = due_at {
        for item in items.iter_mut().filter(|item| !item.left.is_empty()) {
            item.due_at = due_at;
        }
    }
}

/// Messages by the channel that takes them; those that are the same are together.
#[derive(Default)]
struct Ready(Vec<(Arc<Open>, Vec<Outgoing>)>);

impl Ready {
    fn push(&mut self, channel: Arc<Open>, mut outgoing: Outgoing) {
        let Some((_, waiting)) = self.0.iter_mut().find(|(open, _)| Arc::ptr_eq(open, &channel)) else {
            return self.0.push((channel, vec![outgoing]));
        };
        match waiting.last_mut() {
            Some(last) if Arc::ptr_eq(&last.message, &outgoing.message) => last.join(&mut outgoing),
            _ => waiting.push(outgoing),
        }
    }

    async fn send(self, answers: &mpsc::Sender<Answer>) {
        for (channel, mut outgoing) in self.0 {
            bring_together(&mut outgoing);
            channel.send_all(outgoing, answers).await;
        }
    }
}

/// Puts those with the same message next to the first of them.
fn bring_together(outgoing: &mut [Outgoing]) {
    if outgoing.iter().all(|one| Arc::strong_count(&one.message) == 1) {
        return;
    }
    let mut places: HashMap<*const Message, usize> = HashMap::new();
    let (mut runs, mut at) = (0, 0);
    for run in outgoing.chunk_by(|one, next| Arc::ptr_eq(&one.message, &next.message)) {
        places.entry(Arc::as_ptr(&run[0].message)).or_insert(at);
        (runs, at) = (runs + 1, at + run.len());
    }
    if places.len() < runs {
        outgoing.sort_by_key(|one| places[&Arc::as_ptr(&one.message)]);
    }
}
