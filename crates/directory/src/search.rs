//! Searches: from a base, within a scope, by a filter, page by page.
//!
//! What an index tells is looked up; what none tells is found by looking at every entry, a page at a time, so that a long
//! search holds up nobody and can be given up between any two pages.

use std::{collections::VecDeque, sync::Arc};

use tocsin_model::ldap::Truth;
use tocsin_store::entries::{Branches, EntryNumber, Node};

use crate::{
    access::{Asker, Grant, Level, Rights, is_below},
    directory::{Directory, Inner},
    entry::Entry,
    filter::{Filter, Test},
    kept::Shown,
    plan,
    refusal::{Code, Refusal},
    schema::{AttributeType, Schema},
};

/// How far below its base a search goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// The base itself.
    Base,
    /// What is directly below it.
    One,
    /// It and all below.
    Subtree,
}

/// Entries of a page.
const PAGE: usize = 256;
/// Entries looked up in one go by their numbers.
const LOOKED_UP: usize = 64;
/// With so few candidates of an index, no subtree is looked at.
const FEW: usize = 1_000;
/// Entries below a base that are counted before an index is asked for more candidates than [`FEW`].
const SMALL_SUBTREE: usize = 4_096;
/// Entries whose numbers are read in one go.
const NUMBERS: usize = 512;
/// Entries below a base that are looked at by their numbers where no index tells which; with more, every entry is looked at.
const LARGE_SUBTREE: usize = 65_536;

/// With more work than this, by the parts of a filter and the bytes of an entry, an evaluation runs on a thread for blocking
/// work: it would hold up others on a thread of the runtime.
const INLINE_WORK: usize = 1 << 20;

/// A search under way.
pub struct Search {
    directory: Directory,
    schema: Arc<Schema>,
    test: Arc<Test>,
    terms: usize,
    base: Arc<Shown>,
    scope: Scope,
    rest: Rest,
    looked_at: usize,
}

enum Rest {
    One(Arc<Shown>),
    /// Numbers that an index told.
    Numbers(VecDeque<EntryNumber>),
    /// Everything after an entry.
    All(Option<EntryNumber>),
    Nothing,
}

impl Directory {
    /// Begins a search for an asker, which is also who its groups are looked up for.
    ///
    /// # Errors
    /// There is no base; the store does not answer.
    pub async fn search(
        &self,
        asker: &Asker,
        base: Arc<Shown>,
        scope: Scope,
        filter: &Filter,
    ) -> Result<Search, Refusal> {
        let (schema, terms) = (self.schema(), filter.terms());
        let test = self.with_members(asker, Test::compile(filter, &schema)).await?;
        let test = self.with_passwords(test).await?;
        let rest = match scope {
            Scope::Base => Rest::One(base.clone()),
            Scope::One | Scope::Subtree => {
                self.candidates(&test, &base, scope).await?.map_or(Rest::All(None), Rest::Numbers)
            }
        };
        Ok(Search { directory: self.clone(), schema, test: Arc::new(test), terms, base, scope, rest, looked_at: 0 })
    }

    /// The entries of these numbers that are there, in their order.
    ///
    /// # Errors
    /// The store does not answer.
    pub async fn numbered(&self, numbers: Vec<EntryNumber>) -> Result<Vec<Arc<Shown>>, Refusal> {
        let inner = self.inner.clone();
        let mut found: Vec<Option<Arc<Shown>>> = numbers.iter().map(|number| inner.kept.entry(*number)).collect();
        if found.iter().any(Option::is_none) {
            let missing: Vec<EntryNumber> =
                numbers.iter().zip(&found).filter(|(_, shown)| shown.is_none()).map(|(number, _)| *number).collect();
            let since = inner.kept.moment();
            let read = self
                .look(move |branches| {
                    missing
                        .into_iter()
                        .map(|number| {
                            let Some(node) = branches.node(number)? else { return Ok(None) };
                            let above = inner.above(branches, &node)?;
                            Ok(Some(inner.show(&node, above.as_deref(), since)))
                        })
                        .collect::<Result<Vec<_>, Refusal>>()
                })
                .await?;
            let mut read = read.into_iter();
            found.iter_mut().filter(|shown| shown.is_none()).for_each(|shown| *shown = read.next().flatten());
        }
        Ok(found.into_iter().flatten().collect())
    }

    /// A superset of the entries of a search: those that an index gives, or those below the base, whichever are fewer. `None`:
    /// neither are few enough, and every entry is looked at.
    async fn candidates(
        &self,
        test: &Test,
        base: &Shown,
        scope: Scope,
    ) -> Result<Option<VecDeque<EntryNumber>>, Refusal> {
        let ready = self.inner.ready.load_full();
        let key = plan::only_key(test, &ready);
        if let Some(found) = key.as_ref().and_then(|key| self.inner.kept.found(key)) {
            return Ok(Some(found.iter().copied().collect()));
        }
        let (since, wanted, inner) = (self.inner.kept.moment(), test.clone(), self.inner.clone());
        let (number, is_whole) = (base.entry.number, base.entry.parent.is_none() && scope == Scope::Subtree);
        let found = self
            .look(move |branches| {
                if is_whole {
                    return Ok((plan::candidates(branches, &wanted, &ready)?, true));
                }
                if let Some(few) = plan::few_candidates(branches, &wanted, &ready, FEW)? {
                    let below = match few.len() > LOOKED_UP {
                        true => inner.subtree(branches, number, scope, few.len())?,
                        false => None,
                    };
                    return Ok(below.map_or((Some(few), true), |below| (Some(below), false)));
                }
                if let Some(below) = inner.subtree(branches, number, scope, SMALL_SUBTREE)? {
                    return Ok((Some(below), false));
                }
                let found = plan::candidates(branches, &wanted, &ready)?;
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
            self.inner.kept.keep_found(key, found.as_slice().into(), since);
        }
        Ok(found.map(VecDeque::from))
    }
}

impl Inner {
    /// The numbers of an entry and of all below it, or directly below it; `None`: there are more than `most`.
    fn subtree(
        &self,
        branches: &dyn Branches,
        base: EntryNumber,
        scope: Scope,
        most: usize,
    ) -> Result<Option<Vec<EntryNumber>>, Refusal> {
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
        // In the order in which all entries are looked at.
        all.sort_by_key(|number| (number.0 < 0, number.0.unsigned_abs()));
        Ok(Some(all))
    }
}

impl Search {
    /// The next entries that are within the scope and may meet the filter; `None`: there are no more. A page may be empty.
    ///
    /// # Errors
    /// The store does not answer.
    pub async fn next(&mut self) -> Result<Option<Vec<Arc<Shown>>>, Refusal> {
        let page = match std::mem::replace(&mut self.rest, Rest::Nothing) {
            Rest::Nothing => return Ok(None),
            Rest::One(shown) => return Ok(Some(vec![shown])),
            Rest::Numbers(mut numbers) => {
                let page: Vec<_> = numbers.drain(..numbers.len().min(LOOKED_UP)).collect();
                if page.is_empty() {
                    return Ok(None);
                }
                self.rest = Rest::Numbers(numbers);
                self.looked_at += page.len();
                self.directory.numbered(page).await?
            }
            Rest::All(after) => {
                let (page, last) = self.page(after).await?;
                self.rest = last.map_or(Rest::Nothing, |last| Rest::All(Some(last)));
                self.looked_at += page.len();
                page
            }
        };
        Ok(Some(page.into_iter().filter(|shown| self.is_within(shown)).collect()))
    }

    fn is_within(&self, shown: &Shown) -> bool {
        match self.scope {
            Scope::Base => true,
            Scope::One => shown.entry.parent == Some(self.base.entry.number),
            Scope::Subtree => {
                shown.entry.number == self.base.entry.number || is_below(&shown.entry.key, &self.base.entry.key)
            }
        }
    }

    /// A page of all entries, or of those below the base, and its last one if there may be more.
    async fn page(&self, after: Option<EntryNumber>) -> Result<(Vec<Arc<Shown>>, Option<EntryNumber>), Refusal> {
        let inner = self.directory.inner.clone();
        let parent = (self.scope == Scope::One).then_some(self.base.entry.number);
        let since = inner.kept.moment();
        self.directory
            .look(move |branches| {
                let unplaced = parent.is_none_or(|parent| inner.is_people(parent));
                let page = branches.page(parent, unplaced, after, PAGE)?;
                let last = page.last().filter(|_| page.len() == PAGE).map(Node::number);
                let shown = page.iter().map(|node| match inner.kept.entry(node.number()) {
                    Some(shown) => Ok(shown),
                    None => {
                        let above = inner.above(branches, node)?;
                        Ok(inner.show(node, above.as_deref(), since))
                    }
                });
                Ok((shown.collect::<Result<_, Refusal>>()?, last))
            })
            .await
    }

    /// Begins the search again.
    ///
    /// # Errors
    /// The store does not answer.
    pub async fn restart(&mut self) -> Result<(), Refusal> {
        self.rest = match self.scope {
            Scope::Base => Rest::One(self.base.clone()),
            Scope::One | Scope::Subtree => {
                let candidates = self.directory.candidates(&self.test, &self.base, self.scope).await?;
                candidates.map_or(Rest::All(None), Rest::Numbers)
            }
        };
        Ok(())
    }

    /// Entries that were looked at, within the scope or not.
    pub fn looked_at(&self) -> usize {
        self.looked_at
    }

    /// The name of the base.
    pub fn base(&self) -> &str {
        &self.base.entry.dn
    }

    /// Whether an entry is within the scope and meets the filter: what the search would find.
    ///
    /// # Errors
    /// As for [`Search::meets`].
    pub async fn is_meant(&self, shown: &Arc<Shown>, grant: &Arc<Grant>) -> Result<bool, Refusal> {
        let is_within = match self.scope {
            Scope::Base => shown.entry.number == self.base.entry.number,
            Scope::One | Scope::Subtree => self.is_within(shown),
        };
        Ok(is_within && self.meets(shown, grant).await?)
    }

    /// Whether who meets the filter depends on what does not stand in the entries, as it was when the search began: the members
    /// of groups, what is known of passwords.
    pub fn looks_further(&self) -> bool {
        self.test.looked_further()
    }

    /// Whether an entry meets the filter, as far as the asker may ask.
    ///
    /// # Errors
    /// `adminLimitExceeded`: the filter takes too much work on this entry.
    pub fn is_met_by(&self, shown: &Shown, grant: &Grant) -> Result<bool, Refusal> {
        self.test.is_met_by(&shown.entry, &self.schema, grant)
    }

    /// About how much work it is to put the filter to an entry: the caller gives way to others after some of it.
    pub fn work(&self, shown: &Shown) -> usize {
        self.terms.saturating_mul(shown.bytes())
    }

    /// The same as [`Search::is_met_by`]. What takes long runs on a thread for blocking work, a few at a time.
    ///
    /// # Errors
    /// `adminLimitExceeded`: the filter takes too much work on this entry.
    pub async fn meets(&self, shown: &Arc<Shown>, grant: &Arc<Grant>) -> Result<bool, Refusal> {
        if is_quick(self.terms, shown) {
            return self.is_met_by(shown, grant);
        }
        let _turn = self.directory.inner.evaluations.acquire().await;
        let (test, schema) = (self.test.clone(), self.schema.clone());
        let (shown, grant) = (shown.clone(), grant.clone());
        let evaluated = tokio::task::spawn_blocking(move || test.is_met_by(&shown.entry, &schema, &grant)).await;
        evaluated.unwrap_or_else(|_| Err(Refusal::new(Code::Unavailable, "the server stops")))
    }
}

/// Whether a filter of so many parts is put to an entry in no time.
pub fn is_quick(terms: usize, shown: &Shown) -> bool {
    terms.saturating_mul(shown.bytes()) <= INLINE_WORK
}

impl Directory {
    /// Compares a value with those of an attribute of an entry.
    ///
    /// # Errors
    /// There is no such entry, or it is hidden; it has no such attribute; the asker may not compare it; the attribute is not known, or
    /// has no equality.
    pub async fn compare(&self, asker: &Asker, dn: &str, name: &str, value: &[u8]) -> Result<bool, Refusal> {
        let shown = match self.find(dn).await {
            Err(refusal) if refusal.code == Code::NoSuchObject => return Err(self.absent(asker, dn).await),
            found => found?,
        };
        let (schema, grant) = (self.schema(), self.access().grant(asker, &shown.entry));
        let known = schema.known_or_named(name);
        if !grant.sees() && known.as_ref().is_none_or(|kind| grant.level(Some(kind)) < Level::Compare) {
            return Err(self.absent(asker, dn).await);
        }
        compare(&shown.entry, name, value, &grant, &schema)
    }
}

fn compare(entry: &Entry, name: &str, value: &[u8], grant: &Grant, schema: &Schema) -> Result<bool, Refusal> {
    let rights = Rights::new(grant, Level::Compare);
    let is_known =
        |kind: &Arc<AttributeType>| kind.declared || rights.opens(kind) && entry.attribute(&kind.key).is_some();
    let Some(kind) = schema.known_or_named(name).filter(is_known) else {
        return Err(match schema.attribute(name) {
            Err(refusal) => refusal,
            Ok(_) => Refusal::new(Code::UndefinedAttributeType, name),
        });
    };
    if !rights.opens(&kind) {
        let what = format!("the access rules do not allow to compare `{name}`");
        return Err(Refusal::new(Code::InsufficientAccessRights, what));
    }
    let absent = || Refusal::new(Code::NoSuchAttribute, format!("the entry has no `{name}`"));
    if &*kind.key == "userpassword" {
        return Err(absent());
    }
    if kind.equality.is_none() {
        return Err(Refusal::new(Code::InappropriateMatching, format!("values of `{name}` cannot be compared")));
    }
    let invalid = || Refusal::new(Code::InvalidAttributeSyntax, format!("the value is not of the syntax of `{name}`"));
    let test = Test::compile(&Filter::Equal(name.to_owned(), value.to_vec()), schema);
    let is_valid = matches!(test, Test::Of(..));
    if rights.values(entry, &kind).next().is_none() && entry.own(&kind.key, schema).is_none() {
        return Err(if is_valid { absent() } else { invalid() });
    }
    match test.truth(entry, schema, rights)? {
        Truth::Undefined if !is_valid => Err(invalid()),
        // A closed kind of the attribute counts as absent.
        truth => Ok(truth == Truth::True),
    }
}
