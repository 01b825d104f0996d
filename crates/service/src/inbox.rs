//! Inbox: feeds of subscribers, and who may read them. A key with the scope reads any feed; an inbox token reads one.

mod audiences; // cache of segment filters for broadcasts

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use tocsin_delivery::InboxPass;
use tocsin_model::{
    id::{InboxBroadcastId, Name, StoredNumber, SubscriberId, SubscriberNumber},
    inbox::{Item, ItemId, Mark},
    ldap::{Entry, LdapFilter},
    problem::{Code, CredentialError, Problem},
    subscriber::Subscriber,
    time::Timestamp,
};
use tocsin_store::{
    error::StoreError,
    inbox::{FeedChange, FeedChanges, FeedFilter, FeedReader, Listener},
};

pub(crate) use self::audiences::Audiences;
use crate::{
    Service,
    error::ServiceError,
    keys::{Caller, CredentialEnd, Scope},
    known::Part,
    page::{Page, key_of},
    segments,
};

/// Default lifetime of an inbox token.
pub const TOKEN_LIFETIME: Duration = Duration::from_secs(3_600);
/// Maximum lifetime of an inbox token: only expiry, or the removal of its subscriber, ends it.
pub const TOKEN_LIFETIME_MAX: Duration = Duration::from_secs(30 * 86_400);
/// Maximum number of items marked by one request.
pub const MARKED_MAX: usize = 1_000;
/// Maximum number of followers of one feed.
pub const FOLLOWERS_MAX: usize = 16;
/// Maximum number of changes read at a time.
const CHANGES_MAX: usize = 100;

/// An authenticated caller of the inbox, by API key or inbox token. Only [`Service::visitor`] makes one.
#[derive(Debug, Clone)]
pub struct InboxCaller(InboxCredential);

#[derive(Debug, Clone)]
enum InboxCredential {
    Key(Caller),
    Pass(InboxPass),
}

impl InboxCaller {
    /// The subscriber whose inbox token it is; `None`: a key.
    pub fn subscriber(&self) -> Option<SubscriberNumber> {
        match &self.0 {
            InboxCredential::Key(_) => None,
            InboxCredential::Pass(pass) => Some(pass.subscriber),
        }
    }
}

/// Permission to access one feed. Only [`Service::open_feed`] makes one.
#[derive(Debug, Clone)]
pub struct Feed {
    subscriber: SubscriberNumber,
    id: SubscriberId,
    locale: Option<String>,
}

impl Feed {
    /// Locale of its subscriber.
    pub fn locale(&self) -> Option<&str> {
        self.locale.as_deref()
    }
}

/// Kind of access to a feed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Intent {
    /// Read.
    Read,
    /// Mark items.
    Mark,
}

/// A follower of a feed, with its position.
pub struct Follower {
    service: Arc<Service>,
    feed: Feed,
    listener: Listener,
    after: u64,
    /// The last reported unread count.
    unread: Option<u64>,
    /// Whether to read before waiting.
    is_due: bool,
}

/// An event for a follower of a feed.
#[derive(Debug, Clone, PartialEq)]
pub enum FeedEvent {
    /// A change, with the position to continue from.
    Change(u64, FeedChange),
    /// The number of unread items, with the position to continue from.
    Unread(u64, u64),
    /// Changes were lost: read the feed again and continue from this position.
    Reset(u64),
}

impl Service {
    /// Authenticates an API key or inbox token.
    ///
    /// # Errors
    /// `Unauthenticated`: the credential is unknown or expired.
    pub fn visitor(&self, shown: &str) -> Result<InboxCaller, ServiceError> {
        match self.token_signer.verify_inbox_pass(shown) {
            Some(pass) if pass.expires_at <= self.clock.now() => {
                Err(ServiceError::Unauthenticated(CredentialError::Expired, "the inbox token has expired"))
            }
            Some(pass) => Ok(InboxCaller(InboxCredential::Pass(pass))),
            None => Ok(InboxCaller(InboxCredential::Key(self.authenticate(shown)?))),
        }
    }

    /// The inbox caller of a user with a session.
    pub fn visitor_with_session(&self, caller: Caller) -> InboxCaller {
        InboxCaller(InboxCredential::Key(caller))
    }

    /// Authenticates an inbox token in a URL, as browsers send it for event streams.
    ///
    /// # Errors
    /// `Unauthenticated`: it is not an inbox token, or it has expired.
    pub fn visitor_of_address(&self, shown: &str) -> Result<InboxCaller, ServiceError> {
        match self.token_signer.verify_inbox_pass(shown) {
            Some(_) => self.visitor(shown),
            None => Err(ServiceError::Unauthenticated(
                CredentialError::Malformed,
                "`?token=` takes an inbox token; an API key goes into the header `Authorization`",
            )),
        }
    }

    /// Waits until the credential of a caller is no longer valid.
    pub async fn inbox_credential_ended(&self, visitor: &InboxCaller) -> CredentialEnd {
        match &visitor.0 {
            InboxCredential::Key(caller) => self.key_ended(caller).await,
            InboxCredential::Pass(pass) => {
                while pass.expires_at > self.clock.now() {
                    self.until(Some(pass.expires_at)).await;
                }
                CredentialEnd::Expired
            }
        }
    }

    /// Opens the feed of a subscriber.
    ///
    /// # Errors
    /// `Forbidden` if the credential does not allow it, `Missing` if the subscriber does not exist.
    pub async fn open_feed(
        &self,
        visitor: &InboxCaller,
        id: &SubscriberId,
        intent: Intent,
    ) -> Result<Feed, ServiceError> {
        let scope = match intent {
            Intent::Read => Scope::InboxRead,
            Intent::Mark => Scope::InboxWrite,
        };
        let found = match &visitor.0 {
            InboxCredential::Key(caller) => {
                caller.needs(scope).or_else(|error| match intent {
                    // Permission to mark includes permission to read.
                    Intent::Read => caller.needs(Scope::InboxWrite).map_err(|_| error),
                    Intent::Mark => Err(error),
                })?;
                self.find_subscriber(id).await?
            }
            // The holder of another subscriber's token learns nothing, not even whether this subscriber exists.
            InboxCredential::Pass(pass) => match self.subscriber_store.subscriber(id).await? {
                Some(found) if found.number == pass.subscriber && (pass.may_mark || intent == Intent::Read) => found,
                _ if !self.subscriber_store.has_subscriber(pass.subscriber).await? => {
                    let why = "the subscriber of the inbox token was removed";
                    return Err(ServiceError::Unauthenticated(CredentialError::Revoked, why));
                }
                _ => return Err(ServiceError::Forbidden(scope)),
            },
        };
        let (subscriber, locale) = (found.number, found.profile.locale);
        Ok(Feed { subscriber, id: found.id, locale })
    }

    /// Makes an inbox token for the feed of a subscriber. Returns its expiry.
    ///
    /// # Errors
    /// The scope `inbox:write` is missing; the subscriber does not exist; the lifetime is too long.
    pub async fn make_pass(
        &self,
        caller: &Caller,
        id: &SubscriberId,
        lasts: Option<Duration>,
        may_mark: bool,
    ) -> Result<(String, Timestamp), ServiceError> {
        caller.needs(Scope::InboxWrite)?;
        let lasts = lasts.unwrap_or(TOKEN_LIFETIME);
        if !(Duration::from_secs(1)..=TOKEN_LIFETIME_MAX).contains(&lasts) {
            let most = TOKEN_LIFETIME_MAX.as_secs();
            return Err(ServiceError::from(
                Problem::new(Code::OutOfRange, "expires_in", format!("should be from 1 to {most} seconds"))
                    .param("least", 1)
                    .param("most", most),
            ));
        }
        let subscriber = self.find_subscriber(id).await?.number;
        let end = self.clock.now() + lasts;
        let expires_at = Timestamp::from_millis(end.as_millis().div_euclid(1_000) * 1_000);
        let pass = InboxPass { subscriber, may_mark, expires_at };
        Ok((self.token_signer.inbox_pass(&pass), expires_at))
    }

    /// Returns a page of a feed, newest first.
    ///
    /// # Errors
    /// `after` is no cursor, the subscriber was removed, or the store is unavailable.
    pub async fn feed_items(
        &self,
        feed: &Feed,
        filter: &FeedFilter,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Page<Item>, ServiceError> {
        let before = key_of(after)?.map(|StoredNumber(number)| number);
        let reader = self.reader(feed).await?;
        let found = self.inbox.feed(&reader, filter, before, limit + 1, self.clock.now()).await?;
        if found.is_empty() && before.is_none() {
            self.check_known(filter.application.as_ref(), &[(Part::Channel, filter.channel.as_ref())]).await?;
        }
        Ok(Page::cut(found, limit, |item| item.number.to_string()))
    }

    /// Returns an item.
    ///
    /// # Errors
    /// The feed has no such item.
    pub async fn feed_item(&self, feed: &Feed, id: ItemId) -> Result<Item, ServiceError> {
        let reader = self.reader(feed).await?;
        self.inbox.item(&reader, id, self.clock.now()).await?.ok_or_else(|| no_item(id))
    }

    /// Returns the number of unread items.
    ///
    /// # Errors
    /// The subscriber was removed, or the store is unavailable.
    pub async fn feed_unread(&self, feed: &Feed) -> Result<u64, ServiceError> {
        let reader = self.reader(feed).await?;
        Ok(self.inbox.unread(&reader, self.clock.now()).await?)
    }

    /// Marks some items, and returns the existing ones. Idempotent.
    ///
    /// # Errors
    /// Too many items, or the store is unavailable.
    pub async fn mark_items(&self, feed: &Feed, mut ids: Vec<ItemId>, mark: Mark) -> Result<Vec<ItemId>, ServiceError> {
        if ids.len() > MARKED_MAX {
            return Err(ServiceError::from(Problem::too_many("ids", ids.len(), MARKED_MAX)));
        }
        // Duplicate ids count once.
        let mut seen = HashSet::new();
        ids.retain(|id| seen.insert(*id));
        let reader = self.reader(feed).await?;
        let found = self.inbox.mark(&reader, ids, mark, self.clock.now()).await?;
        metrics::counter!("tocsin_inbox_marks_total", "mark" => mark.word()).increment(found.len() as u64);
        Ok(found)
    }

    /// Marks one item, and returns its new state; `None` if it was removed.
    ///
    /// # Errors
    /// The feed has no such item. Deleting a missing item is no error.
    pub async fn mark_item(&self, feed: &Feed, id: ItemId, mark: Mark) -> Result<Option<Item>, ServiceError> {
        let found = self.mark_items(feed, vec![id], mark).await?;
        match mark {
            Mark::Deleted => Ok(None),
            _ if found.is_empty() => Err(no_item(id)),
            _ => self.feed_item(feed, id).await.map(Some),
        }
    }

    /// Marks all items that match a filter and are not newer than `newest`, if given. Returns the number of changed
    /// items.
    ///
    /// # Errors
    /// The item `newest` does not exist, or the store is unavailable.
    pub async fn mark_all_items(
        &self,
        feed: &Feed,
        filter: &FeedFilter,
        newest: Option<ItemId>,
        mark: Mark,
    ) -> Result<u64, ServiceError> {
        let (reader, now) = (self.reader(feed).await?, self.clock.now());
        let upto = match newest {
            None => self.inbox.newest(),
            Some(id) => self.inbox.item(&reader, id, now).await?.ok_or_else(|| no_item(id))?.number,
        };
        let changed = self.inbox.mark_all(&reader, filter, upto, mark, now).await?;
        if changed == 0 && self.inbox.feed(&reader, filter, None, 1, now).await?.is_empty() {
            self.check_known(filter.application.as_ref(), &[(Part::Channel, filter.channel.as_ref())]).await?;
        }
        metrics::counter!("tocsin_inbox_marks_total", "mark" => mark.word()).increment(changed);
        Ok(changed)
    }

    /// Follows a feed from a position, or from now on.
    ///
    /// # Errors
    /// The feed has too many followers.
    pub fn follow_feed(self: &Arc<Self>, feed: Feed, after: Option<u64>) -> Result<Follower, ServiceError> {
        let listener = self.inbox.listen(feed.subscriber);
        if listener.listener_count() > FOLLOWERS_MAX {
            return Err(ServiceError::TooMany {
                reason: format!("{FOLLOWERS_MAX} follow this feed already"),
                retry_after: Duration::from_secs(30),
            });
        }
        let after = after.unwrap_or_else(|| self.inbox.newest());
        Ok(Follower { service: self.clone(), feed, listener, after, unread: None, is_due: true })
    }

    /// Determines the broadcasts of a feed. Evaluated on each call: audiences change.
    async fn reader(&self, feed: &Feed) -> Result<FeedReader, ServiceError> {
        let subscriber = feed.subscriber;
        let heads = self.inbox.broadcast_heads();
        let now = self.clock.now();
        let mut broadcasts: Vec<InboxBroadcastId> = Vec::new();
        let mut known: HashMap<&Name, bool> = HashMap::new();
        let mut profile: Option<Subscriber> = None;
        for head in heads.iter().filter(|head| head.expires_at > now) {
            let belongs = match &head.audience {
                None => true,
                Some(segment) => match known.get(segment) {
                    Some(belongs) => *belongs,
                    None => {
                        if profile.is_none() {
                            profile = Some(self.find_subscriber(&feed.id).await?);
                        }
                        let filter = self.audience(segment).await?;
                        let entry = profile.as_ref().map(Entry::from);
                        let belongs = filter.is_some_and(|filter| entry.is_some_and(|entry| filter.matches(&entry)));
                        known.insert(segment, belongs);
                        belongs
                    }
                },
            };
            if belongs {
                broadcasts.push(head.id);
            }
        }
        Ok(FeedReader { subscriber, broadcasts })
    }

    /// Filter of a segment; `None` if the segment does not exist.
    async fn audience(&self, segment: &Name) -> Result<Option<Arc<LdapFilter>>, ServiceError> {
        let place = *self.change_log.newest_change().borrow();
        if let Some(filter) = self.audiences.find(segment, place) {
            return Ok(filter);
        }
        let stored = self.segment_store.segment(segment).await?;
        let filter = stored.as_ref().map(segments::stored_filter).transpose()?.map(Arc::new);
        self.audiences.insert(segment.clone(), place, filter.clone());
        Ok(filter)
    }
}

fn no_item(id: ItemId) -> ServiceError {
    ServiceError::Missing(format!("the item `{id}`"))
}

impl Follower {
    /// Waits for the next events. Cancel-safe: dropping the future loses nothing.
    ///
    /// # Errors
    /// The subscriber was removed, or the store is unavailable.
    pub async fn next(&mut self) -> Result<Vec<FeedEvent>, ServiceError> {
        loop {
            if !self.is_due {
                self.listener.changed().await;
                self.is_due = true;
            }
            // State is updated only after all is read, so that the future can be dropped at any point.
            let FeedChunk { events, after, more, unread } = self.read_changes().await?;
            (self.after, self.is_due, self.unread) = (after, more, unread);
            if !events.is_empty() {
                return Ok(events);
            }
        }
    }

    async fn read_changes(&self) -> Result<FeedChunk, ServiceError> {
        let service = &self.service;
        // A removed subscriber has no feed.
        let subscriber = service.find_subscriber(&self.feed.id).await?;
        if subscriber.number != self.feed.subscriber {
            return Err(ServiceError::Missing(format!("the subscriber `{}`", self.feed.id)));
        }
        let (reader, now) = (service.reader(&self.feed).await?, service.clock.now());
        let mut seen = match service.inbox.changes(&reader, self.after, CHANGES_MAX, now).await {
            Ok(FeedChanges { changes, upto, more }) => {
                let events = changes.into_iter().map(|(place, change)| FeedEvent::Change(place, change)).collect();
                FeedChunk { events, after: upto, more, unread: self.unread }
            }
            Err(StoreError::Missing(_)) => {
                let newest = service.inbox.newest();
                FeedChunk { events: vec![FeedEvent::Reset(newest)], after: newest, more: false, unread: None }
            }
            Err(error) => return Err(error.into()),
        };
        if !seen.more {
            let unread = service.inbox.unread(&reader, now).await?;
            if seen.unread.replace(unread) != Some(unread) {
                seen.events.push(FeedEvent::Unread(seen.after, unread));
            }
        }
        Ok(seen)
    }
}

/// Events read from a feed, and the new position.
struct FeedChunk {
    events: Vec<FeedEvent>,
    after: u64,
    more: bool,
    unread: Option<u64>,
}
