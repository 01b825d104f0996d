//! Programs and libraries of others that tests run. `make setup` installs them.
//!
//! A test begins with `if missing(&[Peer::Slapd]) { return; }`. The variable `TOCSIN_TEST_PEERS` decides what follows:
//!
//! - not set: the test is skipped and passes; `scripts/test` lists the skipped tests at the end;
//! - `all`: a missing peer is a failure, as in `make test`;
//! - `none`: no peer is used, as on a machine without them.

use std::{
    env, fs,
    io::Write,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// A peer: a program or a library, with what it needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peer {
    /// The classes of Apache Directory and UnboundID, for `java`.
    ApacheDirectory,
    /// The LDAP client of Python, with its tests.
    Bonsai,
    /// Chromium with axe-core and puppeteer-core, for `node`.
    Browser,
    /// The browser Chromium.
    Chromium,
    /// The build of the web console with its test libraries, and Chromium, for `node`.
    Console,
    /// Sender of mails by SMTP.
    Curl,
    /// The DKIM verifier of Python.
    Dkim,
    /// Version control.
    Git,
    /// Kafka broker, for `java`.
    Kafka,
    /// `ldapsearch`, `ldapmodify` and others of OpenLDAP.
    LdapUtils,
    /// The other LDAP client of Python, with its tests.
    Ldap3,
    /// MariaDB server.
    Mariadb,
    /// MQTT broker.
    Mosquitto,
    /// NATS server.
    Nats,
    /// Node.js.
    Node,
    /// LDAP client of the name service.
    Nslcd,
    /// Maker of keys.
    Openssl,
    /// The Protocol Buffers classes of OpenTelemetry for Python.
    Opentelemetry,
    /// Mail server, with `saslpasswd2`.
    Postfix,
    /// PostgreSQL server.
    Postgres,
    /// The web push libraries of JavaScript.
    PushLibraries,
    /// Python 3.
    Python,
    /// The permissions of root, by `sudo` too.
    Root,
    /// The tester of OpenAPI documents.
    Schemathesis,
    /// The SCIM client and tester of Python.
    ScimTester,
    /// OpenLDAP server.
    Slapd,
    /// The mail receiver of Postfix.
    SmtpSink,
    /// The mail sender of Postfix.
    SmtpSource,
    /// The compiler and libraries of the TypeScript client.
    TypescriptLibraries,
    /// The verifiers of webhooks for Python and JavaScript.
    WebhookLibraries,
}

impl Peer {
    /// The name in messages.
    pub fn name(self) -> &'static str {
        match self {
            Peer::ApacheDirectory => "Java with its LDAP libraries",
            Peer::Bonsai => "bonsai",
            Peer::Browser => "axe-core",
            Peer::Chromium => "chromium",
            Peer::Console => "the build of the web console",
            Peer::Curl => "curl",
            Peer::Dkim => "dkimverify",
            Peer::Git => "git",
            Peer::Kafka => "Kafka",
            Peer::LdapUtils => "ldapsearch",
            Peer::Ldap3 => "ldap3",
            Peer::Mariadb => "MariaDB",
            Peer::Mosquitto => "mosquitto",
            Peer::Nats => "nats-server",
            Peer::Node => "node",
            Peer::Nslcd => "nslcd",
            Peer::Openssl => "openssl",
            Peer::Opentelemetry => "opentelemetry-proto",
            Peer::Postfix => "Postfix",
            Peer::Postgres => "PostgreSQL",
            Peer::PushLibraries => "http_ece",
            Peer::Python => "python3",
            Peer::Root => "root or sudo",
            Peer::Schemathesis => "schemathesis",
            Peer::ScimTester => "scim2-tester",
            Peer::Slapd => "slapd",
            Peer::SmtpSink => "smtp-sink",
            Peer::SmtpSource => "smtp-source",
            Peer::TypescriptLibraries => "node_modules of clients/typescript",
            Peer::WebhookLibraries => "standardwebhooks",
        }
    }

    /// The path of the program, or of the folder of the libraries.
    ///
    /// # Panics
    ///
    /// If it is missing: the test has to begin with [`missing`].
    pub fn path(self) -> PathBuf {
        self.find().unwrap_or_else(|| panic!("{} is missing (make setup installs it)", self.name()))
    }

    fn find(self) -> Option<PathBuf> {
        match Mode::of_environment() {
            Mode::None => None,
            Mode::Installed | Mode::All => self.find_installed(),
        }
    }

    fn find_installed(self) -> Option<PathBuf> {
        let python = |folder: &str, module: &str| program("python3").and(library(folder, &format!("python/{module}")));
        match self {
            Peer::ApacheDirectory => program("java").and(library("directory", "java/pom.xml")),
            Peer::Bonsai => python("directory", "bonsai").filter(|folder| folder.join("bonsai-1.5.5").is_dir()),
            Peer::Browser => {
                program("node").and(program("chromium")).and(library("browser", "node_modules/axe-core/axe.min.js"))
            }
            Peer::Chromium => program("chromium"),
            Peer::Console => {
                let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../console");
                let files = ["dist/index.html", "node_modules/@playwright/test/cli.js"];
                let is_built = files.iter().all(|file| folder.join(file).is_file());
                program("node").and(program("chromium")).filter(|_| is_built).map(|_| folder)
            }
            Peer::Curl => program("curl"),
            Peer::Dkim => program("python3").and(program("dkimverify")),
            Peer::Git => program("git"),
            Peer::Kafka => program("java").and(library("kafka", "pom.xml")),
            Peer::LdapUtils => program("ldapsearch"),
            Peer::Ldap3 => python("directory", "ldap3").filter(|folder| folder.join("ldap3-2.9.1").is_dir()),
            Peer::Mariadb => program("mariadb-install-db").and(program("mariadbd")),
            Peer::Mosquitto => program("mosquitto"),
            Peer::Nats => program("nats-server"),
            Peer::Node => program("node"),
            Peer::Nslcd => program("unshare").and(library("directory", "nslcd/usr/sbin/nslcd")),
            Peer::Openssl => program("openssl"),
            Peer::Opentelemetry => python("telemetry", "opentelemetry"),
            Peer::Postfix => program("saslpasswd2").and(program("postfix")),
            Peer::Postgres => postgres(),
            Peer::PushLibraries => program("node").and(library("push", "node_modules/http_ece")),
            Peer::Python => program("python3"),
            Peer::Root => root(),
            Peer::Schemathesis => python("openapi", "schemathesis"),
            Peer::ScimTester => python("directory", "scim2_tester"),
            Peer::Slapd => program("slapd"),
            Peer::SmtpSink => program("smtp-sink"),
            Peer::SmtpSource => program("smtp-source"),
            Peer::TypescriptLibraries => {
                let modules = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../clients/typescript/node_modules");
                program("node").filter(|_| modules.is_dir()).map(|_| modules)
            }
            Peer::WebhookLibraries => program("node")
                .and(library("webhooks", "node_modules/standardwebhooks"))
                .and(python("webhooks", "standardwebhooks")),
        }
    }
}

/// The effect of a missing peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Installed,
    All,
    None,
}

impl Mode {
    fn of_environment() -> Mode {
        match env::var("TOCSIN_TEST_PEERS").as_deref() {
            Err(_) | Ok("") => Mode::Installed,
            Ok("all") => Mode::All,
            Ok("none") => Mode::None,
            Ok(other) => panic!("TOCSIN_TEST_PEERS is {other}: expected `all` or `none`"),
        }
    }
}

/// Whether a peer is missing; then the test returns. It is reported, in the file `TOCSIN_TEST_SKIPPED` too.
///
/// # Panics
///
/// If one is missing and `TOCSIN_TEST_PEERS` is `all`.
pub fn missing(peers: &[Peer]) -> bool {
    let found: Vec<_> = peers.iter().map(|peer| (*peer, peer.find().is_some())).collect();
    let Some(report) = report(Mode::of_environment(), &found, &test_name()) else { return false };
    print!("{report}");
    if let Some(file) = env::var_os("TOCSIN_TEST_SKIPPED") {
        // One write in append mode: test executables run in parallel.
        let opened = fs::OpenOptions::new().create(true).append(true).open(file);
        opened.and_then(|mut file| file.write_all(report.as_bytes())).expect("TOCSIN_TEST_SKIPPED is a file");
    }
    true
}

/// The lines about the missing peers of a test; none if all are installed.
fn report(mode: Mode, found: &[(Peer, bool)], test: &str) -> Option<String> {
    let lines = found.iter().filter(|(_, is_there)| !is_there).map(|(peer, _)| {
        assert!(mode != Mode::All, "{} is missing (make setup installs it)", peer.name());
        format!("skipped: {} is missing (make setup installs it): {test}\n", peer.name())
    });
    let lines: String = lines.collect();
    (!lines.is_empty()).then_some(lines)
}

/// The name of the running test: the test harness names its threads by their tests.
fn test_name() -> String {
    std::thread::current().name().unwrap_or("a test").to_owned()
}

/// A program in `PATH` or in a folder of system programs.
fn program(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let more = ["/usr/sbin", "/sbin", "/usr/local/sbin", "/usr/lib/postfix/sbin"].map(PathBuf::from);
    env::split_paths(&path).chain(more).map(|folder| folder.join(name)).find(|path| path.is_file())
}

/// The newest installed version of PostgreSQL: its server.
fn postgres() -> Option<PathBuf> {
    let versions = fs::read_dir("/usr/lib/postgresql").ok()?.flatten();
    versions.map(|version| version.path().join("bin/postgres")).filter(|path| path.is_file()).max()
}

/// Root, or `sudo` without a password.
fn root() -> Option<PathBuf> {
    let sudo = || Some(Command::new("sudo").args(["-n", "true"]).stderr(Stdio::null()).status().ok()?.success());
    (rustix::process::geteuid().is_root() || sudo() == Some(true)).then(|| "/".into())
}

/// A folder that `scripts/setup` fills, if it contains this file. `PUSH_LIBRARIES` names another folder than that of
/// `push`.
fn library(name: &str, file: &str) -> Option<PathBuf> {
    let home = || env::var_os("HOME").map_or_else(|| PathBuf::from("/root"), PathBuf::from);
    let variable = format!("{}_LIBRARIES", name.to_uppercase());
    let folder = env::var_os(variable).map_or_else(|| home().join(".cache/tocsin").join(name), PathBuf::from);
    folder.join(file).exists().then_some(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_peer_is_reported_with_its_test() {
        let found = [(Peer::Slapd, false), (Peer::Curl, true), (Peer::Nats, false)];
        let expected = "skipped: slapd is missing (make setup installs it): binds::a_bind\n\
             skipped: nats-server is missing (make setup installs it): binds::a_bind\n";
        assert_eq!(report(Mode::Installed, &found, "binds::a_bind").as_deref(), Some(expected));
        assert_eq!(report(Mode::None, &found, "binds::a_bind").as_deref(), Some(expected));
        assert_eq!(report(Mode::All, &[(Peer::Curl, true)], "binds::a_bind"), None);
    }

    #[test]
    #[should_panic(expected = "slapd is missing (make setup installs it)")]
    fn a_missing_peer_fails_the_test_where_all_are_required() {
        report(Mode::All, &[(Peer::Slapd, false)], "binds::a_bind");
    }

    #[test]
    fn programs_are_found_and_others_are_not() {
        assert!(program("sh").is_some_and(|path| path.is_absolute()));
        assert_eq!((program("no-such-program"), library("no-such-library", "pom.xml")), (None, None));
        assert_eq!(test_name(), "peer::tests::programs_are_found_and_others_are_not");
    }
}
