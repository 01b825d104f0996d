//! The configuration document of NotifyBC, and the dynamic configuration of a service.
//!
//! A document is JSON and is merged deeply over [`defaults`]: objects by member, everything else is replaced, also
//! lists. Values of another type than expected count as absent. [`Configuration::ignored`] lists what has no effect.

mod claims; // conditions over the claims of a token
mod keys; // known keys of a document
mod network; // addresses and CIDR ranges
mod parts; // e-mail, SMS, broadcasts, jobs, OpenID Connect, TLS
mod reader; // lenient access to JSON
mod subscription; // texts and rules of the subscription workflow

use serde_json::{Value, json};

pub use claims::{ClaimCondition, ClaimOperator, any_holds};
pub use network::Networks;
pub use parts::{
    BounceOptions, Cron, Email, InboundSmtp, NotificationOptions, Oidc, Retention, Sms, SmsProvider, Smtp, Throttle,
    Tls,
};
pub use subscription::{Acknowledgement, MessageTemplate, SubscriptionConfiguration};

use crate::{configuration::reader::Reader, record::Document};

/// A NotifyBC configuration document, merged over the defaults.
#[derive(Debug, Clone)]
pub struct Configuration {
    /// Path prefix of all routes, without a slash at its end: `/api`.
    pub rest_api_root: String,
    /// Listening address.
    pub host: String,
    /// Listening port.
    pub port: u16,
    /// Public base URL, without a slash at its end.
    pub http_host: Option<String>,
    /// Addresses of super-admins.
    pub admin_ips: Networks,
    /// Addresses whose SiteMinder headers are accepted.
    pub site_minder_proxies: Networks,
    /// Addresses whose `X-Forwarded-*` headers are accepted.
    pub trusted_proxies: Networks,
    /// E-mail.
    pub email: Email,
    /// SMS.
    pub sms: Sms,
    /// Broadcasts.
    pub notification: NotificationOptions,
    /// Scheduled jobs.
    pub cron: Cron,
    /// OpenID Connect.
    pub oidc: Option<Oidc>,
    /// TLS of the listener.
    pub tls: Tls,
    /// Secret that signs calls of the URL of a broadcast (Standard Webhooks), `tocsin.callbackSecret`.
    pub callback_secret: Option<String>,
    /// Keys without effect, each with the reason. They are logged once at start.
    pub ignored: Vec<String>,
    /// The static `subscription` part.
    subscription: Value,
    /// The same, typed.
    typed_subscription: SubscriptionConfiguration,
}

/// Merges a document over another: objects by member, everything else, also a list or `null`, replaces.
pub fn merge(base: &mut Value, over: &Value) {
    match (base, over) {
        (Value::Object(base), Value::Object(over)) => {
            for (name, value) in over {
                match base.get_mut(name) {
                    Some(place) => merge(place, value),
                    None => {
                        base.insert(name.clone(), value.clone());
                    }
                }
            }
        }
        (base, over) => *base = over.clone(),
    }
}

/// The default document.
pub fn defaults() -> Value {
    serde_json::from_str(include_str!("configuration/defaults.json")).expect("the default document is JSON")
}

impl Default for Configuration {
    fn default() -> Configuration {
        Configuration::parse(&Document::new())
    }
}

impl Configuration {
    /// The configuration of a document. Keys that are unknown or have no effect are listed in `ignored`.
    pub fn parse(document: &Document) -> Configuration {
        let mut ignored = keys::ignored(document);
        let mut merged = defaults();
        // Files of keys have effect by being there.
        merge(&mut merged, &Value::Object(document.clone()));
        let root = Reader::new(&merged);
        let networks = |name: &str, ignored: &mut Vec<String>| Networks::parse(name, root.at(name).value(), ignored);
        let subscription = root.at("subscription").value().cloned().unwrap_or_else(|| json!({}));
        let rest = root.at("rest");
        let http_host = root.text("httpHost").map(|host| host.trim_end_matches('/').to_owned());
        let oidc = parts::oidc(&root, document, &mut ignored);
        let email = parts::email(&root.at("email"), &mut ignored);
        Configuration {
            rest_api_root: rest_api_root(&root.text("restApiRoot").unwrap_or_default()),
            host: rest.text("host").or_else(|| root.text("host")).unwrap_or_else(|| "0.0.0.0".to_owned()),
            port: rest
                .whole("port")
                .or_else(|| root.whole("port"))
                .and_then(|port| port.try_into().ok())
                .unwrap_or(3000),
            http_host,
            admin_ips: networks("adminIps", &mut ignored),
            site_minder_proxies: networks("siteMinderReverseProxyIps", &mut ignored),
            trusted_proxies: networks("trustedReverseProxyIps", &mut ignored),
            email,
            sms: parts::sms(&root.at("sms"), &mut ignored),
            notification: NotificationOptions {
                chunk_size: root.at("notification").whole("broadcastSubscriberChunkSize").unwrap_or(1000).max(1),
                is_guaranteed: root.at("notification").flag("guaranteedBroadcastPushDispatchProcessing"),
                logs_skipped: root.at("notification").flag("logSkippedBroadcastPushDispatches"),
            },
            cron: parts::cron(&root.at("cron")),
            oidc,
            tls: parts::tls(&root.at("tls")),
            callback_secret: root.at("tocsin").text("callbackSecret").or_else(|| root.text("tocsin.callbackSecret")),
            ignored,
            typed_subscription: SubscriptionConfiguration::parse(&subscription),
            subscription,
        }
    }

    /// The subscription configuration of a service whose dynamic configuration is `dynamic`, merged over the static
    /// one.
    pub fn subscription(&self, dynamic: Option<&Value>) -> std::borrow::Cow<'_, SubscriptionConfiguration> {
        match dynamic {
            None | Some(Value::Null) => std::borrow::Cow::Borrowed(&self.typed_subscription),
            Some(dynamic) => {
                let mut merged = self.subscription.clone();
                merge(&mut merged, dynamic);
                std::borrow::Cow::Owned(SubscriptionConfiguration::parse(&merged))
            }
        }
    }
}

/// A prefix with a slash before it and none behind it.
fn rest_api_root(text: &str) -> String {
    match text.trim_matches('/') {
        "" => String::new(),
        text => format!("/{text}"),
    }
}

#[cfg(test)]
mod tests;
