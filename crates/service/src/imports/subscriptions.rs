//! Import of subscriptions.

use std::{borrow::Cow, collections::BTreeMap, sync::Arc};

use tocsin_delivery::TokenSigner;
use tocsin_model::{
    consent::{ConsentState, EvidenceAddress},
    id::Name,
    lifecycle::ChangeOrigin,
    problem::{Code, Problem},
    time::Timestamp,
    value::Value,
};
use tocsin_pipeline::Compiled;
use tocsin_store::{
    error::StoreError,
    records::{ConsentStore, NewConsented, NewSubscription, SubscriberStore, SubscriptionStore},
};

use super::lines::{
    LineKind, PASSED_OVER, ReadLine, Written, boolean, in_line, is_exported, joined, unknown_column, written,
};
use crate::{
    Service,
    consent_actor::{ConsentActor, ConsentDraft, evidence_address},
    csv_cells,
    error::read_object,
    subscriptions::{self, Basis, Checked, Class, Draft, FilterDraft, ScheduleDraft, SubscriptionLine, Used},
};

/// Lines of subscriptions.
pub(super) struct SubscriptionLines {
    /// Application and class of the whole import, if given.
    pub(super) application: Option<String>,
    pub(super) class: Option<String>,
    /// Class of all lines, if both are given.
    pub(super) whole: Option<Class>,
    /// Applications that were running when the import began.
    pub(super) known: Vec<KnownApplication>,
    /// Applications that could not be started: their lines can be repeated.
    pub(super) failed: Vec<Name>,
    pub(super) now: Timestamp,
    /// Acting party of consents.
    pub(super) actor: Arc<ConsentActor>,
    /// Whether the lines make no lifecycle events.
    pub(super) quiet: bool,
}

/// A checked line.
pub(super) struct Item {
    checked: Checked,
    actor: Arc<ConsentActor>,
    quiet: bool,
}

/// Facets that store the lines.
pub(super) struct Facets {
    subscription_store: Arc<dyn SubscriptionStore>,
    consent_store: Arc<dyn ConsentStore>,
    subscriber_store: Arc<dyn SubscriberStore>,
    token_signer: Arc<TokenSigner>,
}

impl Facets {
    /// Address of a subscription, for its evidence.
    async fn address(&self, new: &NewSubscription) -> Result<Option<EvidenceAddress>, StoreError> {
        let subscriber = self.subscriber_store.subscriber(&new.subscriber).await?;
        let tokens = self.token_signer.consent();
        Ok(subscriber.and_then(|found| evidence_address(tokens, &found, new.device.as_ref())))
    }
}

/// An application that was running when the import began.
pub(super) struct KnownApplication {
    compiled: Arc<Compiled>,
    classes: Vec<Class>,
}

impl KnownApplication {
    pub(super) fn of(compiled: &Arc<Compiled>, used: Option<Used>) -> KnownApplication {
        let classes = compiled.application.subscriptions.keys();
        let classes = classes.filter_map(|class| Class::of(compiled, class.as_str()).ok());
        KnownApplication { compiled: compiled.clone(), classes: classes.map(|class| class.within(used)).collect() }
    }
}

impl SubscriptionLines {
    /// Class of a line. Lines of an export name it; it must agree with that of the import.
    fn class_of(&self, application: Option<&str>, class: Option<&str>) -> Result<&Class, Vec<Problem>> {
        let mut problems = Vec::new();
        let mut named = |path: &str, in_line: Option<&str>, of_all: &Option<String>| match (in_line, of_all.as_deref())
        {
            (Some(given), Some(requested)) if given != requested => {
                problems.push(
                    Problem::new(Code::Mismatch, path, format!("is `{given}`, but this import is for `{requested}`"))
                        .param("expected", requested)
                        .param("value", given.to_string()),
                );
                None
            }
            (None, None) => {
                let problem = Problem::new(Code::Required, path, "is required: give a string");
                problems.push(problem.hint(format!("or give `{path}` once for the whole import")));
                None
            }
            (given, requested) => given.or(requested).map(str::to_owned),
        };
        let application = named("application", application, &self.application);
        let class = named("class", class, &self.class);
        let (Some(application), Some(class), true) = (application, class, problems.is_empty()) else {
            return Err(problems);
        };
        if let Some(whole) = &self.whole {
            return Ok(whole);
        }
        let Some(known) = self.known.iter().find(|known| known.compiled.application.name.as_str() == application)
        else {
            if self.failed.iter().any(|failed| failed.as_str() == application) {
                let problem = Problem::new(
                    Code::Unavailable,
                    "application",
                    format!("`{application}` does not run at the moment"),
                );
                return Err(vec![problem.hint("import the line again when it runs")]);
            }
            return Err(vec![
                Problem::new(Code::UnknownReference, "application", format!("`{application}` does not run here"))
                    .param("kind", "application")
                    .param("value", application.to_string()),
            ]);
        };
        match known.classes.iter().find(|known| known.name.as_str() == class) {
            Some(class) => Ok(class),
            None => Err(Class::of(&known.compiled, &class).err().into_iter().collect()),
        }
    }
}

impl SubscriptionLines {
    /// Checks a draft; `exported`: its line is of an export.
    fn check(&self, mut draft: Draft<'_>, class: &Class, exported: bool) -> Result<ReadLine<Item>, Vec<Problem>> {
        if let Some(consent) = draft.consent.as_mut().filter(|_| exported) {
            consent.proof.get_or_insert_with(|| "line of an export".to_owned());
        }
        let basis = if exported { Basis::Export } else { Basis::New };
        let mut checked = subscriptions::check(draft, class, &basis)?;
        let mut warnings = std::mem::take(&mut checked.warnings);
        warnings.extend(checked.ended_warning(self.now));
        Ok((Item { checked, actor: self.actor.clone(), quiet: self.quiet }, warnings))
    }
}

/// The columns of a consent.
#[derive(Default)]
struct ConsentCells {
    state: Option<ConsentState>,
    /// Whether the state is given, valid or not.
    has_state: bool,
    /// Proof, text, version and network address.
    texts: [Option<String>; 4],
    at: Option<Timestamp>,
}

impl ConsentCells {
    fn take(&mut self, part: &str, cell: &str, problems: &mut Vec<Problem>) {
        let path = format!("consent.{part}");
        match part {
            "state" => {
                self.has_state = true;
                match serde_json::from_value(serde_json::Value::from(cell)) {
                    Ok(state) => self.state = Some(state),
                    Err(_) => {
                        let problem = Problem::new(Code::UnknownValue, path, format!("`{cell}` is not a state"));
                        problems.push(problem.hint("states are pending, confirmed, withdrawn"));
                    }
                }
            }
            "at" => match cell.parse() {
                Ok(at) => self.at = Some(at),
                Err(error) => problems.push(
                    Problem::new(Code::InvalidFormat, path, format!("is no time: {error}"))
                        .param("format", "timestamp"),
                ),
            },
            part => {
                if let Some(at) = ["proof", "text", "version", "remote"].iter().position(|known| *known == part) {
                    self.texts[at] = Some(cell.to_owned());
                }
            }
        }
    }

    fn draft(self, problems: &mut Vec<Problem>) -> Option<ConsentDraft> {
        let ConsentCells { state, has_state, texts: [proof, text, version, remote], at } = self;
        let has_more = [&proof, &text, &version, &remote].into_iter().any(Option::is_some) || at.is_some();
        if !has_state && has_more {
            let problem = Problem::new(Code::Required, "consent.state", "is required where another part is given");
            problems.push(problem.hint("give `confirmed`, `pending` or `withdrawn`"));
        }
        Some(ConsentDraft { state: state?, proof, at, text, version, remote })
    }
}

impl LineKind for SubscriptionLines {
    type Item = Item;
    type Store = Facets;

    fn facet(service: &Service) -> Arc<Facets> {
        Arc::new(Facets {
            subscription_store: service.subscription_store.clone(),
            consent_store: service.consent_store.clone(),
            subscriber_store: service.subscriber_store.clone(),
            token_signer: service.token_signer.clone(),
        })
    }

    fn read_json(&self, line: &[u8]) -> Result<ReadLine<Item>, Vec<Problem>> {
        let line: SubscriptionLine<'_> = read_object(line).map_err(|problem| vec![in_line(problem)])?;
        let exported = line.is_exported();
        let draft = Draft::from(line);
        let class = self.class_of(draft.application.as_deref(), draft.class.as_deref())?;
        self.check(draft, class, exported)
    }

    fn check_column(&self, name: &str, exported: bool) -> Option<Problem> {
        let known = [
            "id",
            "application",
            "class",
            "subscriber",
            "key",
            "device",
            "enabled",
            "snoozed_until",
            "filter",
            "schedule",
            "consent.state",
            "consent.proof",
            "consent.at",
            "consent.text",
            "consent.version",
            "consent.remote",
        ];
        if let Some(field) = name.strip_prefix("values.") {
            // If lines name their classes, each line is checked separately.
            let fields = &self.whole.as_ref()?.fields;
            let unknown = || Problem { path: name.to_owned(), ..fields.unknown(field) };
            return (fields.position(field).is_none() && !exported).then(unknown);
        }
        let fits = known.contains(&name) || PASSED_OVER.contains(&name);
        (!fits).then(|| unknown_column(name, known.into_iter().chain(["values.<field>"])))
    }

    fn read_cells(&self, header: &[String], cells: &[String]) -> Result<ReadLine<Item>, Vec<Problem>> {
        let mut problems = Vec::new();
        let mut draft = Draft::default();
        let mut values: Vec<(&str, &str)> = Vec::new();
        let mut consent = ConsentCells::default();
        for (name, cell) in header.iter().map(String::as_str).zip(cells) {
            let cell = csv_cells::unguarded(cell);
            if cell.is_empty() {
                continue;
            }
            if let Some(field) = name.strip_prefix("values.") {
                values.push((field, cell));
                continue;
            }
            if let Some(part) = name.strip_prefix("consent.") {
                consent.take(part, cell, &mut problems);
                continue;
            }
            match name {
                "application" => draft.application = Some(Cow::Borrowed(cell)),
                "class" => draft.class = Some(Cow::Borrowed(cell)),
                "subscriber" => draft.subscriber = Some(Cow::Borrowed(cell)),
                "key" => draft.key = Some(cell.to_owned()),
                "device" => draft.device = Some(Cow::Borrowed(cell)),
                "enabled" => draft.enabled = boolean("enabled", cell, &mut problems),
                "snoozed_until" => match cell.parse() {
                    Ok(until) => draft.snoozed_until = Some(until),
                    Err(error) => problems.push(
                        Problem::new(Code::InvalidFormat, "snoozed_until", format!("is no time: {error}"))
                            .param("format", "timestamp"),
                    ),
                },
                "filter" => draft.filter = Some(FilterDraft::Text(cell.to_owned())),
                "schedule" => draft.schedule = Some(ScheduleDraft::Text(cell.to_owned())),
                _ => {}
            }
        }
        draft.consent = consent.draft(&mut problems);
        let class = self.class_of(draft.application.as_deref(), draft.class.as_deref())?;
        let value = |(field, cell): (&str, &str)| {
            let known = class.fields.position(field).map(|at| class.fields[at].kind);
            // An unknown field is reported by the check of the whole line.
            (field.into(), known.map_or_else(|| csv_cells::value(cell), |kind| csv_cells::typed_value(cell, kind)))
        };
        let values = Value::Map(values.into_iter().map(value).collect());
        let json = serde_json::value::to_raw_value(&values).expect("a value is always JSON");
        draft.values = Some(&json);
        joined(problems, self.check(draft, class, is_exported(header, cells)))
    }

    async fn store(facets: &Facets, items: Vec<Item>, now: Timestamp) -> Result<Vec<Written>, StoreError> {
        let mut answers = BTreeMap::new();
        let mut fitting: Vec<NewSubscription> = Vec::with_capacity(items.len());
        let mut consented: Vec<(usize, NewConsented)> = Vec::new();
        let origin = items
            .first()
            .map_or_else(ChangeOrigin::default, |item| ChangeOrigin { quiet: item.quiet, ..item.actor.origin() });
        for (at, Item { checked, actor, quiet }) in items.into_iter().enumerate() {
            let consent = checked.consent();
            match (checked.within(&*facets.subscription_store).await?, consent) {
                (Ok(new), (Some(policy), given)) => {
                    let address = facets.address(&new).await?;
                    match actor.initial(&policy, given, address) {
                        Ok(consent) => {
                            let new = NewConsented { subscription: new, consent, keeps_confirmed: false, quiet };
                            consented.push((at, new));
                        }
                        Err(problem) => drop(answers.insert(at, Err(problem))),
                    }
                }
                (Ok(new), (None, _)) => fitting.push(new),
                (Err(problem), _) => drop(answers.insert(at, Err(problem))),
            }
        }
        if !consented.is_empty() {
            let (places, new): (Vec<usize>, Vec<NewConsented>) = consented.into_iter().unzip();
            let stored = facets.consent_store.put_consented(new, now).await?;
            answers.extend(places.into_iter().zip(stored.into_iter().map(written)));
        }
        let stored = facets.subscription_store.put_subscriptions_as(fitting, origin, now).await?;
        let mut all: Vec<Written> = stored.into_iter().map(written).collect();
        for (at, answer) in answers {
            all.insert(at, answer);
        }
        Ok(all)
    }
}
