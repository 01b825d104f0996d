//! Identities of mail channels, for the examination of their domains.

use tocsin_model::id::Name;
use tocsin_pipeline::MailSender;

use crate::{
    Service,
    error::ServiceError,
    keys::{Caller, Scope},
};

impl Service {
    /// Lists the identities of an application's open mail channels, by channel.
    ///
    /// # Errors
    /// The scope `operations:read` is missing, or the application does not exist.
    pub async fn mail_senders(
        &self,
        caller: &Caller,
        application: &Name,
    ) -> Result<Vec<(Name, MailSender)>, ServiceError> {
        caller.needs(Scope::OperationsRead)?;
        self.current(application).await?.ok_or_else(|| ServiceError::no_application(application))?;
        Ok(self.pipeline.mail_senders(application))
    }
}
