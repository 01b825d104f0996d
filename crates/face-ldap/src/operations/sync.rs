//! Content synchronization (RFC 4533): a client receives the result of a search, and then its changes.
//!
//! The cookie is a position in the change feed. Changed entries are sent in their current state; entries that are gone
//! or no longer match, by identifier. A client whose position has left the feed must refresh completely.

use std::{
    collections::{HashSet, VecDeque},
    sync::Arc,
};

use tocsin_directory::{
    ChangedEntry,
    entry::Entry,
    ldap_error::{Code, LdapError},
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::search::{SearchTask, Stop};
use crate::{
    ber::{self, DecodeError, Reader},
    message::{self, Control, ResponseExtras, SearchRequest},
    oids::{SYNC_DONE, SYNC_INFO, SYNC_STATE},
    paged_searches::SearchState,
    session::RequestResult,
};

/// Changes read at a time.
const PORTION: usize = 256;
/// Entry states: add; delete.
const ADDED: u32 = 1;
const DELETED: u32 = 3;
/// Modes: `refreshOnly` and `refreshAndPersist`.
const REFRESH: u32 = 1;
const PERSIST: u32 = 3;

/// Sync request of a client.
pub(super) struct SyncRequest {
    /// Feed position of the client, from its cookie.
    cookie: Option<u64>,
    /// Whether the client accepts a full reload if its position is unknown.
    reload: bool,
    /// Permit of a persistent search.
    persist_permit: Option<OwnedSemaphorePermit>,
}

impl SyncRequest {
    /// Decodes the control.
    ///
    /// # Errors
    /// The control is malformed; there are too many persistent searches.
    pub(super) fn read(control: &Control, followers: &Arc<Semaphore>) -> Result<SyncRequest, LdapError> {
        let (mode, cookie, reload) = parts(control).map_err(|DecodeError(why)| {
            LdapError::new(Code::ProtocolError, format!("the synchronization control has {why}"))
        })?;
        let persist_permit = match mode {
            REFRESH => None,
            PERSIST => Some(followers.clone().try_acquire_owned().map_err(|_| {
                LdapError::new(Code::Busy, "too many persistent searches; poll with refreshOnly instead")
            })?),
            _ => return Err(LdapError::new(Code::ProtocolError, "the mode must be refreshOnly or refreshAndPersist")),
        };
        let place = |cookie: &Vec<u8>| {
            let digits = std::str::from_utf8(cookie).ok()?.strip_prefix("tocsin-")?;
            // Rejects a sign, which `parse` would accept.
            digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok())?
        };
        // A foreign cookie counts as an unknown position.
        let cookie = cookie.map(|cookie| place(&cookie).unwrap_or(u64::MAX));
        Ok(SyncRequest { cookie, reload, persist_permit })
    }
}

fn parts(control: &Control) -> Result<(u32, Option<Vec<u8>>, bool), DecodeError> {
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
    hex::decode(uuid.replace('-', "")).expect("an entry UUID is 32 digits with hyphens")
}

/// Sync state control of an entry.
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

/// The error for an unknown position.
fn unknown() -> LdapError {
    LdapError::new(Code::SyncRefreshRequired, "the changes since this cookie are no longer known; refresh completely")
}

/// Result of a refresh stage.
enum Refreshed {
    /// The complete content was sent, so all other entries are gone.
    Whole,
    /// The changes were sent, deletions included.
    Changes,
}

impl SearchTask {
    /// Sends the content or its changes, and continues in the persist stage if requested.
    pub(super) async fn run_sync(mut self, request: SearchRequest, sync: SyncRequest) -> RequestResult {
        self.entry_control = Some(added);
        let mut out = Vec::new();
        match self.refresh(&request, &sync, &mut out).await {
            Ok(Some((refreshed, place))) => {
                let mut value = Vec::new();
                ber::nested(&mut value, 0x30, |out| {
                    ber::value(out, 0x04, &cookie(place));
                    boolean(out, matches!(refreshed, Refreshed::Changes));
                });
                let extra = ResponseExtras { controls: vec![(SYNC_DONE, value)], ..ResponseExtras::default() };
                self.answered.write(&mut out, Ok(Code::Success), &extra);
            }
            Ok(None) => return RequestResult::NoResponse,
            Err(refusal) => self.answered.write(&mut out, Err(&refusal), &ResponseExtras::default()),
        }
        RequestResult::Answer(out)
    }

    /// Returns how the refresh ended, and its feed position; `None`: it was abandoned.
    async fn refresh(
        &mut self,
        request: &SearchRequest,
        sync: &SyncRequest,
        out: &mut Vec<u8>,
    ) -> Result<Option<(Refreshed, u64)>, LdapError> {
        // Subscribed before reading, so a change may be sent twice but is never missed.
        let mut changes_signal = self.directory.subscribe_changes();
        let now = self.directory.feed_position().await?;
        let mut state = self.start(request).await?;
        if state.search.needs_other_records() {
            let what = "group membership and password state cannot be synchronized; search for the group, or use another filter";
            return Err(LdapError::new(Code::UnwillingToPerform, what));
        }
        let hides = self.directory.access().may_hide(&self.requester);
        state.content = hides.then(HashSet::new);
        if sync.cookie.is_some() && sync.persist_permit.is_some() && hides {
            self.collect_content(&mut state).await?;
        }
        let changed = match sync.cookie {
            Some(place) => self.send_changes(&mut state, place, out).await,
            None => Ok(None),
        };
        let (refreshed, mut place) = match changed {
            Ok(Some(place)) => (Refreshed::Changes, place),
            Err(refusal) if refusal.code == Code::SyncRefreshRequired && !sync.reload => return Err(refusal),
            Err(refusal) if refusal.code != Code::SyncRefreshRequired => return Err(refusal),
            _ => match self.send_all_content(&mut state, out).await? {
                Stop::Abandoned => return Ok(None),
                Stop::End | Stop::PageFull => (Refreshed::Whole, now),
            },
        };
        (state.found, state.refreshed) = (VecDeque::new(), true);
        if self.channel.is_abandoned() {
            return Ok(None);
        }
        if sync.persist_permit.is_none() {
            return Ok(Some((refreshed, place)));
        }
        self.send_refresh_done(&refreshed, place, out);
        let following = SyncSearchCount::new();
        loop {
            changes_signal.borrow_and_update();
            match self.send_changes(&mut state, place, out).await? {
                Some(next) if next != place => {
                    place = next;
                    // So that a client that returns continues from here.
                    let mut value = Vec::new();
                    ber::value(&mut value, 0x80, &cookie(place));
                    message::intermediate(out, self.answered.id, SYNC_INFO, &value);
                }
                _ => {}
            }
            if !out.is_empty() && !self.channel.write(std::mem::take(out)).await {
                return Ok(None);
            }
            following.count();
            tokio::select! {
                rung = changes_signal.changed() => rung.map_err(|_| LdapError::new(Code::Unavailable, "the directory is closing"))?,
                () = self.channel.abandoned.cancelled() => return Ok(None),
            }
        }
    }

    /// Sends the complete content.
    async fn send_all_content(&mut self, state: &mut SearchState, out: &mut Vec<u8>) -> Result<Stop, LdapError> {
        state.is_uncertain = false;
        if let Some(content) = &mut state.content {
            content.clear();
        }
        self.send_page(state, u32::MAX, out).await
    }

    /// Records the current content without sending it.
    async fn collect_content(&mut self, state: &mut SearchState) -> Result<(), LdapError> {
        while let Some(page) = state.search.next().await? {
            for shown in page {
                let grant = self.grants.of(self.directory.access(), &self.requester, &shown.entry);
                if grant.may_disclose() && state.search.is_met_by_async(&shown, &grant).await? {
                    state.record_sent(shown.entry.number)?;
                }
            }
            if self.channel.is_abandoned() {
                break;
            }
        }
        state.search.restart().await
    }

    /// Sends the changes after a position, and returns the position that is reached.
    async fn send_changes(
        &mut self,
        state: &mut SearchState,
        mut place: u64,
        out: &mut Vec<u8>,
    ) -> Result<Option<u64>, LdapError> {
        loop {
            let Some(changes) = self.directory.changes_after(place, PORTION).await? else {
                return Err(unknown());
            };
            let is_last = !changes.is_more;
            place = changes.place;
            self.send(state, changes.entries, out).await?;
            if state.is_uncertain {
                return Err(unknown());
            }
            if out.len() >= 64 << 10 && !self.channel.write(std::mem::take(out)).await {
                return Ok(None);
            }
            if is_last || self.channel.is_abandoned() {
                return Ok(Some(place));
            }
        }
    }

    /// Sends changes. A deletion is sent only for an entry that the client may know: a visible one, or one sent before.
    async fn send(
        &mut self,
        state: &mut SearchState,
        changes: Vec<ChangedEntry>,
        out: &mut Vec<u8>,
    ) -> Result<(), LdapError> {
        let (schema, id) = (self.directory.schema(), self.answered.id);
        self.grants.clear_if_renamed(self.directory.renamed());
        let mut gone = Vec::new();
        for change in changes {
            let (number, is_seen) = match change {
                ChangedEntry::Gone(number) => (number, false),
                ChangedEntry::Present(shown) => {
                    let grant = self.grants.of(self.directory.access(), &self.requester, &shown.entry);
                    if grant.may_disclose() && state.search.is_in_result(&shown, &grant).await? {
                        state.record_sent(shown.entry.number)?;
                        let control = (SYNC_STATE, added(&shown.entry));
                        crate::show::entry_with_control(
                            out,
                            id,
                            &shown,
                            &grant,
                            &self.selection,
                            &schema,
                            &[],
                            control,
                        );
                        continue;
                    }
                    (shown.entry.number, grant.may_disclose())
                }
            };
            let was_sent = state.content.as_mut().map(|content| content.remove(&number));
            match was_sent {
                // A client with full visibility that does not have the entry ignores the deletion.
                None | Some(true) => gone.push(Entry::uuid_of(number)),
                Some(false) if state.refreshed => {}
                Some(false) if is_seen => gone.push(Entry::uuid_of(number)),
                Some(false) => state.is_uncertain = true,
            }
        }
        if state.refreshed {
            gone.iter().for_each(|uuid| send_delete(uuid, state.search.base(), id, out));
        } else if !gone.is_empty() {
            send_deletes(&gone, id, out);
        }
        Ok(())
    }

    fn send_refresh_done(&self, refreshed: &Refreshed, place: u64, out: &mut Vec<u8>) {
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

/// Encodes the deletion of one entry. Its DN is no longer known; OpenLDAP requires one below the search base, so we
/// invent one that no entry has.
fn send_delete(uuid: &str, base: &str, id: u32, out: &mut Vec<u8>) {
    let name = format!("entryUUID={uuid},{base}");
    ber::nested(out, 0x30, |out| {
        ber::number(out, 0x02, id);
        ber::nested(out, message::tag::ENTRY, |out| {
            ber::value(out, 0x04, name.as_bytes());
            ber::value(out, 0x30, b"");
        });
        message::response_controls(out, &[(SYNC_STATE, state(DELETED, uuid))]);
    });
}

/// Encodes the deletion of many entries, which only a refresh may do.
fn send_deletes(gone: &[String], id: u32, out: &mut Vec<u8>) {
    let mut value = Vec::new();
    ber::nested(&mut value, 0xa3, |out| {
        boolean(out, true);
        ber::nested(out, 0x31, |out| gone.iter().for_each(|uuid| ber::value(out, 0x04, &identifier(uuid))));
    });
    message::intermediate(out, id, SYNC_INFO, &value);
}

/// A persistent search, counted in the metrics while it lives.
struct SyncSearchCount;

impl SyncSearchCount {
    pub(crate) fn new() -> SyncSearchCount {
        metrics::gauge!("tocsin_ldap_sync_searches").increment(1.0);
        SyncSearchCount
    }

    /// Counts an update sent to the client.
    fn count(&self) {
        metrics::counter!("tocsin_ldap_sync_updates_total").increment(1);
    }
}

impl Drop for SyncSearchCount {
    fn drop(&mut self) {
        metrics::gauge!("tocsin_ldap_sync_searches").decrement(1.0);
    }
}
