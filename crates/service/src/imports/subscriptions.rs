//! Import of subscriptions.

use std::{borrow::Cow, collections::BTreeMap, sync::Arc};

use tocsin_model::{
    id::Name,
    problem::{Code, Problem},
    time::Timestamp,
    value::Value,
};
use tocsin_pipeline::Compiled;
use tocsin_store::{
    error::StoreError,
    records::{NewSubscription, SubscriptionStore},
};

use super::lines::{
    LineKind, PASSED_OVER, ReadLine, Written, boolean, in_line, is_exported, joined, unknown_column, written,
};
use crate::{
    Service, csv_cells,
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
    fn check(&self, draft: Draft<'_>, class: &Class, exported: bool) -> Result<ReadLine<Checked>, Vec<Problem>> {
        let basis = if exported { Basis::Export } else { Basis::New };
        let mut checked = subscriptions::check(draft, class, &basis)?;
        let mut warnings = std::mem::take(&mut checked.warnings);
        warnings.extend(checked.ended_warning(self.now));
        Ok((checked, warnings))
    }
}

impl LineKind for SubscriptionLines {
    type Item = Checked;
    type Store = dyn SubscriptionStore;

    fn facet(service: &Service) -> Arc<dyn SubscriptionStore> {
        service.subscription_store.clone()
    }

    fn read_json(&self, line: &[u8]) -> Result<ReadLine<Checked>, Vec<Problem>> {
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

    fn read_cells(&self, header: &[String], cells: &[String]) -> Result<ReadLine<Checked>, Vec<Problem>> {
        let mut problems = Vec::new();
        let mut draft = Draft::default();
        let mut values: Vec<(&str, &str)> = Vec::new();
        for (name, cell) in header.iter().map(String::as_str).zip(cells) {
            let cell = csv_cells::unguarded(cell);
            if cell.is_empty() {
                continue;
            }
            if let Some(field) = name.strip_prefix("values.") {
                values.push((field, cell));
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

    async fn store(
        records: &dyn SubscriptionStore,
        items: Vec<Checked>,
        now: Timestamp,
    ) -> Result<Vec<Written>, StoreError> {
        let mut refused = BTreeMap::new();
        let mut fitting: Vec<NewSubscription> = Vec::with_capacity(items.len());
        for (at, item) in items.into_iter().enumerate() {
            match item.within(records).await? {
                Ok(new) => fitting.push(new),
                Err(problem) => drop(refused.insert(at, problem)),
            }
        }
        let mut all: Vec<Written> = records.put_subscriptions(fitting, now).await?.into_iter().map(written).collect();
        for (at, problem) in refused {
            all.insert(at, Err(problem));
        }
        Ok(all)
    }
}
