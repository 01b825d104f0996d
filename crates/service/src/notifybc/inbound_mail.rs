//! Unsubscriptions and bounces by mail: recipients `un-<id>-<code>` and `bn-<id>-<code>`.

use std::net::{IpAddr, Ipv4Addr};

use serde_json::Value;
use tocsin_notifybc::{
    bounces::{self, BounceMail, InboundKind, InboundRecipient},
    codes,
    identity::{Identity, Role, Strategy},
    query::Where,
    record::{Collection, Document, RecordId, text},
    subscriptions::{Additional, UnsubscribeQuery},
};
use tokio::sync::Mutex;

use super::{
    Notifybc, NotifybcError, RequestContext,
    documents::{Record, Turns, turn_of},
};

/// Bounces of an address change its record one after the other, so that none is lost. The last sends a message, which
/// must not delay those of other addresses.
static BOUNCES: Turns = [const { Mutex::const_new(()) }; 64];

/// A negative reply to an inbound mail.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{status} {text}")]
pub struct InboundError {
    /// 550: refused. 451: the client may repeat it.
    pub status: u16,
    /// The reason.
    pub text: String,
}

impl InboundError {
    fn refused(text: &str) -> InboundError {
        InboundError { status: 550, text: text.to_owned() }
    }

    fn later(error: &NotifybcError) -> InboundError {
        tracing::error!(%error, "an inbound mail of the NotifyBC interface was not processed");
        InboundError { status: 451, text: "the mail cannot be processed now, try again later".to_owned() }
    }
}

impl Notifybc {
    /// Whether mail to a recipient is accepted.
    ///
    /// # Errors
    /// The text of the refusal.
    pub fn check_inbound_recipient(&self, recipient: &str) -> Result<(), String> {
        match InboundRecipient::parse(recipient, &self.configuration.email.inbound.domains) {
            Some(_) => Ok(()),
            None => Err("invalid recipient".to_owned()),
        }
    }

    /// Processes a mail for each of its recipients.
    ///
    /// # Errors
    /// An unsubscription is refused, a bounce cannot be parsed, or the store is unavailable.
    pub async fn take_inbound_mail(
        &self,
        from: &str,
        recipients: &[String],
        mail: Vec<u8>,
        peer: Option<IpAddr>,
    ) -> Result<(), InboundError> {
        let peer = peer.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST));
        for recipient in recipients {
            let Some(to) = InboundRecipient::parse(recipient, &self.configuration.email.inbound.domains) else {
                return Err(InboundError::refused("invalid recipient"));
            };
            match to.kind {
                InboundKind::Unsubscription => self.unsubscribe_by_mail(&to, from, peer).await?,
                InboundKind::Bounce if self.configuration.email.bounce.is_enabled => {
                    self.take_bounce(&to, &mail, peer).await?;
                }
                InboundKind::Bounce => {}
            }
        }
        Ok(())
    }

    async fn unsubscribe_by_mail(&self, to: &InboundRecipient, from: &str, peer: IpAddr) -> Result<(), InboundError> {
        let refused = || InboundError::refused("the unsubscription is refused");
        let Ok(id) = RecordId::parse(&to.id, Collection::Subscription) else { return Err(refused()) };
        let query = UnsubscribeQuery {
            code: Some(to.code.clone()),
            address: Some(from.to_owned()),
            additional: Additional::None,
        };
        match self.try_unsubscribe(&self.own_context(Role::Anonymous, peer), &id, &query).await {
            Ok((true, ..)) => Ok(()),
            Ok((false, ..)) | Err(NotifybcError::Missing | NotifybcError::Refused(_)) => Err(refused()),
            Err(NotifybcError::TooMany) => Err(InboundError { status: 451, text: "too many wrong codes".to_owned() }),
            Err(error) => Err(InboundError::later(&error)),
        }
    }

    async fn take_bounce(&self, to: &InboundRecipient, mail: &[u8], peer: IpAddr) -> Result<(), InboundError> {
        let Some(parsed) = BounceMail::parse(mail) else {
            return Err(InboundError { status: 451, text: "parsing error".to_owned() });
        };
        self.add_bounce(to, &parsed, mail, peer).await.map_err(|error| match error {
            NotifybcError::TooMany => InboundError { status: 451, text: "too many wrong codes".to_owned() },
            error => InboundError::later(&error),
        })
    }

    /// Counts a bounce. A mail for no confirmed subscription, or with a wrong code, changes nothing.
    async fn add_bounce(
        &self,
        to: &InboundRecipient,
        parsed: &BounceMail,
        mail: &[u8],
        peer: IpAddr,
    ) -> Result<(), NotifybcError> {
        let Ok(id) = RecordId::parse(&to.id, Collection::Subscription) else { return Ok(()) };
        let Some(subscription) = self.read(Collection::Subscription, &id.to_string()).await? else { return Ok(()) };
        self.guesses.count(subscription.id(), peer, self.now())?;
        // Late bounces of a subscription that ended have the right code, and do not count as guesses of their relay.
        if text(&subscription.document, "unsubscriptionCode").is_some_and(|own| codes::equals(own, &to.code)) {
            self.guesses.forgive(subscription.id(), peer);
        }
        if !bounces::takes_bounce(&subscription.document, &to.code) {
            return Ok(());
        }
        let options = &self.configuration.email.bounce;
        let address = text(&subscription.document, "userChannelId").unwrap_or_default().to_owned();
        let is_counted = bounces::counts(options, parsed, &address);
        let message = String::from_utf8_lossy(mail);
        let context = self.own_context(Role::SuperAdmin, peer);
        let author = Self::author(&context);
        let _one_at_a_time = turn_of(&BOUNCES, &address.to_lowercase()).lock().await;
        let record = self.active_bounce(&address).await?;
        let former = record.as_ref().map(|record| &record.document);
        let mut bounced = bounces::bounced(options, former, &address, &message, is_counted, self.now());
        if bounced.unsubscribes {
            self.unsubscribe_bounced(&context, &subscription).await?;
            bounced.changes.insert("state".to_owned(), Value::from("deleted"));
        }
        match record {
            Some(record) => {
                self.change_by(Collection::Bounce, record.id(), &bounced.changes, Some(&author)).await.map(drop)
            }
            None => self.create_record(&context, Collection::Bounce, bounced.changes).await.map(drop),
        }
    }

    /// The active bounce record of an address.
    async fn active_bounce(&self, address: &str) -> Result<Option<Record>, NotifybcError> {
        let condition = Where::text("channel", "email")
            .and(Where::text("state", "active"))
            .and(Where::text("userChannelId", address));
        match self.find(Collection::Bounce, condition).await?.first().and_then(|found| text(found, "id")) {
            Some(id) => self.read(Collection::Bounce, id).await,
            None => Ok(None),
        }
    }

    /// Unsubscribes an address that bounced too often from all services.
    async fn unsubscribe_bounced(&self, context: &RequestContext, subscription: &Record) -> Result<(), NotifybcError> {
        let id = RecordId::parse(subscription.id(), Collection::Subscription)?;
        let query = UnsubscribeQuery { code: None, address: None, additional: Additional::All };
        match self.try_unsubscribe(context, &id, &query).await {
            Ok(_) | Err(NotifybcError::Missing | NotifybcError::Refused(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// A PATCH by the server or its mail.
    pub(super) async fn change_by(
        &self,
        collection: Collection,
        id: &str,
        changes: &Document,
        author: Option<&Value>,
    ) -> Result<Document, NotifybcError> {
        self.change(collection, id, |document| {
            Ok(tocsin_notifybc::record::patch(collection, document, changes.clone(), self.now(), author)?)
        })
        .await
    }

    /// The context of a request that did not come by HTTP.
    fn own_context(&self, role: Role, peer: IpAddr) -> RequestContext {
        let identity = Identity { security_id: peer.to_string(), strategy: Strategy::Ip, role };
        let base_url = self.own_base_url();
        RequestContext { identity, address: peer, base_url }
    }

    /// The base URL where there is no request.
    pub(super) fn own_base_url(&self) -> String {
        let own = || format!("http://{}:{}", self.configuration.host, self.configuration.port);
        self.configuration.http_host.clone().unwrap_or_else(own)
    }
}
