//! Search (RFC 4511, 4.5), with paged results (RFC 2696) and sorting (RFC 2891).
//!
//! A base search of a cached entry is answered inline. Every other search runs concurrently: entries are sent in parts,
//! and between two parts the search checks for cancellation and limits.

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::FutureExt;
use tocsin_directory::{
    CachedEntry, Directory, Scope, Search, Selection,
    access::{AuthzId, Grant, Grants, Level, Rights},
    entry::{Entry, SUBSCHEMA},
    filter::{Filter, Test},
    is_quick,
    ldap_error::{Code, LdapError},
    schema::{AttributeType, Schema},
    syntax::{Rule, find_rule},
};

use super::sync;
use crate::{
    ber::{self, DecodeError, Reader},
    message::{Control, ResponseExtras, SearchRequest, code_of, decode_filter},
    oids::{ASSERTION, PAGED_RESULTS, SORT, SORTED, SYNC_REQUEST, SYNC_STATE},
    paged_searches::{SearchState, WaitingPage},
    response::ResponseBuilder,
    root,
    server::Server,
    session::{RequestResult, ResponseChannel, Session, StartedRequest},
    show,
};

/// Bytes of a response part.
const PORTION_BYTES: usize = 64 << 10;
/// Bytes of a string that count in a sort key.
const SORT_BYTES_MAX: usize = 1_024;
/// Maximum entries of a sorted search.
const SORTED_MAX: usize = 50_000;
/// Maximum sort keys.
const SORT_KEYS_MAX: usize = 8;

/// Filter work after which a search yields to others: filter terms times entry bytes.
const UNINTERRUPTED_WORK: usize = 4 << 20;

/// State of a search request until its end.
pub(super) struct SearchTask {
    pub(super) directory: Directory,
    pub(super) requester: Arc<AuthzId>,
    pub(super) grants: Grants,
    pub(super) selection: Selection,
    /// The base must match this assertion (RFC 4528).
    assertion: Option<Filter>,
    pub(super) answered: ResponseBuilder,
    size_limit: u32,
    deadline: Option<Instant>,
    pub(super) channel: ResponseChannel,
    /// Control value sent with each entry.
    pub(super) entry_control: Option<fn(&Entry) -> Vec<u8>>,
    /// Filter work since the last yield.
    work: usize,
}

/// Value of the paged results control (RFC 2696).
struct PagingControl {
    size: u32,
    cookie: Vec<u8>,
}

pub(super) fn begin(
    server: &Server,
    session: &mut Session,
    answered: ResponseBuilder,
    request: SearchRequest,
    controls: &[Control],
    channel: &ResponseChannel,
    out: &mut Vec<u8>,
) -> StartedRequest {
    let mut refuse = |refusal: &LdapError| {
        answered.write(out, Err(refusal), &ResponseExtras::default());
        StartedRequest::Answered
    };
    let paging = match controls.iter().find(|control| control.oid == PAGED_RESULTS).map(paging).transpose() {
        Ok(paging) => paging,
        Err(DecodeError(why)) => {
            return refuse(&LdapError::new(Code::ProtocolError, format!("the paged results control has {why}")));
        }
    };
    let sorting = match controls.iter().find(|control| control.oid == SORT).map(sorting).transpose() {
        Ok(sorting) => sorting,
        Err(DecodeError(why)) => {
            return refuse(&LdapError::new(Code::ProtocolError, format!("the sort control has {why}")));
        }
    };
    let assertion = match controls.iter().find(|control| control.oid == ASSERTION).map(asserted).transpose() {
        Ok(assertion) => assertion,
        Err(refusal) => return refuse(&refusal),
    };
    let directory = &server.directory;
    let schema = directory.schema();
    let selection = Selection::read(&request.attributes, request.types_only, &schema);
    let own = match (request.base.as_str(), request.scope) {
        ("", Scope::Base) => Some(root::root(server)),
        (base, Scope::Base) if base.eq_ignore_ascii_case(SUBSCHEMA) => Some(root::subschema(directory)),
        _ => None,
    };
    if let Some(shown) = own {
        let asserted = assertion.as_ref().map(|filter| Test::compile(filter, &schema));
        match asserted.map(|test| test.is_met_by(&shown.entry, &schema, &Grant::open())).transpose() {
            Ok(None | Some(true)) => {}
            Ok(Some(false)) => {
                return refuse(&LdapError::new(Code::AssertionFailed, "the entry does not match the assertion filter"));
            }
            Err(refusal) => return refuse(&refusal),
        }
        let test = Test::compile(&request.filter, &schema);
        let result = encode_base_entry(out, answered.id, &shown, &Grant::open(), &selection, Some(&test), &schema);
        answered.write(out, result.as_ref().map(|()| Code::Success), &ResponseExtras::default());
        return StartedRequest::Answered;
    }
    if !session.requester.is_known() && !server.options.anonymous {
        return refuse(&LdapError::new(Code::StrongerAuthRequired, "anonymous access is disabled; bind first"));
    }
    let test = can_exclude_base(&request.filter).then(|| Test::compile(&request.filter, &schema));
    if request.scope == Scope::Base
        && !selection.needs_other_records()
        && !test.as_ref().is_some_and(Test::needs_other_records)
        && paging.is_none()
        && sorting.is_none()
        && assertion.is_none()
        && controls.iter().all(|control| control.oid != SYNC_REQUEST)
        && let Some(shown) = directory.cached_entry(&request.base)
        && (test.is_none() || is_quick(request.filter.terms(), &shown))
    {
        session.grants.clear_if_renamed(directory.renamed());
        let grant = session.grants.of(directory.access(), &session.requester, &shown.entry);
        // A hidden entry is answered below, like a missing one.
        if grant.may_disclose() {
            let result = encode_base_entry(out, answered.id, &shown, &grant, &selection, test.as_ref(), &schema);
            answered.write(out, result.as_ref().map(|()| Code::Success), &ResponseExtras::default());
            return StartedRequest::Answered;
        }
    }
    if let Some(requested) = controls.iter().find(|control| control.oid == SYNC_REQUEST) {
        if paging.is_some() || sorting.is_some() {
            return refuse(&LdapError::new(
                Code::UnwillingToPerform,
                "a synchronization search can be neither paged nor sorted",
            ));
        }
        let runner = |answered| runner(server, session, answered, (selection, assertion), &request, channel);
        return match sync::SyncRequest::read(requested, &server.followers) {
            Ok(requested) => StartedRequest::Runs(runner(answered).run_sync(request.clone(), requested).boxed()),
            Err(refusal) => refuse(&refusal),
        };
    }
    let state = match &paging {
        Some(paging) if !paging.cookie.is_empty() => match session.pages.take(&paging.cookie) {
            Some(state) => Some(state),
            None => {
                return refuse(&LdapError::new(
                    Code::UnwillingToPerform,
                    "the paged results cookie is unknown; start the search again",
                ));
            }
        },
        _ => None,
    };
    let runner = runner(server, session, answered, (selection, assertion), &request, channel);
    StartedRequest::Runs(runner.run(request, state, paging, sorting).boxed())
}

/// Value of the sort control (RFC 2891): attributes, each with an optional rule and direction.
#[derive(Clone)]
struct SortKeys(Vec<(String, Option<String>, bool)>);

fn sorting(control: &Control) -> Result<SortKeys, DecodeError> {
    let mut outer = Reader(control.value.as_deref().unwrap_or_default());
    let mut list = Reader(outer.expect(0x30)?);
    let mut keys = Vec::new();
    while !list.is_empty() {
        let mut key = Reader(list.expect(0x30)?);
        let name = key.text(0x04)?;
        let rule = if key.tag() == Some(0x80) { Some(key.text(0x80)?) } else { None };
        let is_reverse = if key.tag() == Some(0x81) { key.boolean(0x81)? } else { false };
        keys.push((name, rule, is_reverse));
    }
    if keys.is_empty() || keys.len() > SORT_KEYS_MAX {
        Err(DecodeError("no attributes, or too many"))
    } else {
        Ok(SortKeys(keys))
    }
}

impl SortKeys {
    /// Sorts entries; those without a readable value come last.
    fn sort(&self, found: &mut [(Arc<CachedEntry>, Arc<Grant>)], schema: &Schema) -> Result<(), LdapError> {
        let mut keys = Vec::new();
        for (name, rule, is_reverse) in &self.0 {
            let kind = schema.attribute(name)?.clone();
            let rule = match rule {
                Some(rule) => find_rule(rule).map(|(rule, _)| rule),
                None => kind.ordering.or(kind.equality),
            };
            let Some(rule) = rule else {
                return Err(LdapError::new(Code::InappropriateMatching, format!("values of `{name}` have no order")));
            };
            keys.push((kind, rule, *is_reverse));
        }
        let value = |shown: &CachedEntry, grant: &Grant, kind: &AttributeType, rule: Rule| {
            let rights = Rights::new(grant, Level::Read);
            let own = shown.entry.own(&kind.key, schema).filter(|_| rights.opens(kind)).map(String::into_bytes);
            let values = rights.values(&shown.entry, kind).map(|value| sort_value(value, rule).to_vec()).chain(own);
            values.filter_map(|value| rule.normal(&value, schema)).min()
        };
        found.sort_by_cached_key(|(shown, grant)| {
            let of =
                |(kind, rule, is_reverse): &(Arc<AttributeType>, Rule, bool)| match value(shown, grant, kind, *rule) {
                    Some(key) if *is_reverse => (Some(std::cmp::Reverse(key)), None, false),
                    Some(key) => (None, Some(key), false),
                    None => (None, None, true),
                };
            keys.iter().map(of).map(|(reverse, key, is_absent)| (is_absent, reverse, key)).collect::<Vec<_>>()
        });
        Ok(())
    }
}

/// The part of a value that counts in a sort key: the first bytes of a string.
fn sort_value(value: &[u8], rule: Rule) -> &[u8] {
    if rule.form().is_none() || value.len() <= SORT_BYTES_MAX {
        return value;
    }
    let is_within_character = |at: &usize| value[*at] & 0xc0 == 0x80;
    let end = (0..=SORT_BYTES_MAX).rev().find(|at| !is_within_character(at)).unwrap_or_default();
    &value[..end]
}

fn runner(
    server: &Server,
    session: &Session,
    answered: ResponseBuilder,
    (selection, assertion): (Selection, Option<Filter>),
    request: &SearchRequest,
    channel: &ResponseChannel,
) -> SearchTask {
    let unless_zero = |limit: u32| (limit > 0).then_some(limit);
    let own = if session.requester.manages { None } else { unless_zero(server.options.size_limit) };
    let size_limit = [own, unless_zero(request.size_limit)].into_iter().flatten().min().unwrap_or(u32::MAX);
    let own = (!session.requester.manages).then_some(server.options.time_limit);
    let time = unless_zero(request.time_limit).map(|seconds| Duration::from_secs(seconds.into()));
    SearchTask {
        directory: server.directory.clone(),
        requester: session.requester.clone(),
        grants: Grants::default(),
        selection,
        assertion,
        size_limit,
        deadline: [own, time].into_iter().flatten().min().map(|time| answered.started + time),
        answered,
        channel: channel.clone(),
        entry_control: None,
        work: 0,
    }
}

/// Whether the filter can exclude the base. The usual filter of a base search, `(objectClass=*)`, cannot.
fn can_exclude_base(filter: &Filter) -> bool {
    !matches!(filter, Filter::Present(name) if name.eq_ignore_ascii_case("objectClass"))
}

/// Encodes the base entry if it matches. `test`: the filter; `None`: `(objectClass=*)`.
fn encode_base_entry(
    out: &mut Vec<u8>,
    id: u32,
    shown: &CachedEntry,
    grant: &Grant,
    selection: &Selection,
    test: Option<&Test>,
    schema: &Schema,
) -> Result<(), LdapError> {
    let is_met = match test {
        Some(test) => test.is_met_by(&shown.entry, schema, grant)?,
        // Every entry has an object class, but access rules may close it.
        None => grant.reads_all() || Rights::new(grant, Level::Search).opens(schema.object_class()),
    };
    if is_met {
        show::entry(out, id, shown, grant, selection, schema, &[]);
    }
    Ok(())
}

fn asserted(control: &Control) -> Result<Filter, LdapError> {
    let read = decode_filter(control.value.as_deref().unwrap_or_default());
    read.map_err(|DecodeError(why)| LdapError::new(code_of(why), format!("the control {ASSERTION} has {why}")))
}

fn paging(control: &Control) -> Result<PagingControl, DecodeError> {
    let mut outer = Reader(control.value.as_deref().unwrap_or_default());
    let mut inner = Reader(outer.expect(0x30)?);
    Ok(PagingControl { size: inner.count(0x02)?, cookie: inner.expect(0x04)?.to_vec() })
}

/// Why a search stops.
pub(super) enum Stop {
    /// There are no more entries.
    End,
    /// The page is full.
    PageFull,
    Abandoned,
}

impl SearchTask {
    async fn run(
        mut self,
        request: SearchRequest,
        state: Option<Box<SearchState>>,
        paging: Option<PagingControl>,
        sorting: Option<SortKeys>,
    ) -> RequestResult {
        let mut extra = ResponseExtras::default();
        let state = match (state, &sorting) {
            (Some(state), _) => Ok(state),
            (None, None) => self.start(&request).await,
            (None, Some(sorting)) => match self.start(&request).await {
                Ok(mut state) => {
                    let done = self.sort(&mut state, sorting).await;
                    let code = done.as_ref().map_or_else(|refusal| refusal.code, |()| Code::Success);
                    let mut value = Vec::new();
                    ber::nested(&mut value, 0x30, |out| ber::number(out, 0x0a, u32::from(code as u16)));
                    extra.controls.push((SORTED, value));
                    done.map(|()| state)
                }
                Err(refusal) => Err(refusal),
            },
        };
        let mut state = match state {
            Ok(state) => state,
            Err(refusal) => {
                let mut out = Vec::new();
                self.answered.write(&mut out, Err(&refusal), &extra);
                return RequestResult::Answer(out);
            }
        };
        let page = paging.as_ref().map_or(u32::MAX, |paging| paging.size);
        let mut out = Vec::new();
        let stop = match &paging {
            // RFC 2696, section 3: a size of zero abandons the paged search.
            Some(paging) if paging.size == 0 && !paging.cookie.is_empty() => Ok(Stop::End),
            _ => self.send_page(&mut state, page, &mut out).await,
        };
        let (result, cookie) = match stop {
            Ok(Stop::Abandoned) => return RequestResult::NoResponse,
            Ok(Stop::PageFull) => (Ok(Code::Success), cookie()),
            Ok(Stop::End) => (Ok(Code::Success), None),
            Err(refusal) => (Err(refusal), None),
        };
        if paging.is_some() {
            let mut value = Vec::new();
            ber::nested(&mut value, 0x30, |out| {
                ber::number(out, 0x02, 0);
                ber::value(out, 0x04, cookie.as_ref().map_or(&[][..], |cookie| cookie));
            });
            extra.controls.push((PAGED_RESULTS, value));
        }
        self.answered.write(&mut out, result.as_ref().map(|code| *code), &extra);
        match cookie {
            Some(cookie) => RequestResult::Page(out, WaitingPage { cookie, state }),
            None => RequestResult::Answer(out),
        }
    }

    pub(super) async fn start(&mut self, request: &SearchRequest) -> Result<Box<SearchState>, LdapError> {
        let base = self.directory.find_for(&self.requester, &request.base).await?;
        if let Some(assertion) = self.assertion.take() {
            self.directory.assert(&self.requester, &base, &assertion).await?;
        }
        let search = self.directory.search(&self.requester, base, request.scope, &request.filter).await?;
        Ok(Box::new(SearchState {
            search,
            found: VecDeque::new(),
            sent: 0,
            refreshed: false,
            content: None,
            is_uncertain: false,
        }))
    }

    /// Collects all entries and sorts them.
    async fn sort(&mut self, state: &mut SearchState, sorting: &SortKeys) -> Result<(), LdapError> {
        let mut all = Vec::new();
        while let Some(found) = state.search.next().await? {
            for shown in found {
                let grant = self.grants.of(self.directory.access(), &self.requester, &shown.entry);
                if grant.may_disclose() && self.matches_filter(&state.search, &shown, &grant).await? {
                    all.push((shown, grant));
                }
            }
            if all.len() > SORTED_MAX {
                return Err(LdapError::new(
                    Code::AdminLimitExceeded,
                    format!("a sorted search is limited to {SORTED_MAX} entries"),
                ));
            }
            if self.channel.is_abandoned() {
                break;
            }
            self.in_time()?;
        }
        // Sorting many long values takes a while, so it runs on a blocking thread.
        let (sorting, schema) = (sorting.clone(), self.directory.schema());
        let sorted = tokio::task::spawn_blocking(move || sorting.sort(&mut all, &schema).map(|()| all)).await;
        let all =
            sorted.map_err(|_| LdapError::new(Code::Unavailable, "the server is stopping; try again later"))??;
        state.found = all.into_iter().map(|(shown, _)| shown).collect();
        Ok(())
    }

    /// Whether an entry matches the filter. Yields after some work, and then checks the time limit.
    async fn matches_filter(
        &mut self,
        search: &Search,
        shown: &Arc<CachedEntry>,
        grant: &Arc<Grant>,
    ) -> Result<bool, LdapError> {
        let is_match = search.is_met_by_async(shown, grant).await?;
        self.work = self.work.saturating_add(search.work(shown));
        if self.work > UNINTERRUPTED_WORK {
            self.work = 0;
            self.in_time()?;
            tokio::task::yield_now().await;
        }
        Ok(is_match)
    }

    fn in_time(&self) -> Result<(), LdapError> {
        match self.deadline.is_some_and(|deadline| Instant::now() > deadline) {
            true => Err(LdapError::new(Code::TimeLimitExceeded, "the search took longer than the limit")),
            false => Ok(()),
        }
    }

    /// Sends up to a page of entries.
    pub(super) async fn send_page(
        &mut self,
        state: &mut SearchState,
        page: u32,
        out: &mut Vec<u8>,
    ) -> Result<Stop, LdapError> {
        let schema = self.directory.schema();
        let mut on_page = 0;
        loop {
            while let Some(shown) = state.found.pop_front() {
                let grant = self.grants.of(self.directory.access(), &self.requester, &shown.entry);
                if !grant.may_disclose() || !self.matches_filter(&state.search, &shown, &grant).await? {
                    if self.channel.is_abandoned() {
                        return Ok(Stop::Abandoned);
                    }
                    continue;
                }
                if on_page >= page {
                    state.found.push_front(shown);
                    return Ok(Stop::PageFull);
                }
                if state.sent >= self.size_limit {
                    return Err(LdapError::new(
                        Code::SizeLimitExceeded,
                        "the search matches more entries than the size limit",
                    ));
                }
                state.record_sent(shown.entry.number)?;
                let computed =
                    self.directory.computed_attributes(&self.requester, &shown.entry, &self.selection).await?;
                let id = self.answered.id;
                match self.entry_control {
                    None => show::entry(out, id, &shown, &grant, &self.selection, &schema, &computed),
                    Some(control) => {
                        let control = (SYNC_STATE, control(&shown.entry));
                        show::entry_with_control(out, id, &shown, &grant, &self.selection, &schema, &computed, control);
                    }
                }
                (state.sent, on_page) = (state.sent + 1, on_page + 1);
                if out.len() >= PORTION_BYTES && !self.channel.write(std::mem::take(out)).await {
                    return Ok(Stop::Abandoned);
                }
            }
            if self.channel.is_abandoned() {
                return Ok(Stop::Abandoned);
            }
            self.in_time()?;
            match state.search.next().await? {
                Some(found) => state.found.extend(found),
                None => return Ok(Stop::End),
            }
        }
    }
}

/// Creates an unguessable cookie.
fn cookie() -> Option<[u8; 8]> {
    let made = tocsin_directory::password::generate().ok()?;
    made.as_bytes().get(..8)?.try_into().ok()
}
