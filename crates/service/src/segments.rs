//! Segments: saved filters over subscribers, who belongs to them, and how many that would be.

use serde::{Deserialize, Serialize};
use tocsin_model::{
    id::{Name, SubscriberId},
    ldap::{Entry, LdapFilter, Truth},
    problem::Problem,
    segment::Segment,
    time::Timestamp,
};
use tocsin_store::records::{Expect, NewSegment, SurveyBounds};
use utoipa::ToSchema;

use crate::{
    Service,
    error::ServiceError,
    keys::{Caller, Scope},
    page::{Page, cursor, key_of},
    subscribers::{self, Put},
};

/// Most segments of an installation.
pub const SEGMENTS_MAX: usize = 1_000;
/// Most bytes of a description.
pub const DESCRIPTION_BYTES_MAX: usize = 4_096;
/// Most members that a preview shows.
pub const SAMPLE_MAX: usize = 100;
/// Most subscribers that one request looks at; the next one goes on from there.
pub const LOOKS_MAX: u64 = 1_000_000;
/// Most requests that look through subscribers at a time.
pub const SURVEYS_MAX: usize = 4;
/// Subscribers that are looked at in one go. Other readers come in between.
const LOOKS_AT_ONCE: u64 = 10_000;

/// A name that is an address of its own.
const PREVIEW: &str = "preview";

/// A segment as its creator writes it. What the platform adds may stand there and is passed over.
#[derive(Debug, Clone, PartialEq, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = SegmentDraft)]
pub struct Draft {
    /// Its name: a letter, then up to 63 letters, digits, `_` or `-`; not `preview`.
    #[serde(default)]
    pub name: Option<String>,
    /// What it is for.
    #[serde(default)]
    pub description: Option<String>,
    /// A filter of LDAP (RFC 4515) over the subscriber's attributes, such as `(&(region=Vienna)(age>=18))`.
    pub filter: String,
    #[serde(default, rename = "canonical")]
    #[schema(ignore)]
    _canonical: serde::de::IgnoredAny,
    #[serde(default, rename = "created_at")]
    #[schema(ignore)]
    _created_at: serde::de::IgnoredAny,
    #[serde(default, rename = "updated_at")]
    #[schema(ignore)]
    _updated_at: serde::de::IgnoredAny,
    #[serde(default, rename = "revision")]
    #[schema(ignore)]
    _revision: serde::de::IgnoredAny,
}

/// A segment as the platform shows it. A [`Draft`] reads it.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[schema(as = Segment)]
pub struct Document {
    /// Its name.
    pub name: String,
    /// What it is for.
    pub description: Option<String>,
    /// Its filter, as it was written.
    pub filter: String,
    /// The same filter in normal form: what is the same for all filters that say the same in the same words.
    pub canonical: Option<String>,
    /// When it was made.
    #[schema(value_type = String, format = DateTime)]
    pub created_at: Timestamp,
    /// When it last changed.
    #[schema(value_type = String, format = DateTime)]
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

/// What a preview is asked for.
#[derive(Debug, Clone, PartialEq, Default, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = SegmentPreviewRequest)]
pub struct Ask {
    /// A filter, as a segment has it.
    pub filter: String,
    /// How many members to show; 0 to 100, default 10.
    #[serde(default)]
    pub sample: Option<usize>,
    /// The cursor of the preview before, to go on counting.
    #[serde(default)]
    pub after: Option<String>,
}

/// How many subscribers meet a filter, and some of them.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[schema(as = SegmentPreview)]
pub struct Preview {
    /// The filter in normal form.
    pub canonical: String,
    /// How many meet it, of those looked at.
    pub members: u64,
    /// How many were looked at: at most 1,000,000 in one request. Whom a condition on the id rules out is not.
    pub looked_at: u64,
    /// How many subscribers there are.
    pub subscribers: u64,
    /// Where to go on counting, as `after`; absent if all were looked at.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
    /// The first members, in the order of their ids.
    pub sample: Vec<subscribers::Document>,
}

/// Whether a subscriber belongs to a segment, and why.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[schema(as = SegmentMembership)]
pub struct Membership {
    /// Whether it does: only if the filter is true.
    pub member: bool,
    /// `true`, `false` or `undefined`.
    pub truth: String,
    /// What each part of the filter says; all parts must be true.
    pub parts: Vec<Part>,
}

/// What one part of a filter says of a subscriber.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[schema(as = SegmentPart)]
pub struct Part {
    /// The part.
    pub filter: String,
    /// `true`, `false` or `undefined`.
    pub truth: String,
}

/// Reads a filter.
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
            problems.push(Problem::at("name", format!("is `{written}`, but the address says `{name}`")));
            None
        }
        (_, Some(name)) => Some(name.clone()),
        (Some(written), None) => match written.parse::<Name>() {
            Ok(name) => Some(name),
            Err(error) => {
                problems.push(Problem::at("name", format!("is not {}", error.expected)));
                None
            }
        },
        (None, None) => {
            problems.push(Problem::at("name", "is required: give a name"));
            None
        }
    };
    if name.as_ref().is_some_and(|name| name.as_str() == PREVIEW) {
        problems.push(Problem::at("name", "is the address of previews").hint("choose another name"));
    }
    if let Some(bytes) = draft.description.as_ref().map(String::len).filter(|bytes| *bytes > DESCRIPTION_BYTES_MAX) {
        let message = format!("takes {bytes} bytes; at most {DESCRIPTION_BYTES_MAX} fit");
        problems.push(Problem::at("description", message));
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
    /// Some segments in the order of their names.
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
        let found = self.records.segments(after.as_ref(), limit + 1).await?;
        Ok(Page::cut(found, limit, |segment| segment.name.to_string()).map(Document::from))
    }

    /// One segment.
    ///
    /// # Errors
    /// There is none of this name.
    pub async fn segment(&self, caller: &Caller, name: &Name) -> Result<Document, ServiceError> {
        caller.needs(Scope::SubscribersRead)?;
        Ok(self.find_segment(name).await?.into())
    }

    /// Stores a segment; with `name`, a draft of another name is refused. The answer says whether it is new.
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
        let present = self.records.segment(&new.name).await?;
        if present.is_none() && self.records.segments(None, SEGMENTS_MAX).await?.len() == SEGMENTS_MAX {
            return Err(ServiceError::invalid("name", format!("there are {SEGMENTS_MAX} segments; no more fit")));
        }
        let expect = match put {
            Put::Create => Expect::Absent,
            Put::Replace(Some(revision)) => Expect::Revision(revision),
            Put::Replace(None) => Expect::Any,
        };
        let stored = self.records.put_segment(new, expect, self.clock.now()).await?;
        Ok((stored.into(), present.is_none()))
    }

    /// Removes a segment that is nobody's audience.
    ///
    /// # Errors
    /// There is none, it has another revision than expected, or a rule of an application that runs tells it.
    pub async fn remove_segment(
        &self,
        caller: &Caller,
        name: &Name,
        revision: Option<u64>,
    ) -> Result<(), ServiceError> {
        caller.needs(Scope::SubscribersWrite)?;
        // No application comes to use it meanwhile.
        let _one_at_a_time = self.applying.lock().await;
        for version in self.records.applications().await? {
            let Some(running) = self.pipeline.application(&version.name) else { continue };
            let rules = &running.application.rules;
            if let Some((rule, _)) = rules.iter().find(|(_, rule)| rule.audience.as_ref() == Some(name)) {
                let what = format!("the segment `{name}`");
                return Err(ServiceError::InUse { what, by: format!("the rule `{rule}` of `{}`", version.name) });
            }
        }
        let expect = revision.map_or(Expect::Present, Expect::Revision);
        Ok(self.records.remove_segment(name, expect, self.clock.now()).await?)
    }

    /// Some members of a segment in the order of their ids. Where members are few, a page may hold less than `limit`, or
    /// nothing, and still have a next one: a request looks at [`LOOKS_MAX`] subscribers at most.
    ///
    /// # Errors
    /// There is no such segment; `after` is no cursor; too many look through subscribers already.
    pub async fn segment_members(
        &self,
        caller: &Caller,
        name: &Name,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Page<subscribers::Document>, ServiceError> {
        caller.needs(Scope::SubscribersRead)?;
        let filter = stored_filter(&self.find_segment(name).await?)?;
        let surveyed = self.look_through(&filter, key_of(after)?, limit as u64, limit).await?;
        Ok(Page { items: surveyed.found, next: surveyed.next })
    }

    /// Counts who meets the filter of a segment, and shows some of them.
    ///
    /// # Errors
    /// As [`Service::preview_filter`], or there is no such segment.
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

    /// Counts who meets a filter that is not saved, and shows some of them.
    ///
    /// # Errors
    /// The filter is not one; the sample is too large; `after` is no cursor; too many look through subscribers already.
    pub async fn preview_filter(&self, caller: &Caller, ask: Ask) -> Result<Preview, ServiceError> {
        caller.needs(Scope::SubscribersRead)?;
        let filter = read_filter(&ask.filter)?;
        let sample = ask.sample.unwrap_or(10);
        if sample > SAMPLE_MAX {
            return Err(ServiceError::invalid("sample", format!("should be from 0 to {SAMPLE_MAX}")));
        }
        let surveyed = self.look_through(&filter, key_of(ask.after.as_deref())?, u64::MAX, sample).await?;
        Ok(Preview {
            canonical: filter.to_string(),
            members: surveyed.members,
            looked_at: surveyed.looked_at,
            subscribers: self.records.counts().subscribers,
            next: surveyed.next,
            sample: surveyed.found,
        })
    }

    /// Whether a subscriber belongs to a segment, part by part.
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

    async fn find_segment(&self, name: &Name) -> Result<Segment, ServiceError> {
        self.records.segment(name).await?.ok_or_else(|| ServiceError::Missing(format!("the segment `{name}`")))
    }

    /// Surveys step by step, to the first of the bounds.
    async fn look_through(
        &self,
        filter: &LdapFilter,
        mut after: Option<SubscriberId>,
        members_max: u64,
        kept: usize,
    ) -> Result<Surveyed, ServiceError> {
        let _place = self.surveys.try_acquire().map_err(|_| ServiceError::TooMany {
            reason: format!("{SURVEYS_MAX} requests look through subscribers already"),
            retry_after: std::time::Duration::from_secs(1),
        })?;
        let mut surveyed = Surveyed { members: 0, looked_at: 0, next: None, found: Vec::new() };
        loop {
            let bounds = SurveyBounds {
                looks: LOOKS_AT_ONCE.min(LOOKS_MAX - surveyed.looked_at),
                members: members_max - surveyed.members,
                kept: kept - surveyed.found.len(),
            };
            let step = self.records.survey(filter, after.as_ref(), bounds).await?;
            surveyed.members += step.members;
            surveyed.looked_at += step.looked_at;
            surveyed.found.extend(step.found.into_iter().map(subscribers::Document::from));
            let Some(reached) = step.reached else { return Ok(surveyed) };
            if surveyed.members == members_max || surveyed.looked_at == LOOKS_MAX {
                surveyed.next = Some(cursor(reached.as_str()));
                return Ok(surveyed);
            }
            after = Some(reached);
        }
    }
}

/// What looking through subscribers gave.
struct Surveyed {
    members: u64,
    looked_at: u64,
    next: Option<String>,
    found: Vec<subscribers::Document>,
}

/// The filter of a stored segment, which was read when it was stored.
fn stored_filter(segment: &Segment) -> Result<LdapFilter, ServiceError> {
    LdapFilter::parse(&segment.filter).map_err(|problems| {
        let told = problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
        ServiceError::Unavailable(format!("the segment `{}` cannot be read: {told}", segment.name).into())
    })
}
