//! Password policy with Debian's ldap-utils, on a simulated clock.

mod support;

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use support::{Bench, PERSON};
use tocsin_directory::Options;
use tocsin_face_ldap::LdapOptions;
use tocsin_model::time::Timestamp;
use tocsin_test_peers::{Peer, missing};

const ANN: &str = "cn=ann,ou=people,o=site";
const DAY: Duration = Duration::from_secs(86_400);

/// Simulated calendar.
struct Calendar(Arc<AtomicI64>);

impl Calendar {
    fn advance(&self, days: u32) {
        let time = Timestamp(self.0.load(Ordering::SeqCst)) + DAY * days;
        self.0.store(time.0, Ordering::SeqCst);
    }
}

async fn bench(rules: &[&str]) -> (Bench, Calendar) {
    let now = Arc::new(AtomicI64::new(1_800_000_000_000_000));
    let clock = Arc::new({
        let now = now.clone();
        move || Timestamp(now.load(Ordering::SeqCst))
    });
    let password_policy = rules.iter().map(|rule| (*rule).to_owned()).collect();
    let options = Options { password_policy, ..Bench::options() };
    let bench = Bench::of(options, LdapOptions::default(), clock).await;
    (bench, Calendar(now))
}

/// Output of a bind about the password.
async fn whoami(bench: &Bench, password: &str, code: i32) -> String {
    bench.output_as("ldapwhoami", ANN, password, &["-e", "ppolicy"], "", code).await.1
}

/// Ann changes her password, with the old one.
async fn change(bench: &Bench, old: &str, new: &str, code: i32) -> String {
    let arguments = ["-e", "ppolicy", "-a", old, "-s", new];
    // The program prints the error.
    bench.output_as("ldappasswd", ANN, old, &arguments, "", code).await.0
}

fn has(output: &str, expected: &str) {
    assert!(output.to_lowercase().contains(expected), "{expected} in {output}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_password_expires_after_warnings_and_grace_logins() {
    if missing(&[Peer::LdapUtils]) {
        return;
    }
    let (bench, calendar) = bench(&["to * pwdMaxAge=90d pwdExpireWarning=14d pwdGraceAuthNLimit=1"]).await;
    bench.add(&PERSON.replace("NAME", "ann")).await;
    assert_eq!(whoami(&bench, "secret", 0).await, "");
    calendar.advance(80);
    has(&whoami(&bench, "secret", 0).await, "expires in 864000 seconds");
    calendar.advance(10);
    has(&whoami(&bench, "secret", 0).await, "grace");
    let found =
        bench.search(ANN, "base", &["(objectClass=*)", "pwdChangedTime", "pwdGraceUseTime", "pwdHistory"]).await;
    assert!(found.contains("pwdChangedTime: 20270115080000Z\n"), "{found}");
    assert!(found.contains("pwdGraceUseTime: 20270415080000Z\n") && !found.contains("pwdHistory"), "{found}");
    // Filters on password state work for base and subtree searches.
    bench.add(&PERSON.replace("NAME", "bob")).await;
    for (scope, base) in [("sub", "o=site"), ("base", ANN)] {
        let met = async |filter: &str| bench.search(base, scope, &[filter, "1.1"]).await.contains("cn=ann");
        assert!(met("(pwdGraceUseTime=*)").await);
        assert!(met("(&(objectClass=person)(pwdChangedTime<=20270115080000Z))").await);
        assert!(met("(!(pwdAccountLockedTime=*))").await);
        assert!(!met("(pwdReset=TRUE)").await && !met("(pwdChangedTime>=20270115080001Z)").await);
    }
    let found = bench.search("o=site", "sub", &["(pwdChangedTime>=20270415080000Z)", "1.1"]).await;
    assert!(found.contains("cn=bob") && !found.contains("cn=ann"), "{found}");
    has(&whoami(&bench, "secret", 49).await, "password expired");
    // Without the control the reason is not sent.
    let output = bench.output_as("ldapwhoami", ANN, "secret", &[], "", 49).await.1;
    assert!(!output.contains("xpired"), "{output}");
    bench.run("ldappasswd", &["-s", "other", ANN], "", 0).await;
    assert_eq!(whoami(&bench, "other", 0).await, "");
    bench.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_password_must_be_long_new_and_not_too_early() {
    if missing(&[Peer::LdapUtils]) {
        return;
    }
    let (bench, calendar) =
        bench(&["to * pwdMinLength=6 pwdInHistory=2 pwdMinAge=1d pwdSafeModify=TRUE pwdMaxFailure=5"]).await;
    bench.run("ldapadd", &[], &PERSON.replace("NAME", "ann").replace("secret", "short"), 19).await;
    bench.add(&PERSON.replace("NAME", "ann")).await;
    has(&change(&bench, "secret", "second", 1).await, "changed recently");
    calendar.advance(1);
    has(&change(&bench, "secret", "2nd", 1).await, "at least 6 characters");
    has(&change(&bench, "secret", "secret", 1).await, "used before");
    change(&bench, "secret", "second", 0).await;
    calendar.advance(1);
    has(&change(&bench, "second", "secret", 1).await, "used before");
    change(&bench, "second", "third!", 0).await;
    calendar.advance(1);
    change(&bench, "third!", "fourth", 0).await;
    calendar.advance(1);
    change(&bench, "fourth", "secret", 0).await;
    calendar.advance(1);
    let modify = async |what: &str, code| {
        let ldif = format!("dn: {ANN}\nchangetype: modify\n{what}\n");
        bench.output_as("ldapmodify", ANN, "secret", &["-e", "ppolicy"], &ldif, code).await
    };
    modify("replace: userPassword\nuserPassword: sixth!", 50).await;
    modify("replace: userPassword\nuserPassword: {SSHA}c2FsdHNhbHRzYWx0c2FsdHNhbHRzYWx0", 50).await;
    modify("delete: userPassword", 50).await;
    modify("delete: userPassword\nuserPassword: secret\n-\nadd: userPassword\nuserPassword: sixth!", 0).await;
    // Operators may set a password at any time, but not one that is too short.
    bench.run("ldappasswd", &["-s", "short", ANN], "", 1).await;
    let made = bench.run("ldappasswd", &[ANN], "", 0).await;
    let made = made.trim().strip_prefix("New password: ").expect("one was made up");
    whoami(&bench, made, 0).await;
    bench.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_password_set_by_an_administrator_must_be_changed_first() {
    if missing(&[Peer::LdapUtils]) {
        return;
    }
    let (bench, _) = bench(&["to * pwdMustChange=TRUE"]).await;
    bench.add(&PERSON.replace("NAME", "ann")).await;
    has(&whoami(&bench, "secret", 0).await, "must be changed");
    let found = bench.search(ANN, "base", &["(objectClass=*)", "+"]).await;
    assert!(found.contains("pwdReset: TRUE\n"), "{found}");
    bench.run_as("ldapsearch", ANN, "secret", &["-b", ANN, "-s", "base"], "", 50).await;
    let modify = async |what: &str, code| {
        let ldif = format!("dn: {ANN}\nchangetype: modify\n{what}\n");
        bench.run_as("ldapmodify", ANN, "secret", &[], &ldif, code).await
    };
    modify("replace: title\ntitle: x", 50).await;
    modify("replace: pwdReset\npwdReset: FALSE", 50).await;
    // In one session: the change permits the requests after it.
    let title = format!("\ndn: {ANN}\nchangetype: modify\nreplace: title\ntitle: x");
    modify(&format!("replace: userPassword\nuserPassword: own\n{title}"), 0).await;
    assert_eq!(whoami(&bench, "own", 0).await, "");
    // An administrator can require it again.
    bench.modify(&format!("dn: {ANN}\nchangetype: modify\nreplace: pwdReset\npwdReset: TRUE\n")).await;
    has(&whoami(&bench, "own", 0).await, "must be changed");
    bench.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_entry_is_locked_by_wrong_passwords_or_an_administrator() {
    if missing(&[Peer::LdapUtils]) {
        return;
    }
    let (bench, calendar) = bench(&["to * pwdMaxFailure=2 pwdLockoutDuration=1d tellLocked=TRUE"]).await;
    bench.add(&PERSON.replace("NAME", "ann")).await;
    let lock = async |what: &str, code| {
        let ldif = format!("dn: {ANN}\nchangetype: modify\n{what}\n");
        bench.run("ldapmodify", &[], &ldif, code).await
    };
    for _ in 0..2 {
        whoami(&bench, "wrong", 49).await;
    }
    has(&whoami(&bench, "secret", 49).await, "locked");
    let found = bench.search(ANN, "base", &["(objectClass=*)", "pwdAccountLockedTime"]).await;
    assert!(found.contains("pwdAccountLockedTime: 20270115080000Z\n"), "{found}");
    lock("delete: pwdAccountLockedTime", 0).await;
    whoami(&bench, "secret", 0).await;
    for _ in 0..2 {
        whoami(&bench, "wrong", 49).await;
    }
    calendar.advance(2);
    whoami(&bench, "secret", 0).await;
    lock("replace: pwdAccountLockedTime\npwdAccountLockedTime: 20270101000000Z", 21).await;
    lock("replace: pwdAccountLockedTime\npwdAccountLockedTime: 000001010000Z", 0).await;
    calendar.advance(1_000);
    has(&whoami(&bench, "secret", 49).await, "locked");
    lock("delete: pwdAccountLockedTime", 0).await;
    whoami(&bench, "secret", 0).await;
    bench.stop().await;
}
