//! The keys with which messages to browsers are signed.

use std::collections::BTreeMap;

use tocsin_model::{application::Channel, id::Name};

use crate::{Service, error::ServiceError, inbox::Visitor};

impl Service {
    /// The public keys of an application's channels to browsers, by channel: what browsers are given as
    /// `applicationServerKey`. They are no secret; any visitor may see them.
    ///
    /// # Errors
    /// The application does not run.
    pub fn web_push_keys(&self, _: &Visitor, name: &Name) -> Result<BTreeMap<String, String>, ServiceError> {
        let running = self.pipeline.application(name).ok_or_else(|| ServiceError::no_application(name))?;
        let key = |channel: &Channel| Some(channel.options.get("public_key")?.as_str()?.to_owned());
        let channels = running.application.channels.iter();
        let channels = channels.filter(|(_, channel)| channel.protocol.as_str() == "webpush");
        Ok(channels.filter_map(|(name, channel)| Some((name.to_string(), key(channel)?))).collect())
    }
}
