//! Content synchronisation: RFC 4533. A client gets what a search finds, and from then on what becomes of it.
//!
//! The cookie is a place in the feed of the entries' changes. What changed since is sent as it is now; what went, or no longer
//! meets the filter, as its identifier. A client whose place the feed no longer knows begins anew.

use std::{
    collections::{HashSet, VecDeque},
    sync::Arc,
};

use tocsin_directory::{
    Followed,
    entry::Entry,
    refusal::{Code, Refusal},
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::{
    SYNC_DONE, SYNC_INFO, SYNC_STATE,
    search::{Hunt, Hunter, Stop},
};
use crate::{
    ber::{self, Garbled, Reader},
    connection::Done,
    message::{self, Control, Extra, SearchRequest},
};

/// Changes that are read at a time.
const PORTION: usize = 256;
/// The states of entries: there, and like this; gone.
const ADDED: u32 = 1;
const DELETED: u32 = 3;
/// `refreshOnly` and `refreshAndPersist`.
const REFRESH: u32 = 1;
const PERSIST: u32 = 3;

/// What a client wants to follow.
pub(super) struct Wanted {
    /// Its place in the feed, if it was here before.
    cookie: Option<u64>,
    /// Whether it takes everything anew if its place is not known any more.
    reload: bool,
    /// While it goes on following.
    persists: Option<OwnedSemaphorePermit>,
}

impl Wanted {
    /// Reads the control.
    ///
    /// # Errors
    /// It cannot be read; too many clients follow already.
    pub(super) fn read(control: &Control, followers: &Arc<Semaphore>) -> Result<Wanted, Refusal> {
        let (mode, cookie, reload) = parts(control).map_err(|Garbled(why)| {
            Refusal::new(Code::ProtocolError, format!("the control of synchronisation has {why}"))
        })?;
        let persists = match mode {
            REFRESH => None,
            PERSIST => Some(followers.clone().try_acquire_owned().map_err(|_| {
                Refusal::new(Code::Busy, "too many clients follow the directory; ask now and then instead")
            })?),
            _ => return Err(Refusal::new(Code::ProtocolError, "the modes are refreshOnly and refreshAndPersist")),
        };
        let place = |cookie: &Vec<u8>| std::str::from_utf8(cookie).ok()?.strip_prefix("tocsin-")?.parse().ok();
        // What is none of ours is a place that nobody knows.
        let cookie = cookie.map(|cookie| place(&cookie).unwrap_or(u64::MAX));
        Ok(Wanted { cookie, reload, persists })
    }
}

fn parts(control: &Control) -> Result<(u32, Option<Vec<u8>>, bool), Garbled> {
    let mut outer = Reader(control.value.as_deref().unwrap_or_default());
    let mut inner = Reader(outer.expect(0x30)?);
    let mode = inner.count(0x0a)?;
    let cookie = inner.optional(0x04)?.filter(|cookie| !cookie.is_empty()).map(<[u8]>::to_vec);
    let reload = if inner.tag() == Some(0x01) { inner.boolean(0x01)? } else { false };
    Ok((mode, cookie, reload))
}

fn cookie(place: u64) -> Vec<u8> {
    format!("tocsin-{place}").into_bytes()
}

fn identifier(uuid: &str) -> Vec<u8> {
    let digits: Vec<u8> =
        uuid.bytes().filter_map(|digit| char::from(digit).to_digit(16)).map(|digit| digit as u8).collect();
    digits.chunks(2).map(|pair| pair.iter().fold(0, |byte, digit| byte << 4 | digit)).collect()
}

/// The control beside an entry.
fn state(state: u32, uuid: &str) -> Vec<u8> {
    let mut out = Vec::new();
    ber::nested(&mut out, 0x30, |out| {
        ber::number(out, 0x0a, state);
        ber::value(out, 0x04, &identifier(uuid));
    });
    out
}

fn added(entry: &Entry) -> Vec<u8> {
    state(ADDED, &entry.uuid())
}

fn boolean(out: &mut Vec<u8>, value: bool) {
    ber::value(out, 0x01, &[if value { 0xff } else { 0 }]);
}

/// Why a client begins anew.
fn unknown() -> Refusal {
    Refusal::new(Code::SyncRefreshRequired, "what changed since is not known any more; begin anew")
}

/// How a refresh ended.
enum Refreshed {
    /// All of the content was told: what was not is gone.
    Whole,
    /// What changed was told, and what went.
    Changes,
}

impl Hunter {
    /// Sends the content or what changed of it, and goes on if the client stays.
    pub(super) async fn follow(mut self, request: SearchRequest, wanted: Wanted) -> Done {
        self.mark = Some(added);
        let mut out = Vec::new();
        match self.follow_on(&request, &wanted, &mut out).await {
            Ok(Some((refreshed, place))) => {
                let mut value = Vec::new();
                ber::nested(&mut value, 0x30, |out| {
                    ber::value(out, 0x04, &cookie(place));
                    boolean(out, matches!(refreshed, Refreshed::Changes));
                });
                let extra = Extra { controls: vec![(SYNC_DONE, value)], ..Extra::default() };
                self.answered.write(&mut out, Ok(Code::Success), &extra);
            }
            Ok(None) => return Done::Silent,
            Err(refusal) => self.answered.write(&mut out, Err(&refusal), &Extra::default()),
        }
        Done::Answer(out)
    }

    /// Gives how the refresh ended, and at which place; `None`: it was given up.
    async fn follow_on(
        &mut self,
        request: &SearchRequest,
        wanted: &Wanted,
        out: &mut Vec<u8>,
    ) -> Result<Option<(Refreshed, u64)>, Refusal> {
        // Before anything is looked at: what changes from now on may be told twice, but is not missed.
        let mut bell = self.directory.bell();
        let now = self.directory.place().await?;
        let mut hunt = self.start(request).await?;
        if hunt.search.looks_further() {
            let what =
                "who is in a group and what is known of passwords is not followed; follow the group, or another filter";
            return Err(Refusal::new(Code::UnwillingToPerform, what));
        }
        let hides = self.directory.access().may_hide(&self.asker);
        hunt.content = hides.then(HashSet::new);
        if wanted.cookie.is_some() && wanted.persists.is_some() && hides {
            self.note_content(&mut hunt).await?;
        }
        let changed = match wanted.cookie {
            Some(place) => self.send_changes(&mut hunt, place, out).await,
            None => Ok(None),
        };
        let (refreshed, mut place) = match changed {
            Ok(Some(place)) => (Refreshed::Changes, place),
            Err(refusal) if refusal.code == Code::SyncRefreshRequired && !wanted.reload => return Err(refusal),
            Err(refusal) if refusal.code != Code::SyncRefreshRequired => return Err(refusal),
            _ => match self.hunt_anew(&mut hunt, out).await? {
                Stop::GivenUp => return Ok(None),
                Stop::End | Stop::PageFull => (Refreshed::Whole, now),
            },
        };
        (hunt.found, hunt.refreshed) = (VecDeque::new(), true);
        if self.line.is_given_up() {
            return Ok(None);
        }
        if wanted.persists.is_none() {
            return Ok(Some((refreshed, place)));
        }
        self.say_refreshed(&refreshed, place, out);
        let following = Following::new();
        loop {
            bell.borrow_and_update();
            match self.send_changes(&mut hunt, place, out).await? {
                Some(next) if next != place => {
                    place = next;
                    // So that whoever comes back goes on from here.
                    let mut value = Vec::new();
                    ber::value(&mut value, 0x80, &cookie(place));
                    message::intermediate(out, self.answered.id, SYNC_INFO, &value);
                }
                _ => {}
            }
            if !out.is_empty() && !self.line.write(std::mem::take(out)).await {
                return Ok(None);
            }
            following.count();
            tokio::select! {
                rung = bell.changed() => rung.map_err(|_| Refusal::new(Code::Unavailable, "the directory closes"))?,
                () = self.line.given_up.cancelled() => return Ok(None),
            }
        }
    }

    /// Sends all of the content.
    async fn hunt_anew(&mut self, hunt: &mut Hunt, out: &mut Vec<u8>) -> Result<Stop, Refusal> {
        hunt.is_uncertain = false;
        if let Some(content) = &mut hunt.content {
            content.clear();
        }
        self.hunt(hunt, u32::MAX, out).await
    }

    /// Notes what is in the content now, without sending it.
    async fn note_content(&mut self, hunt: &mut Hunt) -> Result<(), Refusal> {
        while let Some(page) = hunt.search.next().await? {
            for shown in page {
                let grant = self.grants.of(self.directory.access(), &self.asker, &shown.entry);
                if grant.sees() && hunt.search.meets(&shown, &grant).await? {
                    hunt.note(shown.entry.number)?;
                }
            }
            if self.line.is_given_up() {
                break;
            }
        }
        hunt.search.restart().await
    }

    /// Sends what changed after a place, and gives the place up to which that is all.
    async fn send_changes(
        &mut self,
        hunt: &mut Hunt,
        mut place: u64,
        out: &mut Vec<u8>,
    ) -> Result<Option<u64>, Refusal> {
        loop {
            let Some(changes) = self.directory.changes_after(place, PORTION).await? else {
                return Err(unknown());
            };
            let is_last = !changes.is_more;
            place = changes.place;
            self.send(hunt, changes.entries, out).await?;
            if hunt.is_uncertain {
                return Err(unknown());
            }
            if out.len() >= 64 << 10 && !self.line.write(std::mem::take(out)).await {
                return Ok(None);
            }
            if is_last || self.line.is_given_up() {
                return Ok(Some(place));
            }
        }
    }

    /// Sends changes. That an entry is gone is sent only of one that the client may know: one that it sees, or was sent before.
    async fn send(&mut self, hunt: &mut Hunt, changes: Vec<Followed>, out: &mut Vec<u8>) -> Result<(), Refusal> {
        let (schema, id) = (self.directory.schema(), self.answered.id);
        self.grants.follow(self.directory.renamed());
        let mut gone = Vec::new();
        for change in changes {
            let (number, is_seen) = match change {
                Followed::Gone(number) => (number, false),
                Followed::Present(shown) => {
                    let grant = self.grants.of(self.directory.access(), &self.asker, &shown.entry);
                    if grant.sees() && hunt.search.is_meant(&shown, &grant).await? {
                        hunt.note(shown.entry.number)?;
                        let mark = (SYNC_STATE, added(&shown.entry));
                        crate::show::marked(out, id, &shown, &grant, &self.selection, &schema, &[], mark);
                        continue;
                    }
                    (shown.entry.number, grant.sees())
                }
            };
            let was_sent = hunt.content.as_mut().map(|content| content.remove(&number));
            match was_sent {
                // A client that sees all and does not have it ignores this.
                None | Some(true) => gone.push(Entry::uuid_of(number)),
                Some(false) if hunt.refreshed => {}
                Some(false) if is_seen => gone.push(Entry::uuid_of(number)),
                Some(false) => hunt.is_uncertain = true,
            }
        }
        if hunt.refreshed {
            gone.iter().for_each(|uuid| say_gone(uuid, hunt.search.base(), id, out));
        } else if !gone.is_empty() {
            say_all_gone(&gone, id, out);
        }
        Ok(())
    }

    fn say_refreshed(&self, refreshed: &Refreshed, place: u64, out: &mut Vec<u8>) {
        let tag = match refreshed {
            Refreshed::Changes => 0xa1,
            Refreshed::Whole => 0xa2,
        };
        let mut value = Vec::new();
        ber::nested(&mut value, tag, |out| {
            ber::value(out, 0x04, &cookie(place));
            boolean(out, true);
        });
        message::intermediate(out, self.answered.id, SYNC_INFO, &value);
    }
}

/// Says of one entry that it is gone. What it was called nobody knows any more; OpenLDAP wants a name within the base all the
/// same, so it gets one that no entry has.
fn say_gone(uuid: &str, base: &str, id: u32, out: &mut Vec<u8>) {
    let name = format!("entryUUID={uuid},{base}");
    ber::nested(out, 0x30, |out| {
        ber::number(out, 0x02, id);
        ber::nested(out, message::tag::ENTRY, |out| {
            ber::value(out, 0x04, name.as_bytes());
            ber::value(out, 0x30, b"");
        });
        message::beside(out, &[(SYNC_STATE, state(DELETED, uuid))]);
    });
}

/// Says of many that they are gone, which only a refresh may.
fn say_all_gone(gone: &[String], id: u32, out: &mut Vec<u8>) {
    let mut value = Vec::new();
    ber::nested(&mut value, 0xa3, |out| {
        boolean(out, true);
        ber::nested(out, 0x31, |out| gone.iter().for_each(|uuid| ber::value(out, 0x04, &identifier(uuid))));
    });
    message::intermediate(out, id, SYNC_INFO, &value);
}

/// A client that follows, counted while it does.
struct Following;

impl Following {
    fn new() -> Following {
        metrics::gauge!("ldap_followers").increment(1.0);
        Following
    }

    /// Counts that it was told what there is.
    fn count(&self) {
        metrics::counter!("ldap_followed_total").increment(1);
    }
}

impl Drop for Following {
    fn drop(&mut self) {
        metrics::gauge!("ldap_followers").decrement(1.0);
    }
}
