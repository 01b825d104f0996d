//! LDAP server over a store of its own, and client programs.

#![allow(dead_code, reason = "each test uses its part")]

pub mod client;
pub mod drawn;
pub mod raw;
pub mod slapd;

use std::{
    collections::HashMap,
    io::Write,
    process::Stdio,
    sync::{Arc, Mutex},
    time::{Duration, SystemTime},
};

use tocsin_directory::{Clock, Directory, Options, entry::Shape, password::Lockout};
use tocsin_face_ldap::{LdapOptions, Operators, TlsStart, Validity};
use tocsin_model::subscriber::{Profile, Subscriber};
use tocsin_store::{
    records::{NewSubscriber, Precondition, SubscriberStore},
    sqlite::records::{RecordsOptions, SqliteRecords},
};
use tokio::{net::TcpListener, sync::watch, task::JoinHandle};
use tokio_util::sync::CancellationToken;

/// A person called NAME.
pub const PERSON: &str = "dn: cn=NAME,ou=people,o=site
objectClass: inetOrgPerson
cn: NAME
uid: NAME
sn: Muster
mail: NAME@example.org
userPassword: secret
";

/// Operator keys: initially `key`, without expiry.
pub struct Keys {
    valid: Mutex<HashMap<String, Validity>>,
    changes: watch::Sender<u64>,
}

impl Default for Keys {
    fn default() -> Self {
        let valid = HashMap::from([("key".to_owned(), Validity { ends_in: None })]);
        Keys { valid: Mutex::new(valid), changes: watch::Sender::new(0) }
    }
}

impl Keys {
    /// Adds a key, or changes its validity.
    pub fn put(&self, key: &str, validity: Validity) {
        self.valid.lock().expect("unharmed").insert(key.to_owned(), validity);
        self.changes.send_modify(|count| *count += 1);
    }

    /// Removes a key. `says_so`: with a notification, as by a user; otherwise silently, as by expiry.
    pub fn remove(&self, key: &str, says_so: bool) {
        self.valid.lock().expect("unharmed").remove(key);
        if says_so {
            self.changes.send_modify(|count| *count += 1);
        }
    }
}

impl Operators for Keys {
    fn operator(&self, key: &str) -> Option<Validity> {
        self.valid.lock().expect("unharmed").get(key).copied()
    }

    fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }
}

pub struct Bench {
    pub records: Arc<SqliteRecords>,
    pub directory: Directory,
    pub keys: Arc<Keys>,
    pub port: u16,
    stopping: CancellationToken,
    serving: JoinHandle<()>,
    _folder: tempfile::TempDir,
}

impl Bench {
    pub async fn start(access: &[&str]) -> Bench {
        Bench::with(access, LdapOptions::default()).await
    }

    pub async fn with(access: &[&str], options: LdapOptions) -> Bench {
        let access = access.iter().map(|rule| (*rule).to_owned()).collect();
        Bench::of(Options { access, ..Bench::options() }, options, Arc::new(|| SystemTime::now().into())).await
    }

    /// Default configuration of the directory in tests.
    pub fn options() -> Options {
        let devices = vec![("mail".into(), "email".parse().expect("a name"))];
        let lockout = Lockout { failures: 5, duration: Duration::from_secs(900) };
        Options {
            suffix: "o=site".to_owned(),
            shape: Shape { devices, ..Shape::default() },
            lockout,
            cache_bytes: 8 << 20,
            ..Options::default()
        }
    }

    pub async fn of(directory_options: Options, options: LdapOptions, clock: Clock) -> Bench {
        let folder = tempfile::tempdir().expect("a folder");
        let records = SqliteRecords::open(folder.path(), &RecordsOptions { reserve_bytes: 0, ..Default::default() });
        let records = Arc::new(records.expect("the records open"));
        let directory = Directory::open(records.clone(), directory_options, clock).await.expect("the directory opens");
        directory.build_indexes().await.expect("the indexes are built");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("bound").port();
        let stopping = CancellationToken::new();
        let keys = Arc::new(Keys::default());
        let face = tocsin_face_ldap::serve(
            vec![(listener, TlsStart::Plain)],
            directory.clone(),
            keys.clone(),
            options,
            stopping.clone(),
        );
        Bench { records, directory, keys, port, stopping, serving: tokio::spawn(face), _folder: folder }
    }

    pub async fn stop(self) {
        self.stopping.cancel();
        self.serving.await.expect("the face ends");
    }

    /// Runs a program as the operator; checks its exit code and returns its output.
    pub async fn run(&self, program: &str, arguments: &[&str], input: &str, code: i32) -> String {
        self.run_as(program, "cn=admin,o=site", "key", arguments, input, code).await
    }

    pub async fn run_as(
        &self,
        program: &str,
        dn: &str,
        password: &str,
        arguments: &[&str],
        input: &str,
        code: i32,
    ) -> String {
        self.output_as(program, dn, password, arguments, input, code).await.0
    }

    /// Also returns standard error.
    pub async fn output_as(
        &self,
        program: &str,
        dn: &str,
        password: &str,
        arguments: &[&str],
        input: &str,
        code: i32,
    ) -> (String, String) {
        let mut command = std::process::Command::new(program);
        let url = format!("ldap://127.0.0.1:{}", self.port);
        command.args(["-H", &url]);
        if !arguments.starts_with(&["-x", "-D"]) {
            command.args(["-x", "-D", dn, "-w", password]);
        }
        command
            .args(arguments)
            .env("LDAPTLS_REQCERT", "never")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let (shown, input) = (format!("{program} {arguments:?}\n{input}"), input.to_owned());
        let done = tokio::task::spawn_blocking(move || {
            let mut child = command.spawn().unwrap_or_else(|error| panic!("a program of ldap-utils: {error}"));
            child.stdin.take().expect("piped").write_all(input.as_bytes()).expect("it reads");
            child.wait_with_output().expect("it ends")
        });
        let done = done.await.expect("it runs");
        let reply = String::from_utf8_lossy(&done.stdout).into_owned();
        let beside = String::from_utf8_lossy(&done.stderr).into_owned();
        assert_eq!(done.status.code(), Some(code), "{shown}\n{reply}\n{beside}");
        (reply, beside)
    }

    pub async fn add(&self, ldif: &str) {
        self.run("ldapadd", &[], ldif, 0).await;
    }

    pub async fn modify(&self, ldif: &str) {
        self.run("ldapmodify", &[], ldif, 0).await;
    }

    /// Runs a search; returns LDIF without comments.
    pub async fn search(&self, base: &str, scope: &str, rest: &[&str]) -> String {
        let arguments = [&["-LLL", "-o", "ldif-wrap=no", "-b", base, "-s", scope], rest].concat();
        self.run("ldapsearch", &arguments, "", 0).await
    }

    /// Stores a subscriber as the API does.
    pub async fn put(&self, id: &str, attributes: &[(&str, &str)]) {
        let attributes = attributes.iter().map(|(name, value)| ((*name).to_owned(), (*value).into())).collect();
        let profile = Profile { attributes, ..Profile::default() };
        let new = NewSubscriber {
            kept: Default::default(),
            id: id.parse().expect("an id"),
            profile,
            devices: None,
            preferences: None,
        };
        self.records.put_subscriber(new, Precondition::Any, SystemTime::now().into()).await.expect("stored");
    }

    pub async fn subscriber(&self, id: &str) -> Subscriber {
        self.records.subscriber(&id.parse().expect("an id")).await.expect("read").expect("there")
    }
}
