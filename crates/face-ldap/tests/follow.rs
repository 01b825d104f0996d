//! Content synchronization (RFC 4533) with ldapsearch and with slapd as consumer.

mod support;

use std::{
    io::{BufRead, BufReader},
    process::{Child, Command, Stdio},
    sync::mpsc,
    time::Instant,
};

use support::{Bench, PERSON, slapd::Slapd};
use tocsin_test_peers::{Peer, missing, wait_timeout};

/// Output of a search in the given sync mode, without line folding. `code`: expected exit code.
async fn refresh(bench: &Bench, mode: &str, filter: &str, code: i32) -> String {
    let mode = format!("!{mode}");
    let arguments = ["-o", "ldif-wrap=no", "-b", "o=site", "-E", &mode, filter, "cn"];
    bench.run("ldapsearch", &arguments, "", code).await
}

/// The cookie in an output.
fn cookie(reply: &str) -> &str {
    let start = reply.find("tocsin-").unwrap_or_else(|| panic!("no cookie in {reply}"));
    let end = reply[start + 7..].find(|c: char| !c.is_ascii_digit()).map_or(reply.len(), |end| start + 7 + end);
    &reply[start..end]
}

fn names(reply: &str) -> Vec<&str> {
    let mut names: Vec<&str> = reply.lines().filter_map(|line| line.strip_prefix("dn: ")).collect();
    names.sort_unstable();
    names
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_polls_for_changes() {
    if missing(&[Peer::LdapUtils]) {
        return;
    }
    let bench = Bench::start(&[]).await;
    for name in ["ann", "bob", "cay"] {
        bench.add(&PERSON.replace("NAME", name)).await;
    }
    let all = refresh(&bench, "sync=ro", "(sn=Muster)", 0).await;
    assert_eq!(names(&all), ["cn=ann,ou=people,o=site", "cn=bob,ou=people,o=site", "cn=cay,ou=people,o=site"], "{all}");
    let place = cookie(&all).to_owned();
    let none = refresh(&bench, &format!("sync=ro/{place}"), "(sn=Muster)", 0).await;
    assert_eq!((names(&none).len(), cookie(&none)), (0, place.as_str()), "{none}");

    bench.modify("dn: cn=bob,ou=people,o=site\nchangetype: modify\nreplace: title\ntitle: Boss\n").await;
    bench.modify("dn: cn=cay,ou=people,o=site\nchangetype: modify\nreplace: sn\nsn: Other\n").await;
    let gone = bench.search("cn=ann,ou=people,o=site", "base", &["(objectClass=*)", "entryUUID"]).await;
    let uuid = gone.lines().find_map(|line| line.strip_prefix("entryUUID: ")).expect("an identifier").to_owned();
    bench.run("ldapdelete", &["cn=ann,ou=people,o=site"], "", 0).await;
    let changed = refresh(&bench, &format!("sync=ro/{place}"), "(sn=Muster)", 0).await;
    assert_eq!(names(&changed), ["cn=bob,ou=people,o=site"], "{changed}");
    assert!(changed.contains(&uuid), "a deletion is sent by identifier {uuid}: {changed}");

    // A client with an unknown cookie reloads if it accepts that; otherwise it gets an error.
    for stranger in ["rid=001,csn=20260101000000.000000Z#000000#000#000000", "tocsin-999999999"] {
        // The result code does not fit into an exit code.
        let refused = refresh(&bench, &format!("sync=ro/{stranger}"), "(sn=Muster)", 0).await;
        assert!(names(&refused).is_empty() && refused.contains("result: 4096"), "{refused}");
    }
    // A renamed container renames all descendants, which the feed does not list.
    bench.add("dn: ou=one,o=site\nobjectClass: organizationalUnit\nou: one\n").await;
    bench.add(&PERSON.replace("NAME", "dan").replace("ou=people", "ou=one")).await;
    let place = cookie(&refresh(&bench, "sync=ro", "(sn=Muster)", 0).await).to_owned();
    bench.run("ldapmodrdn", &["-r", "ou=one,o=site", "ou=two"], "", 0).await;
    let refused = refresh(&bench, &format!("sync=ro/{place}"), "(sn=Muster)", 0).await;
    assert!(refused.contains("result: 4096"), "{refused}");
    let again = refresh(&bench, "sync=ro", "(sn=Muster)", 0).await;
    assert_eq!(names(&again), ["cn=bob,ou=people,o=site", "cn=dan,ou=two,o=site"], "{again}");
    bench.run("ldapsearch", &["-b", "o=site", "-E", "!sync=ro", "(memberOf=cn=x,o=site)"], "", 53).await;
    bench.run("ldapsearch", &["-b", "o=site", "-E", "!sync=ro", "-E", "pr=5/noprompt"], "", 53).await;
    bench.stop().await;
}

/// A persistent ldapsearch and its output lines.
struct Follower {
    process: Child,
    lines: mpsc::Receiver<String>,
}

impl Follower {
    fn start(port: u16) -> Follower {
        let url = format!("ldap://127.0.0.1:{port}");
        let arguments = ["-x", "-H", &url, "-D", "cn=admin,o=site", "-w", "key", "-o", "ldif-wrap=no", "-b", "o=site"];
        let mut command = Command::new("ldapsearch");
        let command = command.args(arguments).args(["-E", "!sync=rp", "(sn=Muster)", "title"]);
        let mut process = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("ldapsearch runs");
        let (sender, lines) = mpsc::channel();
        let output = process.stdout.take().expect("piped");
        std::thread::spawn(move || {
            BufReader::new(output).lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
        });
        Follower { process, lines }
    }

    fn expect_output(&self, part: &str) {
        let (until, mut heard) = (Instant::now() + wait_timeout(), Vec::new());
        while let Ok(line) = self.lines.recv_timeout(until.saturating_duration_since(Instant::now())) {
            if line.contains(part) {
                return;
            }
            heard.push(line);
        }
        panic!("no output about {part}: {heard:#?}");
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_persistent_search_receives_changes_at_once() {
    if missing(&[Peer::LdapUtils]) {
        return;
    }
    let bench = Bench::start(&[]).await;
    bench.add(&PERSON.replace("NAME", "ann")).await;
    // ldapsearch buffers its output unless it is a terminal.
    let follower = tokio::task::block_in_place(|| Follower::start(bench.port));
    for count in 0..60 {
        bench.add(&PERSON.replace("NAME", &format!("p{count}"))).await;
    }
    tokio::task::block_in_place(|| follower.expect_output("dn: cn=ann,ou=people,o=site"));
    tokio::task::block_in_place(|| follower.expect_output("dn: cn=p1,ou=people,o=site"));
    drop(follower);
    bench.stop().await;
}

/// Polls slapd until it returns the expected entries.
fn wait_for(slapd: &Slapd, filter: &str, expected: &[&str]) {
    // It pauses before it connects again.
    let until = Instant::now() + wait_timeout() * 3;
    loop {
        let url = format!("ldap://127.0.0.1:{}", slapd.port);
        let arguments = ["-x", "-LLL", "-H", &url, "-o", "ldif-wrap=no", "-b", "o=site", filter, "1.1"];
        let output = Command::new("ldapsearch").args(arguments).output().expect("ldapsearch runs");
        let reply = String::from_utf8_lossy(&output.stdout).into_owned();
        let found = names(&reply);
        if found == expected {
            return;
        }
        assert!(Instant::now() < until, "slapd has {found:?} of {filter}, not {expected:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn slapd_replicates_from_this_server() {
    if missing(&[Peer::LdapUtils, Peer::Slapd]) {
        return;
    }
    let bench = Bench::start(&[]).await;
    for name in ["ann", "bob"] {
        bench.add(&PERSON.replace("NAME", name)).await;
    }
    let consumer = format!(
        "syncrepl rid=001 provider=ldap://127.0.0.1:{} type=refreshAndPersist searchbase=\"o=site\" scope=sub \
         bindmethod=simple binddn=\"cn=admin,o=site\" credentials=key retry=\"1 +\" schemachecking=off \
         attrs=\"*,structuralObjectClass,createTimestamp,modifyTimestamp,entryCSN\"\n",
        bench.port
    );
    let slapd = Slapd::start(&consumer);
    let wait = |filter: &'static str, expected: &'static [&'static str]| {
        tokio::task::block_in_place(|| wait_for(&slapd, filter, expected));
    };
    wait("(sn=Muster)", &["cn=ann,ou=people,o=site", "cn=bob,ou=people,o=site"]);
    bench.add(&PERSON.replace("NAME", "cay")).await;
    wait("(sn=Muster)", &["cn=ann,ou=people,o=site", "cn=bob,ou=people,o=site", "cn=cay,ou=people,o=site"]);
    bench.modify("dn: cn=bob,ou=people,o=site\nchangetype: modify\nreplace: title\ntitle: Boss\n").await;
    wait("(title=Boss)", &["cn=bob,ou=people,o=site"]);
    bench.run("ldapmodrdn", &["-r", "cn=bob,ou=people,o=site", "cn=bert"], "", 0).await;
    wait("(title=Boss)", &["cn=bert,ou=people,o=site"]);
    bench.run("ldapdelete", &["cn=ann,ou=people,o=site"], "", 0).await;
    wait("(sn=Muster)", &["cn=bert,ou=people,o=site", "cn=cay,ou=people,o=site"]);
    drop(slapd);
    bench.stop().await;
}
