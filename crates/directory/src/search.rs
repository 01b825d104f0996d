//! Searches: from a base, within a scope, by a filter, page by page.
//!
//! Uses an index where one applies; otherwise it scans all entries page by page. A long scan therefore blocks no other
//! request and can be cancelled between two pages.

use std::{collections::VecDeque, sync::Arc};

use tocsin_model::ldap::Truth;
use tocsin_store::entries::{EntryNode, EntryNumber, EntryReader};

use crate::{
    access::{AuthzId, Grant, Level, Rights, is_below},
    directory::Directory,
    entry::Entry,
    entry_cache::CachedEntry,
    filter::{Filter, Scope, Test},
    ldap_error::{Code, LdapError},
    plan,
    schema::{AttributeType, MEMBER_OF, Schema},
    tree::Inner,
};

/// Entries per page.
const PAGE: usize = 256;
/// Entries that one store call reads by number.
const LOOKED_UP: usize = 64;
/// If the index gives at most this many candidates, the subtree is not counted.
const FEW: usize = 1_000;
/// Subtree size up to which an index is not asked for more than [`FEW`] candidates.
const SMALL_SUBTREE: usize = 4_096;
/// Entry numbers that one store call reads.
const NUMBERS: usize = 512;
/// Subtree size up to which its entries are listed by number if no index applies; a larger subtree means a full scan.
const LARGE_SUBTREE: usize = 65_536;

/// Work (filter terms times entry bytes) above which an evaluation runs on a blocking thread, so that it does not delay
/// others on the runtime.
const INLINE_WORK: usize = 1 << 20;

/// A running search.
pub struct Search {
    directory: Directory,
    schema: Arc<Schema>,
    test: Arc<Test>,
    terms: usize,
    base: Arc<CachedEntry>,
    scope: Scope,
    rest: Rest,
    scanned: usize,
}

enum Rest {
    One(Arc<CachedEntry>),
    /// Candidates from an index.
    Numbers(VecDeque<EntryNumber>),
    /// Full scan, after this entry.
    All(Option<EntryNumber>),
    Nothing,
}

impl Directory {
    /// Starts a search. Groups are resolved with the rights of the same requester.
    ///
    /// # Errors
    /// The base does not exist; the store fails.
    pub async fn search(
        &self,
        requester: &AuthzId,
        base: Arc<CachedEntry>,
        scope: Scope,
        filter: &Filter,
    ) -> Result<Search, LdapError> {
        let (schema, terms) = (self.schema(), filter.terms());
        let test = self.with_members(requester, Test::compile(filter, &schema)).await?;
        let test = self.with_passwords(test).await?;
        let rest = match scope {
            Scope::Base => Rest::One(base.clone()),
            Scope::One | Scope::Subtree => {
                self.candidates(&test, &base, scope).await?.map_or(Rest::All(None), Rest::Numbers)
            }
        };
        Ok(Search { directory: self.clone(), schema, test: Arc::new(test), terms, base, scope, rest, scanned: 0 })
    }

    /// Reads the entries with these numbers, in this order; missing ones are left out.
    ///
    /// # Errors
    /// The store fails.
    pub async fn numbered(&self, numbers: Vec<EntryNumber>) -> Result<Vec<Arc<CachedEntry>>, LdapError> {
        let inner = self.inner.clone();
        let mut found: Vec<Option<Arc<CachedEntry>>> =
            numbers.iter().map(|number| inner.cache.entry(*number)).collect();
        if found.iter().any(Option::is_none) {
            let missing: Vec<EntryNumber> =
                numbers.iter().zip(&found).filter(|(_, shown)| shown.is_none()).map(|(number, _)| *number).collect();
            let since = inner.cache.generation();
            let read = self
                .read(move |branches| {
                    missing
                        .into_iter()
                        .map(|number| {
                            let Some(node) = branches.node(number)? else { return Ok(None) };
                            let above = inner.above(branches, &node)?;
                            Ok(Some(inner.build_entry(&node, above.as_deref(), since)))
                        })
                        .collect::<Result<Vec<_>, LdapError>>()
                })
                .await?;
            let mut read = read.into_iter();
            found.iter_mut().filter(|shown| shown.is_none()).for_each(|shown| *shown = read.next().flatten());
        }
        Ok(found.into_iter().flatten().collect())
    }

    /// A superset of the matching entries: the candidates of an index or the subtree, whichever is smaller. `None`:
    /// both are too large, so every entry is scanned.
    async fn candidates(
        &self,
        test: &Test,
        base: &CachedEntry,
        scope: Scope,
    ) -> Result<Option<VecDeque<EntryNumber>>, LdapError> {
        let ready = self.inner.ready.load_full();
        let key = plan::only_key(test, &ready);
        if let Some(found) = key.as_ref().and_then(|key| self.inner.cache.found(key)) {
            return Ok(Some(found.iter().copied().collect()));
        }
        let (since, requested, inner) = (self.inner.cache.generation(), test.clone(), self.inner.clone());
        let (number, is_whole) = (base.entry.number, base.entry.parent.is_none() && scope == Scope::Subtree);
        let found = self
            .read(move |branches| {
                if is_whole {
                    return Ok((plan::candidates(branches, &requested, &ready)?, true));
                }
                if let Some(few) = plan::few_candidates(branches, &requested, &ready, FEW)? {
                    let below = match few.len() > LOOKED_UP {
                        true => inner.subtree(branches, number, scope, few.len())?,
                        false => None,
                    };
                    return Ok(below.map_or((Some(few), true), |below| (Some(below), false)));
                }
                if let Some(below) = inner.subtree(branches, number, scope, SMALL_SUBTREE)? {
                    return Ok((Some(below), false));
                }
                let found = plan::candidates(branches, &requested, &ready)?;
                let most = found.as_ref().map_or(LARGE_SUBTREE, Vec::len);
                match inner.subtree(branches, number, scope, most)? {
                    Some(below) => Ok((Some(below), false)),
                    None => Ok((found, true)),
                }
            })
            .await?;
        let (found, is_of_index) = found;
        if let (Some(key), Some(found), true) = (key, &found, is_of_index)
            && found.len() <= LOOKED_UP
        {
            self.inner.cache.insert_search(key, found.as_slice().into(), since);
        }
        Ok(found.map(VecDeque::from))
    }
}

impl Inner {
    /// Numbers of an entry and its descendants, or of its children; `None`: there are more than `most`.
    fn subtree(
        &self,
        branches: &dyn EntryReader,
        base: EntryNumber,
        scope: Scope,
        most: usize,
    ) -> Result<Option<Vec<EntryNumber>>, LdapError> {
        let (mut all, mut open) = (vec![base], vec![base]);
        while let Some(parent) = open.pop() {
            let mut after = None;
            loop {
                let page = branches.children(parent, self.is_people(parent), after, NUMBERS)?;
                all.extend(&page);
                if all.len() > most {
                    return Ok(None);
                }
                if scope == Scope::Subtree {
                    open.extend(branches.with_children(&page)?);
                    open.extend(page.iter().filter(|number| self.is_people(**number)));
                }
                match page.last() {
                    Some(last) if page.len() == NUMBERS => after = Some(*last),
                    _ => break,
                }
            }
            open.sort_unstable();
            open.dedup();
        }
        // Same order as a full scan.
        all.sort_by_key(|number| (number.0 < 0, number.0.unsigned_abs()));
        Ok(Some(all))
    }
}

impl Search {
    /// Returns the next entries that are in scope and may match the filter; `None` at the end. A page may be empty.
    ///
    /// # Errors
    /// The store fails.
    pub async fn next(&mut self) -> Result<Option<Vec<Arc<CachedEntry>>>, LdapError> {
        let page = match std::mem::replace(&mut self.rest, Rest::Nothing) {
            Rest::Nothing => return Ok(None),
            Rest::One(shown) => return Ok(Some(vec![shown])),
            Rest::Numbers(mut numbers) => {
                let page: Vec<_> = numbers.drain(..numbers.len().min(LOOKED_UP)).collect();
                if page.is_empty() {
                    return Ok(None);
                }
                self.rest = Rest::Numbers(numbers);
                self.scanned += page.len();
                self.directory.numbered(page).await?
            }
            Rest::All(after) => {
                let (page, last) = self.page(after).await?;
                self.rest = last.map_or(Rest::Nothing, |last| Rest::All(Some(last)));
                self.scanned += page.len();
                page
            }
        };
        Ok(Some(page.into_iter().filter(|shown| self.is_within(shown)).collect()))
    }

    fn is_within(&self, shown: &CachedEntry) -> bool {
        match self.scope {
            Scope::Base => true,
            Scope::One => shown.entry.parent == Some(self.base.entry.number),
            Scope::Subtree => {
                shown.entry.number == self.base.entry.number || is_below(&shown.entry.key, &self.base.entry.key)
            }
        }
    }

    /// Reads a page of the full scan or the subtree. Also returns the last entry of the page if more may follow.
    async fn page(
        &self,
        after: Option<EntryNumber>,
    ) -> Result<(Vec<Arc<CachedEntry>>, Option<EntryNumber>), LdapError> {
        let inner = self.directory.inner.clone();
        let parent = (self.scope == Scope::One).then_some(self.base.entry.number);
        let since = inner.cache.generation();
        self.directory
            .read(move |branches| {
                let unplaced = parent.is_none_or(|parent| inner.is_people(parent));
                let page = branches.page(parent, unplaced, after, PAGE)?;
                let last = page.last().filter(|_| page.len() == PAGE).map(EntryNode::number);
                let shown = page.iter().map(|node| match inner.cache.entry(node.number()) {
                    Some(shown) => Ok(shown),
                    None => {
                        let above = inner.above(branches, node)?;
                        Ok(inner.build_entry(node, above.as_deref(), since))
                    }
                });
                Ok((shown.collect::<Result<_, LdapError>>()?, last))
            })
            .await
    }

    /// Continues after an entry: skips all entries up to it in the order of a full scan, whether or not it still exists.
    /// Call it before the first page.
    pub fn skip_to(&mut self, after: EntryNumber) {
        let place = |number: EntryNumber| (number.0 < 0, number.0.unsigned_abs());
        self.rest = match std::mem::replace(&mut self.rest, Rest::Nothing) {
            Rest::Numbers(mut numbers) => {
                numbers.retain(|number| place(*number) > place(after));
                numbers.make_contiguous().sort_unstable_by_key(|number| place(*number));
                Rest::Numbers(numbers)
            }
            Rest::All(_) => Rest::All(Some(after)),
            Rest::One(_) | Rest::Nothing => Rest::Nothing,
        };
    }

    /// Sorts the candidates of an index in the order of a full scan, so that [`Search::skip_to`] can continue later.
    pub fn in_scan_order(&mut self) {
        if let Rest::Numbers(numbers) = &mut self.rest {
            numbers.make_contiguous().sort_unstable_by_key(|number| (number.0 < 0, number.0.unsigned_abs()));
        }
    }

    /// Restarts the search from the beginning.
    ///
    /// # Errors
    /// The store fails.
    pub async fn restart(&mut self) -> Result<(), LdapError> {
        self.rest = match self.scope {
            Scope::Base => Rest::One(self.base.clone()),
            Scope::One | Scope::Subtree => {
                let candidates = self.directory.candidates(&self.test, &self.base, self.scope).await?;
                candidates.map_or(Rest::All(None), Rest::Numbers)
            }
        };
        Ok(())
    }

    /// Number of entries examined, in scope or not.
    pub fn scanned(&self) -> usize {
        self.scanned
    }

    /// The name of the base.
    pub fn base(&self) -> &str {
        &self.base.entry.dn
    }

    /// Whether the search would return this entry: it is in scope and matches the filter.
    ///
    /// # Errors
    /// As for [`Search::is_met_by_async`].
    pub async fn is_in_result(&self, shown: &Arc<CachedEntry>, grant: &Arc<Grant>) -> Result<bool, LdapError> {
        let is_within = match self.scope {
            Scope::Base => shown.entry.number == self.base.entry.number,
            Scope::One | Scope::Subtree => self.is_within(shown),
        };
        Ok(is_within && self.is_met_by_async(shown, grant).await?)
    }

    /// Whether matching depends on data outside the entries, resolved when the search started: group membership or
    /// password state.
    pub fn needs_other_records(&self) -> bool {
        self.test.looked_further()
    }

    /// Whether an entry matches the filter, as far as the requester has `search` access.
    ///
    /// # Errors
    /// `adminLimitExceeded`: evaluating the filter on this entry exceeds the limit.
    pub fn is_met_by(&self, shown: &CachedEntry, grant: &Grant) -> Result<bool, LdapError> {
        self.test.is_met_by(&shown.entry, &self.schema, grant)
    }

    /// Estimated work of evaluating the filter on an entry; the caller yields after some of it.
    pub fn work(&self, shown: &CachedEntry) -> usize {
        self.terms.saturating_mul(shown.bytes())
    }

    /// Like [`Search::is_met_by`], but long evaluations run on a blocking thread, a few at a time.
    ///
    /// # Errors
    /// `adminLimitExceeded`: evaluating the filter on this entry exceeds the limit.
    pub async fn is_met_by_async(&self, shown: &Arc<CachedEntry>, grant: &Arc<Grant>) -> Result<bool, LdapError> {
        if is_quick(self.terms, shown) {
            return self.is_met_by(shown, grant);
        }
        let _turn = self.directory.inner.evaluations.acquire().await;
        let (test, schema) = (self.test.clone(), self.schema.clone());
        let (shown, grant) = (shown.clone(), grant.clone());
        let evaluated = tokio::task::spawn_blocking(move || test.is_met_by(&shown.entry, &schema, &grant)).await;
        evaluated.unwrap_or_else(|_| Err(LdapError::new(Code::Unavailable, "the server is stopping; try again later")))
    }
}

/// Whether evaluating a filter of this many terms on an entry is cheap enough to run inline.
pub fn is_quick(terms: usize, shown: &CachedEntry) -> bool {
    terms.saturating_mul(shown.bytes()) <= INLINE_WORK
}

impl Directory {
    /// Compares a value with the values of an attribute (RFC 4511, 4.10).
    ///
    /// # Errors
    /// The entry is missing or hidden; it lacks the attribute; the requester may not compare it; the attribute is
    /// unknown or has no equality rule; the entry does not match `assertion` (RFC 4528).
    pub async fn compare(
        &self,
        requester: &AuthzId,
        dn: &str,
        (name, value): (&str, &[u8]),
        assertion: Option<&Filter>,
    ) -> Result<bool, LdapError> {
        let shown = match self.find(dn).await {
            Err(refusal) if refusal.code == Code::NoSuchObject => return Err(self.absent(requester, dn).await),
            found => found?,
        };
        let (schema, grant) = (self.schema(), self.access().grant(requester, &shown.entry));
        let known = schema.known_or_named(name);
        if !grant.may_disclose() && known.as_ref().is_none_or(|kind| grant.level(Some(kind)) < Level::Compare) {
            return Err(self.absent(requester, dn).await);
        }
        if let Some(assertion) = assertion {
            self.assert(requester, &shown, assertion).await?;
        }
        // Group membership is not stored in the entry.
        let is_of_groups = |kind: &Arc<AttributeType>| &*kind.key == MEMBER_OF && kind.syntax.allows(value, &schema);
        if known.as_ref().is_some_and(is_of_groups) {
            let holds = Filter::Equal(name.to_owned(), value.to_vec());
            let search = self.search(requester, shown.clone(), Scope::Base, &holds).await?;
            return search.is_met_by_async(&shown, &Arc::new(grant)).await;
        }
        compare(&shown.entry, name, value, &grant, &schema)
    }

    /// Checks an assertion (RFC 4528) on an entry with the rights of the requester.
    ///
    /// # Errors
    /// The entry does not match, or the evaluation exceeds the limit.
    pub async fn assert(
        &self,
        requester: &AuthzId,
        shown: &Arc<CachedEntry>,
        assertion: &Filter,
    ) -> Result<(), LdapError> {
        let search = self.search(requester, shown.clone(), Scope::Base, assertion).await?;
        let grant = Arc::new(self.access().grant(requester, &shown.entry));
        match search.is_met_by_async(shown, &grant).await? {
            true => Ok(()),
            false => Err(LdapError::new(Code::AssertionFailed, "the entry does not match the assertion filter")),
        }
    }
}

fn compare(entry: &Entry, name: &str, value: &[u8], grant: &Grant, schema: &Schema) -> Result<bool, LdapError> {
    let rights = Rights::new(grant, Level::Compare);
    let is_known =
        |kind: &Arc<AttributeType>| kind.declared || rights.opens(kind) && entry.attribute(&kind.key).is_some();
    let Some(kind) = schema.known_or_named(name).filter(is_known) else {
        return Err(match schema.attribute(name) {
            Err(refusal) => refusal,
            Ok(_) => LdapError::new(Code::UndefinedAttributeType, name),
        });
    };
    if !rights.opens(&kind) {
        let what = format!("the access rules do not allow comparing `{name}`");
        return Err(LdapError::new(Code::InsufficientAccessRights, what));
    }
    let absent = || LdapError::new(Code::NoSuchAttribute, format!("the entry has no attribute `{name}`"));
    if &*kind.key == "userpassword" {
        return Err(absent());
    }
    if kind.equality.is_none() {
        return Err(LdapError::new(Code::InappropriateMatching, format!("values of `{name}` cannot be compared")));
    }
    let invalid =
        || LdapError::new(Code::InvalidAttributeSyntax, format!("the value does not have the syntax of `{name}`"));
    let test = Test::compile(&Filter::Equal(name.to_owned(), value.to_vec()), schema);
    let is_valid = matches!(test, Test::Of(..));
    if rights.values(entry, &kind).next().is_none() && entry.own(&kind.key, schema).is_none() {
        return Err(if is_valid { absent() } else { invalid() });
    }
    match test.truth(entry, schema, rights)? {
        Truth::Undefined if !is_valid => Err(invalid()),
        // A closed subtype of the attribute counts as absent.
        truth => Ok(truth == Truth::True),
    }
}
