//! Missed and slow firings of rules, and stopped rules: list, fire again, dismiss, stop and resume.

use tocsin_model::{
    id::Name,
    problem::{Code, Problem},
};
use tocsin_pipeline::RefireError;
use tocsin_store::journal::{Firing, FiringFilter, RuleStop};

pub use tocsin_pipeline::SlowFiring;

use crate::{
    Service,
    error::ServiceError,
    keys::{Caller, Scope},
    known::Part,
    page::Page,
    run_mode::RunMode,
};

/// Maximum number of listed firings that one call fires again.
pub const REFIRED_MAX: usize = 1_000;
/// Longest reason of what an operator does, in characters.
pub const REASON_MAX: usize = 500;

/// Result of firing again.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RefiredFirings {
    /// Number of event batches for which rules have fired.
    pub batches: u64,
    /// Firings that failed again, by number and with the reason. They stay listed.
    pub failed: Vec<(u64, String)>,
}

impl Service {
    /// Lists missed firings after the number `after`, oldest first.
    ///
    /// # Errors
    /// The scope `operations:read` is missing, or the journal is unavailable.
    pub async fn firings(
        &self,
        caller: &Caller,
        filter: &FiringFilter,
        after: Option<u64>,
        limit: usize,
    ) -> Result<Page<Firing>, ServiceError> {
        caller.needs(Scope::OperationsRead)?;
        let found = self.rule_store.firings(filter, after.unwrap_or(0), limit).await?;
        if found.is_empty() && after.is_none() {
            self.check_known(filter.application.as_ref(), &[(Part::Rule, filter.rule.as_ref())]).await?;
        }
        let next = if found.len() == limit { found.last().map(|last| last.id.to_string()) } else { None };
        Ok(Page { items: found, next })
    }

    /// Lists slow firings since the process began, newest first, with the execution plans of their rules.
    ///
    /// # Errors
    /// The scope `operations:read` is missing.
    pub async fn slow_firings(
        &self,
        caller: &Caller,
        application: Option<&Name>,
        rule: Option<&Name>,
        limit: usize,
    ) -> Result<Vec<SlowFiring>, ServiceError> {
        caller.needs(Scope::OperationsRead)?;
        let found = self.pipeline.slow_firings(application, rule, limit);
        if found.is_empty() {
            self.check_known(application, &[(Part::Rule, rule)]).await?;
        }
        Ok(found)
    }

    /// Fires rules for the batches that they missed, by the subscriptions as they are now; an empty filter needs `all`.
    /// At most [`REFIRED_MAX`] listed firings at once.
    ///
    /// # Errors
    /// The scope `operations:write` is missing; the filter is empty without `all`; the application is not running.
    pub async fn refire(
        &self,
        caller: &Caller,
        filter: &FiringFilter,
        all: bool,
        mode: RunMode,
    ) -> Result<RefiredFirings, ServiceError> {
        caller.needs(Scope::OperationsWrite)?;
        caller.check_application(filter.application.as_ref())?;
        named(filter, all)?;
        let mut refired = RefiredFirings::default();
        let listed = self.rule_store.firings(filter, 0, REFIRED_MAX).await?;
        if listed.is_empty() {
            self.check_known(filter.application.as_ref(), &[(Part::Rule, filter.rule.as_ref())]).await?;
        }
        if mode.is_dry() {
            refired.batches = listed.iter().map(|firing| firing.batches).sum();
            return Ok(refired);
        }
        for firing in listed {
            let id = firing.id;
            match self.pipeline.refire(firing).await {
                Ok(batches) => refired.batches += batches,
                Err(RefireError::Failed { batch, reason }) => refired.failed.push((id, format!("{batch}: {reason}"))),
                Err(RefireError::NotRunning(name)) => return Err(self.no_running(&name)),
                Err(RefireError::Store(error)) => return Err(error.into()),
            }
        }
        tracing::info!(batches = refired.batches, failed = refired.failed.len(), by = caller.key(), "fired again");
        Ok(refired)
    }

    /// Dismisses listed firings without firing them; an empty filter needs `all`. Returns the number of event
    /// batches.
    ///
    /// # Errors
    /// The scope `operations:write` is missing; the filter is empty without `all`.
    pub async fn dismiss_firings(
        &self,
        caller: &Caller,
        filter: &FiringFilter,
        all: bool,
        mode: RunMode,
    ) -> Result<u64, ServiceError> {
        caller.needs(Scope::OperationsWrite)?;
        caller.check_application(filter.application.as_ref())?;
        named(filter, all)?;
        let batches = match mode {
            RunMode::DryRun => self.count_firings(filter).await?,
            RunMode::Apply => self.rule_store.dismiss_firings(filter).await?,
        };
        if batches == 0 {
            self.check_known(filter.application.as_ref(), &[(Part::Rule, filter.rule.as_ref())]).await?;
        }
        if mode.is_dry() {
            return Ok(batches);
        }
        tracing::info!(batches, by = caller.key(), "dismissed firings");
        Ok(batches)
    }

    /// Number of event batches of the listed firings.
    async fn count_firings(&self, filter: &FiringFilter) -> Result<u64, ServiceError> {
        let (mut batches, mut after) = (0, 0);
        loop {
            let found = self.rule_store.firings(filter, after, REFIRED_MAX).await?;
            batches += found.iter().map(|firing| firing.batches).sum::<u64>();
            match found.last() {
                Some(last) if found.len() == REFIRED_MAX => after = last.id,
                _ => return Ok(batches),
            }
        }
    }

    /// The stopped rules, by application and name.
    ///
    /// # Errors
    /// The scope `operations:read` is missing.
    pub fn stopped_rules(&self, caller: &Caller) -> Result<Vec<RuleStop>, ServiceError> {
        caller.needs(Scope::OperationsRead)?;
        let mut stops = self.pipeline.stopped_rules();
        stops.retain(|stop| caller.check_application(Some(&stop.application)).is_ok());
        Ok(stops)
    }

    /// Stops a rule until it is resumed. Its missed firings are listed.
    ///
    /// # Errors
    /// The scope `operations:write` is missing; the rule does not exist; the reason is too long.
    pub async fn stop_rule(
        &self,
        caller: &Caller,
        application: &Name,
        rule: &Name,
        reason: &str,
    ) -> Result<(), ServiceError> {
        caller.needs(Scope::OperationsWrite)?;
        self.has_rule(application, rule)?;
        let reason = check_reason(reason)?;
        let reason = if reason.is_empty() { "no reason was given" } else { reason };
        let stop = RuleStop {
            application: application.clone(),
            rule: rule.clone(),
            by: caller.key().to_owned(),
            reason: reason.to_owned(),
            since: self.clock.now(),
        };
        Ok(self.pipeline.stop_rule(stop).await?)
    }

    /// Resumes a stopped rule. Returns whether it was stopped. Its missed firings stay listed.
    ///
    /// # Errors
    /// The scope `operations:write` is missing, or the journal is unavailable.
    pub async fn resume_rule(&self, caller: &Caller, application: &Name, rule: &Name) -> Result<bool, ServiceError> {
        caller.needs(Scope::OperationsWrite)?;
        let was_stopped = self.pipeline.resume_rule(application, rule).await?;
        // A removed rule may still be stopped.
        if !was_stopped {
            self.has_rule(application, rule)?;
        }
        tracing::info!(%application, %rule, was_stopped, by = caller.key(), "a rule goes on");
        Ok(was_stopped)
    }

    fn has_rule(&self, application: &Name, rule: &Name) -> Result<(), ServiceError> {
        let running = self.running(application)?;
        if running.application.rules.contains_key(rule) {
            return Ok(());
        }
        Err(ServiceError::Missing(format!("the rule `{rule}` of `{application}`")))
    }
}

/// Checks the reason given by an operator, without surrounding blanks.
pub(crate) fn check_reason(reason: &str) -> Result<&str, ServiceError> {
    let reason = reason.trim();
    if reason.chars().count() > REASON_MAX {
        return Err(ServiceError::from(
            Problem::new(Code::TooLong, "reason", format!("has more than {REASON_MAX} characters"))
                .param("limit", REASON_MAX)
                .param("unit", "characters"),
        ));
    }
    tocsin_store::audit::set_reason(reason);
    Ok(reason)
}

fn named(filter: &FiringFilter, all: bool) -> Result<(), ServiceError> {
    if all || *filter != FiringFilter::default() {
        return Ok(());
    }
    let problem = Problem::new(Code::Required, "", "names no firing");
    Err(ServiceError::Invalid(vec![problem.hint(r#"give a filter, or {"all": true} to mean every one"#)]))
}
