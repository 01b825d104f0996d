//! Third-party LDAP clients against the real binary: UnboundID's tools, the Apache Directory API, ldapexop, and logins
//! by nslcd.

mod support;

use std::{fs, os::unix::fs::PermissionsExt, path::Path, process::Command};

use support::{
    ldap::{Directory, output_of},
    repository,
};
use tocsin_test_peers::{Peer, missing};

const VERA: &str = "dn: uid=vera,ou=people,o=tocsin
changetype: add
objectClass: inetOrgPerson
uid: vera
cn: Vera Muster
sn: Muster
mail: vera@example.org
userPassword: open sesame

";

/// Runs an UnboundID tool as the operator.
fn unboundid(directory: &Directory, tool: &str, arguments: &[&str]) -> String {
    let port = directory.port.to_string();
    let (operator, key) = (directory.operator(), directory.platform.key());
    let server = ["--hostname", "127.0.0.1", "--port", &port, "--bindDN", &operator, "--bindPassword", &key];
    output_of(unboundid_alone(tool).args(server).args(arguments), "")
}

/// UnboundID tool that needs no server.
fn unboundid_alone(tool: &str) -> Command {
    let mut java = java();
    java.args(["com.unboundid.ldap.sdk.unboundidds.Launcher", tool]);
    java
}

/// Java with the published libraries.
fn java() -> Command {
    let mut java = Command::new("java");
    // Short runs: start-up time matters more than peak speed.
    java.args([
        "-XX:TieredStopAtLevel=1",
        "-cp",
        &format!("{}/*", Peer::ApacheDirectory.path().join("java").display()),
    ]);
    java
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_unboundid_tools_read_and_modify() {
    if missing(&[Peer::ApacheDirectory, Peer::LdapUtils]) {
        return;
    }
    let directory = Directory::start("o=tocsin", "").await;
    let file = |name: &str| directory.folder.path().join(name).display().to_string();
    let run = |tool: &str, arguments: &[&str]| unboundid(&directory, tool, arguments);
    let changes = "dn: uid=vera,ou=people,o=tocsin\nchangetype: modify\nreplace: title\ntitle: Boss\n-\nadd: mail\nmail: v@example.org\n\n\
                   dn: uid=vera,ou=people,o=tocsin\nchangetype: moddn\nnewrdn: uid=vera2\ndeleteoldrdn: 1\n";
    fs::write(file("changes.ldif"), format!("{VERA}{changes}")).expect("written");
    let printed = run("ldapmodify", &["--ldifFile", &file("changes.ldif")]);
    assert_eq!(printed.matches("0 (success)").count(), 3, "{printed}");
    let printed = run("ldapcompare", &["title:boss", "uid=vera2,ou=people,o=tocsin"]);
    assert!(printed.contains("compare true"), "{printed}");

    // Paged, sorted, over TLS; the results are LDIF that can be imported again.
    let search =
        ["--useStartTLS", "--trustAll", "--baseDN", "o=tocsin", "--sortOrder", "+uid", "--simplePageSize", "1"];
    run("ldapsearch", &[&search[..], &["--outputFile", &file("found.ldif"), "(objectClass=*)", "*"]].concat());
    let found = fs::read_to_string(file("found.ldif")).expect("LDIF");
    assert!(found.contains("Total Entries Returned:  3"), "{found}");
    let again = ["--ldifFile", &file("found.ldif"), "--baseDN", "o=tocsin", "(mail=v@example.org)", "title"];
    let again = output_of(unboundid_alone("ldifsearch").args(again), "");
    assert!(again.contains("dn: uid=vera2,ou=people,o=tocsin\ntitle: Boss\n"), "{again}");

    let printed =
        run("ldappasswordmodify", &["--userIdentity", "dn:uid=vera2,ou=people,o=tocsin", "--newPassword", "changed"]);
    assert!(printed.contains("Successfully changed"), "{printed}");
    let rate = ["--baseDN", "o=tocsin", "--filter", "(uid=vera2)", "--numThreads", "2", "--intervalDuration", "1"];
    let printed = run("searchrate", &[&rate[..], &["--numIntervals", "1", "--csv", "--ratePerSecond", "50"]].concat());
    let errors = printed.lines().last().and_then(|line| line.split(['\t', ',']).nth(3)).expect("figures");
    assert_eq!(errors.parse(), Ok(0.0), "{printed}");
    run("ldapdelete", &["uid=vera2,ou=people,o=tocsin"]);
}

/// The library does not support object identifiers with components above 32 bits. Ours are below 2.25 with 128 bits;
/// everything else must be valid.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_the_schema_passes_unboundids_validator() {
    if missing(&[Peer::ApacheDirectory, Peer::LdapUtils]) {
        return;
    }
    let directory = Directory::start("o=tocsin", "").await;
    let folder = directory.folder.path().join("schema");
    fs::create_dir(&folder).expect("made");
    let url = format!("ldap://127.0.0.1:{}", directory.port);
    let (operator, key) = (directory.operator(), directory.platform.key());
    let mut search = Command::new("ldapsearch");
    search.args(["-LLL", "-x", "-H", &url, "-D", &operator, "-w", &key, "-b", "cn=subschema", "-s", "base"]);
    let schema = output_of(search.args(["-o", "ldif-wrap=no", "(objectClass=subschema)", "+", "*"]), "");
    let small: Vec<&str> =
        schema.lines().filter(|line| !line.contains("137279310086925753628529315834703664387")).collect();
    assert!(schema.lines().count() > small.len() + 5, "{schema}");
    fs::write(folder.join("01.ldif"), small.join("\n") + "\n").expect("written");
    let printed = output_of(unboundid_alone("validate-ldap-schema").arg("--schema-path").arg(folder), "");
    assert!(!printed.contains("errors were found"), "{printed}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_apache_directory_reads_the_schema_strictly() {
    if missing(&[Peer::ApacheDirectory, Peer::LdapUtils]) {
        return;
    }
    let directory = Directory::start("o=tocsin", "").await;
    directory.change(VERA);
    let program = repository("crates/tocsin/tests/suites/java/ReadSchema.java");
    let printed = output_of(java().arg(program).args([directory.port.to_string(), directory.platform.key()]), "");
    assert!(!printed.contains("error"), "{printed}");
    for line in ["cn is a: name", "entry: uid=vera,ou=people,o=tocsin"] {
        assert!(printed.lines().any(|found| found == line), "{line} in {printed}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ldapexop_performs_extended_operations() {
    if missing(&[Peer::LdapUtils]) {
        return;
    }
    let directory = Directory::start("o=tocsin", "").await;
    directory.change(VERA);
    let url = format!("ldap://127.0.0.1:{}", directory.port);
    let send_request = |who: &str, password: &str, operation: &[&str]| {
        let mut ldapexop = Command::new("ldapexop");
        ldapexop.args(["-x", "-H", &url, "-D", who, "-w", password]).args(operation).env("LDAPNOINIT", "1");
        let done = ldapexop.output().unwrap_or_else(|error| panic!("ldapexop: {error}"));
        let [said, error] = [done.stdout, done.stderr].map(|text| String::from_utf8_lossy(&text).trim().to_owned());
        said + &error
    };
    let vera = "uid=vera,ou=people,o=tocsin";
    assert_eq!(send_request(vera, "open sesame", &["whoami"]), format!("dn:{vera}"));
    assert_eq!(send_request(&directory.operator(), &directory.platform.key(), &["whoami"]), "dn:cn=admin,o=tocsin");
    assert_eq!(send_request("", "", &["whoami"]), "anonymous");
    assert!(send_request(vera, "open sesame", &["cancel", "7"]).contains("No Operation to Cancel (119)"));
    assert!(send_request(vera, "open sesame", &["1.2.3.4:what"]).contains("Protocol error (2)"));
    // Password modify with a generated password.
    let made = send_request(vera, "open sesame", &["1.3.6.1.4.1.4203.1.11.1"]);
    assert!(made.contains("data:: "), "{made}");
    assert!(send_request(vera, "open sesame", &["whoami"]).contains("Invalid credentials (49)"));
}

/// `/etc` of a machine whose users are in the directory.
fn etc(directory: &Directory, at: &Path) {
    fs::create_dir(at).expect("made");
    let write = |name: &str, text: &str| fs::write(at.join(name), text).expect("written");
    write("passwd", "root:x:0:0::/root:/bin/sh\n");
    write("group", "root:x:0:\n");
    write("hosts", "127.0.0.1 localhost directory.example.org\n");
    write("nsswitch.conf", "passwd: files ldap\ngroup: files ldap\nhosts: files\n");
    fs::copy(directory.folder.path().join("certificate.pem"), at.join("directory.pem")).expect("copied");
    let port = directory.port;
    write(
        "nslcd.conf",
        &format!(
            "uri ldap://directory.example.org:{port}\nbase o=tocsin\nssl start_tls\ntls_reqcert demand\n\
             tls_cacertfile /etc/directory.pem\nbinddn uid=reader,ou=people,o=tocsin\nbindpw a long password\n"
        ),
    );
    // The file contains a password.
    fs::set_permissions(at.join("nslcd.conf"), fs::Permissions::from_mode(0o600)).expect("closed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn machines_resolve_users_by_nslcd() {
    if missing(&[Peer::LdapUtils, Peer::Nslcd]) {
        return;
    }
    let namespaces = ["--map-root-user", "--mount", "--pid", "--fork", "--kill-child"];
    if !Command::new("unshare").args(namespaces).arg("true").status().is_ok_and(|status| status.success()) {
        println!("skipped: this machine does not permit namespaces, and its own /etc must not be changed");
        return;
    }
    let access = "access = ['to attrs=userPassword by self write by * auth',
'to * by dn=\"uid=reader,ou=people,o=tocsin\" read by self write by * none']";
    let directory = Directory::start("o=tocsin", access).await;
    let entries = "dn: uid=reader,ou=people,o=tocsin\nobjectClass: account\nobjectClass: simpleSecurityObject\n\
                   uid: reader\nuserPassword: a long password\n\n\
                   dn: uid=vera,ou=people,o=tocsin\nobjectClass: inetOrgPerson\nobjectClass: posixAccount\n\
                   uid: vera\ncn: Vera Muster\nsn: Muster\nuidNumber: 10001\ngidNumber: 10000\n\
                   homeDirectory: /home/vera\nloginShell: /bin/bash\n\n\
                   dn: cn=staff,o=tocsin\nobjectClass: posixGroup\ncn: staff\ngidNumber: 10000\nmemberUid: vera\n";
    directory.change(entries);
    let at = directory.folder.path().join("etc");
    etc(&directory, &at);
    let script = repository("crates/tocsin/tests/suites/nslcd/login.sh");
    let mut login = Command::new("unshare");
    login.args(namespaces).arg("bash").arg(script).arg(at).arg(Peer::Nslcd.path().join("nslcd"));
    let vera = "vera:*:10001:10000:Vera Muster:/home/vera:/bin/bash";
    let group = "staff:*:10000:vera";
    let id = "uid=10001(vera) gid=10000(staff) groups=10000(staff)";
    assert_eq!(output_of(&mut login, "").trim(), [vera, vera, group, id].join("\n"));
}
