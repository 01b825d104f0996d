//! VAPID public keys for web push (RFC 8292).

use std::collections::BTreeMap;

use tocsin_model::{application::Channel, id::Name};

use crate::{Service, error::ServiceError, inbox::InboxCaller};

impl Service {
    /// Public keys of an application's web push channels, by channel: `applicationServerKey` of browsers. They are
    /// not secret; any authenticated caller may read them.
    ///
    /// # Errors
    /// The application is not running.
    pub fn web_push_keys(&self, _: &InboxCaller, name: &Name) -> Result<BTreeMap<String, String>, ServiceError> {
        let running = self.running(name)?;
        let key = |channel: &Channel| Some(channel.options.get("public_key")?.as_str()?.to_owned());
        let channels = running.application.channels.iter();
        let channels = channels.filter(|(_, channel)| channel.protocol.as_str() == "webpush");
        Ok(channels.filter_map(|(name, channel)| Some((name.to_string(), key(channel)?))).collect())
    }
}
