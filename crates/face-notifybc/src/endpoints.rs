//! The table of endpoints: methods, paths, permissions and operations. The OpenAPI document is made from it.

use std::borrow::Cow;

use axum::http::Method;
use percent_encoding::percent_decode_str;
use tocsin_notifybc::{identity::Route, record::Collection};

/// An endpoint.
pub(crate) struct Endpoint {
    /// Method.
    pub(crate) method: Method,
    /// Path below the root of the interface, with `{id}` for an id.
    pub(crate) path: &'static str,
    /// Permission.
    pub(crate) route: Route,
    /// Operation.
    pub(crate) operation: Operation,
    /// Summary for the explorer.
    pub(crate) summary: &'static str,
}

/// The operation of an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operation {
    CreateSubscription,
    FindSubscriptions,
    CountSubscriptions,
    SubscriptionServices,
    PatchSubscription,
    PutSubscription,
    Unsubscribe,
    UnsubscribeByLink,
    UndoUnsubscription,
    VerifySubscription,
    Swift,
    CreateNotification,
    FindNotifications,
    CountNotifications,
    Notification,
    PatchNotification,
    PutNotification,
    DeleteNotification,
    CreateRecord(Collection),
    FindRecords(Collection),
    CountRecords(Collection),
    PatchRecords(Collection),
    Record(Collection),
    PatchRecord(Collection),
    PutRecord(Collection),
    DeleteRecord(Collection),
    CreateAdministrator,
    FindAdministrators,
    CountAdministrators,
    Administrator,
    PatchAdministrator,
    PutAdministrator,
    DeleteAdministrator,
    PutCredential,
    CreateToken,
    FindTokens,
    PatchTokens,
    DeleteTokens,
    Login,
    WhoAmI,
    Health,
    Memory,
    Explorer,
    ExplorerJson,
}

macro_rules! endpoints {
    ($($method:ident $path:literal $route:ident $operation:expr, $summary:literal;)*) => {
        &[$(Endpoint {
            method: Method::$method,
            path: $path,
            route: Route::$route,
            operation: { use Operation::*; $operation },
            summary: $summary,
        }),*]
    };
}

const CONFIGURATION: Collection = Collection::Configuration;
const BOUNCE: Collection = Collection::Bounce;

/// All endpoints. Paths without an id precede those with one.
pub(crate) static ENDPOINTS: &[Endpoint] = endpoints! {
    POST "/subscriptions" SubscriptionWorkflow CreateSubscription, "Create a subscription";
    GET "/subscriptions" ReadSubscriptions FindSubscriptions, "Find subscriptions";
    GET "/subscriptions/count" ReadSubscriptions CountSubscriptions, "Count subscriptions";
    GET "/subscriptions/services" ReadSubscriptions SubscriptionServices, "List services of confirmed subscriptions";
    POST "/subscriptions/swift" SubscriptionWorkflow Swift, "Unsubscribe by a reply to a Swift message";
    PATCH "/subscriptions/{id}" ReadSubscriptions PatchSubscription, "Change the address or data of a subscription";
    PUT "/subscriptions/{id}" ReplaceSubscription PutSubscription, "Replace a subscription";
    DELETE "/subscriptions/{id}" SubscriptionWorkflow Unsubscribe, "Unsubscribe";
    GET "/subscriptions/{id}/unsubscribe" SubscriptionWorkflow UnsubscribeByLink, "Unsubscribe by a link";
    POST "/subscriptions/{id}/unsubscribe" SubscriptionWorkflow Unsubscribe, "Unsubscribe with one click (RFC 8058)";
    GET "/subscriptions/{id}/unsubscribe/undo" SubscriptionWorkflow UndoUnsubscription, "Undo an unsubscription";
    GET "/subscriptions/{id}/verify" SubscriptionWorkflow VerifySubscription, "Confirm a subscription";
    POST "/notifications" SendNotification CreateNotification, "Create and send a notification";
    GET "/notifications" ReadNotifications FindNotifications, "Find notifications";
    GET "/notifications/count" ReadNotifications CountNotifications, "Count notifications";
    GET "/notifications/{id}" ReadNotifications Notification, "Read a notification";
    PATCH "/notifications/{id}" ReadNotifications PatchNotification, "Change a notification";
    PUT "/notifications/{id}" SendNotification PutNotification, "Replace and send a notification";
    DELETE "/notifications/{id}" ReadNotifications DeleteNotification, "Mark a notification as deleted";
    POST "/configurations" Configurations CreateRecord(CONFIGURATION), "Create a configuration";
    GET "/configurations" Configurations FindRecords(CONFIGURATION), "Find configurations";
    PATCH "/configurations" Configurations PatchRecords(CONFIGURATION), "Change the configurations of a condition";
    GET "/configurations/count" Configurations CountRecords(CONFIGURATION), "Count configurations";
    GET "/configurations/{id}" Configurations Record(CONFIGURATION), "Read a configuration";
    PATCH "/configurations/{id}" Configurations PatchRecord(CONFIGURATION), "Change a configuration";
    PUT "/configurations/{id}" Configurations PutRecord(CONFIGURATION), "Replace a configuration";
    DELETE "/configurations/{id}" Configurations DeleteRecord(CONFIGURATION), "Remove a configuration";
    POST "/bounces" Bounces CreateRecord(BOUNCE), "Create a bounce record";
    GET "/bounces" Bounces FindRecords(BOUNCE), "Find bounce records";
    PATCH "/bounces" Bounces PatchRecords(BOUNCE), "Change the bounce records of a condition";
    GET "/bounces/count" Bounces CountRecords(BOUNCE), "Count bounce records";
    GET "/bounces/{id}" Bounces Record(BOUNCE), "Read a bounce record";
    PATCH "/bounces/{id}" Bounces PatchRecord(BOUNCE), "Change a bounce record";
    PUT "/bounces/{id}" Bounces PutRecord(BOUNCE), "Replace a bounce record";
    DELETE "/bounces/{id}" Bounces DeleteRecord(BOUNCE), "Remove a bounce record";
    POST "/administrators" CreateAdministrator CreateAdministrator, "Create an administrator";
    GET "/administrators" Administrators FindAdministrators, "Find administrators";
    GET "/administrators/count" Administrators CountAdministrators, "Count administrators";
    POST "/administrators/login" Login Login, "Make an access token by address and password";
    GET "/administrators/whoami" Public WhoAmI, "Show the identity of the request";
    GET "/administrators/{id}" Administrators Administrator, "Read an administrator";
    PATCH "/administrators/{id}" Administrators PatchAdministrator, "Change an administrator";
    PUT "/administrators/{id}" Administrators PutAdministrator, "Replace an administrator";
    DELETE "/administrators/{id}" Administrators DeleteAdministrator, "Remove an administrator";
    POST "/administrators/{id}/user-credential" Administrators PutCredential, "Set the password of an administrator";
    GET "/administrators/{id}/access-tokens" Administrators FindTokens, "Find access tokens";
    POST "/administrators/{id}/access-tokens" Administrators CreateToken, "Make an access token";
    PATCH "/administrators/{id}/access-tokens" Administrators PatchTokens, "Change the access tokens of a condition";
    DELETE "/administrators/{id}/access-tokens" Administrators DeleteTokens, "Remove the access tokens of a condition";
    GET "/health" Public Health, "Check the server";
    GET "/memory" Memory Memory, "Not available: there is no heap of Node";
    GET "/explorer" Public Explorer, "Show this description as a page";
    GET "/explorer-json" Public ExplorerJson, "Show this description";
};

/// The endpoint of a method and a path below the root, with the id of the path. A slash at the end has no meaning, nor
/// has letter case.
pub(crate) fn find<'p>(method: &Method, path: &'p str) -> Option<(&'static Endpoint, Option<Cow<'p, str>>)> {
    // An answer to HEAD is that to GET without its body.
    let method = if method == Method::HEAD { &Method::GET } else { method };
    let given: Vec<&str> = path.strip_prefix('/')?.trim_end_matches('/').split('/').collect();
    ENDPOINTS.iter().filter(|endpoint| endpoint.method == *method).find_map(|endpoint| {
        let mut id = None;
        let mut template = endpoint.path.split('/').skip(1);
        for part in &given {
            match template.next()? {
                "{id}" if !part.is_empty() => id = Some(percent_decode_str(part).decode_utf8_lossy()),
                name if name.eq_ignore_ascii_case(part) => {}
                _ => return None,
            }
        }
        template.next().is_none().then_some((endpoint, id))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(method: Method, path: &str, expected: Option<(Operation, Option<&str>)>) {
        let found = find(&method, path);
        let found = found.as_ref().map(|(endpoint, id)| (endpoint.operation, id.as_deref()));
        assert_eq!(found, expected, "{method} {path}");
    }

    #[test]
    fn paths_have_one_endpoint_each() {
        check(Method::GET, "/subscriptions", Some((Operation::FindSubscriptions, None)));
        check(Method::GET, "/subscriptions/", Some((Operation::FindSubscriptions, None)));
        check(Method::HEAD, "/Subscriptions/count/", Some((Operation::CountSubscriptions, None)));
        check(Method::GET, "/subscriptions/services", Some((Operation::SubscriptionServices, None)));
        check(Method::PATCH, "/subscriptions/a%20b", Some((Operation::PatchSubscription, Some("a b"))));
        check(Method::GET, "/subscriptions/1/unsubscribe/undo", Some((Operation::UndoUnsubscription, Some("1"))));
        check(Method::GET, "/administrators/whoami", Some((Operation::WhoAmI, None)));
        check(Method::GET, "/explorer/", Some((Operation::Explorer, None)));
        for (method, path) in
            [(Method::GET, "/"), (Method::GET, "/nothing"), (Method::PUT, "/health"), (Method::GET, "")]
        {
            check(method, path, None);
        }
        check(Method::GET, "/subscriptions//verify", None);
    }
}
