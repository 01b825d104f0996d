//! One operation of the service for each endpoint: reads the parameters and makes the answer.

use std::{str::FromStr, sync::Arc};

use axum::{
    body::Body,
    http::{HeaderMap, Response, StatusCode, Uri},
};
use serde_json::json;
use tocsin_notifybc::{
    query::{Filter, Params, Where},
    record::{Collection, RecordId},
    subscriptions::UnsubscribeQuery,
};
use tocsin_service::notifybc::{Notifybc, NotifybcError, RequestContext};

use crate::{
    answer::{ErrorAnswer, empty, json_answer, ok, page, workflow},
    body,
    endpoints::Operation,
    explorer,
};

/// A request to an endpoint, whose caller has the permission.
pub(crate) struct Call<'c> {
    pub(crate) notifybc: &'c Arc<Notifybc>,
    pub(crate) context: &'c RequestContext,
    pub(crate) id: Option<&'c str>,
    pub(crate) uri: &'c Uri,
    pub(crate) headers: &'c HeaderMap,
    pub(crate) authorization_url: Option<String>,
}

impl Call<'_> {
    /// The id of the path, for a collection.
    fn id(&self, collection: Collection) -> Result<RecordId, ErrorAnswer> {
        Ok(RecordId::parse(self.id.unwrap_or_default(), collection)?)
    }

    fn filter(&self, collection: Collection, params: &Params) -> Result<Filter, ErrorAnswer> {
        Ok(Filter::from_params(collection, params)?)
    }

    fn condition(&self, collection: Collection, params: &Params) -> Result<Where, ErrorAnswer> {
        Ok(Where::from_params(collection, params, "where")?)
    }

    /// Runs the operation.
    pub(crate) async fn answer(self, operation: Operation, request_body: Body) -> Result<Response<Body>, ErrorAnswer> {
        use Collection::{AccessToken, Administrator, Notification, Subscription};
        let (notifybc, context) = (self.notifybc, self.context);
        let body = body::read(self.headers, request_body).await?;
        let params = &Params::parse(self.uri.query().unwrap_or_default())?;
        let count = |count: u64| ok(&json!({ "count": count }));
        let done = || empty(StatusCode::NO_CONTENT);
        Ok(match operation {
            Operation::CreateSubscription => ok(&notifybc.create_subscription(context, body).await?),
            Operation::FindSubscriptions => {
                ok(&notifybc.find_subscriptions(context, self.filter(Subscription, params)?).await?)
            }
            Operation::CountSubscriptions => {
                count(notifybc.count_subscriptions(context, self.condition(Subscription, params)?).await?)
            }
            Operation::SubscriptionServices => ok(&notifybc.subscription_services(context).await?),
            Operation::PatchSubscription => {
                ok(&notifybc.patch_subscription(context, &self.id(Subscription)?, body).await?)
            }
            Operation::PutSubscription => {
                ok(&notifybc.put_subscription(context, &self.id(Subscription)?, body).await?)
            }
            Operation::UnsubscribeByLink if notifybc.confirms_get(context, &self.id(Subscription)?).await? => {
                page(explorer::unsubscription_form(self.uri))
            }
            Operation::Unsubscribe | Operation::UnsubscribeByLink => {
                let query = UnsubscribeQuery::of(params);
                workflow(notifybc.unsubscribe(context, &self.id(Subscription)?, &query).await?)
            }
            Operation::UndoUnsubscription => {
                let code = params.text("unsubscriptionCode");
                workflow(notifybc.undo_unsubscription(context, &self.id(Subscription)?, code).await?)
            }
            Operation::VerifySubscription => {
                let (code, replaces) = (params.text("confirmationCode"), params.text("replace") == Some("true"));
                workflow(notifybc.verify_subscription(context, &self.id(Subscription)?, code, replaces).await?)
            }
            Operation::Swift => workflow(notifybc.swift(context, body).await?),
            Operation::CreateNotification => ok(&notifybc.create_notification(context, body).await?),
            Operation::FindNotifications => {
                ok(&notifybc.find_notifications(context, self.filter(Notification, params)?).await?)
            }
            Operation::CountNotifications => {
                count(notifybc.count_notifications(context, self.condition(Notification, params)?).await?)
            }
            Operation::Notification => match notifybc.notification(context, &self.id(Notification)?).await? {
                Some(document) => ok(&document),
                None => empty(StatusCode::OK),
            },
            Operation::PatchNotification => {
                notifybc.patch_notification(context, &self.id(Notification)?, body).await?;
                done()
            }
            Operation::PutNotification => {
                notifybc.put_notification(context, &self.id(Notification)?, body).await?;
                done()
            }
            Operation::DeleteNotification => {
                notifybc.delete_notification(context, &self.id(Notification)?).await?;
                done()
            }
            Operation::CreateRecord(collection) => ok(&notifybc.create_record(context, collection, body).await?),
            Operation::FindRecords(collection) => {
                ok(&notifybc.find_records(collection, self.filter(collection, params)?).await?)
            }
            Operation::CountRecords(collection) => {
                count(notifybc.count_records(collection, self.condition(collection, params)?).await?)
            }
            Operation::PatchRecords(collection) => {
                let condition = self.condition(collection, params)?;
                count(notifybc.patch_records(context, collection, condition, body).await?)
            }
            Operation::Record(collection) => {
                ok(&notifybc.record(collection, &self.id(collection)?.to_string()).await?)
            }
            Operation::PatchRecord(collection) => {
                notifybc.patch_record(context, collection, &self.id(collection)?.to_string(), body).await?;
                done()
            }
            Operation::PutRecord(collection) => {
                notifybc.put_record(context, collection, &self.id(collection)?.to_string(), body).await?;
                done()
            }
            Operation::DeleteRecord(collection) => {
                notifybc.delete_record(collection, &self.id(collection)?.to_string()).await?;
                done()
            }
            Operation::CreateAdministrator => ok(&notifybc.create_administrator(context, body).await?),
            Operation::FindAdministrators => {
                ok(&notifybc.find_administrators(context, self.filter(Administrator, params)?).await?)
            }
            Operation::CountAdministrators => {
                count(notifybc.count_administrators(context, self.condition(Administrator, params)?).await?)
            }
            Operation::Administrator => ok(&notifybc.administrator(context, &self.administrator()?).await?),
            Operation::PatchAdministrator => {
                notifybc.patch_administrator(context, &self.administrator()?, body).await?;
                done()
            }
            Operation::PutAdministrator => {
                notifybc.put_administrator(context, &self.administrator()?, body).await?;
                done()
            }
            Operation::DeleteAdministrator => {
                notifybc.delete_administrator(context, &self.administrator()?).await?;
                done()
            }
            Operation::PutCredential => ok(&notifybc.put_credential(context, &self.administrator()?, body).await?),
            Operation::CreateToken => ok(&notifybc.create_token(context, &self.administrator()?, body).await?),
            Operation::FindTokens => {
                let filter = self.filter(AccessToken, params)?;
                ok(&notifybc.find_tokens(context, &self.administrator()?, filter).await?)
            }
            Operation::PatchTokens => {
                let condition = self.condition(AccessToken, params)?;
                count(notifybc.patch_tokens(context, &self.administrator()?, condition, body).await?)
            }
            Operation::DeleteTokens => {
                let condition = self.condition(AccessToken, params)?;
                count(notifybc.delete_tokens(context, &self.administrator()?, condition).await?)
            }
            Operation::Login => ok(&json!({ "token": notifybc.login(context, body).await? })),
            Operation::WhoAmI => ok(&context.identity.to_value()),
            Operation::Health => {
                let health = notifybc.health().await;
                let status = if health.is_ok { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
                json_answer(status, &health.body)
            }
            Operation::Memory => return Err(ErrorAnswer::NotImplemented),
            Operation::Explorer => page(explorer::page(&notifybc.configuration().rest_api_root)),
            Operation::ExplorerJson => {
                ok(&explorer::document(&notifybc.configuration().rest_api_root, self.authorization_url))
            }
        })
    }

    /// The id of an administrator. To an administrator with an access token, another's id is refused before a malformed
    /// one is reported.
    fn administrator(&self) -> Result<String, ErrorAnswer> {
        let text = self.id.unwrap_or_default();
        match RecordId::from_str(text) {
            Ok(id) => Ok(id.to_string()),
            Err(_) if self.context.is_limited_to_own_record() => Err(NotifybcError::Refused(None).into()),
            Err(_) => Err(RecordId::parse(text, Collection::Administrator)
                .map_or_else(ErrorAnswer::from, |_| ErrorAnswer::Forbidden)),
        }
    }
}
