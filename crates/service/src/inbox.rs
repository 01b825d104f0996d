//! What is there to read, and for whom. A key with a scope opens the feed of anybody; a pass opens one.

use std::{collections::HashMap, sync::Arc, time::Duration};

use parking_lot::Mutex;
use tocsin_delivery::InboxPass;
use tocsin_model::{
    id::{BroadcastId, ChangeSequence, Name, StoredNumber, SubscriberId, SubscriberNumber},
    inbox::{Item, ItemId, Mark},
    ldap::{Entry, LdapFilter},
    subscriber::Subscriber,
    time::Timestamp,
};
use tocsin_store::{
    error::StoreError,
    inbox::{FeedChange, FeedChanges, FeedFilter, Listener, Reader},
};

use crate::{
    Service,
    error::ServiceError,
    keys::{Caller, CredentialEnd, Scope},
    known::Part,
    page::{Page, key_of},
};

/// How long a pass lasts if nothing else is said.
pub const PASS_LASTS: Duration = Duration::from_secs(3_600);
/// The longest that a pass lasts: nothing but time, or the removal of its subscriber, ends it.
pub const PASS_LASTS_MAX: Duration = Duration::from_secs(30 * 86_400);
/// Items that are marked by one request, at most.
pub const MARKED_MAX: usize = 1_000;
/// How many may follow the same feed at a time.
pub const FOLLOWERS_MAX: usize = 16;
/// Changes that are told at a time.
const TOLD_AT_ONCE: usize = 100;
/// Segments whose filters are kept for the next reader.
const AUDIENCES_KEPT: usize = 1_000;

/// Someone who showed a key or a pass. Only [`Service::visitor`] makes one.
#[derive(Debug, Clone)]
pub struct Visitor(Shown);

#[derive(Debug, Clone)]
enum Shown {
    Key(Caller),
    Pass(InboxPass),
}

impl Visitor {
    /// The subscriber whose inbox token it is; `None`: a key.
    pub fn subscriber(&self) -> Option<SubscriberNumber> {
        match &self.0 {
            Shown::Key(_) => None,
            Shown::Pass(pass) => Some(pass.subscriber),
        }
    }
}

/// Leave to look at one feed. Only [`Service::open_feed`] makes one.
#[derive(Debug, Clone)]
pub struct Feed {
    subscriber: SubscriberNumber,
    id: SubscriberId,
    locale: Option<String>,
}

impl Feed {
    /// The language of its subscriber.
    pub fn locale(&self) -> Option<&str> {
        self.locale.as_deref()
    }
}

/// What is wanted of a feed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Intent {
    /// To look.
    Read,
    /// To mark what is there.
    Mark,
}

/// The filters of segments that broadcasts are for.
#[derive(Default)]
pub(crate) struct Audiences(Mutex<HashMap<Name, Audience>>);

/// The place of the records at which a segment was read, and its filter, if there is such a segment.
type Audience = (ChangeSequence, Option<Arc<LdapFilter>>);

/// Someone who follows a feed, and how far it came.
pub struct Follower {
    service: Arc<Service>,
    feed: Feed,
    listener: Listener,
    after: u64,
    /// The count that was told last.
    unread: Option<u64>,
    /// Whether it has to look before it waits.
    is_due: bool,
}

/// What a follower is told.
#[derive(Debug, Clone, PartialEq)]
pub enum Told {
    /// A change, with the place after which it goes on.
    Change(u64, FeedChange),
    /// How many items are unread, and the place after which it goes on.
    Unread(u64, u64),
    /// What it missed is not known any more; it reads the feed anew, and goes on after this place.
    Reset(u64),
}

impl Service {
    /// Who shows this key or pass.
    ///
    /// # Errors
    /// `Unauthenticated`: it is none of ours, or over.
    pub fn visitor(&self, shown: &str) -> Result<Visitor, ServiceError> {
        match self.signet.shown_pass(shown) {
            Some(pass) if pass.expires_at <= self.clock.now() => {
                Err(ServiceError::Unauthenticated("the inbox token has expired"))
            }
            Some(pass) => Ok(Visitor(Shown::Pass(pass))),
            None => Ok(Visitor(Shown::Key(self.authenticate(shown)?))),
        }
    }

    /// The holder of an inbox token that an address carries, as pages of browsers do for streams.
    ///
    /// # Errors
    /// `Unauthenticated`: it is no inbox token, or it has expired.
    pub fn visitor_of_address(&self, shown: &str) -> Result<Visitor, ServiceError> {
        match self.signet.shown_pass(shown) {
            Some(_) => self.visitor(shown),
            None => Err(ServiceError::Unauthenticated(
                "`?token=` takes an inbox token; an API key goes into the header `Authorization`",
            )),
        }
    }

    /// Waits until the key or token of a visitor is not good any more.
    pub async fn visitor_ended(&self, visitor: &Visitor) -> CredentialEnd {
        match &visitor.0 {
            Shown::Key(caller) => self.key_ended(caller).await,
            Shown::Pass(pass) => {
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
    /// `Forbidden` if the visitor's scopes or pass are not for it, `Missing` if there is no such subscriber.
    pub async fn open_feed(&self, visitor: &Visitor, id: &SubscriberId, intent: Intent) -> Result<Feed, ServiceError> {
        let scope = match intent {
            Intent::Read => Scope::InboxRead,
            Intent::Mark => Scope::InboxWrite,
        };
        let found = match &visitor.0 {
            Shown::Key(caller) => {
                caller.needs(scope).or_else(|error| match intent {
                    // Whoever may mark may look.
                    Intent::Read => caller.needs(Scope::InboxWrite).map_err(|_| error),
                    Intent::Mark => Err(error),
                })?;
                self.find_subscriber(id).await?
            }
            // Whoever holds the pass of another learns nothing about this one, not even that it exists.
            Shown::Pass(pass) => match self.records.subscriber(id).await? {
                Some(found) if found.number == pass.subscriber && (pass.may_mark || intent == Intent::Read) => found,
                _ => return Err(ServiceError::Forbidden(scope)),
            },
        };
        let (subscriber, locale) = (found.number, found.profile.locale);
        Ok(Feed { subscriber, id: found.id, locale })
    }

    /// Makes a pass to the feed of a subscriber, for its own programs: a page, an app. Gives when it ends.
    ///
    /// # Errors
    /// The scope `inbox:write` is missing; there is no such subscriber; it would last for too long.
    pub async fn make_pass(
        &self,
        caller: &Caller,
        id: &SubscriberId,
        lasts: Option<Duration>,
        may_mark: bool,
    ) -> Result<(String, Timestamp), ServiceError> {
        caller.needs(Scope::InboxWrite)?;
        let lasts = lasts.unwrap_or(PASS_LASTS);
        if !(Duration::from_secs(1)..=PASS_LASTS_MAX).contains(&lasts) {
            let most = PASS_LASTS_MAX.as_secs();
            return Err(ServiceError::invalid("expires_in", format!("should be from 1 to {most} seconds")));
        }
        let subscriber = self.find_subscriber(id).await?.number;
        let end = self.clock.now() + lasts;
        let expires_at = Timestamp::from_millis(end.as_millis().div_euclid(1_000) * 1_000);
        let pass = InboxPass { subscriber, may_mark, expires_at };
        Ok((self.signet.inbox_pass(&pass), expires_at))
    }

    /// A page of a feed, newest first.
    ///
    /// # Errors
    /// `after` is no cursor, the subscriber is gone, or the store does not answer.
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

    /// One item.
    ///
    /// # Errors
    /// There is none of this id in the feed.
    pub async fn feed_item(&self, feed: &Feed, id: ItemId) -> Result<Item, ServiceError> {
        let reader = self.reader(feed).await?;
        self.inbox.item(&reader, id, self.clock.now()).await?.ok_or_else(|| no_item(id))
    }

    /// How many items are unread.
    ///
    /// # Errors
    /// The subscriber is gone, or the store does not answer.
    pub async fn feed_unread(&self, feed: &Feed) -> Result<u64, ServiceError> {
        let reader = self.reader(feed).await?;
        Ok(self.inbox.unread(&reader, self.clock.now()).await?)
    }

    /// Marks some items. Gives those that are there. Doing it again changes nothing.
    ///
    /// # Errors
    /// Too many at once, or the store does not answer.
    pub async fn mark_items(&self, feed: &Feed, ids: Vec<ItemId>, mark: Mark) -> Result<Vec<ItemId>, ServiceError> {
        if ids.len() > MARKED_MAX {
            return Err(ServiceError::invalid("ids", format!("has {} entries; at most {MARKED_MAX} fit", ids.len())));
        }
        let reader = self.reader(feed).await?;
        let found = self.inbox.mark(&reader, ids, mark, self.clock.now()).await?;
        metrics::counter!("inbox_marks_total", "mark" => mark.word()).increment(found.len() as u64);
        Ok(found)
    }

    /// Marks one item, and gives it as it is then; `None` if it is gone.
    ///
    /// # Errors
    /// There is none of this id in the feed; deleting what is not there is no error.
    pub async fn mark_item(&self, feed: &Feed, id: ItemId, mark: Mark) -> Result<Option<Item>, ServiceError> {
        let found = self.mark_items(feed, vec![id], mark).await?;
        match mark {
            Mark::Deleted => Ok(None),
            _ if found.is_empty() => Err(no_item(id)),
            _ => self.feed_item(feed, id).await.map(Some),
        }
    }

    /// Marks all items that a filter chooses and that are no newer than `newest`, if that is given. Gives how many it
    /// changed.
    ///
    /// # Errors
    /// There is no item `newest`, or the store does not answer.
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
        metrics::counter!("inbox_marks_total", "mark" => mark.word()).increment(changed);
        Ok(changed)
    }

    /// Follows a feed from a place on, or from now on.
    ///
    /// # Errors
    /// Too many follow it already.
    pub fn follow_feed(self: &Arc<Self>, feed: Feed, after: Option<u64>) -> Result<Follower, ServiceError> {
        let listener = self.inbox.listen(feed.subscriber);
        if listener.company() > FOLLOWERS_MAX {
            return Err(ServiceError::TooMany {
                reason: format!("{FOLLOWERS_MAX} follow this feed already"),
                retry_after: Duration::from_secs(30),
            });
        }
        let after = after.unwrap_or_else(|| self.inbox.newest());
        Ok(Follower { service: self.clone(), feed, listener, after, unread: None, is_due: true })
    }

    /// What of the broadcasts belongs to a feed. It is asked anew each time: who is in an audience changes.
    async fn reader(&self, feed: &Feed) -> Result<Reader, ServiceError> {
        let subscriber = feed.subscriber;
        let heads = self.inbox.broadcast_heads();
        let now = self.clock.now();
        let mut broadcasts: Vec<BroadcastId> = Vec::new();
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
        Ok(Reader { subscriber, broadcasts })
    }

    /// The filter of a segment; nobody belongs to one that is not there.
    async fn audience(&self, segment: &Name) -> Result<Option<Arc<LdapFilter>>, ServiceError> {
        let place = *self.records.newest_change().borrow();
        if let Some((read_at, filter)) = self.audiences.0.lock().get(segment)
            && *read_at == place
        {
            return Ok(filter.clone());
        }
        let stored = self.records.segment(segment).await?;
        let filter = stored.and_then(|stored| LdapFilter::parse(&stored.filter).ok()).map(Arc::new);
        let mut kept = self.audiences.0.lock();
        if kept.len() >= AUDIENCES_KEPT {
            kept.clear();
        }
        kept.insert(segment.clone(), (place, filter.clone()));
        Ok(filter)
    }
}

fn no_item(id: ItemId) -> ServiceError {
    ServiceError::Missing(format!("the item `{id}`"))
}

impl Follower {
    /// Waits until there is something to tell. Dropping the wait loses nothing.
    ///
    /// # Errors
    /// The subscriber is gone, or the store does not answer.
    pub async fn next(&mut self) -> Result<Vec<Told>, ServiceError> {
        loop {
            if !self.is_due {
                self.listener.changed().await;
                self.is_due = true;
            }
            // Nothing is noted before all is read, so that a wait may be dropped at any point.
            let Seen { told, after, more, unread } = self.look().await?;
            (self.after, self.is_due, self.unread) = (after, more, unread);
            if !told.is_empty() {
                return Ok(told);
            }
        }
    }

    async fn look(&self) -> Result<Seen, ServiceError> {
        let service = &self.service;
        // A subscriber that was removed has no feed any more.
        let subscriber = service.find_subscriber(&self.feed.id).await?;
        if subscriber.number != self.feed.subscriber {
            return Err(ServiceError::Missing(format!("the subscriber `{}`", self.feed.id)));
        }
        let (reader, now) = (service.reader(&self.feed).await?, service.clock.now());
        let mut seen = match service.inbox.changes(&reader, self.after, TOLD_AT_ONCE, now).await {
            Ok(FeedChanges { changes, upto, more }) => {
                let told = changes.into_iter().map(|(place, change)| Told::Change(place, change)).collect();
                Seen { told, after: upto, more, unread: self.unread }
            }
            Err(StoreError::Missing(_)) => {
                let newest = service.inbox.newest();
                Seen { told: vec![Told::Reset(newest)], after: newest, more: false, unread: None }
            }
            Err(error) => return Err(error.into()),
        };
        if !seen.more {
            let unread = service.inbox.unread(&reader, now).await?;
            if seen.unread.replace(unread) != Some(unread) {
                seen.told.push(Told::Unread(seen.after, unread));
            }
        }
        Ok(seen)
    }
}

/// What a look at a feed gave, and how far it came.
struct Seen {
    told: Vec<Told>,
    after: u64,
    more: bool,
    unread: Option<u64>,
}
