//! Presets for known services, so that a channel needs only a name and credentials.
//!
//! A recipe is a set of channel options, written as an operator would write them; options in the definition override
//! it. Each follows the API documentation of the service. Where the documentation does not define the unit of a
//! limit, UTF-16 units are used, which are never fewer than characters.

use std::{collections::BTreeMap, sync::LazyLock};

use serde::Deserialize;
use serde_json::json;
use tocsin_model::problem::{Code, Problem, closest};

use super::options::{AnswerRule, Body, HttpOptions};

/// A known service.
struct Recipe {
    name: &'static str,
    /// Parameters in `with`, with their defaults.
    parameters: &'static [(&'static str, Option<&'static str>)],
    options: RecipeOptions,
}

#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
struct RecipeOptions {
    url: Option<String>,
    body: Option<Body>,
    answers: Vec<AnswerRule>,
    username: Option<String>,
    password: Option<String>,
    headers: BTreeMap<String, String>,
}

impl Default for RecipeOptions {
    fn default() -> Self {
        let HttpOptions { url, body, answers, username, password, headers, .. } = HttpOptions::default();
        RecipeOptions { url, body, answers, username, password, headers }
    }
}

/// The recipe of this name.
///
/// # Errors
/// An unknown name.
fn find(name: &str) -> Result<&'static Recipe, Vec<Problem>> {
    RECIPES.iter().find(|recipe| recipe.name == name).ok_or_else(|| {
        let names = RECIPES.iter().map(|recipe| recipe.name);
        let problem = Problem::new(Code::UnknownValue, "recipe", format!("`{}` is not a recipe", name.escape_debug()));
        vec![match closest(name, names.clone()) {
            Some(word) => problem.hint(format!("did you mean `{word}`?")),
            None => problem.hint(format!("the recipes are {}", names.collect::<Vec<_>>().join(", "))),
        }]
    })
}

/// The options with the defaults of their recipe.
///
/// # Errors
/// An unknown recipe, or a missing parameter.
pub(super) fn complete(given: &HttpOptions) -> Result<HttpOptions, Vec<Problem>> {
    let mut options = given.clone();
    if let Some(name) = &given.recipe {
        find(name)?.apply(&mut options)?;
    }
    Ok(options)
}

impl Recipe {
    /// Fills in options that are not given.
    ///
    /// # Errors
    /// A parameter is missing or unknown.
    fn apply(&self, options: &mut HttpOptions) -> Result<(), Vec<Problem>> {
        let mut problems = Vec::new();
        for name in options.with.keys() {
            if !self.parameters.iter().any(|(known, _)| known == name) {
                let problem = Problem::new(
                    Code::UnknownMember,
                    format!("with.{name}"),
                    format!("`{}` does not ask for this", self.name),
                );
                let known: Vec<&str> = self.parameters.iter().map(|(known, _)| *known).collect();
                problems.push(match known[..] {
                    [] => problem.hint("leave it out"),
                    _ => problem.hint(format!("it asks for {}", known.join(", "))),
                });
            }
        }
        for (name, usual) in self.parameters {
            match (options.with.contains_key(*name), usual) {
                (true, _) => {}
                (false, Some(usual)) => drop(options.with.insert((*name).to_owned(), (*usual).to_owned())),
                (false, None) => {
                    problems.push(Problem::new(
                        Code::Required,
                        format!("with.{name}"),
                        format!("`{}` needs it", self.name),
                    ));
                }
            }
        }
        if !problems.is_empty() {
            return Err(problems);
        }
        let prepared = &self.options;
        options.url = options.url.take().or_else(|| prepared.url.clone());
        options.body = options.body.take().or_else(|| prepared.body.clone());
        options.username = options.username.take().or_else(|| prepared.username.clone());
        options.password = options.password.take().or_else(|| prepared.password.clone());
        options.answers.extend(prepared.answers.iter().cloned());
        for (name, value) in &prepared.headers {
            options.headers.entry(name.clone()).or_insert_with(|| value.clone());
        }
        Ok(())
    }
}

fn recipe(
    name: &'static str,
    parameters: &'static [(&'static str, Option<&'static str>)],
    options: serde_json::Value,
) -> Recipe {
    let options = serde_json::from_value(options).expect("recipes are options");
    Recipe { name, parameters, options }
}

static RECIPES: LazyLock<[Recipe; 8]> = LazyLock::new(|| {
    [
        // The address is a phone number. https://www.twilio.com/docs/messaging/api/message-resource
        recipe(
            "twilio",
            &[("account", None), ("token", None), ("from", None), ("server", Some("https://api.twilio.com"))],
            json!({
                "url": "{with.server}/2010-04-01/Accounts/{with.account}/Messages.json",
                "username": "{with.account}",
                "password": "{with.token}",
                "body": {"form": {"To": "{address}", "From": "{with.from}", "Body": "{sms|utf16:1600}"}},
                "answers": [
                    {"status": "401", "means": "misconfigured", "reply": "/message"},
                    {"status": "429", "means": "slower", "reply": "/message"},
                    {"status": "2xx", "json": "/status", "is": ["failed", "undelivered"], "means": "refused", "reply": "/error_message"},
                    // The number is not a phone number, or its owner has replied STOP.
                    {"status": "4xx", "json": "/code", "is": ["21211", "21614", "21610"], "means": "gone", "reply": "/message"},
                    {"status": "4xx", "json": "/message", "means": "refused", "reply": "/message"},
                    {"status": "2xx", "json": "/sid", "means": "delivered", "reply": "/sid"},
                ],
            }),
        ),
        // The address is a phone number; the HTTP status is always 200. https://developer.vonage.com/en/api/sms
        recipe(
            "vonage",
            &[
                ("key", None),
                ("secret", None),
                ("from", None),
                ("type", Some("unicode")),
                ("server", Some("https://rest.nexmo.com")),
            ],
            json!({
                "url": "{with.server}/sms/json",
                "body": {"form": {
                    "api_key": "{with.key}", "api_secret": "{with.secret}", "from": "{with.from}", "to": "{address}",
                    "text": "{sms|utf16:1600}", "type": "{with.type}", "client-ref": "{message_id|40}",
                }},
                "answers": [
                    {"status": "2xx", "json": "/messages/0/status", "is": ["0"], "means": "delivered", "reply": "/messages/0/message-id"},
                    {"status": "2xx", "json": "/messages/0/status", "is": ["1"], "means": "slower", "reply": "/messages/0/error-text"},
                    {"status": "2xx", "json": "/messages/0/status", "is": ["5"], "means": "retry", "reply": "/messages/0/error-text"},
                    // Credentials, an account that is barred or empty, or a sender address that is not ours.
                    {"status": "2xx", "json": "/messages/0/status", "is": ["2", "4", "8", "9", "14", "15", "29"], "means": "misconfigured", "reply": "/messages/0/error-text"},
                    {"status": "2xx", "json": "/messages/0/status", "means": "refused", "reply": "/messages/0/error-text"},
                    {"status": "2xx", "means": "retry"},
                ],
            }),
        ),
        // The address is the URL of an incoming webhook. https://docs.slack.dev/messaging/sending-messages-using-incoming-webhooks
        recipe(
            "slack",
            &[],
            json!({
                "body": {"json": {"text": "{text|slack|utf16:40000}"}},
                "answers": [
                    {"status": "404", "contains": "no_service", "means": "gone"},
                    {"status": "404", "contains": "no_team", "means": "gone"},
                    {"status": "410", "means": "gone"},
                ],
            }),
        ),
        // The address is a channel or a member; failures come with the status 200. https://docs.slack.dev/reference/methods/chat.postMessage
        recipe(
            "slack_bot",
            &[("token", None), ("server", Some("https://slack.com"))],
            json!({
                "url": "{with.server}/api/chat.postMessage",
                "headers": {"Authorization": "Bearer {with.token}"},
                "body": {"json": {"channel": "{address}", "text": "{text|slack|utf16:40000}"}},
                "answers": [
                    {"status": "2xx", "json": "/ok", "is": ["true"], "means": "delivered", "reply": "/ts"},
                    {"json": "/error", "is": ["ratelimited", "rate_limited"], "means": "slower", "reply": "/error"},
                    {"json": "/error", "is": ["internal_error", "fatal_error", "service_unavailable", "request_timeout"], "means": "retry", "reply": "/error"},
                    {"json": "/error", "is": ["invalid_auth", "not_authed", "token_revoked", "token_expired", "account_inactive", "missing_scope", "no_permission"], "means": "misconfigured", "reply": "/error"},
                    {"json": "/error", "is": ["channel_not_found", "is_archived", "user_not_found"], "means": "gone", "reply": "/error"},
                    {"status": "2xx", "json": "/error", "means": "refused", "reply": "/error"},
                ],
            }),
        ),
        // The address is the URL of a workflow, which takes messages of up to 28 KB. https://learn.microsoft.com/microsoftteams/platform/webhooks-and-connectors
        recipe(
            "teams",
            &[],
            json!({
                "body": {"json": {
                    "type": "message",
                    "attachments": [{
                        "contentType": "application/vnd.microsoft.card.adaptive",
                        "contentUrl": null,
                        "content": {
                            "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
                            "type": "AdaptiveCard",
                            "version": "1.4",
                            "body": [
                                {"type": "TextBlock", "text": "{subject|bytes:1000}", "weight": "Bolder", "wrap": true},
                                {"type": "TextBlock", "text": "{text|bytes:20000}", "wrap": true},
                            ],
                        },
                    }],
                }},
                // Connectors reported failures in a text with the status 200.
                "answers": [
                    {"status": "2xx", "contains": "HTTP error 429", "means": "slower"},
                    {"status": "2xx", "contains": "endpoint returned HTTP error", "means": "refused"},
                ],
            }),
        ),
        // The address is the URL of a webhook. https://discord.com/developers/docs/resources/webhook#execute-webhook
        recipe(
            "discord",
            &[],
            json!({
                // No one is mentioned, whatever the text contains.
                "body": {"json": {"content": "{text|utf16:2000}", "allowed_mentions": {"parse": []}}},
                "answers": [
                    {"status": "429", "means": "slower", "retry_after": "/retry_after", "reply": "/message"},
                    {"status": "404", "json": "/code", "is": ["10015"], "means": "gone", "reply": "/message"},
                    {"status": "4xx", "json": "/message", "means": "refused", "reply": "/message"},
                ],
            }),
        ),
        // The address is the number of a chat, or `@name` of a channel. https://core.telegram.org/bots/api#sendmessage
        recipe(
            "telegram",
            &[("token", None), ("server", Some("https://api.telegram.org"))],
            json!({
                "url": "{with.server}/bot{with.token}/sendMessage",
                "body": {"json": {"chat_id": "{address}", "text": "{text|utf16:4096}"}},
                "answers": [
                    {"status": "2xx", "json": "/ok", "is": ["true"], "means": "delivered", "reply": "/result/message_id"},
                    {"status": "429", "means": "slower", "retry_after": "/parameters/retry_after", "reply": "/description"},
                    // A request with an unknown bot token gets 404.
                    {"status": "401", "means": "misconfigured", "reply": "/description"},
                    {"status": "404", "means": "misconfigured", "reply": "/description"},
                    {"status": "403", "contains": "blocked by the user", "means": "gone", "reply": "/description"},
                    {"status": "403", "contains": "user is deactivated", "means": "gone", "reply": "/description"},
                    {"status": "400", "contains": "chat not found", "means": "gone", "reply": "/description"},
                    {"json": "/ok", "is": ["false"], "status": "4xx", "means": "refused", "reply": "/description"},
                ],
            }),
        ),
        // The address is a URL of Apprise, such as `matrix://...`. https://github.com/caronc/apprise-api
        recipe(
            "apprise",
            &[("server", None)],
            json!({
                "url": "{with.server}/notify",
                "headers": {"Accept": "application/json"},
                "body": {"json": {"urls": "{address}", "title": "{subject}", "body": "{text}", "type": "info", "format": "text"}},
                "answers": [
                    {"status": "204", "means": "refused", "reply": "/error"},
                    // At least one of the services behind it failed.
                    {"status": "424", "means": "retry", "reply": "/error"},
                    {"status": "4xx", "json": "/error", "means": "refused", "reply": "/error"},
                ],
            }),
        ),
    ]
});

#[cfg(test)]
pub(super) fn names() -> Vec<&'static str> {
    RECIPES.iter().map(|recipe| recipe.name).collect()
}
