//! Password policy: length, age, history and lockout (draft-behera-ldap-password-policy-10).
//!
//! A rule has the form `to <what> <word>=<value> …`, with the attribute names of the draft. The first rule that matches
//! the entry applies; without one, only the server's lockout applies. The password state is stored with the hash, so
//! reading entries costs nothing more.

use std::{sync::Arc, time::Duration};

use tocsin_model::{definition::parse_duration, time::Timestamp};

use crate::{
    access::{RuleTarget, words},
    ldap_error::{Code, LdapError},
    password::{Credential, Lockout},
    schema::Schema,
};

pub use crate::ldap_error::Fault;

/// Maximum former passwords in the history; each costs a hash comparison.
pub const HISTORY_MAX: usize = 24;
/// Maximum value of `pwdMinLength`.
pub const LENGTH_MIN_MAX: usize = 128;
/// Maximum wrong passwords and grace logins that a rule may allow.
pub const TRIES_MAX: u32 = 1_000;
const MICROS_PER_SECOND: i64 = 1_000_000;

/// Password policy warning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Warning {
    /// The password expires in this many seconds.
    ExpiresIn(u32),
    /// The password has expired; this many grace logins remain.
    GracesLeft(u32),
}

/// Password policy information for the client, in addition to the result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Notice {
    /// Warning.
    pub warning: Option<Warning>,
    /// Error.
    pub fault: Option<Fault>,
}

/// The policy of some entries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Policy {
    within: RuleTarget,
    length_min: usize,
    /// Former passwords that a new one must differ from, in addition to the current one.
    history: usize,
    /// Minimum age before the holder may change the password.
    age_min: Duration,
    /// Maximum age; zero: unlimited.
    age_max: Duration,
    warning: Duration,
    grace_logins_max: usize,
    /// Whether a password set by an administrator must be changed first.
    must_change: bool,
    /// Whether a change must include the old password.
    safe_modify: bool,
    lockout: Lockout,
    /// Time after which a wrong password is no longer counted; zero: only a right one resets the count.
    failures_within: Duration,
    /// Whether clients that request the policy control learn that an entry is locked, and so that it exists.
    reports_lockout: bool,
}

/// Policies, in order.
#[derive(Debug, Clone)]
pub(crate) struct Policies {
    rules: Vec<Arc<Policy>>,
    else_: Arc<Policy>,
}

impl Policies {
    /// Parses rules. Lockout settings that a rule omits come from `lockout`.
    ///
    /// # Errors
    /// A rule is malformed; the text names it and the reason.
    pub(crate) fn read(rules: &[String], lockout: Lockout, schema: &Schema) -> Result<Policies, String> {
        if lockout.failures > TRIES_MAX {
            return Err(format!(
                "lockout after {} wrong passwords is above the maximum of {TRIES_MAX}",
                lockout.failures
            ));
        }
        let else_ = Policy::only(lockout);
        let read = |text: &String| {
            let policy = policy(text, else_.clone(), schema).map_err(|why| format!("`{text}` {why}"))?;
            Ok::<_, String>(Arc::new(policy))
        };
        Ok(Policies { rules: rules.iter().map(read).collect::<Result<_, _>>()?, else_: Arc::new(else_) })
    }

    /// The policy of a normalized DN.
    pub(crate) fn of(&self, key: &str) -> &Arc<Policy> {
        self.rules.iter().find(|policy| policy.within.has(key)).unwrap_or(&self.else_)
    }
}

impl Policy {
    fn only(lockout: Lockout) -> Policy {
        Policy {
            within: RuleTarget::Anywhere,
            length_min: 0,
            history: 0,
            age_min: Duration::ZERO,
            age_max: Duration::ZERO,
            warning: Duration::ZERO,
            grace_logins_max: 0,
            must_change: false,
            safe_modify: false,
            lockout,
            failures_within: Duration::ZERO,
            reports_lockout: false,
        }
    }

    /// Maximum hashes that a new password is compared with, the current one included.
    pub(crate) fn compared_hashes_max(&self) -> usize {
        if self.history == 0 { 0 } else { self.history + 1 }
    }

    pub(crate) fn length_min(&self) -> usize {
        self.length_min
    }

    /// Rejects a new password that is too short. `is_hash`: only an operator may set a hash, since its password cannot
    /// be checked.
    pub(crate) fn check(&self, password: &[u8], is_hash: bool, manages: bool) -> Result<(), LdapError> {
        if is_hash {
            let is_blind = !manages && (self.length_min > 0 || self.history > 0);
            let what = "send the password itself: the policy cannot be checked on a hash";
            return if is_blind { Err(refused(Fault::InsufficientPasswordQuality, what)) } else { Ok(()) };
        }
        let length = std::str::from_utf8(password).map_or(password.len(), |text| text.chars().count());
        if length < self.length_min {
            let what = format!("a password must have at least {} characters here", self.length_min);
            return Err(refused(Fault::PasswordTooShort, what));
        }
        Ok(())
    }

    /// Rejects a change by the holder that is too early or lacks the old password.
    pub(crate) fn check_change(&self, known: &Credential, says_old: bool, now: Timestamp) -> Result<(), LdapError> {
        if self.safe_modify && !says_old {
            return Err(refused(Fault::MustSupplyOldPassword, "send the old password together with the new one"));
        }
        let since = known.changed_at.map(|at| Timestamp(at) + self.age_min);
        if !known.reset && since.is_some_and(|since| now < since) {
            let what =
                format!("the password was changed recently; it can be changed again at {}", since.unwrap_or(now));
            return Err(refused(Fault::PasswordTooYoung, what));
        }
        Ok(())
    }

    /// Rejects removal of a password by its holder: the policy state would be lost too.
    pub(crate) fn check_removal(&self) -> Result<(), LdapError> {
        match self.history > 0 || !self.age_min.is_zero() {
            true => Err(refused(Fault::PasswordModNotAllowed, "a password can be changed here, but not removed")),
            false => Ok(()),
        }
    }

    /// The credential after a password change. `given`: an administrator set the password.
    pub(crate) fn renewed(
        &self,
        known: Option<&Credential>,
        new: &Credential,
        given: bool,
        now: Timestamp,
    ) -> Credential {
        let former = known.into_iter().flat_map(Credential::hashes);
        Credential {
            history: former.take(self.history).cloned().collect(),
            changed_at: Some(now.0),
            reset: self.must_change && given,
            ..Credential::of(new.hash.clone())
        }
    }

    /// Evaluates a password check: the credential to store if it changed, and the result.
    pub(crate) fn evaluate(
        &self,
        known: &Credential,
        is_right: bool,
        now: Timestamp,
    ) -> (Option<Credential>, Result<Notice, LdapError>) {
        if known.is_locked(now) {
            let fault = self.reports_lockout.then_some(Fault::AccountLocked);
            return (None, Err(LdapError { fault, ..wrong() }));
        }
        let mut next = known.clone();
        let answer = match is_right {
            true => {
                next.unlock();
                self.admit(&mut next, now)
            }
            false => {
                self.count_failure(&mut next, now);
                Err(wrong())
            }
        };
        ((next != *known).then_some(next), answer)
    }

    fn admit(&self, next: &mut Credential, now: Timestamp) -> Result<Notice, LdapError> {
        if next.reset {
            return Ok(Notice { fault: Some(Fault::ChangeAfterReset), warning: None });
        }
        // A password stored before there was a policy has no age.
        let Some(changed_at) = next.changed_at.filter(|_| !self.age_max.is_zero()) else {
            return Ok(Notice::default());
        };
        let left = (Timestamp(changed_at) + self.age_max).0.saturating_sub(now.0);
        let warning = match left {
            1.. if Timestamp(left) <= Timestamp(0) + self.warning => {
                let seconds = left.div_euclid(MICROS_PER_SECOND);
                Some(Warning::ExpiresIn(u32::try_from(seconds).unwrap_or(u32::MAX)))
            }
            1.. => None,
            _ if next.grace_use_times.len() < self.grace_logins_max => {
                next.grace_use_times.push(now.0);
                let left = self.grace_logins_max - next.grace_use_times.len();
                Some(Warning::GracesLeft(u32::try_from(left).unwrap_or(u32::MAX)))
            }
            _ => return Err(LdapError { fault: Some(Fault::PasswordExpired), ..wrong() }),
        };
        Ok(Notice { warning, fault: None })
    }

    fn count_failure(&self, next: &mut Credential, now: Timestamp) {
        if self.lockout.failures == 0 {
            return;
        }
        if !self.failures_within.is_zero() {
            let since = now - self.failures_within;
            next.failed_at.retain(|at| *at > since.0);
        }
        next.failed_at.push(now.0);
        if next.failed_at.len() >= self.lockout.failures as usize {
            next.failed_at.clear();
            next.locked_at = Some(now.0);
            next.locked_until = Some(match self.lockout.duration {
                Duration::ZERO => i64::MAX,
                duration => (now + duration).0,
            });
        }
    }
}

/// The same error for every cause.
pub(crate) fn wrong() -> LdapError {
    LdapError::new(Code::InvalidCredentials, "")
}

fn refused(fault: Fault, what: impl Into<String>) -> LdapError {
    let code = match fault {
        Fault::PasswordModNotAllowed | Fault::MustSupplyOldPassword | Fault::ChangeAfterReset => {
            Code::InsufficientAccessRights
        }
        _ => Code::ConstraintViolation,
    };
    LdapError { fault: Some(fault), ..LdapError::new(code, what) }
}

/// The error for requests of an identity that must change its password first.
pub fn change_first() -> LdapError {
    refused(Fault::ChangeAfterReset, "an administrator set this password: change it first")
}

/// The error for a reused password.
pub(crate) fn used_before() -> LdapError {
    refused(Fault::PasswordInHistory, "this password was used before; choose another one")
}

fn policy(text: &str, mut policy: Policy, schema: &Schema) -> Result<Policy, String> {
    let words = words(text)?;
    let mut words = words.iter().map(String::as_str);
    if words.next() != Some("to") {
        return Err("does not begin with `to`".to_owned());
    }
    let place = words.next().unwrap_or_default();
    policy.within = RuleTarget::read(place, schema)?
        .ok_or_else(|| format!("has `{place}` after `to`; expected `*`, `dn=…` or `dn.base=…`"))?;
    for word in words {
        let (name, value) =
            word.split_once('=').ok_or_else(|| format!("has `{word}`, where `word=value` is expected"))?;
        policy.set(name, value).map_err(|why| format!("has `{word}`, but {why}"))?;
    }
    if policy.age_max > Duration::ZERO && policy.age_min >= policy.age_max {
        return Err("has a pwdMinAge that is not below its pwdMaxAge: no password could be changed in time".into());
    }
    Ok(policy)
}

impl Policy {
    fn set(&mut self, name: &str, value: &str) -> Result<(), String> {
        match name {
            "pwdMinLength" => self.length_min = number(value, LENGTH_MIN_MAX)?,
            "pwdInHistory" => self.history = number(value, HISTORY_MAX)?,
            "pwdMinAge" => self.age_min = duration(value)?,
            "pwdMaxAge" => self.age_max = duration(value)?,
            "pwdExpireWarning" => self.warning = duration(value)?,
            "pwdGraceAuthNLimit" => self.grace_logins_max = number(value, TRIES_MAX as usize)?,
            "pwdMustChange" => self.must_change = truth(value)?,
            "pwdSafeModify" => self.safe_modify = truth(value)?,
            "pwdMaxFailure" => self.lockout.failures = number(value, TRIES_MAX as usize)? as u32,
            "pwdLockoutDuration" => self.lockout.duration = duration(value)?,
            "pwdFailureCountInterval" => self.failures_within = duration(value)?,
            "tellLocked" => self.reports_lockout = truth(value)?,
            _ => {
                let words = "pwdMinLength, pwdInHistory, pwdMinAge, pwdMaxAge, pwdExpireWarning, pwdGraceAuthNLimit, \
                    pwdMustChange, pwdSafeModify, pwdMaxFailure, pwdLockoutDuration, pwdFailureCountInterval and tellLocked";
                return Err(format!("the words are {words}"));
            }
        }
        Ok(())
    }
}

fn number(value: &str, most: usize) -> Result<usize, String> {
    let read = value.parse().ok().filter(|number| *number <= most);
    read.ok_or_else(|| format!("`{value}` is not a whole number from 0 to {most}"))
}

fn duration(value: &str) -> Result<Duration, String> {
    let read = if value == "0" { Ok(Duration::ZERO) } else { parse_duration(value) };
    read.map_err(|why| format!("`{value}` {why}; write a number with its unit, such as 90d or 15m"))
}

fn truth(value: &str) -> Result<bool, String> {
    match value {
        "TRUE" => Ok(true),
        "FALSE" => Ok(false),
        _ => Err(format!("`{value}` is neither TRUE nor FALSE")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: i64 = 86_400_000;

    fn at(days: i64) -> Timestamp {
        Timestamp::from_millis(days * DAY)
    }

    fn read(rules: &[&str]) -> Result<Policies, String> {
        let rules: Vec<String> = rules.iter().map(|rule| (*rule).to_owned()).collect();
        let lockout = Lockout { failures: 2, duration: Duration::from_secs(60) };
        Policies::read(&rules, lockout, &Schema::standard())
    }

    fn only(words: &str) -> Arc<Policy> {
        read(&[&format!("to * {words}")]).expect("a rule").of("o=site").clone()
    }

    /// A password set on the first day, under a policy.
    fn known(policy: &Policy) -> Credential {
        policy.renewed(None, &Credential::of("$first".into()), false, at(0))
    }

    fn answer(
        policy: &Policy,
        known: &mut Credential,
        is_right: bool,
        now: Timestamp,
    ) -> Result<Notice, Option<Fault>> {
        let (next, answer) = policy.evaluate(known, is_right, now);
        *known = next.unwrap_or_else(|| known.clone());
        answer.map_err(|refusal| refusal.fault)
    }

    #[test]
    fn the_first_matching_rule_applies() {
        let policies = read(&["to dn=\"ou=staff,o=site\" pwdMinLength=12", "to * pwdMinLength=8"]).expect("rules");
        let check = |key: &str, expected| assert_eq!(policies.of(key).length_min(), expected, "{key}");
        check("cn=ann,ou=staff,o=site", 12);
        check("ou=staff,o=site", 12);
        check("cn=ann,ou=guests,o=site", 8);
        assert_eq!(read(&[]).expect("none").of("o=site").lockout.failures, 2);
    }

    #[test]
    fn too_many_wrong_passwords_lock_an_entry_for_a_while() {
        let policy = only("pwdLockoutDuration=60s pwdFailureCountInterval=10s tellLocked=TRUE");
        let second = |seconds: i64| Timestamp::from_millis(seconds * 1_000);
        let mut known = known(&policy);
        assert_eq!(answer(&policy, &mut known, false, second(0)), Err(None));
        assert_eq!(answer(&policy, &mut known, false, second(20)), Err(None), "the first is forgotten");
        assert!(!known.is_locked(second(20)));
        assert_eq!(answer(&policy, &mut known, false, second(25)), Err(None));
        assert!(known.is_locked(second(84)) && !known.is_locked(second(86)));
        assert_eq!(answer(&policy, &mut known, true, second(84)), Err(Some(Fault::AccountLocked)));
        assert_eq!(answer(&policy, &mut known, true, second(86)), Ok(Notice::default()));
        assert_eq!((known.locked_at, known.failed_at.len()), (None, 0));
        let (forever, never) = (only("pwdLockoutDuration=0"), only("pwdMaxFailure=0"));
        let mut locked = known.clone();
        (0..2).for_each(|_| assert_eq!(answer(&forever, &mut locked, false, second(0)), Err(None)));
        assert!(locked.is_locked(Timestamp(i64::MAX - 1)));
        (0..99).for_each(|_| assert_eq!(answer(&never, &mut known, false, second(0)), Err(None)));
        assert!(!known.is_locked(second(0)));
    }

    #[test]
    fn a_password_expires_after_a_warning_and_grace_logins() {
        let policy = only("pwdMaxAge=90d pwdExpireWarning=14d pwdGraceAuthNLimit=2");
        let mut known = known(&policy);
        assert_eq!(answer(&policy, &mut known, true, at(75)), Ok(Notice::default()));
        let warned = |warning| Ok(Notice { warning: Some(warning), fault: None });
        assert_eq!(answer(&policy, &mut known, true, at(80)), warned(Warning::ExpiresIn(10 * 86_400)));
        assert_eq!(answer(&policy, &mut known, true, at(90)), warned(Warning::GracesLeft(1)));
        assert_eq!(answer(&policy, &mut known, true, at(91)), warned(Warning::GracesLeft(0)));
        assert_eq!(answer(&policy, &mut known, true, at(92)), Err(Some(Fault::PasswordExpired)));
        let mut renewed = policy.renewed(Some(&known), &Credential::of("$second".into()), false, at(92));
        assert_eq!(answer(&policy, &mut renewed, true, at(93)), Ok(Notice::default()));
        let mut of_before = Credential::of("$old".into());
        assert_eq!(answer(&policy, &mut of_before, true, at(999)), Ok(Notice::default()));
    }

    #[test]
    fn a_password_change_respects_minimum_age_and_history() {
        let policy = only("pwdMinAge=1d pwdInHistory=2 pwdMinLength=3 pwdMustChange=TRUE pwdSafeModify=TRUE");
        let fault = |done: Result<(), LdapError>| done.err().and_then(|refusal| refusal.fault);
        let mut known = known(&policy);
        assert_eq!(fault(policy.check_change(&known, true, at(0))), Some(Fault::PasswordTooYoung));
        assert_eq!(fault(policy.check_change(&known, false, at(2))), Some(Fault::MustSupplyOldPassword));
        assert_eq!(fault(policy.check_change(&known, true, at(2))), None);
        assert_eq!(fault(policy.check_removal()), Some(Fault::PasswordModNotAllowed));
        for hash in ["$second", "$third", "$fourth"] {
            known = policy.renewed(Some(&known), &Credential::of(hash.into()), true, at(2));
        }
        assert_eq!(known.history, ["$third", "$second"]);
        assert_eq!(fault(policy.check_change(&known, true, at(2))), None, "another gave it");
        let mut reset = known.clone();
        let notice = Notice { warning: None, fault: Some(Fault::ChangeAfterReset) };
        assert_eq!(answer(&policy, &mut reset, true, at(3)), Ok(notice));
        assert_eq!(fault(policy.check("äö".as_bytes(), false, true)), Some(Fault::PasswordTooShort));
        assert_eq!(fault(policy.check("äöü".as_bytes(), false, false)), None);
        assert_eq!(fault(policy.check(b"{SSHA}x", true, false)), Some(Fault::InsufficientPasswordQuality));
        assert_eq!(fault(policy.check(b"{SSHA}x", true, true)), None);
    }

    #[test]
    fn malformed_rules_are_rejected_with_a_reason() {
        let check = |text: &str, expected: &str| {
            let error = read(&[text]).expect_err("wrong");
            assert!(error.contains(expected), "{error}");
        };
        check("pwdMinLength=8", "does not begin with `to`");
        check("to pwdMinLength=8", "expected `*`");
        check("to dn=x pwdMinLength=8", "not a distinguished name");
        check("to * pwdMinLength", "where `word=value` is expected");
        check("to * pwdMinLength=999", "not a whole number from 0 to 128");
        check("to * pwdMaxAge=90", "such as 90d");
        check("to * pwdMustChange=yes", "neither TRUE nor FALSE");
        check("to * pwdLength=8", "the words are pwdMinLength");
        check("to * pwdMinAge=2d pwdMaxAge=1d", "not below its pwdMaxAge");
        let late = Lockout { failures: 2_000, duration: Duration::ZERO };
        assert!(Policies::read(&[], late, &Schema::standard()).is_err());
    }
}
