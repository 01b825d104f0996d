//! The generated definition of the application `notifybc`: its classes, and the channels of the configuration.
//!
//! It is applied at start if it differs from the running version, so changes by other means do not last.

use std::sync::Arc;

use serde_json::{Value, json};
use tocsin_model::notifybc::{APPLICATION, CLASS, name};
use tocsin_notifybc::configuration::{Configuration, SmsProvider, Smtp, Throttle};

use crate::{Service, ServiceError};

/// Description of the application.
const DESCRIPTION: &str = "Subscriptions and messages of the NotifyBC interface, generated from its configuration";
/// Event class of broadcasts.
pub(super) const EVENT_CLASS: &str = "push";
/// Notification class of all messages.
pub(super) const MESSAGE_CLASS: &str = "message";
/// Channel of mails.
pub const EMAIL: &str = "email";
/// Channel of short messages.
pub const SMS: &str = "sms";
/// Channel of calls of the URL of a notification. Its address is the URL, its body the content's JSON.
pub(super) const CALLBACK: &str = "callback";
/// Sender of mails that give none.
pub(super) const SENDER_DEFAULT: &str = "no_reply@invalid.local";
/// Delays before a message is sent again that its receiver deferred.
pub(super) const RETRY_SECONDS: [u64; 3] = [1, 2, 4];
/// Sessions of a relay without a pool, and connections to an SMS provider.
const SESSIONS: u64 = 20;
/// Sessions that a pool may have.
const SESSIONS_MAX: u64 = 10_000;

/// The text of the definition.
pub fn definition(configuration: &Configuration) -> String {
    let (string, map) = (json!("string"), json!("map"));
    let event = json!({
        "id": string, "service": string, "http_host": string, "rest_api_root": string, "data": map,
        "without": map, "only": map,
    });
    let subscription = json!({
        "id": {"type": "string", "required": true}, "service": string, "channel": string, "code": string,
        "confirmation": string, "data": map,
    });
    let text = json!({
        "application": APPLICATION,
        "description": DESCRIPTION,
        "events": {EVENT_CLASS: {"fields": event}},
        "subscriptions": {CLASS: {"fields": subscription, "filter": "notifybc"}},
        "notifications": {MESSAGE_CLASS: {
            "fields": {"id": string},
            "priority": "low",
            "content": {"engine": "notifybc", "templates": {"base": {"text": "{service_name}"}}},
        }},
        "channels": {
            EMAIL: email(configuration),
            SMS: sms(configuration),
            CALLBACK: callback(configuration),
        },
        // Results by recipient are read as long as the notification is kept.
        "retention": {"finished": format!("{}h", kept_hours(configuration))},
        "limits": {"unindexed_filters": 100_000_000},
    });
    text.to_string()
}

/// Retention of push notifications in hours.
fn kept_hours(configuration: &Configuration) -> u64 {
    let days = configuration.cron.retention.push_notification.clamp(1.0, 3_000.0);
    (days * 24.0).ceil() as u64
}

fn email(configuration: &Configuration) -> Value {
    let mut channel = match &configuration.email.smtp {
        Some(smtp) => json!({
            "protocol": "smtp",
            "options": smtp_options(smtp),
            "concurrency": if smtp.is_pooled { smtp.connections_max.clamp(1, SESSIONS_MAX) } else { SESSIONS },
        }),
        // Without a relay, mails are kept in a file of the data folder.
        None => json!({"protocol": "file", "options": {"path": "notifybc-mails.ndjson"}}),
    };
    complete(&mut channel, configuration.email.throttle);
    channel
}

fn smtp_options(smtp: &Smtp) -> Value {
    let tls = match smtp {
        Smtp { is_secure: true, .. } => "implicit",
        Smtp { requires_tls: true, .. } => "required",
        Smtp { ignores_tls: true, .. } => "off",
        _ => "if_offered",
    };
    let mut options = json!({
        "host": literal(&smtp.host),
        "port": smtp.port,
        "tls": tls,
        "from": SENDER_DEFAULT,
        "fields_from_content": true,
        "list_id": false,
        "list_unsubscribe": false,
        "suppress_unknown": false,
        "precedence": "none",
        "patience": "3s",
        "recipients_max": 1,
    });
    if let Some((user, password)) = &smtp.credentials {
        options["username"] = literal(user);
        options["password"] = literal(password);
        options["allow_plain_auth"] = true.into();
    }
    if let Some(most) = smtp.messages_max {
        options["messages_per_session"] = most.min(u64::from(u32::MAX)).into();
    }
    if let Some(name) = &smtp.name {
        options["ehlo"] = literal(name);
    }
    options
}

fn sms(configuration: &Configuration) -> Value {
    let (server, mut options) = match &configuration.sms.provider {
        SmsProvider::Twilio { api_url, account_sid, auth_token, from } => {
            let with = json!({
                "server": literal(base(api_url)), "account": literal(account_sid), "token": literal(auth_token),
                "from": literal(from),
            });
            (api_url, json!({"recipe": "twilio", "with": with}))
        }
        SmsProvider::Vonage { api_url, api_key, api_secret, from } => {
            let with = json!({
                "server": literal(base(api_url)), "key": literal(api_key), "secret": literal(api_secret),
                "from": literal(from),
            });
            (api_url, json!({"recipe": "vonage", "with": with}))
        }
        // The body is the content's JSON.
        SmsProvider::Swift { api_url, account_key } => {
            let account = account_key.replace('{', "{{").replace('}', "}}");
            (api_url, json!({"url": literal(&format!("{}/{account}/{{address}}", base(api_url)))}))
        }
    };
    if let Some(host) = url::Url::parse(server).ok().and_then(|url| url.host_str().map(str::to_owned)) {
        options["allow_hosts"] = json!([literal(&host)]);
    }
    let mut channel = json!({"protocol": "http", "options": options, "concurrency": SESSIONS});
    channel["flow"] = json!({"failures_before_pause": 0});
    complete(&mut channel, configuration.sms.throttle);
    channel
}

fn callback(configuration: &Configuration) -> Value {
    let mut options = json!({});
    if let Some(secret) = &configuration.callback_secret {
        options["secret"] = literal(secret);
    }
    let flow = json!({"failures_before_pause": 0});
    json!({"protocol": "http", "options": options, "retry": [], "disable_after": "0s", "flow": flow})
}

/// Adds retries and the rate.
fn complete(channel: &mut Value, throttle: Throttle) {
    channel["retry"] = RETRY_SECONDS.map(|seconds| format!("{seconds}s")).to_vec().into();
    if throttle.is_enabled {
        channel["flow"]["rate"] = rate(throttle);
    }
}

/// The same rate over a second at least.
fn rate(throttle: Throttle) -> Value {
    let (messages, millis) = match throttle.duration_millis {
        millis @ 1_000.. => (throttle.max, millis),
        millis => ((throttle.max * 1_000).div_ceil(millis.max(1)), 1_000),
    };
    json!({"messages": messages.clamp(1, 1_000_000), "per": format!("{}ms", millis.min(86_400_000))})
}

fn base(url: &str) -> &str {
    url.trim_end_matches('/')
}

/// A text in which `$` does not begin a variable.
fn literal(text: &str) -> Value {
    text.replace('$', "$$").into()
}

/// Applies the definition if the running version differs.
///
/// # Errors
/// It has problems, or the store is unavailable.
pub async fn apply(service: &Arc<Service>, configuration: &Configuration) -> Result<(), ServiceError> {
    service.apply_own(&name(APPLICATION), definition(configuration), "notifybc").await.map(|_| ())
}

#[cfg(test)]
mod tests {
    use tocsin_model::definition;

    use super::*;

    fn parsed(document: Value) -> tocsin_model::application::Application {
        let Value::Object(document) = document else { panic!("a document is an object") };
        let text = definition(&Configuration::parse(&document));
        definition::read(&text, &|_| None).unwrap_or_else(|problems| panic!("{problems:?} in {text}"))
    }

    fn channel(document: Value, channel: &str) -> tocsin_model::application::Channel {
        parsed(document).channels[&channel.parse::<tocsin_model::id::Name>().expect("a name")].clone()
    }

    #[test]
    fn s2_1_mail_options_become_a_channel() {
        assert_eq!(channel(json!({}), EMAIL).protocol.as_str(), "file");
        let smtp = json!({
            "host": "relay.example", "port": 2525, "pool": true, "maxConnections": 50, "maxMessages": 7,
            "auth": {"user": "u", "pass": "$x"}, "ignoreTLS": true, "name": "me.example",
        });
        let throttle = json!({"enabled": true, "max": 3, "duration": 500});
        let found = channel(json!({"email": {"smtp": smtp, "throttle": throttle}}), EMAIL);
        assert_eq!((found.protocol.as_str(), found.concurrency), ("smtp", 50));
        let options = serde_json::to_value(&found.options).expect("JSON");
        for (option, expected) in [
            ("host", json!("relay.example")),
            ("port", json!(2525)),
            ("tls", json!("off")),
            ("username", json!("u")),
            ("password", json!("$x")),
            ("messages_per_session", json!(7)),
            ("ehlo", json!("me.example")),
        ] {
            assert_eq!(options[option], expected, "{option}");
        }
        let rate = found.flow.rate.expect("a rate");
        assert_eq!((rate.messages, rate.per.as_millis()), (6, 1_000));
        assert_eq!(found.retry.delays.len(), RETRY_SECONDS.len());
    }

    #[test]
    fn s7_6_providers_become_channels() {
        let settings = |provider: &str, settings: Value| {
            let all = json!({provider: settings});
            json!({"sms": {"provider": provider, "providerSettings": all}})
        };
        let options = |document: Value| serde_json::to_value(&channel(document, SMS).options).expect("JSON");
        let twilio = options(settings("twilio", json!({"accountSid": "a", "authToken": "t", "fromNumber": "1"})));
        assert_eq!((&twilio["recipe"], &twilio["with"]["account"]), (&json!("twilio"), &json!("a")));
        let vonage = options(settings("vonage", json!({"apiKey": "k", "apiSecret": "s", "from": "1"})));
        assert_eq!((&vonage["recipe"], &vonage["with"]["secret"]), (&json!("vonage"), &json!("s")));
        let swift = json!({"accountKey": "key", "apiUrlPrefix": "http://127.0.0.1:8080/sms/"});
        let swift = options(settings("swift", swift));
        assert_eq!(swift["url"], "http://127.0.0.1:8080/sms/key/{address}");
        assert_eq!(swift["allow_hosts"], json!(["127.0.0.1"]));
        let rate = channel(json!({}), SMS).flow.rate.expect("the default rate");
        assert_eq!((rate.messages, rate.per.as_millis()), (4, 1_000));
    }
}
