//! Inbox broadcasts: inbox items for all subscribers of an application, or for a segment. Each is stored once.

use std::{collections::BTreeMap, time::Duration};

use tocsin_model::{
    id::{IdError, Name},
    inbox::{ACTIONS_MAX, Action, InboxContent, Wording, is_link},
    problem::{Code, Problem},
    subscriber::is_language_tag,
    time::Timestamp,
};
use tocsin_store::inbox::{Broadcast, NewBroadcast};

use crate::{
    Service,
    error::ServiceError,
    keys::{Caller, Scope},
};

/// Default time to live of a broadcast.
pub const LIFETIME: Duration = Duration::from_secs(30 * 86_400);
/// Maximum time to live of a broadcast.
pub const LIFETIME_MAX: Duration = Duration::from_secs(3_660 * 86_400);
/// Maximum bytes of a broadcast's content in all its languages.
pub const BYTES_MAX: usize = 256 * 1024;
/// Maximum number of languages of a broadcast.
pub const TRANSLATIONS_MAX: usize = 100;

/// A broadcast as written by its sender.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Draft {
    /// Kind, for filters; default `broadcast`.
    pub class: Option<String>,
    /// Segment of the recipients; all subscribers if absent.
    pub audience: Option<String>,
    /// Content in the default language.
    pub wording: Wording,
    /// Content for other locales.
    pub translations: BTreeMap<String, Wording>,
    /// Expiry; default 30 days from now.
    pub expires_at: Option<Timestamp>,
}

impl Service {
    /// Stores a broadcast under a name of its application, replacing one with that name. Returns whether it is new.
    ///
    /// # Errors
    /// The scope `inbox:write` is missing; the application does not exist; every problem in the draft; there are too many.
    pub async fn put_inbox_broadcast(
        &self,
        caller: &Caller,
        application: &Name,
        name: &Name,
        mut draft: Draft,
    ) -> Result<(Broadcast, bool), ServiceError> {
        caller.needs(Scope::InboxWrite)?;
        self.find_application(application).await?;
        let now = self.clock.now();
        let present = self.inbox.broadcasts(application, now).await?.into_iter().find(|known| known.name == *name);
        // Without an expiry in the draft the stored one is kept, so that a repeated request changes nothing.
        draft.expires_at = draft.expires_at.or(present.map(|present| present.expires_at));
        let (new, mut problems) = check(draft, application, name, now);
        // The segment of an audience cannot be removed meanwhile.
        let _one_at_a_time = match new.audience {
            Some(_) => Some(self.applying.lock().await),
            None => None,
        };
        if let Some(segment) = &new.audience
            && self.segment_store.segment(segment).await?.is_none()
        {
            let problem = Problem::new(Code::UnknownReference, "audience", format!("there is no segment `{segment}`"))
                .param("value", segment.to_string())
                .param("kind", "segment");
            problems.push(problem.hint("store it first; without an audience everybody sees the broadcast"));
        }
        if !problems.is_empty() {
            return Err(ServiceError::Invalid(problems));
        }
        let (stored, is_new) = self.inbox.put_broadcast(new, now).await?;
        tracing::info!(%application, broadcast = %name, id = %stored.id, is_new, by = caller.key(), "a broadcast is stored");
        Ok((stored, is_new))
    }

    /// Lists the broadcasts of an application, newest first.
    ///
    /// # Errors
    /// The scope `inbox:read` is missing, or the application does not exist.
    pub async fn inbox_broadcasts(&self, caller: &Caller, application: &Name) -> Result<Vec<Broadcast>, ServiceError> {
        caller.needs(Scope::InboxRead)?;
        self.find_application(application).await?;
        Ok(self.inbox.broadcasts(application, self.clock.now()).await?)
    }

    /// Returns a broadcast.
    ///
    /// # Errors
    /// The broadcast does not exist.
    pub async fn inbox_broadcast(
        &self,
        caller: &Caller,
        application: &Name,
        name: &Name,
    ) -> Result<Broadcast, ServiceError> {
        let found = self.inbox_broadcasts(caller, application).await?.into_iter().find(|known| known.name == *name);
        found.ok_or_else(|| ServiceError::Missing(format!("the broadcast `{name}`")))
    }

    /// Withdraws a broadcast: it disappears from all inboxes.
    ///
    /// # Errors
    /// The scope `inbox:write` is missing, or the broadcast does not exist.
    pub async fn withdraw_inbox_broadcast(
        &self,
        caller: &Caller,
        application: &Name,
        name: &Name,
    ) -> Result<(), ServiceError> {
        caller.needs(Scope::InboxWrite)?;
        self.inbox.withdraw_broadcast(application, name, self.clock.now()).await?;
        tracing::info!(%application, broadcast = %name, by = caller.key(), "a broadcast is withdrawn");
        Ok(())
    }

    async fn find_application(&self, name: &Name) -> Result<(), ServiceError> {
        match self.application_store.application(name, None).await? {
            Some(_) => Ok(()),
            None => Err(ServiceError::no_application(name)),
        }
    }
}

/// Checks a draft.
fn check(draft: Draft, application: &Name, name: &Name, now: Timestamp) -> (NewBroadcast, Vec<Problem>) {
    let mut problems = Vec::new();
    let mut named = |path: &str, text: Option<String>| {
        let parsed = text.map(|text| text.parse::<Name>());
        let wrong = |error: IdError| {
            problems.push(Problem::not(Code::InvalidFormat, path, error.expected).param("format", "name"))
        };
        parsed.and_then(|parsed| parsed.map_err(wrong).ok())
    };
    let class = named("class", draft.class).unwrap_or_else(|| "broadcast".parse().expect("a name"));
    let audience = named("audience", draft.audience);
    check_wording(&draft.wording, "", &mut problems);
    if draft.translations.len() > TRANSLATIONS_MAX {
        let message = format!("has {} entries; at most {TRANSLATIONS_MAX} fit", draft.translations.len());
        problems.push(
            Problem::new(Code::TooMany, "translations", message)
                .param("given", draft.translations.len())
                .param("limit", TRANSLATIONS_MAX),
        );
    }
    for (locale, wording) in &draft.translations {
        let path = format!("translations.{locale}");
        if !is_language_tag(locale) {
            let problem = Problem::new(Code::InvalidFormat, &path, format!("`{locale}` is not a language tag"))
                .param("format", "language_tag")
                .param("value", locale.to_string());
            problems.push(problem.hint("give BCP 47, such as `de` or `pt-BR`"));
        }
        check_wording(wording, &format!("{path}."), &mut problems);
    }
    let bytes = serde_json::to_vec(&(&draft.wording, &draft.translations)).map_or(0, |json| json.len());
    if bytes > BYTES_MAX {
        problems.push(
            Problem::new(Code::TooLong, "", format!("it says {bytes} bytes in all; at most {BYTES_MAX} fit"))
                .param("given", bytes)
                .param("limit", BYTES_MAX)
                .param("unit", "bytes"),
        );
    }
    match draft.expires_at {
        Some(end) if end <= now => problems.push(Problem::new(Code::InThePast, "expires_at", "lies in the past")),
        Some(end) if end > now + LIFETIME_MAX => {
            let days = LIFETIME_MAX.as_secs() / 86_400;
            problems.push(Problem::new(Code::OutOfRange, "expires_at", format!("lies more than {days} days ahead")));
        }
        _ => {}
    }
    let content = InboxContent {
        application: application.clone(),
        class,
        channel: None,
        event: None,
        wording: draft.wording,
        translations: draft.translations,
    };
    let expires_at = draft.expires_at.unwrap_or(now + LIFETIME);
    (NewBroadcast { name: name.clone(), audience, content, expires_at }, problems)
}

fn check_wording(wording: &Wording, path: &str, problems: &mut Vec<Problem>) {
    let Wording { subject, text, html, link, actions, .. } = wording;
    if [subject, text, html].into_iter().all(|part| part.as_ref().is_none_or(|part| part.trim().is_empty())) {
        let problem = Problem::new(Code::Empty, path.trim_end_matches('.'), "says nothing");
        problems.push(problem.hint("give a `subject`, a `text` or `html`"));
    }
    if subject.as_ref().is_some_and(|subject| subject.chars().any(char::is_control)) {
        problems.push(Problem::new(
            Code::InvalidCharacters,
            format!("{path}subject"),
            "is more than one line, or holds control characters",
        ));
    }
    let hint = "give an address of the web, such as `https://example.org/a`, or a path such as `/a`";
    if link.as_ref().is_some_and(|link| !is_link(link)) {
        problems.push(
            Problem::new(Code::InvalidFormat, format!("{path}link"), "is not a link").param("format", "url").hint(hint),
        );
    }
    if actions.len() > ACTIONS_MAX {
        let message = format!("has {} entries; at most {ACTIONS_MAX} fit", actions.len());
        problems.push(
            Problem::new(Code::TooMany, format!("{path}actions"), message)
                .param("given", actions.len())
                .param("limit", ACTIONS_MAX),
        );
    }
    for (at, Action { label, link }) in actions.iter().enumerate() {
        if label.trim().is_empty() || label.chars().count() > tocsin_model::inbox::LABEL_CHARACTERS_MAX {
            problems.push(
                Problem::new(Code::TooLong, format!("{path}actions[{at}].label"), "should have 1 to 100 characters")
                    .param("limit", 100)
                    .param("unit", "characters"),
            );
        }
        if !is_link(link) {
            problems.push(
                Problem::new(Code::InvalidFormat, format!("{path}actions[{at}].link"), "is not a link")
                    .param("format", "url")
                    .hint(hint),
            );
        }
    }
}
