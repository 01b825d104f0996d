//! Segments: saved filters over subscribers, their members and their sizes.

use tocsin_model::{
    id::{Name, SubscriberId},
    ldap::{Entry, LdapFilter, Truth},
    problem::{Code, Problem},
    segment::Segment,
    time::Timestamp,
};
use tocsin_store::inbox::BroadcastHead;
use tocsin_store::records::{NewSegment, Precondition, SegmentScanBounds};

use crate::{
    Service,
    error::ServiceError,
    keys::{Caller, Scope},
    page::{Page, cursor, key_of},
    subscribers::{self, Put},
};

/// Maximum number of segments of an installation.
pub const SEGMENTS_MAX: usize = 1_000;
/// Maximum number of bytes of a description.
pub const DESCRIPTION_BYTES_MAX: usize = 4_096;
/// Maximum number of members in a preview.
pub const SAMPLE_MAX: usize = 100;
/// Maximum number of subscribers examined per request; the next one continues.
pub const SCANNED_ROWS_MAX: u64 = 1_000_000;
/// Maximum number of concurrent scans of subscribers.
pub const SEGMENT_SCANS_MAX: usize = 4;
/// Subscribers examined at a time. Other readers get their turn in between.
const LOOKS_AT_ONCE: u64 = 10_000;

/// Reserved name: it is a path of the API.
const PREVIEW: &str = "preview";

/// Input of a segment.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Draft {
    /// Its name: a letter, then up to 63 letters, digits, `_` or `-`; not `preview`.
    pub name: Option<String>,
    /// Description.
    pub description: Option<String>,
    /// A filter of LDAP (RFC 4515) over the subscriber's attributes, such as `(&(region=Vienna)(age>=18))`.
    pub filter: String,
}

/// A stored segment.
#[derive(Debug, Clone, PartialEq)]
pub struct Document {
    /// Its name.
    pub name: String,
    /// Description.
    pub description: Option<String>,
    /// Filter, as written.
    pub filter: String,
    /// The filter in normal form: equal filters have equal normal forms.
    pub canonical: Option<String>,
    /// When it was made.
    pub created_at: Timestamp,
    /// When it last changed.
    pub updated_at: Timestamp,
    /// Grows with each change.
    pub revision: u64,
}

impl From<Segment> for Document {
    fn from(segment: Segment) -> Self {
        Document {
            name: segment.name.to_string(),
            description: segment.description,
            canonical: LdapFilter::parse(&segment.filter).ok().map(|filter| filter.to_string()),
            filter: segment.filter.into(),
            created_at: segment.created_at,
            updated_at: segment.updated_at,
            revision: segment.revision,
        }
    }
}

/// Input of a segment preview.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Ask {
    /// A filter, as a segment has it.
    pub filter: String,
    /// Number of members to return; 0 to 100, default 10.
    pub sample: Option<usize>,
    /// Cursor of the previous preview, to continue counting.
    pub after: Option<String>,
}

/// Number of matching subscribers, and some of them.
#[derive(Debug, Clone, PartialEq)]
pub struct Preview {
    /// The filter in normal form.
    pub canonical: String,
    /// Number of matches among the subscribers examined.
    pub members: u64,
    /// Number of subscribers examined: at most 1,000,000 per request. Those excluded by a condition on the id do not
    /// count.
    pub looked_at: u64,
    /// Total number of subscribers.
    pub subscribers: u64,
    /// Cursor to continue counting, as `after`; absent if all were examined.
    pub next: Option<String>,
    /// First members, in the order of their ids.
    pub sample: Vec<subscribers::Document>,
}

/// Membership of a subscriber in a segment, with the reason.
#[derive(Debug, Clone, PartialEq)]
pub struct Membership {
    /// Whether the subscriber is a member: only if the filter is true.
    pub member: bool,
    /// `true`, `false` or `undefined`.
    pub truth: String,
    /// Result of each part of the filter; all parts must be true.
    pub parts: Vec<Part>,
}

/// Result of one part of a filter for a subscriber.
#[derive(Debug, Clone, PartialEq)]
pub struct Part {
    /// The part.
    pub filter: String,
    /// `true`, `false` or `undefined`.
    pub truth: String,
}

/// Parses a filter.
///
/// # Errors
/// `Invalid` with every problem, at `filter`.
pub fn read_filter(text: &str) -> Result<LdapFilter, ServiceError> {
    let at_filter = |problem: Problem| Problem { path: "filter".to_owned(), ..problem };
    LdapFilter::parse(text).map_err(|problems| ServiceError::Invalid(problems.into_iter().map(at_filter).collect()))
}

/// Checks a draft completely.
fn check(draft: Draft, name: Option<&Name>) -> Result<NewSegment, ServiceError> {
    let mut problems = Vec::new();
    let name = match (&draft.name, name) {
        (Some(written), Some(name)) if written != name.as_str() => {
            problems.push(Problem::address_mismatch("name", written, name));
            None
        }
        (_, Some(name)) => Some(name.clone()),
        (Some(written), None) => match written.parse::<Name>() {
            Ok(name) => Some(name),
            Err(error) => {
                problems.push(Problem::not(Code::InvalidFormat, "name", error.expected).param("format", "name"));
                None
            }
        },
        (None, None) => {
            problems.push(Problem::new(Code::Required, "name", "is required: give a name"));
            None
        }
    };
    if name.as_ref().is_some_and(|name| name.as_str() == PREVIEW) {
        problems
            .push(Problem::new(Code::ReservedName, "name", "is the address of previews").hint("choose another name"));
    }
    if let Some(bytes) = draft.description.as_ref().map(String::len).filter(|bytes| *bytes > DESCRIPTION_BYTES_MAX) {
        let message = format!("takes {bytes} bytes; at most {DESCRIPTION_BYTES_MAX} fit");
        problems.push(
            Problem::new(Code::TooLong, "description", message)
                .param("given", bytes)
                .param("limit", DESCRIPTION_BYTES_MAX)
                .param("unit", "bytes"),
        );
    }
    if let Err(ServiceError::Invalid(found)) = read_filter(&draft.filter) {
        problems.extend(found);
    }
    match name {
        Some(name) if problems.is_empty() => {
            Ok(NewSegment { name, description: draft.description, filter: draft.filter.into() })
        }
        _ => Err(ServiceError::Invalid(problems)),
    }
}

impl Service {
    /// Lists segments in the order of their names.
    ///
    /// # Errors
    /// The scope `subscribers:read` is missing, or `after` is no cursor.
    pub async fn segments(
        &self,
        caller: &Caller,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Page<Document>, ServiceError> {
        caller.needs(Scope::SubscribersRead)?;
        let after: Option<Name> = key_of(after)?;
        let found = self.segment_store.segments(after.as_ref(), limit + 1).await?;
        Ok(Page::cut(found, limit, |segment| segment.name.to_string()).map(Document::from))
    }

    /// Returns a segment.
    ///
    /// # Errors
    /// It does not exist.
    pub async fn segment(&self, caller: &Caller, name: &Name) -> Result<Document, ServiceError> {
        caller.needs(Scope::SubscribersRead)?;
        Ok(self.find_segment(name).await?.into())
    }

    /// Stores a segment; with `name`, a draft of another name is rejected. Returns whether it is new.
    ///
    /// # Errors
    /// `Invalid` with every problem; `Taken` or `Changed` as `put` asks; too many.
    pub async fn put_segment(
        &self,
        caller: &Caller,
        name: Option<&Name>,
        draft: Draft,
        put: Put,
    ) -> Result<(Document, bool), ServiceError> {
        caller.needs(Scope::SubscribersWrite)?;
        let new = check(draft, name)?;
        let present = self.segment_store.segment(&new.name).await?;
        if present.is_none() && self.segment_store.segments(None, SEGMENTS_MAX).await?.len() == SEGMENTS_MAX {
            return Err(ServiceError::from(
                Problem::new(Code::LimitReached, "name", format!("there are {SEGMENTS_MAX} segments; no more fit"))
                    .param("limit", SEGMENTS_MAX),
            ));
        }
        let expect = match put {
            Put::Create => Precondition::Absent,
            Put::Replace(Some(revision)) => Precondition::Revision(revision),
            Put::Replace(None) => Precondition::Any,
        };
        let stored = self.segment_store.put_segment(new, expect, self.clock.now()).await?;
        Ok((stored.into(), present.is_none()))
    }

    /// Removes a segment that is not in use as an audience.
    ///
    /// # Errors
    /// The segment does not exist, it has another revision than expected, or a rule of a running application uses it.
    pub async fn remove_segment(
        &self,
        caller: &Caller,
        name: &Name,
        revision: Option<u64>,
    ) -> Result<(), ServiceError> {
        caller.needs(Scope::SubscribersWrite)?;
        // No application can start to use it meanwhile.
        let _one_at_a_time = self.applying.lock().await;
        for version in self.application_store.applications().await? {
            let Some(running) = self.pipeline.application(&version.name) else { continue };
            let rules = &running.application.rules;
            if let Some((rule, _)) = rules.iter().find(|(_, rule)| rule.audience.as_ref() == Some(name)) {
                let what = format!("the segment `{name}`");
                return Err(ServiceError::InUse { what, by: format!("the rule `{rule}` of `{}`", version.name) });
            }
        }
        let now = self.clock.now();
        let heads = self.inbox.broadcast_heads();
        let is_for =
            |head: &&BroadcastHead| !head.withdrawn && head.expires_at > now && head.audience.as_ref() == Some(name);
        if let Some(head) = heads.iter().find(is_for) {
            let what = format!("the segment `{name}`");
            return Err(ServiceError::InUse { what, by: format!("the broadcast {}", head.id) });
        }
        if let Some(id) = self.broadcast_with_segment(name).await? {
            let what = format!("the segment `{name}`");
            return Err(ServiceError::InUse { what, by: format!("the broadcast {id}") });
        }
        let expect = revision.map_or(Precondition::Present, Precondition::Revision);
        Ok(self.segment_store.remove_segment(name, expect, self.clock.now()).await?)
    }

    /// Lists members of a segment in the order of their ids. If members are rare, a page may be short or empty and
    /// still have a next one: a request examines at most [`SCANNED_ROWS_MAX`] subscribers.
    ///
    /// # Errors
    /// The segment does not exist; `after` is no cursor; too many look through subscribers already.
    pub async fn segment_members(
        &self,
        caller: &Caller,
        name: &Name,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Page<subscribers::Document>, ServiceError> {
        caller.needs(Scope::SubscribersRead)?;
        let filter = stored_filter(&self.find_segment(name).await?)?;
        let scanned = self.look_through(&filter, key_of(after)?, limit as u64, limit).await?;
        Ok(Page { items: scanned.found, next: scanned.next })
    }

    /// Counts the members of a segment, and returns some of them.
    ///
    /// # Errors
    /// As [`Service::preview_filter`], or the segment does not exist.
    pub async fn preview_segment(
        &self,
        caller: &Caller,
        name: &Name,
        sample: Option<usize>,
        after: Option<String>,
    ) -> Result<Preview, ServiceError> {
        caller.needs(Scope::SubscribersRead)?;
        let filter = self.find_segment(name).await?.filter.into();
        self.preview_filter(caller, Ask { filter, sample, after }).await
    }

    /// Counts the matches of an unsaved filter, and returns some of them.
    ///
    /// # Errors
    /// The filter is invalid; the sample is too large; `after` is no cursor; too many scans are running.
    pub async fn preview_filter(&self, caller: &Caller, ask: Ask) -> Result<Preview, ServiceError> {
        caller.needs(Scope::SubscribersRead)?;
        let filter = read_filter(&ask.filter)?;
        let sample = ask.sample.unwrap_or(10);
        if sample > SAMPLE_MAX {
            return Err(ServiceError::from(Problem::out_of_range("sample", 0, SAMPLE_MAX)));
        }
        let scanned = self.look_through(&filter, key_of(ask.after.as_deref())?, u64::MAX, sample).await?;
        Ok(Preview {
            canonical: filter.to_string(),
            members: scanned.members,
            looked_at: scanned.looked_at,
            subscribers: self.installation.counts().subscribers,
            next: scanned.next,
            sample: scanned.found,
        })
    }

    /// Explains whether a subscriber belongs to a segment, part by part.
    ///
    /// # Errors
    /// There is no such segment or subscriber.
    pub async fn segment_membership(
        &self,
        caller: &Caller,
        name: &Name,
        subscriber: &SubscriberId,
    ) -> Result<Membership, ServiceError> {
        caller.needs(Scope::SubscribersRead)?;
        let filter = stored_filter(&self.find_segment(name).await?)?;
        let subscriber = self.find_subscriber(subscriber).await?;
        let entry = Entry::from(&subscriber);
        let truth = filter.evaluate(&entry);
        let part = |(filter, truth): (String, Truth)| Part { filter, truth: truth.to_string() };
        Ok(Membership {
            member: truth == Truth::True,
            truth: truth.to_string(),
            parts: filter.conjuncts(&entry).into_iter().map(part).collect(),
        })
    }

    /// Returns the revision of a segment, for a conditional change.
    ///
    /// # Errors
    /// The segment does not exist.
    pub async fn segment_revision(&self, caller: &Caller, name: &Name) -> Result<u64, ServiceError> {
        caller.needs(Scope::SubscribersWrite)?;
        Ok(self.find_segment(name).await?.revision)
    }

    async fn find_segment(&self, name: &Name) -> Result<Segment, ServiceError> {
        self.segment_store.segment(name).await?.ok_or_else(|| ServiceError::Missing(format!("the segment `{name}`")))
    }

    /// A permit to examine many subscribers.
    pub(crate) fn segment_scan_permit(&self) -> Result<tokio::sync::SemaphorePermit<'_>, ServiceError> {
        self.scan_permits.try_acquire().map_err(|_| ServiceError::TooMany {
            reason: format!("{SEGMENT_SCANS_MAX} requests look through subscribers already"),
            retry_after: std::time::Duration::from_secs(1),
        })
    }

    /// Scans subscribers step by step, up to the first limit reached.
    async fn look_through(
        &self,
        filter: &LdapFilter,
        mut after: Option<SubscriberId>,
        members_max: u64,
        kept: usize,
    ) -> Result<SegmentScanResult, ServiceError> {
        let _place = self.segment_scan_permit()?;
        let mut scanned = SegmentScanResult { members: 0, looked_at: 0, next: None, found: Vec::new() };
        loop {
            let bounds = SegmentScanBounds {
                looks: LOOKS_AT_ONCE.min(SCANNED_ROWS_MAX - scanned.looked_at),
                members: members_max - scanned.members,
                kept: kept - scanned.found.len(),
            };
            let step = self.segment_store.scan_matching(filter, after.as_ref(), bounds).await?;
            scanned.members += step.members;
            scanned.looked_at += step.looked_at;
            scanned.found.extend(step.found.into_iter().map(subscribers::Document::from));
            let Some(reached) = step.reached else { return Ok(scanned) };
            if scanned.members == members_max || scanned.looked_at == SCANNED_ROWS_MAX {
                scanned.next = Some(cursor(reached.as_str()));
                return Ok(scanned);
            }
            after = Some(reached);
        }
    }
}

/// Result of scanning subscribers.
struct SegmentScanResult {
    members: u64,
    looked_at: u64,
    next: Option<String>,
    found: Vec<subscribers::Document>,
}

/// Parses the filter of a stored segment, which was valid when it was stored.
pub(crate) fn stored_filter(segment: &Segment) -> Result<LdapFilter, ServiceError> {
    LdapFilter::parse(&segment.filter).map_err(|problems| {
        let text = problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
        ServiceError::Unavailable(format!("the segment `{}` cannot be read: {text}", segment.name).into())
    })
}
