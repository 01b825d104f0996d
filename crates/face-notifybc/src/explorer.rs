//! The OpenAPI document of the endpoints, its page, and the page of an unsubscription by link.

use std::fmt::Write;

use axum::http::Uri;
use serde_json::{Map, Value, json};

use crate::endpoints::{ENDPOINTS, Operation};

const STYLE: &str = "body{font-family:system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;\
color-scheme:light dark}td{padding:.2rem .8rem .2rem 0;vertical-align:top}code{white-space:nowrap}";

/// The OpenAPI document.
pub(crate) fn document(root: &str, authorization_url: Option<String>) -> Value {
    let mut paths = Map::new();
    for endpoint in ENDPOINTS {
        let path = paths.entry(format!("{root}{}", endpoint.path)).or_insert_with(|| json!({}));
        let tag = endpoint.path.split('/').nth(1).unwrap_or_default().trim_end_matches('s');
        let mut parameters = Vec::new();
        if endpoint.path.contains("{id}") {
            parameters.push(json!({ "name": "id", "in": "path", "required": true, "schema": { "type": "string" } }));
        }
        for name in query_parameters(endpoint.operation) {
            let json = matches!(*name, "filter" | "where");
            let schema = json!({ "type": if json { "object" } else { "string" } });
            parameters.push(match json {
                true => json!({ "name": name, "in": "query", "content": { "application/json": { "schema": schema } } }),
                false => json!({ "name": name, "in": "query", "schema": schema }),
            });
        }
        let mut operation = json!({
            "operationId": format!("{:?}", endpoint.operation),
            "summary": endpoint.summary,
            "tags": [tag],
            "parameters": parameters,
            "responses": { "default": { "description": "See the summary" } },
        });
        if matches!(endpoint.method.as_str(), "POST" | "PUT" | "PATCH") {
            let schema = json!({ "schema": { "type": "object" } });
            let content = json!({ "application/json": schema, "application/x-www-form-urlencoded": schema });
            operation["requestBody"] = json!({ "content": content });
        }
        path[endpoint.method.as_str().to_lowercase()] = operation;
    }
    let token = json!({ "type": "apiKey", "in": "header", "name": "Authorization" });
    let mut document = json!({
        "openapi": "3.0.0",
        "info": {
            "title": "NotifyBC",
            "description": "The NotifyBC interface of Tocsin",
            "version": env!("CARGO_PKG_VERSION"),
        },
        "paths": paths,
        "components": { "securitySchemes": { "accessToken": token } },
        "security": [{ "accessToken": [] }],
    });
    if let Some(url) = authorization_url {
        let flow = json!({ "implicit": { "authorizationUrl": url, "scopes": {} } });
        document["components"]["securitySchemes"]["oidc"] = json!({ "type": "oauth2", "flows": flow });
    }
    document
}

fn query_parameters(operation: Operation) -> &'static [&'static str] {
    match operation {
        Operation::FindSubscriptions
        | Operation::FindNotifications
        | Operation::FindRecords(_)
        | Operation::FindAdministrators
        | Operation::FindTokens => &["filter"],
        Operation::CountSubscriptions
        | Operation::CountNotifications
        | Operation::CountRecords(_)
        | Operation::CountAdministrators
        | Operation::PatchRecords(_)
        | Operation::PatchTokens
        | Operation::DeleteTokens => &["where"],
        Operation::VerifySubscription => &["confirmationCode", "replace"],
        Operation::Unsubscribe | Operation::UnsubscribeByLink => {
            &["unsubscriptionCode", "userChannelId", "additionalServices"]
        }
        Operation::UndoUnsubscription => &["unsubscriptionCode"],
        _ => &[],
    }
}

/// The page of the OpenAPI document. Its title is that which monitors of NotifyBC look for.
pub(crate) fn page(root: &str) -> String {
    let mut rows = String::new();
    for endpoint in ENDPOINTS {
        let (method, path, summary) = (&endpoint.method, endpoint.path, endpoint.summary);
        // Writing to a text cannot fail.
        let _ = writeln!(rows, "<tr><td><code>{method}</code><td><code>{}{path}</code><td>{summary}", escaped(root));
    }
    format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>Swagger UI</title><style>{STYLE}</style>\
         <h1>NotifyBC</h1><p>The NotifyBC interface of Tocsin. <a href=\"{}/explorer-json\">OpenAPI document</a>\
         <table>{rows}</table></html>",
        escaped(root)
    )
}

/// The page that asks for a confirmation of an unsubscription. Its button sends the same query by POST.
pub(crate) fn unsubscription_form(uri: &Uri) -> String {
    let target = uri.path_and_query().map_or("", |target| target.as_str());
    format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>Unsubscribe</title><style>{STYLE}</style>\
         <h1>Unsubscribe</h1><form method=\"post\" action=\"{}\"><p>Do you want to unsubscribe?\
         <p><button>Unsubscribe</button></form></html>",
        escaped(target)
    )
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s6_5_the_explorer_has_its_title_and_paths_below_the_root() {
        let document = document("/api", Some("https://id.example.org/auth".to_owned()));
        assert_eq!(document["openapi"], "3.0.0");
        assert!(document["paths"]["/api/subscriptions/{id}/verify"]["get"].is_object());
        assert!(document["paths"]["/api/bounces"]["patch"]["requestBody"].is_object());
        assert!(document["components"]["securitySchemes"]["oidc"].is_object());
        assert!(page("/api").contains("<title>Swagger UI</title>"));
    }

    #[test]
    fn s12_the_unsubscription_page_sends_the_same_query_by_post() {
        let uri = Uri::from_static("/api/subscriptions/1/unsubscribe?unsubscriptionCode=12&a=%22");
        let page = unsubscription_form(&uri);
        assert!(
            page.contains(r#"method="post" action="/api/subscriptions/1/unsubscribe?unsubscriptionCode=12&amp;a=%22""#)
        );
    }
}
