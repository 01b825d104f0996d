//! F8: limits of searches, paged results, and abandoned searches.

mod support;

use std::time::Duration;

use support::{
    Bench, PERSON,
    raw::{self, Raw, Reply},
};
use tocsin_face_ldap::LdapOptions;
use tocsin_test_peers::{Peer, missing};

const ANN: &str = "cn=ann,ou=people,o=site";
const PEOPLE: [&str; 6] = ["ann", "bo", "cy", "dee", "eve", "fay"];

/// Entries whose passwords are cheap to check.
async fn people(options: LdapOptions) -> Bench {
    let bench = Bench::with(&["to * by users read by * auth"], options).await;
    for name in PEOPLE {
        bench.add(&PERSON.replace("NAME", name).replace("secret", "{SHA}5en6G6MezRroT3XKqkdPOmY/BfQ=")).await;
    }
    bench
}

async fn bound(bench: &Bench) -> Raw {
    let mut raw = Raw::connect(bench.port).await;
    raw.send(&raw::message(1, &raw::bind(ANN, "secret"), &[])).await;
    assert_eq!(raw.until_done(1).await[0].code(), 0);
    raw
}

/// The cookie of a page, from the control of its last message.
fn cookie(reply: &[Reply]) -> Vec<u8> {
    let content = &reply.last().expect("some").content;
    let oid = b"1.2.840.113556.1.4.319";
    let at = content.windows(oid.len()).position(|part| part == oid).expect("the control") + oid.len();
    // 4 LENGTH 30 LENGTH 2 1 0 4 LENGTH, and the cookie.
    let length = usize::from(content[at + 8]);
    content[at + 9..at + 9 + length].to_vec()
}

fn entries(reply: &[Reply]) -> usize {
    reply.iter().filter(|reply| reply.operation == 0x64).count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f8_a_search_beyond_its_size_limit_has_the_entries_up_to_it() {
    if missing(&[Peer::LdapUtils]) {
        return;
    }
    let bench = people(LdapOptions { size_limit: 3, ..LdapOptions::default() }).await;
    let all = ["-LLL", "-b", "ou=people,o=site", "(objectClass=person)", "1.1"];
    let found = bench.run_as("ldapsearch", ANN, "secret", &all, "", 4).await;
    assert_eq!(found.matches("dn: ").count(), 3, "the limit of the server: {found}");
    let two = [&["-z", "2"], &all[..]].concat();
    let found = bench.run_as("ldapsearch", ANN, "secret", &two, "", 4).await;
    assert_eq!(found.matches("dn: ").count(), 2, "the limit of the client: {found}");
    let more = [&["-z", "100"], &all[..]].concat();
    let found = bench.run_as("ldapsearch", ANN, "secret", &more, "", 4).await;
    assert_eq!(found.matches("dn: ").count(), 3, "no client raises the limit: {found}");
    // Paged results do not circumvent it.
    let pages = [&["-E", "pr=2/noprompt"], &all[..]].concat();
    let found = bench.run_as("ldapsearch", ANN, "secret", &pages, "", 4).await;
    assert_eq!(found.matches("dn: ").count(), 3, "{found}");
    let found = bench.search("ou=people,o=site", "sub", &["(objectClass=person)", "1.1"]).await;
    assert_eq!(found.matches("dn: ").count(), PEOPLE.len(), "operators are bound by their own limit only: {found}");
    bench.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f8_a_search_beyond_its_time_limit_has_the_entries_found_so_far() {
    if missing(&[Peer::LdapUtils]) {
        return;
    }
    const LIMIT: Duration = Duration::from_millis(400);
    const MANY: usize = 260;
    let bench = people(LdapOptions { time_limit: LIMIT, ..LdapOptions::default() }).await;
    // More than the socket buffers hold, so the limit is exceeded midway.
    let long = "x".repeat(50_000);
    let one = |number: usize| {
        let name = format!("p{number}");
        let entry = PERSON.replace("NAME", &name).replace("userPassword: secret", &format!("description: {long}"));
        entry + "\n"
    };
    bench.add(&(0..MANY).map(one).collect::<String>()).await;
    let mut raw = bound(&bench).await;
    let began = tokio::time::Instant::now();
    raw.send(&raw::message(2, &raw::search_for("ou=people,o=site", "person", "description"), &[])).await;
    let first = raw.next().await;
    assert_eq!((first.id, first.operation), (2, 0x64));
    tokio::time::sleep_until(began + LIMIT * 2).await;
    let rest = raw.until_done(2).await;
    assert_eq!(rest.last().expect("some").code(), 3);
    let found = entries(&rest) + 1;
    assert!((1..MANY).contains(&found), "{found} of {MANY}");
    println!("{found} of {MANY} entries came before the limit");
    bench.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f8_only_the_cookie_that_was_given_leads_to_the_next_page() {
    if missing(&[Peer::LdapUtils]) {
        return;
    }
    let bench = people(LdapOptions::default()).await;
    let (mut raw, mut other) = (bound(&bench).await, bound(&bench).await);
    let search = raw::search("ou=people,o=site", "person");
    raw.send(&raw::message(2, &search, &[raw::page(2, b"")])).await;
    let first = raw.until_done(2).await;
    assert_eq!((entries(&first), first.last().expect("some").code()), (2, 0));
    let given = cookie(&first);
    assert_eq!(given.len(), 8, "{given:?}");

    let mut wrong: Vec<Vec<u8>> =
        (0..given.len()).map(|at| [&given[..at], &[given[at] ^ 1], &given[at + 1..]].concat()).collect();
    wrong.extend([given[..7].to_vec(), [&*given, b"x"].concat(), vec![0; 8], b"x".to_vec(), vec![0xff; 100]]);
    for (id, wrong) in (3..).zip(&wrong) {
        raw.send(&raw::message(id, &search, &[raw::page(2, wrong)])).await;
        let reply = raw.until_done(id).await;
        assert_eq!((entries(&reply), reply[0].code()), (0, 53), "{wrong:?}");
    }
    // It is invalid on another connection.
    other.send(&raw::message(2, &search, &[raw::page(2, &given)])).await;
    let reply = other.until_done(2).await;
    assert_eq!((entries(&reply), reply[0].code()), (0, 53));

    // The right one still works, once.
    raw.send(&raw::message(40, &search, &[raw::page(2, &given)])).await;
    let second = raw.until_done(40).await;
    assert_eq!(entries(&second), 2);
    raw.send(&raw::message(41, &search, &[raw::page(2, &given)])).await;
    assert_eq!(raw.until_done(41).await[0].code(), 53, "a page is read once");
    // A size of zero abandons the rest (RFC 2696, section 3).
    let next = cookie(&second);
    raw.send(&raw::message(42, &search, &[raw::page(0, &next)])).await;
    let given_up = raw.until_done(42).await;
    assert_eq!((entries(&given_up), given_up[0].code(), cookie(&given_up).len()), (0, 0, 0));
    raw.send(&raw::message(43, &search, &[raw::page(2, &next)])).await;
    assert_eq!(raw.until_done(43).await[0].code(), 53);
    // A new bind drops the waiting pages.
    raw.send(&raw::message(44, &search, &[raw::page(2, b"")])).await;
    let again = cookie(&raw.until_done(44).await);
    raw.send(&raw::message(45, &raw::bind(ANN, "secret"), &[])).await;
    raw.until_done(45).await;
    raw.send(&raw::message(46, &search, &[raw::page(2, &again)])).await;
    assert_eq!(raw.until_done(46).await[0].code(), 53);
    bench.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn f8_a_search_that_is_abandoned_does_no_more_work() {
    if missing(&[Peer::LdapUtils]) {
        return;
    }
    let bench = people(LdapOptions { followers_max: 1, ..LdapOptions::default() }).await;
    let mut raw = bound(&bench).await;
    let search = raw::search("ou=people,o=site", "person");
    raw.send(&raw::message(2, &search, &[raw::persistent_sync_control()])).await;
    for _ in PEOPLE {
        let reply = raw.next().await;
        assert_eq!((reply.id, reply.operation), (2, 0x64));
    }
    // It is still running, so there is no slot for another.
    raw.send(&raw::message(3, &search, &[raw::persistent_sync_control()])).await;
    assert_eq!(raw.until_done(3).await.last().expect("some").code(), 51);
    raw.send(&raw::message(4, &raw::abandon(2), &[])).await;
    // Its slot is free as soon as it has stopped.
    let followed = async {
        for id in 5..=255 {
            raw.send(&raw::message(id, &search, &[raw::persistent_sync_control()])).await;
            let reply = raw.next().await;
            assert_eq!(reply.id, id, "nothing more of the one that was abandoned");
            if reply.operation == 0x64 {
                return id;
            }
            assert_eq!(reply.code(), 51);
        }
        panic!("the seat is never free");
    };
    let id = followed.await;
    for _ in &PEOPLE[1..] {
        assert_eq!(raw.next().await.id, id);
    }
    bench.add(&PERSON.replace("NAME", "gil")).await;
    loop {
        let reply = raw.next().await;
        assert_eq!(reply.id, id, "a change is sent to the one that follows, and only to it");
        if reply.operation == 0x64 {
            break;
        }
    }
    bench.stop().await;
}
