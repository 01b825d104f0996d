//! Parts of a configuration document: e-mail, SMS, broadcasts, jobs, OpenID Connect, TLS.

use serde_json::Value;

use super::{claims::ClaimCondition, reader::Reader};
use crate::record::Document;

/// E-mail options.
#[derive(Debug, Clone)]
pub struct Email {
    /// The relay. `None`: none is configured.
    pub smtp: Option<Smtp>,
    /// Rate of sending.
    pub throttle: Throttle,
    /// The inbound server.
    pub inbound: InboundSmtp,
    /// Bounces.
    pub bounce: BounceOptions,
    /// Whether `List-Unsubscribe` has an address when an inbound domain is configured.
    pub list_unsubscribe_by_email: bool,
}

/// The SMTP relay.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Smtp {
    /// Host.
    pub host: String,
    /// Port; 465 with `secure`, else 587.
    pub port: u16,
    /// Whether TLS begins with the connection.
    pub is_secure: bool,
    /// Whether STARTTLS is never used.
    pub ignores_tls: bool,
    /// Whether STARTTLS is required.
    pub requires_tls: bool,
    /// Whether an invalid certificate is refused.
    pub rejects_unauthorized: bool,
    /// User and password.
    pub credentials: Option<(String, String)>,
    /// Whether connections are kept.
    pub is_pooled: bool,
    /// Most connections at once.
    pub connections_max: u64,
    /// Most mails of one connection. `None`: no limit.
    pub messages_max: Option<u64>,
    /// The name in `EHLO`.
    pub name: Option<String>,
    /// Whether mail goes to the exchangers of its domain, without a relay.
    pub is_direct: bool,
}

/// Rate of sending: at most `max` starts within each window.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Throttle {
    /// Whether it is limited.
    pub is_enabled: bool,
    /// Most starts of a window.
    pub max: u64,
    /// Window in milliseconds.
    pub duration_millis: u64,
}

/// The inbound SMTP server.
#[derive(Debug, Clone, PartialEq)]
pub struct InboundSmtp {
    /// Whether it runs.
    pub is_enabled: bool,
    /// Domains of its recipients, in lower case.
    pub domains: Vec<String>,
    /// Listening port. `None`: any.
    pub port: Option<u16>,
    /// Listening address.
    pub host: Option<String>,
    /// Whether TLS begins with the connection.
    pub is_secure: bool,
    /// Private key, PEM.
    pub key: Option<String>,
    /// Certificate, PEM.
    pub cert: Option<String>,
}

/// Rules that count bounces.
#[derive(Debug, Clone)]
pub struct BounceOptions {
    /// Whether bounces are processed.
    pub is_enabled: bool,
    /// An address with more hard bounces is unsubscribed.
    pub unsubscription_threshold: u64,
    /// The subject of a bounce.
    pub subject: Option<regex::Regex>,
    /// The status code in the body.
    pub status_code: Option<regex::Regex>,
    /// The failed recipient in the body.
    pub failed_recipient: Option<regex::Regex>,
}

/// The SMS provider.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sms {
    /// The provider in use.
    pub provider: SmsProvider,
    /// Whether the settings of the provider are complete.
    pub swift_key: Option<String>,
    /// Rate of sending.
    pub throttle: Throttle,
}

/// An SMS provider with its settings. Settings that are absent are empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SmsProvider {
    /// Twilio.
    Twilio {
        /// Base address.
        api_url: String,
        /// Account.
        account_sid: String,
        /// Secret of the account.
        auth_token: String,
        /// Sender.
        from: String,
    },
    /// Swift.
    Swift {
        /// Base address with a slash at its end.
        api_url: String,
        /// Account.
        account_key: String,
    },
    /// Vonage.
    Vonage {
        /// Base address.
        api_url: String,
        /// Key.
        api_key: String,
        /// Secret.
        api_secret: String,
        /// Sender.
        from: String,
    },
}

/// Options of broadcasts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotificationOptions {
    /// A hint for the number of subscriptions of a chunk.
    pub chunk_size: u64,
    /// Whether `dispatch.successful` is kept.
    pub is_guaranteed: bool,
    /// Whether `dispatch.skipped` is kept, only with the guarantee.
    pub logs_skipped: bool,
}

/// Scheduled jobs. Each text is a `timeSpec`.
#[derive(Debug, Clone, PartialEq)]
pub struct Cron {
    /// Deletes old records.
    pub purge_data: String,
    /// Retention of records in days.
    pub retention: Retention,
    /// Sends notifications whose `invalidBefore` has passed.
    pub dispatch_live_notifications: String,
    /// Follows changes of RSS configurations.
    pub check_rss_config_updates: String,
    /// Clears bounce records.
    pub delete_bounces: String,
    /// Hours since `latestNotificationEnded` after which a bounce record may be cleared.
    pub bounce_hours_min: f64,
    /// Resumes broadcasts.
    pub re_dispatch_broadcasts: String,
}

/// Retention in days.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Retention {
    /// Push notifications.
    pub push_notification: f64,
    /// In-app notifications after `validTill`.
    pub expired_in_app_notification: f64,
    /// Subscriptions that are not confirmed.
    pub non_confirmed_subscription: f64,
    /// Bounce records in state `deleted`.
    pub deleted_bounce: f64,
    /// Access tokens after their expiry.
    pub expired_access_token: f64,
}

/// OpenID Connect.
#[derive(Debug, Clone, PartialEq)]
pub struct Oidc {
    /// Address of the discovery document.
    pub discovery_url: String,
    /// Client id, for the console.
    pub client_id: Option<String>,
    /// Accepted values of `aud`. Empty: any.
    pub audience: Vec<String>,
    /// Accepted values of `iss`. Empty: any.
    pub issuer: Vec<String>,
    /// Tolerance of `exp` and `nbf` in seconds.
    pub clock_tolerance_seconds: u64,
    /// Whether `exp` is not checked.
    pub ignores_expiration: bool,
    /// Accepted signature algorithms. Empty: all RSA ones.
    pub algorithms: Vec<String>,
    /// Claims of an admin; one condition must hold.
    pub admin: Vec<ClaimCondition>,
    /// Claims of a user who is refused; one condition suffices.
    pub refused: Vec<ClaimCondition>,
}

/// TLS of the listener. Texts are PEM.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tls {
    /// Whether the listener uses TLS.
    pub is_enabled: bool,
    /// Whether client certificates are requested.
    pub client_certificates: bool,
    /// Private key.
    pub key: Option<String>,
    /// Certificate.
    pub cert: Option<String>,
    /// Authority of client certificates.
    pub ca: Option<String>,
}

fn throttle(part: &Reader<'_>) -> Throttle {
    Throttle {
        is_enabled: part.flag("enabled"),
        max: part.whole("max").unwrap_or(4).max(1),
        duration_millis: part.whole("duration").unwrap_or(1000).max(1),
    }
}

pub(super) fn email(part: &Reader<'_>, ignored: &mut Vec<String>) -> Email {
    let (inbound, bounce) = (part.at("inboundSmtpServer"), part.at("bounce"));
    let options = inbound.at("options");
    let mut regex = |name: &str| {
        let text = bounce.text(name)?;
        match regex::RegexBuilder::new(&text).size_limit(crate::query::REGEX_MEMORY_MAX).build() {
            Ok(regex) => Some(regex),
            Err(_) => {
                ignored.push(format!("email.bounce.{name}: not a regular expression"));
                None
            }
        }
    };
    let bounce = BounceOptions {
        is_enabled: bounce.flag("enabled"),
        unsubscription_threshold: bounce.whole("unsubThreshold").unwrap_or(5),
        subject: regex("subjectRegex"),
        status_code: regex("smtpStatusCodeRegex"),
        failed_recipient: regex("failedRecipientRegex"),
    };
    let domains = inbound.text("domain").unwrap_or_default();
    let domains = domains.split(',').map(|domain| domain.trim().to_lowercase()).filter(|domain| !domain.is_empty());
    Email {
        smtp: smtp(&part.at("smtp")),
        throttle: throttle(&part.at("throttle")),
        inbound: InboundSmtp {
            is_enabled: inbound.flag("enabled"),
            domains: domains.collect(),
            port: inbound.whole("listeningSmtpPort").and_then(|port| port.try_into().ok()).filter(|port| *port > 0),
            host: options.text("host"),
            is_secure: options.flag("secure"),
            key: options.text("key"),
            cert: options.text("cert"),
        },
        bounce,
        list_unsubscribe_by_email: part.at("listUnsubscribeByEmail").flag("enabled"),
    }
}

fn smtp(part: &Reader<'_>) -> Option<Smtp> {
    part.value().filter(|value| value.is_object())?;
    let is_secure = part.flag("secure");
    let auth = part.at("auth");
    Some(Smtp {
        host: part.text("host").unwrap_or_else(|| "localhost".to_owned()),
        port: part.whole("port").and_then(|port| port.try_into().ok()).unwrap_or(if is_secure { 465 } else { 587 }),
        is_secure,
        ignores_tls: part.flag("ignoreTLS"),
        requires_tls: part.flag("requireTLS"),
        rejects_unauthorized: part.at("tls").at("rejectUnauthorized").value() != Some(&Value::Bool(false)),
        credentials: auth.text("user").map(|user| (user, auth.text("pass").unwrap_or_default())),
        is_pooled: part.flag("pool"),
        connections_max: part.whole("maxConnections").unwrap_or(5).max(1),
        messages_max: part.whole("maxMessages").filter(|max| *max > 0),
        name: part.text("name"),
        is_direct: part.flag("direct"),
    })
}

pub(super) fn sms(part: &Reader<'_>, ignored: &mut Vec<String>) -> Sms {
    let settings = part.at("providerSettings");
    let text = |part: &Reader<'_>, name: &str| part.text(name).unwrap_or_default();
    let url = |part: &Reader<'_>, default: &str| part.text("apiUrlPrefix").unwrap_or_else(|| default.to_owned());
    let name = part.text("provider").unwrap_or_default();
    let provider = match name.as_str() {
        "swift" => {
            let part = settings.at("swift");
            SmsProvider::Swift { api_url: url(&part, ""), account_key: text(&part, "accountKey") }
        }
        "vonage" => {
            let part = settings.at("vonage");
            SmsProvider::Vonage {
                api_url: url(&part, "https://rest.nexmo.com"),
                api_key: text(&part, "apiKey"),
                api_secret: text(&part, "apiSecret"),
                from: text(&part, "from"),
            }
        }
        other => {
            if other != "twilio" {
                ignored.push(format!("sms.provider: `{other}` is not twilio, swift or vonage; twilio is used"));
            }
            let part = settings.at("twilio");
            SmsProvider::Twilio {
                api_url: url(&part, "https://api.twilio.com"),
                account_sid: text(&part, "accountSid"),
                auth_token: text(&part, "authToken"),
                from: text(&part, "fromNumber"),
            }
        }
    };
    Sms { provider, swift_key: settings.at("swift").text("notifyBCSwiftKey"), throttle: throttle(&part.at("throttle")) }
}

pub(super) fn cron(part: &Reader<'_>) -> Cron {
    let purge = part.at("purgeData");
    let default = purge.number("defaultRetentionDays").unwrap_or(30.0);
    let days = |name: &str| purge.number(name).unwrap_or(default);
    let time = |name: &str| part.at(name).text("timeSpec").unwrap_or_default();
    Cron {
        purge_data: time("purgeData"),
        retention: Retention {
            push_notification: days("pushNotificationRetentionDays"),
            expired_in_app_notification: days("expiredInAppNotificationRetentionDays"),
            non_confirmed_subscription: days("nonConfirmedSubscriptionRetentionDays"),
            deleted_bounce: days("deletedBounceRetentionDays"),
            expired_access_token: days("expiredAccessTokenRetentionDays"),
        },
        dispatch_live_notifications: time("dispatchLiveNotifications"),
        check_rss_config_updates: time("checkRssConfigUpdates"),
        delete_bounces: time("deleteBounces"),
        bounce_hours_min: part.at("deleteBounces").number("minLapsedHoursSinceLatestNotificationEnded").unwrap_or(1.0),
        re_dispatch_broadcasts: time("reDispatchBroadcastPushNotifications"),
    }
}

pub(super) fn oidc(root: &Reader<'_>, document: &Document, ignored: &mut Vec<String>) -> Option<Oidc> {
    let part = root.at("oidc");
    let options = part.at("jwtVerifyOptions");
    // The two keys may also be written as one name with a point.
    let own = |name: &str| {
        let nested = document.get("tocsin").and_then(|own| own.get(name));
        nested.or_else(|| document.get(&format!("tocsin.{name}")))
    };
    let mut conditions = |name: &str, default: ClaimCondition| match own(name) {
        None => vec![default],
        Some(value) => match ClaimCondition::parse_list(value) {
            Some(conditions) => conditions,
            None => {
                ignored.push(format!("tocsin.{name}: expected claim, operator and value"));
                vec![default]
            }
        },
    };
    let admin = conditions("oidcAdmin", ClaimCondition::contains("roles", "notifybc-admin"));
    let refused = conditions("oidcRefused", ClaimCondition::equals("blocked", Value::Bool(true)));
    Some(Oidc {
        discovery_url: part.text("discoveryUrl")?,
        client_id: part.text("clientId"),
        audience: options.texts("audience"),
        issuer: options.texts("issuer"),
        clock_tolerance_seconds: options.whole("clockTolerance").unwrap_or(0),
        ignores_expiration: options.flag("ignoreExpiration"),
        algorithms: options.texts("algorithms"),
        admin,
        refused,
    })
}

pub(super) fn tls(part: &Reader<'_>) -> Tls {
    let (key, cert, ca) = (part.text("key"), part.text("cert"), part.text("ca"));
    let has_pair = key.is_some() && cert.is_some();
    let enabled = |name: &str, default: bool| match part.at(name).value() {
        None => default,
        Some(_) => part.flag(name),
    };
    Tls {
        is_enabled: has_pair && enabled("enabled", true),
        client_certificates: has_pair && ca.is_some() && enabled("clientCertificateEnabled", true),
        key,
        cert,
        ca,
    }
}
