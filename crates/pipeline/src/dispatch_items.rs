//! Dispatch loop of step 3: decides on each notification of a job, formats it and hands it to its channel, alone, as
//! a multicast or as a digest.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
};

use tocsin_delivery::{Answer, Message, Outgoing, Ticket, redact};
use tocsin_model::{
    application::DeliveryLog,
    content::PartsUsed,
    delivery_policy::{Digest, DigestWindow},
    id::{Name, SubscriptionId},
    lifecycle::LifecycleChange,
    reason_code::ReasonCode,
    receipt::{Reason, ReasonKind},
    subscriber::Device,
    suppression::Cause,
    time::Timestamp,
};
use tocsin_store::{
    error::StoreError,
    journal::{HELD, WindowWorkQuery},
    records::Recipient,
};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::{
    active_version::OpenedChannel,
    broadcasts::Hold,
    decide::{
        Chosen, Unsent, cancelled, check_preferences, choose_device, may_notify, preferred_window, suppression,
        time_to_send, waits_for_others, window_end,
    },
    deliver_work::{REST_AFTER_FAILURE, Worker},
    delivery_tracker::DeliveryTracker,
    digest::{Group, GroupKey, Groups, group_key},
    in_flight::TrackedNotification,
    load_work::Loaded,
    multicast::Multicasts,
    render::{Member, render},
    render_cache::RenderCache,
    targeted_run,
};

/// Notifications per chunk: their recipients are read together, then they are formatted and handed over.
const RECIPIENTS: usize = 512;

/// Dispatch progress of one work item of a job.
pub(crate) struct ItemDispatch {
    pub tracker: Arc<DeliveryTracker>,
    pub loaded: Loaded,
    /// Ordinals of its notifications to dispatch now.
    pub ordinals: Vec<u32>,
    /// Number of notifications already decided on or handed over.
    pub dispatched: usize,
    /// Ordinals of notifications that were not tried, due again at `due_at`.
    pub left: Vec<u32>,
    pub due_at: Timestamp,
}

/// Position of a notification in a job: index of its item, and its ordinal.
pub(crate) type ItemPosition = (usize, u32);

/// Decision about one notification.
enum DispatchDecision {
    /// Sent now, through this channel.
    Ready(Arc<OpenedChannel>, Outgoing),
    /// Sent as part of a digest.
    Grouped,
    /// Waits until this time because of its subscriber's hours.
    Later(Timestamp),
    /// Waits until this time because its destination, which this channel reaches, is paused.
    DestinationPaused(Name, Timestamp),
    /// Waits for the end of this digest window.
    InWindow(Timestamp),
    /// The channel reaches no device of its subscriber.
    NoDevice(Reason),
    /// The address of its device is suppressed.
    Suppressed(Cause),
}

/// Decision about a whole digest, so that it stays one message.
enum DigestDecision {
    Now(Arc<OpenedChannel>, Outgoing),
    /// Its destination, which this channel reaches, is paused until this time.
    Later(Name, Timestamp),
}

/// Groups and caches that are filled while a job is dispatched.
#[derive(Default)]
struct DispatchGroups {
    groups: Groups<ItemPosition>,
    multicasts: Multicasts,
    cache: RenderCache,
    /// Digest windows that this job has added notifications to.
    placed: BTreeSet<(usize, Timestamp)>,
}

impl Worker {
    /// Dispatches the items of a job until all are done, `stop` is set, or the records fail.
    pub(crate) async fn dispatch(&self, items: &mut [ItemDispatch], stop: &CancellationToken) {
        let mut collected = DispatchGroups::default();
        for at in 0..items.len() {
            if let Err(DispatchInterrupted(due_at)) = self.dispatch_item(items, at, &mut collected, stop).await {
                record_unsent(items, due_at, collected.groups.drain().flat_map(|group| group.members));
                for rest in &mut items[at + 1..] {
                    rest.left.extend(&rest.ordinals);
                    rest.due_at = due_at.unwrap_or(rest.due_at);
                }
                return;
            }
        }
        let groups = collected.groups.drain().collect();
        self.dispatch_digests(items, groups, stop).await;
    }

    /// Dispatches one item. Its notifications for digests are only grouped.
    async fn dispatch_item(
        &self,
        items: &mut [ItemDispatch],
        at: usize,
        collected: &mut DispatchGroups,
        stop: &CancellationToken,
    ) -> Result<(), DispatchInterrupted> {
        let ItemDispatch { tracker, loaded, ordinals, dispatched, left, due_at } = &mut items[at];
        let limit = loaded.delivery_policy.multicast.map_or(0, |limit| limit as usize);
        // A multiple of the multicast size, so that no multicast is split.
        let chunk_size = RECIPIENTS.next_multiple_of(limit.max(1));
        for (chunk_at, chunk) in ordinals.chunks(chunk_size).enumerate() {
            let rest = &ordinals[chunk_at * chunk_size..];
            if (chunk_at > 0 || at > 0) && stop.is_cancelled() || self.in_flight.is_closed() {
                left.extend(rest);
                return Err(DispatchInterrupted(None));
            }
            match loaded.hold() {
                Hold::None => {}
                Hold::Paused => {
                    left.extend(rest);
                    *due_at = HELD;
                    return Ok(());
                }
                Hold::Cancelled => {
                    let now = self.flow.clock.now();
                    rest.iter().for_each(|ordinal| tracker.unsent(*ordinal, now, cancelled()));
                    *dispatched += rest.len();
                    return Ok(());
                }
            }
            // Before the recipients are read: a change of them from now on recalls what is formatted here.
            let mark = self.flow.recalls.mark();
            let recipients = match self.recipients(loaded, chunk).await {
                Ok(recipients) => {
                    self.flow.suppressions.refresh(&*self.flow.suppression_store).await.map(|()| recipients)
                }
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
                // Most notifications of a multicast are only added to it, which takes no time.
                if limit == 0 {
                    now = self.flow.clock.now();
                }
                let taken = match recipient {
                    Ok(recipient) => {
                        self.decide(loaded, (at, ordinal), recipient, tracker.ticket(ordinal), now, collected).await
                    }
                    Err(unsent) => Err(unsent),
                };
                match taken {
                    Ok(DispatchDecision::Grouped) => continue,
                    Ok(DispatchDecision::Ready(channel, mut outgoing)) => {
                        outgoing.recall = Some(mark.clone());
                        self.log_attempt(&outgoing);
                        ready.push(channel, outgoing);
                    }
                    Ok(DispatchDecision::Later(due_at)) => tracker.snooze(ordinal, due_at),
                    Ok(DispatchDecision::DestinationPaused(channel, due_at)) => {
                        tracker.hold(ordinal, &channel, now, due_at);
                    }
                    Ok(DispatchDecision::InWindow(window)) => {
                        let placing = collected.placed.insert((at, window)).then(|| self.windows.placing(window));
                        tracker.defer_to_window(ordinal, window, placing);
                    }
                    Ok(DispatchDecision::NoDevice(reason)) => tracker.no_device(ordinal, now, reason),
                    Ok(DispatchDecision::Suppressed(cause)) => tracker.suppress(ordinal, now, cause),
                    Err(unsent) => tracker.unsent(ordinal, now, unsent),
                }
                *dispatched += 1;
            }
            ready.send(&self.answers).await;
            tokio::task::yield_now().await;
        }
        Ok(())
    }

    fn unreadable(&self, error: &StoreError) -> DispatchInterrupted {
        tracing::error!(%error, channel = %self.channel, "recipients cannot be read yet");
        DispatchInterrupted(Some(self.flow.clock.now() + REST_AFTER_FAILURE))
    }

    /// Decides on one notification.
    async fn decide(
        &self,
        loaded: &Loaded,
        place: ItemPosition,
        recipient: Option<Recipient>,
        ticket: Ticket,
        now: Timestamp,
        collected: &mut DispatchGroups,
    ) -> Result<DispatchDecision, Unsent> {
        let (_, ordinal) = place;
        let recipient = may_notify(loaded, recipient, now)?;
        let device = match self.choose(loaded, &recipient, now)? {
            Chosen::Device(device) => device,
            Chosen::Suppressed(cause) => return Ok(DispatchDecision::Suppressed(cause)),
            Chosen::NoDevice => {
                let text = ReasonCode::NoDeviceOnChannel.with(&self.channel);
                return Ok(DispatchDecision::NoDevice(Reason::new(ReasonKind::Unreachable, text)));
            }
        };
        if let Some((digest, window)) = waits_for_others(loaded, &recipient) {
            let key = group_key(loaded, digest, ordinal, &recipient, device)?;
            self.recover_windows(loaded, digest).await?;
            return Ok(DispatchDecision::InWindow(self.window(loaded, window, key, &recipient, now)?));
        }
        let time = time_to_send(&loaded.delivery_policy, &recipient, now)?;
        if time > now {
            return Ok(DispatchDecision::Later(time));
        }
        if let Some(digest) = &loaded.delivery_policy.digest {
            collected.groups.add(group_key(loaded, digest, ordinal, &recipient, device)?, device.clone(), place);
            return Ok(DispatchDecision::Grouped);
        }
        let (channel, target) = self.open(&recipient, device)?;
        if let Some(wait) = channel.hold(&target.address, loaded.delivery_policy.priority) {
            return Ok(DispatchDecision::DestinationPaused(target.channel.clone(), now + wait));
        }
        let (used, to) = (self.parts_used(&channel), (device, target));
        let DispatchGroups { multicasts, cache, .. } = collected;
        let mut made = || render(&self.flow, &[Member { loaded, ordinal }], &recipient, to, used, cache, now);
        let message = match loaded.delivery_policy.multicast {
            Some(limit) if loaded.edit.is_none() => {
                multicasts.message(loaded, ordinal, &recipient, target, limit, made)?
            }
            _ => Arc::new(made()?),
        };
        Ok(DispatchDecision::Ready(channel, self.outgoing(loaded, ordinal, &recipient, target, ticket, message)))
    }

    fn choose<'r>(&self, loaded: &Loaded, recipient: &'r Recipient, now: Timestamp) -> Result<Chosen<'r>, Unsent> {
        check_preferences(loaded, recipient, now)?;
        choose_device(loaded, recipient, &self.channel, |name, device| {
            suppression(&self.flow.suppressions, loaded, recipient, (name, device), now)
        })
    }

    /// The end of the digest window of a notification, moved to a permitted hour.
    fn window(
        &self,
        loaded: &Loaded,
        window: DigestWindow,
        key: GroupKey,
        recipient: &Recipient,
        now: Timestamp,
    ) -> Result<Timestamp, Unsent> {
        let end = || window_end(loaded, window, recipient, now);
        match window {
            // Only these windows depend on the first notification; the others have fixed times.
            DigestWindow::After(_) => self.windows.place(key, now, end),
            _ => end(),
        }
    }

    /// After a restart: restores the windows that were opened by their first notifications.
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
            let items = self
                .flow
                .work_queue
                .digest_window_work(WindowWorkQuery { application, channel: &self.channel, now, after, limit: 64 })
                .await?;
            let Some(last) = items.last() else { return Ok(()) };
            after = last.claim.id;
            for item in &items {
                let Ok(loaded) = Loaded::read(&self.flow, item).await else { continue };
                let (Some(digest), Some(end)) = (&loaded.delivery_policy.digest, item.work_state.window) else {
                    continue;
                };
                if !matches!(digest.window, DigestWindow::After(_)) {
                    continue;
                }
                for chunk in loaded.ordinals.chunks(RECIPIENTS) {
                    let recipients = self.recipients(&loaded, chunk).await?;
                    for (ordinal, recipient) in chunk.iter().zip(recipients) {
                        let Ok(Some(recipient)) = recipient else { continue };
                        if preferred_window(&loaded, &recipient).is_some() {
                            continue;
                        }
                        let Ok(Chosen::Device(device)) = self.choose(&loaded, &recipient, now) else { continue };
                        if let Ok(key) = group_key(&loaded, digest, *ordinal, &recipient, device) {
                            self.windows.recover(key, end);
                        }
                    }
                }
            }
        }
    }

    /// Returns the named device and its channel.
    fn open<'r>(&self, recipient: &'r Recipient, device: &Name) -> Result<(Arc<OpenedChannel>, &'r Device), Unsent> {
        let target = recipient
            .devices
            .get(device)
            .ok_or_else(|| Unsent::suspended(ReasonKind::Unreachable, ReasonCode::DeviceRemoved.with(device)))?;
        let open = self.active.channel(&target.channel).ok_or_else(|| {
            let text = ReasonCode::UndefinedChannel.with(&target.channel);
            Unsent::suspended(ReasonKind::Unreachable, text)
        })?;
        Ok((open, target))
    }

    /// Formats digests and hands each over as one message for all its notifications.
    async fn dispatch_digests(
        &self,
        items: &mut [ItemDispatch],
        mut groups: Vec<Group<ItemPosition>>,
        stop: &CancellationToken,
    ) {
        let event_of =
            |items: &[ItemDispatch], (at, ordinal): ItemPosition| items[at].loaded.event_of[ordinal as usize];
        for group in &mut groups {
            // Must be a stable sort: a digest lists events in the order they were accepted.
            group.members.sort_by_key(|place| event_of(items, *place));
        }
        groups.reverse();
        while !groups.is_empty() {
            if stop.is_cancelled() || self.in_flight.is_closed() {
                return record_unsent(items, None, groups.into_iter().flat_map(|group| group.members));
            }
            let some = groups.split_off(groups.len().saturating_sub(RECIPIENTS));
            let heads: Vec<SubscriptionId> = some
                .iter()
                .rev()
                .map(|group| {
                    items[group.members[0].0].loaded.notifications().subscriptions[group.members[0].1 as usize]
                })
                .collect();
            let mark = self.flow.recalls.mark();
            let recipients = match self.recipients_of(&heads).await {
                Ok(recipients) => recipients,
                Err(error) => {
                    let DispatchInterrupted(due_at) = self.unreadable(&error);
                    groups.extend(some);
                    return record_unsent(items, due_at, groups.into_iter().flat_map(|group| group.members));
                }
            };
            let mut ready = Ready::default();
            for (recipient, Group { device, members }) in recipients.into_iter().zip(some.into_iter().rev()) {
                let now = self.flow.clock.now();
                let tracked: Vec<TrackedNotification> =
                    members.iter().map(|(at, ordinal)| (items[*at].tracker.clone(), *ordinal)).collect();
                let decision = recipient.and_then(|recipient| {
                    let notified: Vec<Member<'_>> = members
                        .iter()
                        .map(|(at, ordinal)| Member { loaded: &items[*at].loaded, ordinal: *ordinal })
                        .collect();
                    let recipient = may_notify(notified[0].loaded, recipient, Timestamp(i64::MIN))?;
                    check_preferences(notified[0].loaded, &recipient, now)?;
                    let (channel, target) = self.open(&recipient, &device)?;
                    if let Some(wait) = channel.hold(&target.address, notified[0].loaded.delivery_policy.priority) {
                        return Ok(DigestDecision::Later(target.channel.clone(), now + wait));
                    }
                    let (used, to) = (self.parts_used(&channel), (&device, target));
                    let message =
                        render(&self.flow, &notified, &recipient, to, used, &mut RenderCache::default(), now)?;
                    let ticket = self.in_flight.join(tracked.clone());
                    let (loaded, ordinal) = (notified[0].loaded, notified[0].ordinal);
                    let outgoing = self.outgoing(loaded, ordinal, &recipient, target, ticket, Arc::new(message));
                    Ok(DigestDecision::Now(channel, outgoing))
                });
                members.iter().for_each(|(at, _)| items[*at].dispatched += 1);
                match decision {
                    Ok(DigestDecision::Now(channel, mut outgoing)) => {
                        outgoing.recall = Some(mark.clone());
                        metrics::counter!("tocsin_deliver_digest_messages_total").increment(1);
                        self.log_attempt(&outgoing);
                        ready.push(channel, outgoing);
                    }
                    Ok(DigestDecision::Later(channel, due_at)) => {
                        tracked.iter().for_each(|(tracker, ordinal)| tracker.hold(*ordinal, &channel, now, due_at));
                    }
                    Err(unsent) => {
                        tracked.iter().for_each(|(tracker, ordinal)| tracker.unsent(*ordinal, now, unsent.clone()));
                    }
                }
            }
            ready.send(&self.answers).await;
            tokio::task::yield_now().await;
        }
    }

    /// The parts of a content that the channel or the log uses.
    fn parts_used(&self, channel: &OpenedChannel) -> PartsUsed {
        if self.log.text { PartsUsed::ALL } else { channel.parts_used() }
    }

    /// Builds the outgoing message for a device.
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
        let (subscriber, subscription) = (Some(recipient.number), Some(recipient.subscription));
        let (id, others) = (loaded.id(ordinal), Vec::new());
        Outgoing { id, subscriber, address, ticket, unsubscribe, subscription, recall: None, message, others }
    }

    /// Logs an attempt about to be made, at the level its channel asks for.
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

    /// Reads the recipients of some notifications.
    async fn recipients(&self, loaded: &Loaded, chunk: &[u32]) -> Result<Vec<ReadRecipient>, StoreError> {
        let of = |ordinal: &u32| loaded.notifications().subscriptions[*ordinal as usize];
        let subscriptions = chunk.iter().map(of).collect::<Vec<_>>();
        if loaded.lifecycle_change() == Some(LifecycleChange::Ended) {
            let found = targeted_run::recipients(&self.flow, &subscriptions, Some(LifecycleChange::Ended)).await;
            match found {
                Ok(found) => return Ok(found.into_iter().map(Ok).collect()),
                Err(StoreError::Damaged(_)) => {}
                Err(error) => return Err(error),
            }
        }
        self.recipients_of(&subscriptions).await
    }

    /// Reads the recipients of some subscriptions. If a record is damaged, only its notifications are suspended.
    async fn recipients_of(&self, subscriptions: &[SubscriptionId]) -> Result<Vec<ReadRecipient>, StoreError> {
        match self.flow.recipient_store.recipients(subscriptions).await {
            Ok(recipients) => return Ok(recipients.into_iter().map(Ok).collect()),
            Err(StoreError::Damaged(_)) => {}
            Err(error) => return Err(error),
        }
        let mut apart = Vec::with_capacity(subscriptions.len());
        for subscription in subscriptions {
            apart.push(match self.flow.recipient_store.recipients(&[*subscription]).await {
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

/// A recipient, `None` if the subscription was removed, or why it cannot be read.
type ReadRecipient = Result<Option<Recipient>, Unsent>;

/// Dispatch was interrupted. The remaining notifications are due at this time, or as before.
struct DispatchInterrupted(Option<Timestamp>);

/// Records the remaining notifications of each item.
fn record_unsent(items: &mut [ItemDispatch], due_at: Option<Timestamp>, places: impl Iterator<Item = ItemPosition>) {
    places.for_each(|(at, ordinal)| items[at].left.push(ordinal));
    if let Some(due_at) = due_at {
        for item in items.iter_mut().filter(|item| !item.left.is_empty()) {
            item.due_at = due_at;
        }
    }
}

/// Outgoing messages by channel; equal messages are adjacent.
#[derive(Default)]
struct Ready(Vec<(Arc<OpenedChannel>, Vec<Outgoing>)>);

impl Ready {
    fn push(&mut self, channel: Arc<OpenedChannel>, mut outgoing: Outgoing) {
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
            group_equal_messages(&mut outgoing);
            channel.send_all(outgoing, answers).await;
        }
    }
}

/// Moves each message next to the first equal one.
fn group_equal_messages(outgoing: &mut [Outgoing]) {
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
