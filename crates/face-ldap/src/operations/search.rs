//! Searches: RFC 4511, 4.5, and in pages, RFC 2696.
//!
//! A base that is at hand is answered in place. Everything else runs beside the reading: entries leave in portions, and
//! between two of them the search sees whether it was given up, or has come to a limit.

use std::{
    collections::{HashSet, VecDeque},
    sync::Arc,
    time::{Duration, Instant},
};

use super::{Answered, PAGED_RESULTS, SORT, SORTED, SYNC_REQUEST, SYNC_STATE, sync};
use crate::{
    ber::{self, Garbled, Reader},
    connection::{Begun, Done, Line, Session},
    message::{Control, Extra, SearchRequest},
    root,
    serve::Server,
    show::{self, Selection},
};
use futures_util::FutureExt;
use tocsin_directory::{
    Directory, Scope, Search, Shown,
    access::{Asker, Grant, Grants, Level, Rights},
    entry::{Attribute, Entry, EntryNumber, SUBSCHEMA},
    filter::{Filter, Test},
    is_quick,
    refusal::{Code, Refusal},
    schema::{AttributeType, Schema},
    syntax::{Rule, find_rule},
};

/// Bytes of a portion.
const PORTION_BYTES: usize = 64 << 10;
/// Bytes of a string by which entries are sorted.
const SORT_BYTES_MAX: usize = 1_024;
/// Most entries that are sorted.
const SORTED_MAX: usize = 50_000;
/// Most attributes by which they are.
const SORT_KEYS_MAX: usize = 8;
/// Most entries that a client follows from whom the access rules may hide some.
const CONTENT_MAX: usize = 1_000_000;
/// Work of filters after which a search gives way to others, by the parts of the filter and the bytes of the entries.
const UNINTERRUPTED_WORK: usize = 4 << 20;
/// Most searches of one connection that wait for their next page; the oldest is forgotten.
const WAITING_MAX: usize = 8;

/// Searches that wait for their next page.
#[derive(Default)]
pub(crate) struct Pages(VecDeque<Waiting>);

/// A search that waits for its next page.
pub(crate) struct Waiting {
    cookie: [u8; 8],
    hunt: Box<Hunt>,
}

impl Pages {
    pub(crate) fn put(&mut self, waiting: Waiting) {
        if self.0.len() >= WAITING_MAX {
            self.0.pop_front();
        }
        self.0.push_back(waiting);
    }

    fn take(&mut self, cookie: &[u8]) -> Option<Box<Hunt>> {
        let at = self.0.iter().position(|waiting| waiting.cookie == cookie)?;
        self.0.remove(at).map(|waiting| waiting.hunt)
    }
}

/// A search under way, and what of it was found and not sent.
pub(super) struct Hunt {
    pub(super) search: Search,
    pub(super) found: VecDeque<Arc<Shown>>,
    sent: u32,
    /// Whether a client that follows has been told all there was.
    pub(super) refreshed: bool,
    /// The entries that a client which follows was sent, if the access rules may hide some of it; `None`: it sees all.
    pub(super) content: Option<HashSet<EntryNumber>>,
    /// Whether entries changed of which it is not known whether the client has them.
    pub(super) is_uncertain: bool,
}

impl Hunt {
    /// Notes that a client which follows is sent an entry.
    pub(super) fn note(&mut self, number: EntryNumber) -> Result<(), Refusal> {
        let Some(content) = &mut self.content else { return Ok(()) };
        content.insert(number);
        match content.len() > CONTENT_MAX {
            true => {
                let what =
                    format!("more than {CONTENT_MAX} entries are not followed where the access rules hide others");
                Err(Refusal::new(Code::AdminLimitExceeded, what))
            }
            false => Ok(()),
        }
    }
}

/// What of a request lasts until its end.
pub(super) struct Hunter {
    pub(super) directory: Directory,
    pub(super) asker: Arc<Asker>,
    pub(super) grants: Grants,
    pub(super) selection: Selection,
    pub(super) answered: Answered,
    size_limit: u32,
    deadline: Option<Instant>,
    pub(super) line: Line,
    /// How each entry is written, beside itself.
    pub(super) mark: Option<fn(&Entry) -> Vec<u8>>,
    /// Work of filters since others could run.
    work: usize,
}

/// What the control of RFC 2696 says.
struct Paging {
    size: u32,
    cookie: Vec<u8>,
}

pub(super) fn begin(
    server: &Server,
    session: &mut Session,
    answered: Answered,
    request: SearchRequest,
    controls: &[Control],
    line: &Line,
    out: &mut Vec<u8>,
) -> Begun {
    let mut refuse = |refusal: &Refusal| {
        answered.write(out, Err(refusal), &Extra::default());
        Begun::Answered
    };
    let paging = match controls.iter().find(|control| control.oid == PAGED_RESULTS).map(paging).transpose() {
        Ok(paging) => paging,
        Err(Garbled(why)) => {
            return refuse(&Refusal::new(Code::ProtocolError, format!("the control of pages has {why}")));
        }
    };
    let sorting = match controls.iter().find(|control| control.oid == SORT).map(sorting).transpose() {
        Ok(sorting) => sorting,
        Err(Garbled(why)) => {
            return refuse(&Refusal::new(Code::ProtocolError, format!("the control of sorting has {why}")));
        }
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
        let test = Test::compile(&request.filter, &schema);
        let result = one(out, answered.id, &shown, &Grant::open(), &selection, Some(&test), &schema);
        answered.write(out, result.as_ref().map(|()| Code::Success), &Extra::default());
        return Begun::Answered;
    }
    if !session.asker.is_known() && !server.options.anonymous {
        return refuse(&Refusal::new(Code::StrongerAuthRequired, "say who you are: nobody may ask here anonymously"));
    }
    let test = leaves_out(&request.filter).then(|| Test::compile(&request.filter, &schema));
    if request.scope == Scope::Base
        && !selection.looks_further()
        && !test.as_ref().is_some_and(Test::looks_further)
        && paging.is_none()
        && sorting.is_none()
        && controls.iter().all(|control| control.oid != SYNC_REQUEST)
        && let Some(shown) = directory.at_hand(&request.base)
        && (test.is_none() || is_quick(request.filter.terms(), &shown))
    {
        session.grants.follow(directory.renamed());
        let grant = session.grants.of(directory.access(), &session.asker, &shown.entry);
        // One that is hidden is answered below, as one that is absent.
        if grant.sees() {
            let result = one(out, answered.id, &shown, &grant, &selection, test.as_ref(), &schema);
            answered.write(out, result.as_ref().map(|()| Code::Success), &Extra::default());
            return Begun::Answered;
        }
    }
    if let Some(wanted) = controls.iter().find(|control| control.oid == SYNC_REQUEST) {
        if paging.is_some() || sorting.is_some() {
            return refuse(&Refusal::new(
                Code::UnwillingToPerform,
                "what is followed comes neither in pages nor sorted",
            ));
        }
        let hunter = |answered| hunter(server, session, answered, selection, &request, line);
        return match sync::Wanted::read(wanted, &server.followers) {
            Ok(wanted) => Begun::Runs(hunter(answered).follow(request.clone(), wanted).boxed()),
            Err(refusal) => refuse(&refusal),
        };
    }
    let hunt = match &paging {
        Some(paging) if !paging.cookie.is_empty() => match session.pages.take(&paging.cookie) {
            Some(hunt) => Some(hunt),
            None => return refuse(&Refusal::new(Code::UnwillingToPerform, "there is no such page; search anew")),
        },
        _ => None,
    };
    let hunter = hunter(server, session, answered, selection, &request, line);
    Begun::Runs(hunter.run(request, hunt, paging, sorting).boxed())
}

/// What the control of RFC 2891 asks for: attributes, each perhaps by a rule of its own, perhaps the other way round.
#[derive(Clone)]
struct Sorting(Vec<(String, Option<String>, bool)>);

fn sorting(control: &Control) -> Result<Sorting, Garbled> {
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
        Err(Garbled("no attributes, or too many"))
    } else {
        Ok(Sorting(keys))
    }
}

impl Sorting {
    /// Brings entries into order; those without an attribute, or with one that may not be read, come last.
    fn sort(&self, found: &mut [(Arc<Shown>, Arc<Grant>)], schema: &Schema) -> Result<(), Refusal> {
        let mut keys = Vec::new();
        for (name, rule, is_reverse) in &self.0 {
            let kind = schema.attribute(name)?.clone();
            let rule = match rule {
                Some(rule) => find_rule(rule).map(|(rule, _)| rule),
                None => kind.ordering.or(kind.equality),
            };
            let Some(rule) = rule else {
                return Err(Refusal::new(Code::InappropriateMatching, format!("values of `{name}` have no order")));
            };
            keys.push((kind, rule, *is_reverse));
        }
        let value = |shown: &Shown, grant: &Grant, kind: &AttributeType, rule: Rule| {
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

/// The part of a value that counts in a sort key: of a string, the first bytes.
fn sort_value(value: &[u8], rule: Rule) -> &[u8] {
    if rule.form().is_none() || value.len() <= SORT_BYTES_MAX {
        return value;
    }
    let is_within_character = |at: &usize| value[*at] & 0xc0 == 0x80;
    let end = (0..=SORT_BYTES_MAX).rev().find(|at| !is_within_character(at)).unwrap_or_default();
    &value[..end]
}

fn hunter(
    server: &Server,
    session: &Session,
    answered: Answered,
    selection: Selection,
    request: &SearchRequest,
    line: &Line,
) -> Hunter {
    let unless_zero = |limit: u32| (limit > 0).then_some(limit);
    let own = if session.asker.manages { None } else { unless_zero(server.options.size_limit) };
    let size_limit = [own, unless_zero(request.size_limit)].into_iter().flatten().min().unwrap_or(u32::MAX);
    let own = (!session.asker.manages).then_some(server.options.time_limit);
    let time = unless_zero(request.time_limit).map(|seconds| Duration::from_secs(seconds.into()));
    Hunter {
        directory: server.directory.clone(),
        asker: session.asker.clone(),
        grants: Grants::default(),
        selection,
        size_limit,
        deadline: [own, time].into_iter().flatten().min().map(|time| answered.started + time),
        answered,
        line: line.clone(),
        mark: None,
        work: 0,
    }
}

/// Whether a filter has to be put to an entry. The one that most clients send who want the entry itself asks only for its classes.
fn leaves_out(filter: &Filter) -> bool {
    !matches!(filter, Filter::Present(name) if name.eq_ignore_ascii_case("objectClass"))
}

/// Writes an entry that is the base itself, if it meets the filter. `test`: the filter; `None`: `(objectClass=*)`.
fn one(
    out: &mut Vec<u8>,
    id: u32,
    shown: &Shown,
    grant: &Grant,
    selection: &Selection,
    test: Option<&Test>,
    schema: &Schema,
) -> Result<(), Refusal> {
    let is_met = match test {
        Some(test) => test.is_met_by(&shown.entry, schema, grant)?,
        // Every entry has an object class, but the rules may close it.
        None => grant.reads_all() || Rights::new(grant, Level::Search).opens(schema.object_class()),
    };
    if is_met {
        show::entry(out, id, shown, grant, selection, schema, &[]);
    }
    Ok(())
}

fn paging(control: &Control) -> Result<Paging, Garbled> {
    let mut outer = Reader(control.value.as_deref().unwrap_or_default());
    let mut inner = Reader(outer.expect(0x30)?);
    Ok(Paging { size: inner.count(0x02)?, cookie: inner.expect(0x04)?.to_vec() })
}

/// How a search stops.
pub(super) enum Stop {
    /// There is nothing more.
    End,
    /// The page is full.
    PageFull,
    GivenUp,
}

impl Hunter {
    async fn run(
        mut self,
        request: SearchRequest,
        hunt: Option<Box<Hunt>>,
        paging: Option<Paging>,
        sorting: Option<Sorting>,
    ) -> Done {
        let mut extra = Extra::default();
        let hunt = match (hunt, &sorting) {
            (Some(hunt), _) => Ok(hunt),
            (None, None) => self.start(&request).await,
            (None, Some(sorting)) => match self.start(&request).await {
                Ok(mut hunt) => {
                    let done = self.sort(&mut hunt, sorting).await;
                    let code = done.as_ref().map_or_else(|refusal| refusal.code, |()| Code::Success);
                    let mut value = Vec::new();
                    ber::nested(&mut value, 0x30, |out| ber::number(out, 0x0a, u32::from(code as u16)));
                    extra.controls.push((SORTED, value));
                    done.map(|()| hunt)
                }
                Err(refusal) => Err(refusal),
            },
        };
        let mut hunt = match hunt {
            Ok(hunt) => hunt,
            Err(refusal) => {
                let mut out = Vec::new();
                self.answered.write(&mut out, Err(&refusal), &extra);
                return Done::Answer(out);
            }
        };
        let page = paging.as_ref().map_or(u32::MAX, |paging| paging.size);
        let mut out = Vec::new();
        let stop = match &paging {
            // RFC 2696, section 3: a client that has enough asks for no more.
            Some(paging) if paging.size == 0 && !paging.cookie.is_empty() => Ok(Stop::End),
            _ => self.hunt(&mut hunt, page, &mut out).await,
        };
        let (result, cookie) = match stop {
            Ok(Stop::GivenUp) => return Done::Silent,
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
            Some(cookie) => Done::Page(out, Waiting { cookie, hunt }),
            None => Done::Answer(out),
        }
    }

    pub(super) async fn start(&mut self, request: &SearchRequest) -> Result<Box<Hunt>, Refusal> {
        let base = self.directory.find_for(&self.asker, &request.base).await?;
        let search = self.directory.search(&self.asker, base, request.scope, &request.filter).await?;
        Ok(Box::new(Hunt {
            search,
            found: VecDeque::new(),
            sent: 0,
            refreshed: false,
            content: None,
            is_uncertain: false,
        }))
    }

    /// Finds all, and brings them into order.
    async fn sort(&mut self, hunt: &mut Hunt, sorting: &Sorting) -> Result<(), Refusal> {
        let mut all = Vec::new();
        while let Some(found) = hunt.search.next().await? {
            for shown in found {
                let grant = self.grants.of(self.directory.access(), &self.asker, &shown.entry);
                if grant.sees() && self.meets(&hunt.search, &shown, &grant).await? {
                    all.push((shown, grant));
                }
            }
            if all.len() > SORTED_MAX {
                return Err(Refusal::new(
                    Code::AdminLimitExceeded,
                    format!("more than {SORTED_MAX} entries are not sorted"),
                ));
            }
            if self.line.is_given_up() {
                break;
            }
            self.in_time()?;
        }
        // Many long values take a while: not on a thread of the runtime.
        let (sorting, schema) = (sorting.clone(), self.directory.schema());
        let sorted = tokio::task::spawn_blocking(move || sorting.sort(&mut all, &schema).map(|()| all)).await;
        let all = sorted.map_err(|_| Refusal::new(Code::Unavailable, "the server stops"))??;
        hunt.found = all.into_iter().map(|(shown, _)| shown).collect();
        Ok(())
    }

    /// Whether an entry meets the filter of a search. Gives way to others after some work, and sees then whether time is up.
    async fn meets(&mut self, search: &Search, shown: &Arc<Shown>, grant: &Arc<Grant>) -> Result<bool, Refusal> {
        let meets = search.meets(shown, grant).await?;
        self.work = self.work.saturating_add(search.work(shown));
        if self.work > UNINTERRUPTED_WORK {
            self.work = 0;
            self.in_time()?;
            tokio::task::yield_now().await;
        }
        Ok(meets)
    }

    fn in_time(&self) -> Result<(), Refusal> {
        match self.deadline.is_some_and(|deadline| Instant::now() > deadline) {
            true => Err(Refusal::new(Code::TimeLimitExceeded, "the search took longer than the limit")),
            false => Ok(()),
        }
    }

    /// What is wanted of an entry and does not stand in it.
    async fn beside(&self, entry: &Entry) -> Result<Vec<Attribute>, Refusal> {
        let mut beside = Vec::new();
        if self.selection.groups {
            beside.extend(self.directory.member_of(&self.asker, entry).await?);
        }
        if self.selection.password {
            beside.extend(self.directory.told_of_password(entry.number).await?);
        }
        if self.selection.time_left {
            beside.extend(self.directory.time_left(entry));
        }
        Ok(beside)
    }

    /// Sends up to a page of entries.
    pub(super) async fn hunt(&mut self, hunt: &mut Hunt, page: u32, out: &mut Vec<u8>) -> Result<Stop, Refusal> {
        let schema = self.directory.schema();
        let mut on_page = 0;
        loop {
            while let Some(shown) = hunt.found.pop_front() {
                let grant = self.grants.of(self.directory.access(), &self.asker, &shown.entry);
                if !grant.sees() || !self.meets(&hunt.search, &shown, &grant).await? {
                    if self.line.is_given_up() {
                        return Ok(Stop::GivenUp);
                    }
                    continue;
                }
                if on_page >= page {
                    hunt.found.push_front(shown);
                    return Ok(Stop::PageFull);
                }
                if hunt.sent >= self.size_limit {
                    return Err(Refusal::new(Code::SizeLimitExceeded, "there are more entries than the limit"));
                }
                hunt.note(shown.entry.number)?;
                let beside = self.beside(&shown.entry).await?;
                let id = self.answered.id;
                match self.mark {
                    None => show::entry(out, id, &shown, &grant, &self.selection, &schema, &beside),
                    Some(mark) => {
                        let mark = (SYNC_STATE, mark(&shown.entry));
                        show::marked(out, id, &shown, &grant, &self.selection, &schema, &beside, mark);
                    }
                }
                (hunt.sent, on_page) = (hunt.sent + 1, on_page + 1);
                if out.len() >= PORTION_BYTES && !self.line.write(std::mem::take(out)).await {
                    return Ok(Stop::GivenUp);
                }
            }
            if self.line.is_given_up() {
                return Ok(Stop::GivenUp);
            }
            self.in_time()?;
            match hunt.search.next().await? {
                Some(found) => hunt.found.extend(found),
                None => return Ok(Stop::End),
            }
        }
    }
}

/// Something that only whoever was given it knows.
fn cookie() -> Option<[u8; 8]> {
    let made = tocsin_directory::password::made_up().ok()?;
    made.as_bytes().get(..8)?.try_into().ok()
}
