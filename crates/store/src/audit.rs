//! Audit log: who changed what, when, from where and why. An entry is written in the commit of its change.
//!
//! A face puts a [`ChangeContext`] around the operation of a caller. Each SQLite file writes the entry itself, in the
//! transaction of any job that changed rows within a context, so no operation can omit it. Writers of rows add images,
//! the object before and after the change; without an image, the entry names the object of its context.
//!
//! Work without a context, such as that of the pipeline, is not audited. Entries are in the file of their change: the
//! log of an installation is the merge of its [`AuditTrail`]s.

use std::{borrow::Cow, cell::RefCell, fmt, future::Future, sync::Arc};

use async_trait::async_trait;
use parking_lot::Mutex;
use serde_json::Value as Json;
use tocsin_model::time::Timestamp;

use crate::{bounded_scan::ScanPage, error::StoreError, journal::PersonNames};

/// Maximum number of images of one commit; the last entry counts the others.
pub const IMAGES_MAX: usize = 100;
/// Maximum length of a text in an image; the rest is cut off.
pub const TEXT_BYTES_MAX: usize = 1_024;
/// Maximum length of an image; a longer one is not stored.
pub const IMAGE_BYTES_MAX: usize = 16 * 1_024;
/// Stands for a secret.
pub const MASK: &str = "***";

/// Caller and circumstances of a change.
pub struct ChangeContext {
    /// Text of the actor, such as `key:0a1b2c3d`.
    actor: Mutex<String>,
    /// Client address.
    pub address: Option<String>,
    /// Name of the operation, such as `subscribers.put`.
    pub action: Cow<'static, str>,
    /// Object of the operation, for changes without an image.
    pub object: Option<String>,
    /// Id of the request.
    pub request_id: Option<String>,
    /// Reason that the caller gave.
    reason: Mutex<Option<String>>,
    /// Clock of the process.
    pub clock: Arc<dyn Fn() -> Timestamp + Send + Sync>,
}

impl fmt::Debug for ChangeContext {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("ChangeContext").field("actor", &*self.actor.lock()).field("action", &self.action).finish()
    }
}

impl ChangeContext {
    /// A context without address, object, request id and reason.
    pub fn new(
        actor: impl Into<String>,
        action: impl Into<Cow<'static, str>>,
        clock: Arc<dyn Fn() -> Timestamp + Send + Sync>,
    ) -> ChangeContext {
        ChangeContext {
            actor: Mutex::new(actor.into()),
            address: None,
            action: action.into(),
            object: None,
            request_id: None,
            reason: Mutex::default(),
            clock,
        }
    }

    /// The same with a client address.
    #[must_use]
    pub fn at_address(self, address: Option<String>) -> ChangeContext {
        ChangeContext { address, ..self }
    }

    /// The same with an object, for changes without an image.
    #[must_use]
    pub fn on_object(self, object: &str) -> ChangeContext {
        ChangeContext { object: Some(cut(object).into_owned()), ..self }
    }

    /// The same with the id of a request.
    #[must_use]
    pub fn of_request(self, request_id: Option<String>) -> ChangeContext {
        ChangeContext { request_id, ..self }
    }

    /// The same with a reason.
    #[must_use]
    pub fn because(self, reason: Option<String>) -> ChangeContext {
        ChangeContext { reason: Mutex::new(reason), ..self }
    }
}

tokio::task_local! {
    static CONTEXT: Option<Arc<ChangeContext>>;
}

/// Runs an operation within a context.
pub fn scope<F: Future>(context: Arc<ChangeContext>, operation: F) -> impl Future<Output = F::Output> {
    CONTEXT.scope(Some(context), operation)
}

/// Runs work of the server itself, such as bookkeeping, within an operation: its changes are not audited.
pub fn unaudited<F: Future>(work: F) -> impl Future<Output = F::Output> {
    CONTEXT.scope(None, work)
}

/// Keeps the present context for a future that another task will run.
pub fn inherit<F: Future>(future: F) -> impl Future<Output = F::Output> {
    CONTEXT.scope(current(), future)
}

/// The context of the running operation, if any.
pub fn current() -> Option<Arc<ChangeContext>> {
    CONTEXT.try_with(Clone::clone).ok().flatten()
}

/// Sets the actor of the running operation, once a link or token that names it is verified.
pub fn set_actor(actor: impl FnOnce() -> String) {
    if let Some(context) = current() {
        *context.actor.lock() = actor();
    }
}

/// Sets the reason of the running operation, unless its caller gave one with the request.
pub fn set_reason(reason: &str) {
    if let Some(context) = current().filter(|_| !reason.is_empty()) {
        context.reason.lock().get_or_insert_with(|| cut(reason).into_owned());
    }
}

/// An object before and after a change; `None`: it did not exist, or does not any more.
#[derive(Debug, Clone, PartialEq)]
pub struct Image {
    /// Kind and id of the object, such as `subscriber:ada`.
    pub object: String,
    /// Before the change.
    pub before: Option<Json>,
    /// After the change.
    pub after: Option<Json>,
}

impl Image {
    /// An image of an object.
    pub fn of(kind: &str, id: impl fmt::Display, before: Option<Json>, after: Option<Json>) -> Image {
        Image { object: format!("{kind}:{id}"), before, after }
    }
}

/// Images of the job that runs on this writer thread.
#[derive(Debug, Default)]
pub(crate) struct JobImages {
    pub(crate) images: Vec<Image>,
    /// Number of images beyond the maximum.
    pub(crate) more: u64,
}

impl JobImages {
    pub(crate) fn is_empty(&self) -> bool {
        self.images.is_empty()
    }
}

thread_local! {
    static IMAGES: RefCell<Option<JobImages>> = const { RefCell::new(None) };
}

/// Adds an image to the entry of the running job. The closure runs only if the job is audited.
pub(crate) fn changed(image: impl FnOnce() -> Image) {
    if is_recording() {
        // The closure can read rows, and add images itself.
        let has_room =
            IMAGES.with_borrow(|images| images.as_ref().is_some_and(|found| found.images.len() < IMAGES_MAX));
        let image = has_room.then(image);
        IMAGES.with_borrow_mut(|images| match (images, image) {
            (Some(images), Some(image)) => images.images.push(image),
            (Some(images), None) => images.more += 1,
            (None, _) => {}
        });
    }
}

/// Whether the running job is audited, so that images are of use.
pub(crate) fn is_recording() -> bool {
    IMAGES.with_borrow(Option::is_some)
}

/// Runs a job on a writer thread, and returns its images.
pub(crate) fn with_images<T>(job: impl FnOnce() -> T) -> (T, JobImages) {
    /// Restores the images of an outer job, also after a panic.
    struct Outer(Option<JobImages>);
    impl Drop for Outer {
        fn drop(&mut self) {
            IMAGES.set(self.0.take());
        }
    }
    let outer = Outer(IMAGES.replace(Some(JobImages::default())));
    let result = job();
    let images = IMAGES.take().unwrap_or_default();
    drop(outer);
    (result, images)
}

/// An entry that is to be stored.
pub(crate) struct NewEntry<'a> {
    pub(crate) at: Timestamp,
    pub(crate) actor: String,
    pub(crate) reason: Option<String>,
    pub(crate) context: &'a ChangeContext,
    pub(crate) object: Option<String>,
    pub(crate) before: Option<String>,
    pub(crate) after: Option<String>,
    pub(crate) more: u64,
}

/// Entries of a commit: one for each image, or one for the object of the context.
pub(crate) fn entries(context: &ChangeContext, images: JobImages) -> Vec<NewEntry<'_>> {
    let JobImages { images, more } = images;
    let (at, actor, reason) = ((context.clock)(), context.actor.lock().clone(), context.reason.lock().clone());
    let entry = |object, before: Option<Json>, after: Option<Json>| NewEntry {
        at,
        actor: actor.clone(),
        reason: reason.clone(),
        context,
        object,
        before: before.map(stored),
        after: after.map(stored),
        more: 0,
    };
    let mut entries: Vec<_> = images
        .into_iter()
        .map(|image| entry(Some(cut(&image.object).into_owned()), image.before, image.after))
        .collect();
    if entries.is_empty() {
        entries.push(entry(context.object.clone(), None, None));
    }
    if let Some(last) = entries.last_mut() {
        last.more = more;
    }
    entries
}

/// Text of an image: secrets masked, long texts cut, within the limit of an image.
fn stored(mut image: Json) -> String {
    mask(&mut image);
    let text = image.to_string();
    if text.len() <= IMAGE_BYTES_MAX { text } else { r#"{"truncated":true}"#.to_owned() }
}

/// Names of members that hold secrets, or a part of them.
const SECRETS: [&str; 12] = [
    "password",
    "passwd",
    "secret",
    "token",
    "authorization",
    "credential",
    "private_key",
    "privatekey",
    "api_key",
    "apikey",
    "p256dh",
    "cookie",
];

/// Masks secrets, by the names of members and within URLs, and cuts long texts.
pub fn mask(value: &mut Json) {
    match value {
        Json::Object(members) => {
            for (name, value) in members {
                let lower = name.to_ascii_lowercase();
                let is_secret =
                    SECRETS.iter().any(|secret| lower.contains(secret)) || lower == "hash" || lower == "auth";
                // A flag such as `has_password` is no secret.
                if is_secret && !value.is_boolean() && !value.is_null() {
                    *value = Json::from(MASK);
                } else {
                    mask(value);
                }
            }
        }
        Json::Array(values) => values.iter_mut().for_each(mask),
        Json::String(text) => {
            if let Some(masked) = without_userinfo(text) {
                *text = masked;
            }
            if let Cow::Owned(shorter) = cut(text) {
                *text = shorter;
            }
        }
        Json::Null | Json::Bool(_) | Json::Number(_) => {}
    }
}

/// A text that begins with a URL with user and password, without them.
fn without_userinfo(text: &str) -> Option<String> {
    let (scheme, rest) = text.split_once("://")?;
    let authority = rest.split(['/', '?', '#']).next()?;
    let (userinfo, _) = authority.rsplit_once('@')?;
    Some(format!("{scheme}://{MASK}{}", &rest[userinfo.len()..]))
}

/// A text within the limit.
pub fn cut(text: &str) -> Cow<'_, str> {
    if text.len() <= TEXT_BYTES_MAX {
        return Cow::Borrowed(text);
    }
    Cow::Owned(format!("{}…", &text[..text.floor_char_boundary(TEXT_BYTES_MAX)]))
}

/// A stored entry.
#[derive(Debug, Clone, PartialEq)]
pub struct AuditEntry {
    /// Number within its trail.
    pub sequence: u64,
    /// Time of the change.
    pub at: Timestamp,
    /// Text of the actor.
    pub actor: String,
    /// Client address.
    pub address: Option<String>,
    /// Name of the operation.
    pub action: String,
    /// Kind and id of the object.
    pub object: Option<String>,
    /// The object before the change, as JSON.
    pub before: Option<String>,
    /// The object after the change, as JSON.
    pub after: Option<String>,
    /// Number of further objects that the commit changed, beyond the maximum.
    pub more: u64,
    /// Reason that the caller gave.
    pub reason: Option<String>,
    /// Id of the request.
    pub request_id: Option<String>,
}

/// Condition on a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Match {
    /// Equal.
    Exactly(String),
    /// Begins with it.
    Prefix(String),
}

impl Match {
    /// Reads a condition: a text that ends with `*` is a prefix.
    pub fn read(text: &str) -> Match {
        match text.strip_suffix('*') {
            Some(prefix) => Match::Prefix(prefix.to_owned()),
            None => Match::Exactly(text.to_owned()),
        }
    }

    fn holds(&self, text: &str) -> bool {
        match self {
            Match::Exactly(exact) => exact == text,
            Match::Prefix(prefix) => text.starts_with(prefix),
        }
    }
}

/// Filter of entries; each condition that is given must hold.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AuditFilter {
    /// Actor.
    pub actor: Option<Match>,
    /// Operation.
    pub action: Option<Match>,
    /// Object.
    pub object: Option<Match>,
    /// Id of the request.
    pub request_id: Option<String>,
    /// Earliest time.
    pub from: Option<Timestamp>,
    /// Time before which the entries are.
    pub to: Option<Timestamp>,
}

impl AuditFilter {
    /// Whether an entry satisfies all conditions but the times.
    pub fn holds(&self, entry: &AuditEntry) -> bool {
        let is = |condition: &Option<Match>, text: Option<&str>| match condition {
            None => true,
            Some(condition) => text.is_some_and(|text| condition.holds(text)),
        };
        is(&self.actor, Some(&entry.actor))
            && is(&self.action, Some(&entry.action))
            && is(&self.object, entry.object.as_deref())
            && self.request_id.as_ref().is_none_or(|id| entry.request_id.as_ref() == Some(id))
    }
}

/// Place in a trail: entries are ordered by time, then by number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct AuditPosition {
    /// Time.
    pub at: Timestamp,
    /// Number within the trail.
    pub sequence: u64,
}

impl AuditEntry {
    /// Its place.
    pub fn position(&self) -> AuditPosition {
        AuditPosition { at: self.at, sequence: self.sequence }
    }
}

/// Audit log of one file. Entries are only added, removed after their retention, and overwritten where they name an
/// erased person.
#[async_trait]
pub trait AuditTrail: Send + Sync + 'static {
    /// Name of the file.
    fn trail(&self) -> &'static str;

    /// Entries before a place, newest first. Reads a bounded number of rows: a page can be short, and have a next one.
    async fn entries(
        &self,
        filter: &AuditFilter,
        before: Option<AuditPosition>,
        limit: usize,
    ) -> Result<ScanPage<AuditEntry, AuditPosition>, StoreError>;

    /// Writes an entry of the running operation, for one that changes no rows, such as a backup.
    async fn record(&self, image: Image) -> Result<(), StoreError>;

    /// Removes up to `limit` entries from before a time, oldest first. Returns their number.
    async fn prune_entries(&self, before: Timestamp, limit: usize) -> Result<usize, StoreError>;

    /// Overwrites what names an erased person: images and reasons are removed, and the names in actors and objects
    /// replaced. Returns the number of entries.
    async fn erase_entries(&self, names: &PersonNames) -> Result<usize, StoreError>;
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn secrets_are_masked_and_long_texts_are_cut() {
        let long = "é".repeat(TEXT_BYTES_MAX);
        for (given, expected) in [
            (json!({"password": "a", "name": "b"}), json!({"password": "***", "name": "b"})),
            (json!({"has_password": true, "Client_Secret": 1}), json!({"has_password": true, "Client_Secret": "***"})),
            (json!([{"auth": "x", "p256dh": "y"}]), json!([{"auth": "***", "p256dh": "***"}])),
            (json!("https://a:b@c.example/d@e"), json!("https://***@c.example/d@e")),
            (json!("mailto:a@b.example"), json!("mailto:a@b.example")),
            (json!("https://c.example/d@e"), json!("https://c.example/d@e")),
            (json!(long), json!(format!("{}…", "é".repeat(TEXT_BYTES_MAX / 2)))),
            (json!({"token": null}), json!({"token": null})),
        ] {
            let mut masked = given.clone();
            mask(&mut masked);
            assert_eq!(masked, expected, "{given}");
        }
        let many: Vec<_> = (0..100).map(|_| "x".repeat(1_000)).collect();
        assert_eq!(stored(json!(many)), r#"{"truncated":true}"#);
    }

    #[test]
    fn a_commit_has_at_most_100_images_and_counts_the_others() {
        let context = ChangeContext::new("key:a", "test", Arc::new(|| Timestamp(7)));
        let image = |number: usize| changed(|| Image::of("thing", number, None, None));
        let ((), images) = with_images(|| (0..IMAGES_MAX + 5).for_each(image));
        let found = entries(&context, images);
        assert_eq!(found.len(), IMAGES_MAX);
        assert_eq!(found.last().map(|entry| (entry.object.as_deref(), entry.more)), Some((Some("thing:99"), 5)));
        assert_eq!(found[0].more, 0);
        assert!(!is_recording(), "the images belong to the job");
    }
}
