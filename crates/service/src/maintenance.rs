//! Maintenance through the process that runs the service: effective configuration, examination, log.

use std::{sync::Arc, time::Duration};

use crate::{
    Service,
    error::ServiceError,
    keys::{Caller, Scope},
    server_host::{EffectiveConfiguration, Finding, FindingLevel, ServerHost},
    server_log::{LogPage, LogQuery},
};

impl Service {
    /// Sets the process that runs the service. Only the first call has an effect.
    pub fn set_host(&self, host: Arc<dyn ServerHost>) {
        let _ = self.host.set(host);
    }

    pub(crate) fn host(&self) -> Result<&Arc<dyn ServerHost>, ServiceError> {
        self.host.get().ok_or_else(|| ServiceError::Missing("this information on the server".to_owned()))
    }

    /// The effective configuration with the source of each value. Secrets are masked.
    ///
    /// # Errors
    /// The scope `admin` is missing.
    pub fn effective_configuration(&self, caller: &Caller) -> Result<EffectiveConfiguration, ServiceError> {
        caller.needs_everywhere(Scope::Admin)?;
        Ok(self.host()?.configuration())
    }

    /// Examines the machine, the data folder and this service. Takes some seconds, and writes and removes a test file.
    ///
    /// # Errors
    /// The scope `operations:read` is missing; another examination is running.
    pub async fn examine(&self, caller: &Caller) -> Result<Vec<Finding>, ServiceError> {
        caller.needs_everywhere(Scope::OperationsRead)?;
        let _alone = self.examinations.try_acquire().map_err(|_| ServiceError::TooMany {
            reason: "another examination is running".to_owned(),
            retry_after: Duration::from_secs(5),
        })?;
        let mut findings = self.host()?.examine().await;
        let finding = |level, text: String, advice: Option<&str>| Finding {
            level,
            what: "server".to_owned(),
            text,
            advice: advice.map(str::to_owned),
        };
        let reasons = self.ready().await;
        findings.extend(match reasons.is_empty() {
            true => vec![finding(FindingLevel::Ok, "is ready".to_owned(), None)],
            false => {
                let advice = Some("wait if it has just started; otherwise see its log");
                reasons.into_iter().map(|reason| finding(FindingLevel::Fail, reason, advice)).collect()
            }
        });
        Ok(findings)
    }

    /// The newest lines of the log, or those after a line. Secrets are masked.
    ///
    /// # Errors
    /// The scope `admin` is missing.
    pub fn server_log(&self, caller: &Caller, query: &LogQuery) -> Result<LogPage, ServiceError> {
        caller.needs_everywhere(Scope::Admin)?;
        Ok(self.host()?.log().page(query))
    }
}
