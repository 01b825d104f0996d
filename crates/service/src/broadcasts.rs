//! Broadcasts: what everybody, or everybody of a segment, finds in the inbox. Kept once, however many they are.

use std::{collections::BTreeMap, time::Duration};

use tocsin_model::{
    id::{IdError, Name},
    inbox::{ACTIONS_MAX, Action, InboxContent, Wording, is_link},
    problem::Problem,
    subscriber::is_language_tag,
    time::Timestamp,
};
use tocsin_store::inbox::{Broadcast, NewBroadcast};

use crate::{
    Service,
    error::ServiceError,
    keys::{Caller, Scope},
};

/// How long a broadcast stays if nothing else is said.
pub const STAYS: Duration = Duration::from_secs(30 * 86_400);
/// The longest that one stays.
pub const STAYS_MAX: Duration = Duration::from_secs(3_660 * 86_400);
/// Bytes of what a broadcast says in all its languages, at most.
pub const BYTES_MAX: usize = 256 * 1024;
/// Languages of a broadcast, at most.
pub const TRANSLATIONS_MAX: usize = 100;

/// A broadcast as its sender writes it.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Draft {
    /// What it is, for filters; `broadcast` if nothing is said.
    pub class: Option<String>,
    /// The segment whose members see it; without one everybody does.
    pub audience: Option<String>,
    /// Its words.
    pub wording: Wording,
    /// The words for those with another locale.
    pub translations: BTreeMap<String, Wording>,
    /// When it goes by itself; 30 days from now if nothing is said.
    pub expires_at: Option<Timestamp>,
}

impl Service {
    /// Stores a broadcast under a name of its application, in place of one that is there. Gives whether it is new.
    ///
    /// # Errors
    /// The scope `inbox:write` is missing; there is no such application; every problem in the draft; there are too many.
    pub async fn put_broadcast(
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
        // Whoever says nothing about its end leaves it as it was, so that saying the same again changes nothing.
        draft.expires_at = draft.expires_at.or(present.map(|present| present.expires_at));
        let (new, mut problems) = check(draft, application, name, now);
        if let Some(segment) = &new.audience
            && self.records.segment(segment).await?.is_none()
        {
            let problem = Problem::at("audience", format!("there is no segment `{segment}`"));
            problems.push(problem.hint("store it first; without an audience everybody sees the broadcast"));
        }
        if !problems.is_empty() {
            return Err(ServiceError::Invalid(problems));
        }
        let (stored, is_new) = self.inbox.put_broadcast(new, now).await?;
        tracing::info!(%application, broadcast = %name, id = %stored.id, is_new, by = caller.key(), "a broadcast is stored");
        Ok((stored, is_new))
    }

    /// The broadcasts of an application that somebody may see, newest first.
    ///
    /// # Errors
    /// The scope `inbox:read` is missing, or there is no such application.
    pub async fn broadcasts(&self, caller: &Caller, application: &Name) -> Result<Vec<Broadcast>, ServiceError> {
        caller.needs(Scope::InboxRead)?;
        self.find_application(application).await?;
        Ok(self.inbox.broadcasts(application, self.clock.now()).await?)
    }

    /// One of them.
    ///
    /// # Errors
    /// There is none of this name.
    pub async fn broadcast(&self, caller: &Caller, application: &Name, name: &Name) -> Result<Broadcast, ServiceError> {
        let found = self.broadcasts(caller, application).await?.into_iter().find(|known| known.name == *name);
        found.ok_or_else(|| ServiceError::Missing(format!("the broadcast `{name}`")))
    }

    /// Takes a broadcast back: nobody sees it any more.
    ///
    /// # Errors
    /// The scope `inbox:write` is missing, or there is none of this name.
    pub async fn withdraw_broadcast(
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
        match self.records.application(name, None).await? {
            Some(_) => Ok(()),
            None => Err(ServiceError::no_application(name)),
        }
    }
}

/// A draft, completely checked.
fn check(draft: Draft, application: &Name, name: &Name, now: Timestamp) -> (NewBroadcast, Vec<Problem>) {
    let mut problems = Vec::new();
    let mut named = |path: &str, text: Option<String>| {
        let parsed = text.map(|text| text.parse::<Name>());
        let wrong = |error: IdError| problems.push(Problem::at(path, format!("is not {}", error.expected)));
        parsed.and_then(|parsed| parsed.map_err(wrong).ok())
    };
    let class = named("class", draft.class).unwrap_or_else(|| "broadcast".parse().expect("a name"));
    let audience = named("audience", draft.audience);
    check_wording(&draft.wording, "", &mut problems);
    if draft.translations.len() > TRANSLATIONS_MAX {
        let message = format!("has {} entries; at most {TRANSLATIONS_MAX} fit", draft.translations.len());
        problems.push(Problem::at("translations", message));
    }
    for (locale, wording) in &draft.translations {
        let path = format!("translations.{locale}");
        if !is_language_tag(locale) {
            let problem = Problem::at(&path, format!("`{locale}` is not a language tag"));
            problems.push(problem.hint("give BCP 47, such as `de` or `pt-BR`"));
        }
        check_wording(wording, &format!("{path}."), &mut problems);
    }
    let bytes = serde_json::to_vec(&(&draft.wording, &draft.translations)).map_or(0, |json| json.len());
    if bytes > BYTES_MAX {
        problems.push(Problem::at("", format!("it says {bytes} bytes in all; at most {BYTES_MAX} fit")));
    }
    match draft.expires_at {
        Some(end) if end <= now => problems.push(Problem::at("expires_at", "lies in the past")),
        Some(end) if end > now + STAYS_MAX => {
            let days = STAYS_MAX.as_secs() / 86_400;
            problems.push(Problem::at("expires_at", format!("lies more than {days} days ahead")));
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
    let expires_at = draft.expires_at.unwrap_or(now + STAYS);
    (NewBroadcast { name: name.clone(), audience, content, expires_at }, problems)
}

fn check_wording(wording: &Wording, path: &str, problems: &mut Vec<Problem>) {
    let Wording { subject, text, html, link, actions, .. } = wording;
    if [subject, text, html].into_iter().all(|part| part.as_ref().is_none_or(|part| part.trim().is_empty())) {
        let problem = Problem::at(path.trim_end_matches('.'), "says nothing");
        problems.push(problem.hint("give a `subject`, a `text` or `html`"));
    }
    if subject.as_ref().is_some_and(|subject| subject.chars().any(char::is_control)) {
        problems.push(Problem::at(format!("{path}subject"), "is more than one line, or holds control characters"));
    }
    let hint = "give an address of the web, such as `https://example.org/a`, or a path such as `/a`";
    if link.as_ref().is_some_and(|link| !is_link(link)) {
        problems.push(Problem::at(format!("{path}link"), "is not a link").hint(hint));
    }
    if actions.len() > ACTIONS_MAX {
        let message = format!("has {} entries; at most {ACTIONS_MAX} fit", actions.len());
        problems.push(Problem::at(format!("{path}actions"), message));
    }
    for (at, Action { label, link }) in actions.iter().enumerate() {
        if label.trim().is_empty() || label.chars().count() > tocsin_model::inbox::LABEL_CHARACTERS_MAX {
            problems.push(Problem::at(format!("{path}actions[{at}].label"), "should have 1 to 100 characters"));
        }
        if !is_link(link) {
            problems.push(Problem::at(format!("{path}actions[{at}].link"), "is not a link").hint(hint));
        }
    }
}
