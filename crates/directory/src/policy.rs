//! What is asked of passwords: how long they are, when they change, when too many wrong ones lock an entry.
//!
//! A rule reads `to <what> <word>=<value> …` in the words of draft-behera-ldap-password-policy-10; the first rule whose
//! place an entry stands at decides, and where none does only the lockout of the server holds. What is remembered of a
//! password stands beside its hash, so that reading entries costs nothing more.

use std::{sync::Arc, time::Duration};

use tocsin_model::{definition::parse_duration, time::Timestamp};

use crate::{
    access::{Where, words},
    password::{Credential, Lockout},
    refusal::{Code, Refusal},
    schema::Schema,
};

/// Most former passwords that are remembered: each is compared with a new one, which takes its time.
pub const HISTORY_MAX: usize = 24;
/// Most characters that a rule may ask for.
pub const LENGTH_MIN_MAX: usize = 128;
/// Most wrong passwords, and most logins after the end, that a rule may allow.
pub const TRIES_MAX: u32 = 1_000;
const MICROS_PER_SECOND: i64 = 1_000_000;

/// What is wrong with a password or its entry, as clients that ask for the policy are told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "their names are those of the draft")]
#[repr(u8)]
pub enum Fault {
    PasswordExpired = 0,
    AccountLocked = 1,
    ChangeAfterReset = 2,
    PasswordModNotAllowed = 3,
    MustSupplyOldPassword = 4,
    InsufficientPasswordQuality = 5,
    PasswordTooShort = 6,
    PasswordTooYoung = 7,
    PasswordInHistory = 8,
}

/// What soon is to be done about a password.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Warning {
    /// It is no longer right after so many seconds.
    ExpiresIn(u32),
    /// Its time is over; it is right so many times more.
    GracesLeft(u32),
}

/// What a client is told of its password beside the result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Notice {
    /// What is to be done soon.
    pub warning: Option<Warning>,
    /// What is wrong.
    pub fault: Option<Fault>,
}

/// What holds for the passwords of some entries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Policy {
    within: Where,
    length_min: usize,
    /// Former passwords that a new one must differ from, beside the present.
    history: usize,
    /// How old a password is before its holder may change it.
    age_min: Duration,
    /// How old it becomes; zero: as old as it likes.
    age_max: Duration,
    warning: Duration,
    graces: usize,
    /// Whether a password that somebody else gave is good for changing it only.
    must_change: bool,
    /// Whether whoever changes it says the old one with the new one.
    safe_modify: bool,
    lockout: Lockout,
    /// After how long a wrong password is forgotten; zero: with the next right one.
    failures_within: Duration,
    /// Whether clients that ask are told that an entry is locked, and so that it is there.
    tells_locked: bool,
}

/// The policies, in order.
#[derive(Debug, Clone)]
pub(crate) struct Policies {
    rules: Vec<Arc<Policy>>,
    else_: Arc<Policy>,
}

impl Policies {
    /// Reads rules. What they do not say of lockout is as `lockout` says.
    ///
    /// # Errors
    /// Which rule cannot be read, and why.
    pub(crate) fn read(rules: &[String], lockout: Lockout, schema: &Schema) -> Result<Policies, String> {
        if lockout.failures > TRIES_MAX {
            return Err(format!("lockout after {} wrong passwords is too late; at most {TRIES_MAX}", lockout.failures));
        }
        let else_ = Policy::only(lockout);
        let read = |text: &String| {
            let policy = policy(text, else_.clone(), schema).map_err(|why| format!("`{text}` {why}"))?;
            Ok::<_, String>(Arc::new(policy))
        };
        Ok(Policies { rules: rules.iter().map(read).collect::<Result<_, _>>()?, else_: Arc::new(else_) })
    }

    /// What holds for the entry of a name in normal form.
    pub(crate) fn of(&self, key: &str) -> &Arc<Policy> {
        self.rules.iter().find(|policy| policy.within.has(key)).unwrap_or(&self.else_)
    }
}

impl Policy {
    fn only(lockout: Lockout) -> Policy {
        Policy {
            within: Where::Anywhere,
            length_min: 0,
            history: 0,
            age_min: Duration::ZERO,
            age_max: Duration::ZERO,
            warning: Duration::ZERO,
            graces: 0,
            must_change: false,
            safe_modify: false,
            lockout,
            failures_within: Duration::ZERO,
            tells_locked: false,
        }
    }

    /// Most former hashes that a new password is compared with, the present one included.
    pub(crate) fn compared(&self) -> usize {
        if self.history == 0 { 0 } else { self.history + 1 }
    }

    pub(crate) fn length_min(&self) -> usize {
        self.length_min
    }

    /// Refuses a new password that is too short. `is_hash`: only an operator may give what cannot be looked at.
    pub(crate) fn check(&self, password: &[u8], is_hash: bool, manages: bool) -> Result<(), Refusal> {
        if is_hash {
            let is_blind = !manages && (self.length_min > 0 || self.history > 0);
            let what = "give the password itself: a hash cannot be held against the policy";
            return if is_blind { Err(refused(Fault::InsufficientPasswordQuality, what)) } else { Ok(()) };
        }
        let length = std::str::from_utf8(password).map_or(password.len(), |text| text.chars().count());
        if length < self.length_min {
            let what = format!("a password has at least {} characters here", self.length_min);
            return Err(refused(Fault::PasswordTooShort, what));
        }
        Ok(())
    }

    /// Refuses that its holder changes a password too early, or without saying the old one.
    pub(crate) fn check_change(&self, known: &Credential, says_old: bool, now: Timestamp) -> Result<(), Refusal> {
        if self.safe_modify && !says_old {
            return Err(refused(Fault::MustSupplyOldPassword, "say the old password with the new one"));
        }
        let since = known.changed_at.map(|at| Timestamp(at) + self.age_min);
        if !known.reset && since.is_some_and(|since| now < since) {
            let what = format!("the password was changed of late; it may change again at {}", since.unwrap_or(now));
            return Err(refused(Fault::PasswordTooYoung, what));
        }
        Ok(())
    }

    /// Refuses that its holder takes a password away: what the policy knows of it would go too.
    pub(crate) fn check_removal(&self) -> Result<(), Refusal> {
        match self.history > 0 || !self.age_min.is_zero() {
            true => Err(refused(Fault::PasswordModNotAllowed, "a password may be changed here, but not taken away")),
            false => Ok(()),
        }
    }

    /// What becomes of a credential when another password comes in its place. `given`: somebody else made it up.
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

    /// What a password comes to: what is to be remembered, if anything, and the answer.
    pub(crate) fn judge(
        &self,
        known: &Credential,
        is_right: bool,
        now: Timestamp,
    ) -> (Option<Credential>, Result<Notice, Refusal>) {
        if known.is_locked(now) {
            let told = self.tells_locked.then_some(Fault::AccountLocked);
            return (None, Err(Refusal { fault: told, ..wrong() }));
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

    fn admit(&self, next: &mut Credential, now: Timestamp) -> Result<Notice, Refusal> {
        if next.reset {
            return Ok(Notice { fault: Some(Fault::ChangeAfterReset), warning: None });
        }
        // What was stored before there was a policy has no age.
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
            _ if next.graces.len() < self.graces => {
                next.graces.push(now.0);
                let left = self.graces - next.graces.len();
                Some(Warning::GracesLeft(u32::try_from(left).unwrap_or(u32::MAX)))
            }
            _ => return Err(Refusal { fault: Some(Fault::PasswordExpired), ..wrong() }),
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

/// The same for whatever was wrong.
pub(crate) fn wrong() -> Refusal {
    Refusal::new(Code::InvalidCredentials, "")
}

fn refused(fault: Fault, what: impl Into<String>) -> Refusal {
    let code = match fault {
        Fault::PasswordModNotAllowed | Fault::MustSupplyOldPassword | Fault::ChangeAfterReset => {
            Code::InsufficientAccessRights
        }
        _ => Code::ConstraintViolation,
    };
    Refusal { fault: Some(fault), ..Refusal::new(code, what) }
}

/// Why nothing else is done for whoever has a password that somebody else gave.
pub fn change_first() -> Refusal {
    refused(Fault::ChangeAfterReset, "this password was given by somebody else: change it first")
}

/// Why a password is refused that was there before.
pub(crate) fn used_before() -> Refusal {
    refused(Fault::PasswordInHistory, "this password was used before; take another one")
}

fn policy(text: &str, mut policy: Policy, schema: &Schema) -> Result<Policy, String> {
    let words = words(text)?;
    let mut words = words.iter().map(String::as_str);
    if words.next() != Some("to") {
        return Err("does not begin with `to`".to_owned());
    }
    let place = words.next().unwrap_or_default();
    policy.within = Where::read(place, schema)?
        .ok_or_else(|| format!("has `{place}` behind `to`; there stands `*`, `dn=…` or `dn.base=…`"))?;
    for word in words {
        let (name, value) =
            word.split_once('=').ok_or_else(|| format!("has `{word}`, where `word=value` should stand"))?;
        policy.set(name, value).map_err(|why| format!("has `{word}`, but {why}"))?;
    }
    if policy.age_max > Duration::ZERO && policy.age_min >= policy.age_max {
        return Err("has a pwdMinAge that is no less than its pwdMaxAge: nobody could change a password in time".into());
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
            "pwdGraceAuthNLimit" => self.graces = number(value, TRIES_MAX as usize)?,
            "pwdMustChange" => self.must_change = truth(value)?,
            "pwdSafeModify" => self.safe_modify = truth(value)?,
            "pwdMaxFailure" => self.lockout.failures = number(value, TRIES_MAX as usize)? as u32,
            "pwdLockoutDuration" => self.lockout.duration = duration(value)?,
            "pwdFailureCountInterval" => self.failures_within = duration(value)?,
            "tellLocked" => self.tells_locked = truth(value)?,
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
    read.ok_or_else(|| format!("`{value}` is no whole number from 0 to {most}"))
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

    /// A password of the first day, as a policy made it.
    fn known(policy: &Policy) -> Credential {
        policy.renewed(None, &Credential::of("$first".into()), false, at(0))
    }

    fn answer(
        policy: &Policy,
        known: &mut Credential,
        is_right: bool,
        now: Timestamp,
    ) -> Result<Notice, Option<Fault>> {
        let (next, answer) = policy.judge(known, is_right, now);
        *known = next.unwrap_or_else(|| known.clone());
        answer.map_err(|refusal| refusal.fault)
    }

    #[test]
    fn the_first_rule_of_a_place_decides() {
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
    fn a_password_grows_old_with_a_warning_and_some_grace() {
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
    fn a_password_changes_neither_too_early_nor_to_one_of_before() {
        let policy = only("pwdMinAge=1d pwdInHistory=2 pwdMinLength=3 pwdMustChange=TRUE pwdSafeModify=TRUE");
        let fault = |done: Result<(), Refusal>| done.err().and_then(|refusal| refusal.fault);
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
        let told = Notice { warning: None, fault: Some(Fault::ChangeAfterReset) };
        assert_eq!(answer(&policy, &mut reset, true, at(3)), Ok(told));
        assert_eq!(fault(policy.check("äö".as_bytes(), false, true)), Some(Fault::PasswordTooShort));
        assert_eq!(fault(policy.check("äöü".as_bytes(), false, false)), None);
        assert_eq!(fault(policy.check(b"{SSHA}x", true, false)), Some(Fault::InsufficientPasswordQuality));
        assert_eq!(fault(policy.check(b"{SSHA}x", true, true)), None);
    }

    #[test]
    fn rules_that_cannot_be_read_are_told() {
        let check = |text: &str, expected: &str| {
            let told = read(&[text]).expect_err("wrong");
            assert!(told.contains(expected), "{told}");
        };
        check("pwdMinLength=8", "does not begin with `to`");
        check("to pwdMinLength=8", "there stands `*`");
        check("to dn=x pwdMinLength=8", "no distinguished name");
        check("to * pwdMinLength", "where `word=value` should stand");
        check("to * pwdMinLength=999", "no whole number from 0 to 128");
        check("to * pwdMaxAge=90", "such as 90d");
        check("to * pwdMustChange=yes", "neither TRUE nor FALSE");
        check("to * pwdLength=8", "the words are pwdMinLength");
        check("to * pwdMinAge=2d pwdMaxAge=1d", "no less than its pwdMaxAge");
        let late = Lockout { failures: 2_000, duration: Duration::ZERO };
        assert!(Policies::read(&[], late, &Schema::standard()).is_err());
    }
}
