//! Access of limited keys to objects: the resource to which an object belongs.

use tocsin_model::id::{Name, SubscriberId, SubscriberNumber};
use tocsin_store::{
    journal::{Component, SuspensionFilter},
    spool::MessageFilter,
};

use crate::{
    Service,
    error::ServiceError,
    keys::Caller,
    resources::{Resource, Thing},
};

impl Service {
    /// The resource to which an object belongs; `None`: the object does not exist.
    ///
    /// # Errors
    /// The store is unavailable.
    pub async fn resource_of(&self, thing: Thing) -> Result<Option<Resource>, ServiceError> {
        let application = match thing {
            Thing::EventBatch(id) => self.find_event_batch(id).await.map(|(batch, _)| batch.application),
            Thing::NotificationBatch(id) => {
                self.find_notification_batch(id).await.map(|stored| stored.head.application)
            }
            Thing::Suspension(id) => self.find_suspension(id).await.map(|stored| stored.suspension.application),
            Thing::Subscription(id) => {
                let found = self.subscription_store.subscription(id).await?;
                return Ok(found.map(|found| Resource::Application(found.application)));
            }
            Thing::Message(id) => {
                let found = self.exchanges()?.operations.message(id).await?;
                return Ok(found.map(|found| Resource::Port(found.exchange, found.port)));
            }
        };
        match application {
            Ok(application) => Ok(Some(Resource::Application(application))),
            Err(ServiceError::Missing(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The number of a subscriber, by which the directory finds its entry; `None`: there is none of this id.
    ///
    /// # Errors
    /// The store is unavailable.
    pub async fn subscriber_number(&self, id: &SubscriberId) -> Result<Option<SubscriberNumber>, ServiceError> {
        Ok(self.subscriber_store.subscriber(id).await?.map(|found| found.number))
    }

    /// Refuses a choice of suspensions that a limited key does not reach as a whole.
    pub(crate) async fn check_suspensions(
        &self,
        caller: &Caller,
        filter: &SuspensionFilter,
    ) -> Result<(), ServiceError> {
        match filter.id {
            Some(id) if caller.is_limited() => match self.resource_of(Thing::Suspension(id)).await? {
                Some(resource) if caller.reaches(&resource) => Ok(()),
                _ => Err(caller.limited("this suspension is of another application")),
            },
            _ => caller.check_application(filter.application.as_ref()),
        }
    }

    /// Refuses a choice of messages that a limited key does not reach as a whole.
    pub(crate) async fn check_messages(&self, caller: &Caller, filter: &MessageFilter) -> Result<(), ServiceError> {
        if !caller.is_limited() {
            return Ok(());
        }
        let resource = match (filter.id, &filter.exchange, &filter.port) {
            (Some(id), _, _) => self.resource_of(Thing::Message(id)).await?,
            (None, Some(exchange), Some(port)) => Some(Resource::Port(exchange.clone(), port.clone())),
            (None, Some(exchange), None) => Some(Resource::Exchange(exchange.clone())),
            (None, None, _) => return Err(caller.limited("give `id`, or `exchange`")),
        };
        match resource {
            Some(resource) if caller.reaches(&resource) => Ok(()),
            _ => Err(caller.limited("these messages are of another exchange or port")),
        }
    }
}

impl Caller {
    /// Refuses a filter that a limited key does not reach as a whole.
    pub(crate) fn check_application(&self, application: Option<&Name>) -> Result<(), ServiceError> {
        match application {
            _ if !self.is_limited() => Ok(()),
            Some(name) if self.reaches(&Resource::Application(name.clone())) => Ok(()),
            Some(_) => Err(self.limited("this is of another application")),
            None => Err(self.limited("give `application`")),
        }
    }

    /// Whether a limited key reaches what can be switched off.
    pub(crate) fn check_component(&self, component: &Component) -> Result<(), ServiceError> {
        let resource = match component {
            _ if !self.is_limited() => return Ok(()),
            Component::Role(_) => return Err(self.limited("a role of the flow is of all applications")),
            Component::Application(name) | Component::EventClass(name, _) | Component::Channel(name, _) => {
                Resource::Application(name.clone())
            }
            Component::Source(application, source) => Resource::Source(application.clone(), source.clone()),
        };
        if self.reaches(&resource) { Ok(()) } else { Err(self.limited("this is of another application")) }
    }
}
