//! Published test suites of LDAP clients, against the real binary.
//!
//! A list in `testdata/ldap` names every skipped or failing test with the reason. An unlisted failure, or a listed test
//! that passes, fails here.

mod support;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::PathBuf,
    process::Command,
};

use support::{
    ldap::{Directory, copy_folder},
    repository,
};
use tocsin_test_peers::{Peer, missing};

/// Runs a suite; returns the outcome of each test.
fn outcomes(directory: &Directory, suite: &mut Command, list: &str) -> String {
    let outcomes_file = directory.folder.path().join("outcomes");
    let done = suite
        .env("PORT", directory.port.to_string())
        .env("PORT_TLS", directory.port_tls.to_string())
        .env("LISTED", repository(list))
        .env("OUTCOMES", &outcomes_file)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .output()
        .unwrap_or_else(|error| panic!("python3: {error}"));
    fs::read_to_string(outcomes_file)
        .unwrap_or_else(|_| panic!("no test was run: {}", String::from_utf8_lossy(&done.stderr)))
}

/// Compares the outcomes of a suite with its list.
fn check(list: &str, outcomes: &str) {
    let (mut passed, mut others) = (BTreeSet::new(), BTreeMap::new());
    for line in outcomes.lines() {
        match line.split_once(' ').expect("an outcome and a test") {
            ("passed", rest) => drop(passed.insert(rest.trim_end())),
            (outcome, rest) => {
                let (test, why) = rest.split_once(' ').unwrap_or((rest, ""));
                others.insert(test, format!("{outcome}: {why}"));
            }
        }
    }
    // A test whose tear-down fails after it passed has failed.
    passed.retain(|test| !others.contains_key(test));
    let list = fs::read_to_string(repository(list)).expect("a list");
    let listed = |verb: &'static str| list.lines().filter_map(move |line| line.strip_prefix(verb)?.strip_prefix(' '));
    let fails: BTreeMap<&str, &str> =
        listed("fails").map(|line| line.split_once(' ').expect("a test and why it fails")).collect();
    let passes: usize = listed("passes").next().and_then(|count| count.parse().ok()).expect("how many pass");
    let unlisted: Vec<_> = others.iter().filter(|(test, _)| !fails.contains_key(*test)).collect();
    assert!(unlisted.is_empty(), "these fail without a listed reason: {unlisted:#?}");
    let now_passing: Vec<_> = fails.keys().filter(|test| !others.contains_key(*test)).collect();
    assert!(now_passing.is_empty(), "these pass now or no longer exist; remove them from the list: {now_passing:?}");
    assert_eq!(passed.len(), passes, "number of passing tests: {passed:#?}");
}

fn suites(path: &str) -> PathBuf {
    repository("crates/tocsin/tests/suites").join(path)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_the_suite_of_ldap3_has_the_listed_outcomes() {
    if missing(&[Peer::Ldap3, Peer::LdapUtils]) {
        return;
    }
    let list = "testdata/ldap/ldap3.txt";
    let directory = Directory::start("o=tocsin", "").await;
    directory.change(&fs::read_to_string(suites("ldap3/entries.ldif")).expect("entries"));
    let outcomes = outcomes(
        &directory,
        Command::new(Peer::Python.path())
            .arg(suites("ldap3/run.py"))
            .env("PYTHONPATH", Peer::Ldap3.path().join("python"))
            .env("SUITE", Peer::Ldap3.path().join("ldap3-2.9.1/test"))
            .env("STRATEGY", "SYNC")
            .env("PASSWORD", directory.platform.key())
            .env("CERTIFICATE", directory.folder.path().join("certificate.pem")),
        list,
    );
    check(list, &outcomes);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_the_suite_of_bonsai_has_the_listed_outcomes() {
    if missing(&[Peer::Bonsai, Peer::LdapUtils]) {
        return;
    }
    let list = "testdata/ldap/bonsai.txt";
    // Set up as its own server: anonymous reads, and at most 1,024 entries per search.
    let settings_of_ldap = "size_limit = 1024
access = ['to attrs=userPassword by self write by * auth', 'to * by self write by * read']";
    let directory = Directory::start("dc=bonsai,dc=test", settings_of_ldap).await;
    directory.change(&fs::read_to_string(suites("bonsai/entries.ldif")).expect("entries"));
    let tests = directory.folder.path().join("tests");
    copy_folder(&Peer::Bonsai.path().join("bonsai-1.5.5/tests"), &tests);
    fs::write(tests.join("test.ini"), settings(&directory)).expect("written");
    // A picture of the suite, which is not published with it.
    fs::create_dir(tests.join("testenv")).expect("made");
    fs::write(tests.join("testenv/test.jpeg"), [0xff, 0xd8, 0xff, 0, 0xfe]).expect("written");
    let path = std::env::join_paths([Peer::Bonsai.path().join("python"), suites("bonsai")]).expect("a path");
    let outcomes = outcomes(
        &directory,
        Command::new(Peer::Python.path())
            .args(["-m", "pytest", "-q", "-p", "plugin", "-p", "no:cacheprovider", "."])
            .current_dir(&tests)
            .env("PYTHONPATH", path)
            .env("LDAPNOINIT", "1"),
        list,
    );
    check(list, &outcomes);
}

/// Settings of bonsai's tests for this environment, replacing the published ones.
fn settings(directory: &Directory) -> String {
    let (port, port_tls, suffix) = (directory.port, directory.port_tls, directory.suffix);
    let (operator, key) = (directory.operator(), directory.platform.key());
    format!(
        "[SERVER]\nhostip = 127.0.0.1\nhostname = localhost\nport = {port}\nssl_port = {port_tls}\nhas_tls = True\n\
         basedn = {suffix}\nsearch_scope = sub\nsearch_attr = cn\n\
         [SIMPLEAUTH]\nuser = {operator}\npassword = {key}\nadusername = None\n\
         [DIGESTAUTH]\nuser = None\npassword = None\nrealm = None\nauthzid = None\ndn = None\n\
         [NTLMAUTH]\nuser = None\npassword = None\nrealm = None\n\
         [GSSAPIAUTH]\nuser = None\npassword = None\nrealm = None\nauthzid = None\ndn = None\nkeytab = None\n\
         [EXTERNALAUTH]\nauthzid = None\ndn = None\n"
    )
}
