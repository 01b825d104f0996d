//! Checks names in filters: a filter by a name that never existed is an error (probably misspelt), not an empty list.

use tocsin_model::{
    application::{Application, api_source, delay_source, lifecycle_source, row_source},
    definition,
    id::Name,
    problem::closest,
};
use tocsin_store::spool::MessageFilter;

use crate::{Service, error::ServiceError};

/// Number of earlier versions of an application in which a name is looked up, newest first.
const VERSIONS_MAX: usize = 20;

/// Part of an application that a name refers to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// An event class, a subscription class or a notification class.
    Class,
    EventClass,
    SubscriptionClass,
    NotificationClass,
    Rule,
    Channel,
    Source,
}

impl Part {
    fn noun(self) -> &'static str {
        match self {
            Part::Class => "class",
            Part::EventClass => "event class",
            Part::SubscriptionClass => "subscription class",
            Part::NotificationClass => "notification class",
            Part::Rule => "rule",
            Part::Channel => "channel",
            Part::Source => "source",
        }
    }

    fn names(self, of: &Application) -> Vec<Name> {
        let classes = [Part::EventClass, Part::SubscriptionClass, Part::NotificationClass];
        match self {
            Part::Class => classes.into_iter().flat_map(|part| part.names(of)).collect(),
            Part::EventClass => of.events.keys().cloned().collect(),
            Part::SubscriptionClass => of.subscriptions.keys().cloned().collect(),
            Part::NotificationClass => of.notifications.keys().cloned().collect(),
            Part::Rule => of.rules.keys().cloned().collect(),
            Part::Channel => of.channels.keys().cloned().collect(),
            Part::Source => {
                let own = [api_source(), row_source(), schedule_source(), lifecycle_source(), delay_source()];
                of.sources.keys().cloned().chain(own).collect()
            }
        }
    }
}

impl Service {
    /// Rejects names that no application has, or not the named one. Names missing in the running version are looked
    /// up in earlier versions, since their history is still listed.
    ///
    /// # Errors
    /// `Missing` for the first unknown name, with a suggestion.
    pub(crate) async fn check_known(
        &self,
        application: Option<&Name>,
        parts: &[(Part, Option<&Name>)],
    ) -> Result<(), ServiceError> {
        let running: Vec<_> = self.pipeline.status().into_iter().map(|(name, _)| name).collect();
        let among = match application {
            Some(application) => {
                let is_known = running.contains(application)
                    || !self.application_store.application_history(application).await?.is_empty();
                if !is_known {
                    return Err(missing(format!("the application `{application}`"), application, &running));
                }
                vec![application.clone()]
            }
            None => running,
        };
        for (part, name) in parts.iter().filter_map(|(part, name)| Some((*part, (*name)?))) {
            let of_running = among.iter().filter_map(|application| self.pipeline.application(application));
            let known: Vec<Name> = of_running.flat_map(|compiled| part.names(&compiled.application)).collect();
            if known.contains(name) || self.was_known(&among, part, name).await? {
                continue;
            }
            let of = application.map(|application| format!(" of `{application}`")).unwrap_or_default();
            return Err(missing(format!("the {} `{name}`{of}", part.noun()), name, &known));
        }
        Ok(())
    }

    /// Whether an earlier version had it. An unreadable version may have.
    async fn was_known(&self, among: &[Name], part: Part, name: &Name) -> Result<bool, ServiceError> {
        for application in among {
            let history = self.application_store.application_history(application).await?;
            let (environment, name) = (self.pipeline.environment().clone(), name.clone());
            let had_it = move || {
                history.into_iter().take(VERSIONS_MAX).any(|version| {
                    match definition::read(&version.text, &*environment) {
                        Ok(application) => part.names(&application).contains(&name),
                        Err(_) => version.text.contains(name.as_str()),
                    }
                })
            };
            let had_it = tokio::task::spawn_blocking(had_it).await;
            if had_it.map_err(|error| ServiceError::Unavailable(error.into()))? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Like `check`, for messages of exchanges.
    ///
    /// # Errors
    /// `Missing` for an unknown exchange or port.
    pub(crate) async fn check_known_ports(&self, filter: &MessageFilter) -> Result<(), ServiceError> {
        let stored = self.exchanges()?.operations.stored().await?;
        let names: Vec<Name> = stored.iter().map(|(stored, _)| stored.name.clone()).collect();
        if let Some(exchange) = filter.exchange.as_ref().filter(|exchange| !names.contains(exchange)) {
            return Err(missing(format!("the exchange `{exchange}`"), exchange, &names));
        }
        let read = |text: &str| definition::read_exchange(text, &**self.pipeline.environment()).ok();
        let meant =
            stored.iter().filter(|(stored, _)| filter.exchange.as_ref().is_none_or(|name| *name == stored.name));
        let definitions: Vec<_> = meant.map(|(stored, _)| read(&stored.text)).collect();
        if definitions.iter().any(Option::is_none) {
            // An unreadable definition may have any port.
            return Ok(());
        }
        let definitions: Vec<_> = definitions.into_iter().flatten().collect();
        let send = || definitions.iter().flat_map(|definition| definition.send.keys());
        let receive = || definitions.iter().flat_map(|definition| definition.receive.keys());
        if let Some(port) = &filter.to
            && !send().any(|known| known == port)
        {
            return Err(missing(format!("the send port `{port}`"), port, &send().cloned().collect::<Vec<_>>()));
        }
        if let Some(port) = &filter.port
            && !receive().chain(send()).any(|known| known == port)
        {
            let known: Vec<_> = receive().chain(send()).cloned().collect();
            return Err(missing(format!("the port `{port}`"), port, &known));
        }
        Ok(())
    }
}

/// The source of schedules.
fn schedule_source() -> Name {
    "schedule".parse().expect("`schedule` is a name")
}

/// The error for an unknown name, with a suggestion.
fn missing(what: String, name: &Name, known: &[Name]) -> ServiceError {
    ServiceError::Missing(match closest(name.as_str(), known.iter().map(Name::as_str)) {
        Some(meant) => format!("{what} (did you mean `{meant}`?)"),
        None => what,
    })
}
