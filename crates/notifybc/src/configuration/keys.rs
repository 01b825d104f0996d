//! Known keys of a configuration document, and those without effect.

use serde_json::Value;

use crate::record::Document;

/// Most reported keys.
const REPORTED_MAX: usize = 100;

/// Keys with effect. A star stands for all keys below.
const KNOWN: &[&str] = &[
    "restApiRoot",
    "host",
    "port",
    "httpHost",
    "rest.host",
    "rest.port",
    "adminIps",
    "siteMinderReverseProxyIps",
    "trustedReverseProxyIps",
    "email.smtp.host",
    "email.smtp.port",
    "email.smtp.secure",
    "email.smtp.ignoreTLS",
    "email.smtp.requireTLS",
    "email.smtp.auth.user",
    "email.smtp.auth.pass",
    "email.smtp.pool",
    "email.smtp.maxConnections",
    "email.smtp.maxMessages",
    "email.smtp.tls.rejectUnauthorized",
    "email.smtp.name",
    "email.smtp.direct",
    "email.throttle.enabled",
    "email.throttle.max",
    "email.throttle.duration",
    "email.inboundSmtpServer.enabled",
    "email.inboundSmtpServer.domain",
    "email.inboundSmtpServer.listeningSmtpPort",
    "email.inboundSmtpServer.options.secure",
    "email.inboundSmtpServer.options.key",
    "email.inboundSmtpServer.options.cert",
    "email.inboundSmtpServer.options.host",
    "email.bounce.enabled",
    "email.bounce.unsubThreshold",
    "email.bounce.subjectRegex",
    "email.bounce.smtpStatusCodeRegex",
    "email.bounce.failedRecipientRegex",
    "email.listUnsubscribeByEmail.enabled",
    "sms.provider",
    "sms.providerSettings.*",
    "sms.throttle.enabled",
    "sms.throttle.max",
    "sms.throttle.duration",
    "subscription.*",
    "notification.broadcastSubscriberChunkSize",
    "notification.guaranteedBroadcastPushDispatchProcessing",
    "notification.logSkippedBroadcastPushDispatches",
    "cron.purgeData.*",
    "cron.dispatchLiveNotifications.*",
    "cron.checkRssConfigUpdates.*",
    "cron.deleteBounces.*",
    "cron.reDispatchBroadcastPushNotifications.*",
    "oidc.discoveryUrl",
    "oidc.clientId",
    "oidc.jwtVerifyOptions.*",
    "tls.enabled",
    "tls.clientCertificateEnabled",
    "tls.key",
    "tls.cert",
    "tls.ca",
    "tocsin.oidcAdmin.*",
    "tocsin.oidcRefused.*",
    "tocsin.callbackSecret",
    "tocsin.oidcAdmin",
    "tocsin.oidcRefused",
];

/// Keys of NotifyBC that have no effect here, each with the reason.
const WITHOUT_EFFECT: &[(&str, &str)] = &[
    ("internalHttpHost", "the server sends no request to itself"),
    ("queue", "the queue is part of the store"),
    ("loggingLevels", "the server's own option sets the log level"),
    ("rest", "only host and port have effect"),
    ("cron.clearRedisDatastore", "there is no Redis"),
    ("notification.broadcastCustomFilterFunctions", "JavaScript; contains_ci is built in"),
    ("oidc.isAdmin", "JavaScript; use tocsin.oidcAdmin"),
    ("oidc.isAuthorizedUser", "JavaScript; use tocsin.oidcRefused"),
];

/// The keys of a document that have no effect, each with the reason.
pub(super) fn ignored(document: &Document) -> Vec<String> {
    let mut found = Vec::new();
    visit(document, "", &mut found);
    found.truncate(REPORTED_MAX);
    found
}

fn visit(members: &Document, parent: &str, found: &mut Vec<String>) {
    for (name, value) in members {
        let path = if parent.is_empty() { name.clone() } else { format!("{parent}.{name}") };
        let below = format!("{path}.");
        let is_open = KNOWN.iter().any(|known| known.strip_suffix(".*").is_some_and(|open| open == path));
        match value {
            _ if is_open || KNOWN.contains(&path.as_str()) => {}
            Value::Object(inner) if KNOWN.iter().any(|known| known.starts_with(&below)) => visit(inner, &path, found),
            _ => {
                let reason = WITHOUT_EFFECT.iter().find(|(key, _)| *key == path).map(|(_, reason)| *reason);
                found.push(format!("{path}: {}", reason.unwrap_or("unknown key")));
            }
        }
    }
}
