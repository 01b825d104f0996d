//! Suppressions of addresses: listing, setting and lifting by an operator, and reports of bounces and complaints.

mod lines; // lines of exports and imports

use tocsin_delivery::protocols;
use tocsin_feedback::policy::Evidence;
use tocsin_model::{
    feedback::Class,
    id::{Name, NotificationId, SubscriberId},
    mailbox::Mailbox,
    problem::{Code, Problem, closest},
    subscriber::Device,
    suppression::{
        ADDRESS_BYTES_MAX, Cause, DETAIL_BYTES_MAX, Report, Suppression, Target, TargetError, bound, cause_of_status,
    },
    time::Timestamp,
};
use tocsin_pipeline::feedback::FeedbackReport;
use tocsin_store::records::{Recipient, SuppressionFilter};

pub use self::lines::Document;
pub(crate) use self::lines::SuppressionLine;
use crate::{
    Service,
    error::ServiceError,
    feedback::fresh_key,
    keys::{Caller, Scope},
    page::{Page, key_of},
};

/// Maximum number of reports of one request.
pub const REPORTS_MAX: usize = 1_000;
/// Longest name of an origin, in bytes.
pub const ORIGIN_BYTES_MAX: usize = 128;

/// Input of a suppression: of an address, with `protocol` and `address`, or of a device, with `subscriber` and
/// `device`. Exports also have those of an address on a channel, with `application`, `channel` and `address`.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Draft {
    /// The protocol whose channels use the address, such as `smtp`.
    pub protocol: Option<String>,
    /// The application of the channel.
    pub application: Option<String>,
    /// The channel whose message was answered with a keyword.
    pub channel: Option<String>,
    /// The address. For a device: it holds only as long as the device has this one.
    pub address: Option<String>,
    /// The subscriber whose device it is.
    pub subscriber: Option<String>,
    /// The device.
    pub device: Option<String>,
    /// `manual` (the default), `hard_bounce`, `soft_bounce`, `unsubscribed` or `complaint`.
    pub cause: Option<String>,
    /// Reporter, such as the name of a provider; default: the id of the key.
    pub origin: Option<String>,
    /// Reason in the reporter's words.
    pub detail: Option<String>,
    /// Start; default: now.
    pub since: Option<Timestamp>,
    /// End; default: until it is lifted.
    pub expires_at: Option<Timestamp>,
}

/// A report of a bounce or complaint: of an address (`protocol` and `address`), of a device (`subscriber` and
/// `device`), or of a notification: the address of its recipient.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ReportDraft {
    /// `bounce`, `complaint` or `unsubscribe`.
    pub kind: String,
    /// For a bounce: whether it is permanent; default: by `status`.
    pub permanent: Option<bool>,
    /// For a bounce: its enhanced status code (RFC 3463), such as `5.1.1`.
    pub status: Option<String>,
    /// The notification, such as `n-3-41`.
    pub notification: Option<String>,
    /// The protocol of the address, such as `smtp`; with a notification that several channels tried, the protocol of
    /// the reporting one.
    pub protocol: Option<String>,
    /// The address.
    pub address: Option<String>,
    /// The subscriber whose device it is.
    pub subscriber: Option<String>,
    /// The device.
    pub device: Option<String>,
    /// Whether to suppress only that device at its present address, and not the address everywhere.
    pub only_device: bool,
    /// Reporter, such as the name of a provider; default: the id of the key.
    pub origin: Option<String>,
    /// Reason in the reporter's words.
    pub detail: Option<String>,
}

/// Result of a report.
#[derive(Debug, Clone, PartialEq)]
pub enum Reported {
    /// Suppression after the report.
    Known(Box<Document>),
    /// Reason why the report was rejected.
    Refused(Vec<Problem>),
}

/// Checks a draft and returns all problems. `origin` is the default reporter.
///
/// # Errors
/// Every problem found.
pub fn check(draft: Draft, origin: &str, now: Timestamp) -> Result<Suppression, Vec<Problem>> {
    let mut problems = Vec::new();
    let target = match draft.application.is_some() || draft.channel.is_some() {
        true => channel_target_of(&draft, &mut problems),
        false => target_of(
            draft.protocol.as_deref(),
            draft.address.as_deref(),
            draft.subscriber.as_deref(),
            draft.device.as_deref(),
            &mut problems,
        ),
    };
    let cause = match draft.cause.as_deref() {
        None => Cause::Manual,
        Some(word) => word.parse().unwrap_or_else(|()| {
            let words = Cause::ALL.map(Cause::word).join(", ");
            problems.push(
                Problem::new(Code::UnknownValue, "cause", format!("`{word}` is not a cause"))
                    .param("value", word.to_string())
                    .hint(format!("causes are {words}")),
            );
            Cause::Manual
        }),
    };
    let origin = checked_origin(draft.origin, origin, &mut problems);
    let detail = checked_detail(draft.detail, &mut problems);
    if draft.expires_at.is_some_and(|end| end <= now) {
        problems.push(
            Problem::new(Code::InThePast, "expires_at", "is over already")
                .hint("leave it out for a suppression without end"),
        );
    }
    if let Some(Target::Address { protocol, .. }) = &target
        && protocol.as_str() == "smtp"
        && let Some(Err(error)) = draft.address.as_deref().map(Mailbox::parse)
    {
        problems.push(error.problem("address"));
    }
    let address = match &target {
        Some(Target::Device { .. }) => draft.address.as_deref().map(bound),
        _ => None,
    };
    match target {
        Some(target) if problems.is_empty() => Ok(Suppression {
            target,
            address,
            cause,
            in_force: true,
            origin,
            detail,
            notification: None,
            bounces: Vec::new(),
            since: draft.since.unwrap_or(now),
            updated_at: now,
            expires_at: draft.expires_at,
        }),
        _ => Err(problems),
    }
}

/// Target: an address on a channel of an application. Only its owner suppresses it, so an operator's suppression is
/// never lifted by a keyword.
fn channel_target_of(draft: &Draft, problems: &mut Vec<Problem>) -> Option<Target> {
    let Draft { protocol, application, channel, address, subscriber, device, cause, .. } = draft;
    for (path, given) in [("protocol", protocol), ("subscriber", subscriber), ("device", device)] {
        if given.is_some() {
            let message = "goes with no channel: give `application`, `channel` and `address`";
            problems.push(Problem::new(Code::ConflictingMembers, path, message));
        }
    }
    if cause.as_deref() != Some(Cause::Unsubscribed.word()) {
        let message = "is `unsubscribed` for an address on a channel";
        let problem = Problem::new(Code::NotApplicable, "cause", message);
        problems.push(problem.hint("for another cause, give `protocol` and `address`"));
    }
    let mut name = |path: &str, text: &Option<String>| match text {
        Some(text) => read::<Name>(path, text, problems),
        None => {
            problems.push(Problem::new(Code::Required, path, "is required for an address on a channel"));
            None
        }
    };
    let (application, channel) = (name("application", application), name("channel", channel));
    match address {
        Some(text) => check_address(text, problems),
        None => problems.push(Problem::new(Code::Required, "address", "is required for an address on a channel")),
    }
    Some(Target::channel(&application?, &channel?, address.as_deref()?))
}

/// Target: a protocol and an address, or a subscriber and a device.
fn target_of(
    protocol: Option<&str>,
    address: Option<&str>,
    subscriber: Option<&str>,
    device: Option<&str>,
    problems: &mut Vec<Problem>,
) -> Option<Target> {
    if let Some(text) = address {
        check_address(text, problems);
    }
    let missing = |path, what: &str| Problem::new(Code::Required, path, format!("is required: give {what}"));
    match (protocol, address, subscriber, device) {
        (None, _, Some(subscriber), Some(device)) => {
            let subscriber = read("subscriber", subscriber, problems);
            let device = read("device", device, problems);
            Some(Target::Device { subscriber: subscriber?, device: device? })
        }
        (Some(protocol), Some(address), None, None) => {
            let protocol = known_protocol(protocol, problems)?;
            Some(Target::address(&protocol, address))
        }
        (Some(_), _, Some(_), _) | (Some(_), _, _, Some(_)) => {
            let problem = Problem::new(Code::ConflictingMembers, "protocol", "goes with an address, not with a device");
            problems.push(problem.hint("give `protocol` and `address`, or `subscriber` and `device`"));
            None
        }
        (_, _, Some(_), None) => {
            problems.push(missing("device", "the name of the subscriber's device"));
            None
        }
        (_, _, None, Some(_)) => {
            problems.push(missing("subscriber", "the id of the device's subscriber"));
            None
        }
        (Some(_), None, ..) => {
            problems.push(missing("address", "the address"));
            None
        }
        (None, Some(_), ..) => {
            problems.push(missing("protocol", "the protocol of the address, such as `smtp`"));
            None
        }
        (None, None, None, None) => {
            let problem = Problem::new(Code::Required, "", "names neither an address nor a device");
            problems.push(problem.hint("give `protocol` and `address`, or `subscriber` and `device`"));
            None
        }
    }
}

fn check_address(text: &str, problems: &mut Vec<Problem>) {
    let wrong = match text {
        _ if text.trim().is_empty() => "is empty".to_owned(),
        _ if text.len() > ADDRESS_BYTES_MAX => format!("is longer than {ADDRESS_BYTES_MAX} bytes"),
        _ if text.chars().any(char::is_control) => "holds control characters".to_owned(),
        _ => return,
    };
    problems.push(Problem::new(Code::InvalidFormat, "address", wrong).param("format", "address"));
}

/// Checks that a protocol exists.
pub fn known_protocol(text: &str, problems: &mut Vec<Problem>) -> Option<Name> {
    let names = || protocols().iter().map(|protocol| protocol.name);
    if names().any(|name| name == text) {
        return text.parse().ok();
    }
    let problem = Problem::new(Code::UnknownValue, "protocol", format!("`{text}` is not a protocol"))
        .param("value", text.to_string());
    problems.push(match closest(text, names()) {
        Some(meant) => problem.hint(format!("did you mean `{meant}`?")),
        None => problem.hint(format!("protocols are {}", names().collect::<Vec<_>>().join(", "))),
    });
    None
}

fn read<T: std::str::FromStr<Err = tocsin_model::id::IdError>>(
    path: &str,
    text: &str,
    problems: &mut Vec<Problem>,
) -> Option<T> {
    text.parse()
        .map_err(|error: T::Err| {
            problems.push(Problem::not(Code::InvalidFormat, path, error.expected).param("format", "name"))
        })
        .ok()
}

fn checked_origin(given: Option<String>, standard: &str, problems: &mut Vec<Problem>) -> String {
    let origin = given.unwrap_or_else(|| standard.to_owned());
    if origin.is_empty() || origin.len() > ORIGIN_BYTES_MAX || origin.chars().any(char::is_control) {
        let message = format!("is a name of 1 to {ORIGIN_BYTES_MAX} bytes, without control characters");
        problems.push(Problem::new(Code::InvalidFormat, "origin", message).param("format", "name"));
    }
    origin
}

fn checked_detail(given: Option<String>, problems: &mut Vec<Problem>) -> String {
    let detail = given.unwrap_or_default();
    if detail.len() > DETAIL_BYTES_MAX {
        problems.push(Problem::too_long("detail", detail.len(), DETAIL_BYTES_MAX));
    }
    detail
}

/// The suppression that a report asks for; `None`, with a problem, if it is invalid.
fn cause_of(draft: &ReportDraft, problems: &mut Vec<Problem>) -> Option<Cause> {
    let is_bounce = draft.kind == "bounce";
    for (path, given) in [("permanent", draft.permanent.is_some()), ("status", draft.status.is_some())] {
        if given && !is_bounce {
            problems.push(Problem::new(Code::NotApplicable, path, "is for bounces only"));
        }
    }
    match (draft.kind.as_str(), draft.permanent, draft.status.as_deref()) {
        ("complaint", ..) => Some(Cause::Complaint),
        ("unsubscribe", ..) => Some(Cause::Unsubscribed),
        ("bounce", Some(true), _) => Some(Cause::HardBounce),
        ("bounce", Some(false), _) => Some(Cause::SoftBounce),
        ("bounce", None, Some(status)) => cause_of_status(status).or_else(|| {
            let problem =
                Problem::new(Code::UnknownValue, "status", format!("`{status}` says of nothing that came back"))
                    .param("value", status.to_string());
            problems.push(problem.hint("give an enhanced status code, such as `5.1.1` or `4.2.2`, or `permanent`"));
            None
        }),
        ("bounce", None, None) => {
            let problem = Problem::new(Code::Required, "permanent", "is required: give true or false");
            problems.push(problem.hint("or give `status`, such as `5.1.1`"));
            None
        }
        (kind, ..) => {
            let problem = Problem::new(Code::UnknownValue, "kind", format!("`{kind}` is not a kind of report"))
                .param("value", kind.to_string());
            problems.push(problem.hint("kinds are bounce, complaint, unsubscribe"));
            None
        }
    }
}

impl Service {
    /// Lists suppressions in the order of their targets: addresses by protocol, then devices by subscriber.
    ///
    /// # Errors
    /// The scope `subscribers:read` is missing, or `after` is no cursor.
    pub async fn suppressions(
        &self,
        caller: &Caller,
        filter: SuppressionFilter,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Page<Document>, ServiceError> {
        caller.needs(Scope::SubscribersRead)?;
        let after: Option<Target> = key_of(after)?;
        let found = self.suppression_store.scan_suppressions(&filter, after.as_ref(), limit).await?;
        Ok(Page::of(found).map(|found| self.named_suppression(found)))
    }

    /// Returns the suppression of a target.
    ///
    /// # Errors
    /// The target is not suppressed.
    pub async fn suppression(&self, caller: &Caller, target: &Target) -> Result<Document, ServiceError> {
        caller.needs(Scope::SubscribersRead)?;
        let found = self.suppression_store.suppression(target).await?.filter(|found| found.is_active(self.clock.now()));
        let found = found.map(|found| self.named_suppression(found));
        found.ok_or_else(|| ServiceError::Missing(format!("a suppression of `{target}`")))
    }

    fn named_suppression(&self, found: Suppression) -> Document {
        Document { origin_name: self.key_name(&found.origin), ..found.into() }
    }

    /// Suppresses a target, replacing its suppression unless the cause of that one is more severe. Returns the
    /// suppression that holds, and whether it is new.
    ///
    /// # Errors
    /// `Invalid` with every problem; the device does not exist; the scope `subscribers:write` is missing.
    pub async fn put_suppression(
        &self,
        caller: &Caller,
        target: Target,
        mut draft: Draft,
    ) -> Result<(Document, bool), ServiceError> {
        caller.needs(Scope::SubscribersWrite)?;
        let mut problems = Vec::new();
        let mut agree = |path: &str, written: &mut Option<String>, meant: &str| {
            let same = |written: &String| written == meant || path == "address" && bound(written) == bound(meant);
            if let Some(other) = written.as_ref().filter(|written| !same(written)) {
                problems.push(Problem::address_mismatch(path, other, meant));
            }
            *written = Some(meant.to_owned());
        };
        match &target {
            Target::Address { protocol, address } => {
                agree("protocol", &mut draft.protocol, protocol.as_str());
                agree("address", &mut draft.address, address);
            }
            Target::Channel { application, channel, address } => {
                agree("application", &mut draft.application, application.as_str());
                agree("channel", &mut draft.channel, channel.as_str());
                agree("address", &mut draft.address, address);
            }
            Target::Device { subscriber, device } => {
                agree("subscriber", &mut draft.subscriber, subscriber.as_str());
                agree("device", &mut draft.device, device.as_str());
                self.find_device(subscriber, device).await?;
            }
        }
        let now = self.clock.now();
        let checked = check(draft, caller.key(), now).map_err(|found| {
            problems.extend(found);
            ServiceError::Invalid(std::mem::take(&mut problems))
        })?;
        if !problems.is_empty() {
            return Err(ServiceError::Invalid(problems));
        }
        let before = self.suppression_store.suppression(&checked.target).await?.filter(|found| found.is_active(now));
        self.suppression_store.put_suppressions(vec![checked.clone()]).await?;
        let held = self.suppression_store.suppression(&checked.target).await?.unwrap_or(checked);
        tracing::info!(cause = held.cause.word(), by = caller.key(), "suppressed an address");
        Ok((self.named_suppression(held), before.is_none()))
    }

    /// Lifts a suppression and resets its counters. Notifications refused meanwhile are not sent.
    ///
    /// # Errors
    /// There is none; the scope `subscribers:write` is missing.
    pub async fn remove_suppression(&self, caller: &Caller, target: &Target) -> Result<(), ServiceError> {
        caller.needs(Scope::SubscribersWrite)?;
        self.suppression_store.remove_suppression(target).await?;
        tracing::info!(by = caller.key(), "lifted a suppression");
        Ok(())
    }

    /// Applies reports one by one, in order; an invalid one does not stop the others.
    ///
    /// # Errors
    /// All are invalid, or there are more than [`REPORTS_MAX`]; the scope `bounces:write` is missing.
    pub async fn report_suppressions(
        &self,
        caller: &Caller,
        drafts: Vec<ReportDraft>,
    ) -> Result<Vec<Reported>, ServiceError> {
        caller.needs(Scope::BouncesWrite)?;
        if drafts.is_empty() || drafts.len() > REPORTS_MAX {
            return Err(ServiceError::from(
                Problem::new(Code::TooMany, "reports", format!("should be 1 to {REPORTS_MAX} reports"))
                    .param("limit", REPORTS_MAX),
            ));
        }
        let mut reported = Vec::with_capacity(drafts.len());
        let mut reports = Vec::with_capacity(drafts.len());
        for draft in drafts {
            match self.read_report(draft, caller.key()).await? {
                Ok(report) => {
                    reports.push(report);
                    reported.push(None);
                }
                Err(problems) => reported.push(Some(problems)),
            }
        }
        if reports.is_empty() {
            let within = |(at, problems): (usize, Vec<Problem>)| {
                problems.into_iter().map(move |problem| {
                    let path = format!("reports[{at}].{}", problem.path);
                    Problem { path: path.trim_end_matches('.').to_owned(), ..problem }
                })
            };
            let problems = reported.into_iter().flatten().enumerate().flat_map(within);
            return Err(ServiceError::Invalid(problems.collect()));
        }
        let known = self.apply_reports(reports).await?;
        tracing::info!(reports = known.len(), by = caller.key(), "took reports of bounces and complaints");
        let mut known = known.into_iter().map(|found| Reported::Known(Box::new(found.into())));
        let take = |problems: Option<Vec<Problem>>| match problems {
            Some(problems) => Reported::Refused(problems),
            None => known.next().expect("each good report has one answer"),
        };
        Ok(reported.into_iter().map(take).collect())
    }

    /// Applies reports of a caller by the policy of feedback. Returns the suppression after each: one that is not in
    /// force if the reports so far do not suffice.
    async fn apply_reports(&self, reports: Vec<Report>) -> Result<Vec<Suppression>, ServiceError> {
        let now = self.clock.now();
        let taken = |report: &Report| {
            let class = match report.cause {
                Cause::SoftBounce => Class::Soft,
                Cause::Manual | Cause::HardBounce => Class::Hard,
                Cause::Unsubscribed => Class::Unsubscribe,
                Cause::Complaint => Class::Complaint,
            };
            let key = report.notification.map_or_else(|| fresh_key(now), |id| id.to_string());
            FeedbackReport {
                evidence: Evidence::of_caller(class, key),
                target: report.target.clone(),
                address: report.address.clone(),
                device: None,
                notification: report.notification,
                origin: report.origin.clone(),
                detail: report.detail.clone(),
                status: None,
            }
        };
        self.pipeline.apply_feedback(&reports.iter().map(taken).collect::<Vec<_>>()).await?;
        let mut known = Vec::with_capacity(reports.len());
        for report in reports {
            let found = self.suppression_store.suppression(&report.target).await?;
            known.push(found.filter(|found| found.is_active(now)).unwrap_or_else(|| not_in_force(report, now)));
        }
        Ok(known)
    }

    async fn read_report(
        &self,
        draft: ReportDraft,
        origin: &str,
    ) -> Result<Result<Report, Vec<Problem>>, ServiceError> {
        let mut problems = Vec::new();
        let cause = cause_of(&draft, &mut problems);
        let origin = checked_origin(draft.origin.clone(), origin, &mut problems);
        // A receiver's reply can be of any length.
        let detail = tocsin_model::suppression::cut(draft.detail.clone().unwrap_or_default());
        let notification = draft.notification.as_deref().map(|id| read("notification", id, &mut problems));
        let meant = match notification {
            None => self.reported_target(&draft, &mut problems).await?,
            Some(None) => None,
            Some(Some(id)) => self.reported_notification(id, &draft, &mut problems).await?,
        };
        Ok(match (cause, meant) {
            (Some(cause), Some((target, address))) if problems.is_empty() => {
                let notification = notification.flatten();
                Ok(Report { target, address, cause, origin, detail, notification })
            }
            _ => Err(problems),
        })
    }

    /// Target of a report that names an address or a device.
    async fn reported_target(
        &self,
        draft: &ReportDraft,
        problems: &mut Vec<Problem>,
    ) -> Result<Option<(Target, Option<String>)>, ServiceError> {
        let ReportDraft { protocol, address, subscriber, device, .. } = draft;
        let target =
            target_of(protocol.as_deref(), address.as_deref(), subscriber.as_deref(), device.as_deref(), problems);
        let (subscriber, name) = match target {
            Some(Target::Device { subscriber, device }) => (subscriber, device),
            Some(target) => {
                if draft.only_device {
                    problems.push(Problem::new(
                        Code::MissingCounterpart,
                        "only_device",
                        "needs a device: give `subscriber` and `device`",
                    ));
                }
                return Ok(Some((target, None)));
            }
            None => return Ok(None),
        };
        let device = match self.find_device(&subscriber, &name).await {
            Ok(device) => device,
            Err(ServiceError::Missing(what)) => {
                problems.push(
                    Problem::new(Code::UnknownReference, "device", format!("{what} does not exist"))
                        .param("kind", "device"),
                );
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        let address = address.clone().unwrap_or_else(|| device.address.clone());
        if draft.only_device {
            return Ok(Some((Target::Device { subscriber, device: name }, Some(bound(&address)))));
        }
        let protocol = self.pipeline.status().into_iter().find_map(|(application, _)| {
            let compiled = self.pipeline.application(&application)?;
            compiled.application.channels.get(&device.channel).map(|channel| channel.protocol.clone())
        });
        match protocol {
            Some(protocol) => Ok(Some((Target::address(&protocol, &address), None))),
            None => {
                let problem = Problem::new(
                    Code::UnknownReference,
                    "device",
                    format!("no application has its channel `{}`", device.channel),
                )
                .param("kind", "channel");
                problems.push(problem.hint("give `protocol` and `address` instead"));
                Ok(None)
            }
        }
    }

    /// Target of a report that names a notification: the address of its recipient on the channel.
    async fn reported_notification(
        &self,
        id: NotificationId,
        draft: &ReportDraft,
        problems: &mut Vec<Problem>,
    ) -> Result<Option<(Target, Option<String>)>, ServiceError> {
        let found = match self.find_notification(id).await {
            Ok(found) => found,
            Err(ServiceError::Missing(_)) => {
                let problem = Problem::new(
                    Code::UnknownReference,
                    "notification",
                    format!("`{id}` is not known, or not any more"),
                )
                .param("kind", "notification")
                .param("value", id.to_string());
                problems.push(problem.hint("give the address"));
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        if draft.subscriber.is_some() || draft.device.is_some() {
            problems.push(Problem::new(
                Code::ConflictingMembers,
                "notification",
                "goes without `subscriber` and `device`: it says whose it was",
            ));
            return Ok(None);
        }
        let protocol = draft.protocol.as_deref().map(|text| known_protocol(text, problems));
        if protocol == Some(None) {
            return Ok(None);
        }
        if let Some(text) = &draft.address {
            check_address(text, problems);
        }
        let protocol = protocol.flatten();
        let compiled = self.pipeline.version(&found.head.application, found.head.version).await?;
        let protocol_of = |channel: &Name| {
            compiled.as_ref()?.application.channels.get(channel).map(|channel| channel.protocol.clone())
        };
        let fits = |device: &Device| match &protocol {
            Some(protocol) => protocol_of(&device.channel).as_ref() == Some(protocol),
            None => device.channel == found.head.channel,
        };
        let of_address =
            |device: &Device| draft.address.as_ref().is_none_or(|address| bound(&device.address) == bound(address));
        let device = found
            .recipient
            .as_ref()
            .and_then(|recipient| device_of(recipient, |device| fits(device) && of_address(device)));
        match (device, &draft.address) {
            (Some((name, device)), _) if draft.only_device => {
                let subscriber = found.recipient.as_ref().map(|found| found.id.clone());
                let target = subscriber.map(|subscriber| Target::Device { subscriber, device: name.clone() });
                Ok(target.map(|target| (target, Some(bound(&device.address)))))
            }
            (Some((_, device)), _) => {
                Ok(protocol_of(&device.channel).map(|protocol| (Target::address(&protocol, &device.address), None)))
            }
            (None, Some(address)) if !draft.only_device => {
                let protocol = protocol.or_else(|| protocol_of(&found.head.channel));
                Ok(protocol.map(|protocol| (Target::address(&protocol, address), None)))
            }
            _ => {
                let text = "its subscriber has no device by which it could have left";
                problems.push(
                    Problem::new(Code::MissingCounterpart, "notification", text).hint("give `protocol` and `address`"),
                );
                Ok(None)
            }
        }
    }

    async fn find_device(&self, subscriber: &SubscriberId, device: &Name) -> Result<Device, ServiceError> {
        let found = self.subscriber_store.subscriber(subscriber).await?;
        let found = found.and_then(|mut found| found.devices.remove(device));
        found.ok_or_else(|| ServiceError::Missing(format!("the device `{device}` of subscriber `{subscriber}`")))
    }
}

/// The state of a target that no suppression concerns, after a report.
fn not_in_force(report: Report, now: Timestamp) -> Suppression {
    Suppression {
        target: report.target,
        address: report.address,
        cause: report.cause,
        in_force: false,
        origin: report.origin,
        detail: report.detail,
        notification: report.notification,
        bounces: Vec::new(),
        since: now,
        updated_at: now,
        expires_at: Some(now),
    }
}

/// The device of a recipient: the subscription's own, else the first by name.
pub(crate) fn device_of(recipient: &Recipient, fits: impl Fn(&Device) -> bool) -> Option<(&Name, &Device)> {
    let named = recipient.interest.device.as_ref();
    let named = named.and_then(|name| recipient.devices.iter().find(|(known, _)| *known == name));
    named.filter(|(_, device)| fits(device)).or_else(|| recipient.devices.iter().find(|(_, device)| fits(device)))
}

/// Parses the target of an address on a channel.
///
/// # Errors
/// The names or the address cannot be ones.
pub fn channel_target(application: &str, channel: &str, address: &str) -> Result<Target, ServiceError> {
    let mut problems = Vec::new();
    check_address(address, &mut problems);
    let names = (read::<Name>("application", application, &mut problems), read("channel", channel, &mut problems));
    match names {
        (Some(application), Some(channel)) if problems.is_empty() => {
            Ok(Target::channel(&application, &channel, address))
        }
        _ => Err(ServiceError::Invalid(problems)),
    }
}

/// Parses the target of an address.
///
/// # Errors
/// There is no such protocol, or the address cannot be one.
pub fn address_target(protocol: &str, address: &str) -> Result<Target, ServiceError> {
    let mut problems = Vec::new();
    let target = target_of(Some(protocol), Some(address), None, None, &mut problems);
    target.filter(|_| problems.is_empty()).ok_or(ServiceError::Invalid(problems))
}

impl From<TargetError> for ServiceError {
    fn from(error: TargetError) -> Self {
        ServiceError::from(Problem::new(Code::InvalidFormat, "", error.to_string()).param("format", "target"))
    }
}
