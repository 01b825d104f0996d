//! Database servers for tests, each in its own folder, and test cases that run on all of them.

use std::{
    os::unix::{fs::chown, process::CommandExt},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use tocsin_connect::SystemClock;
use tocsin_test_peers::{Peer, reserved_port, until, until_listening};

use super::{Database, QueryRequest, SqlValue, connect};
use crate::source::{BATCH_EVENTS_MAX, Context, Folders};

/// A query without a mark.
pub(crate) fn query_request(query: &str) -> QueryRequest<'_> {
    QueryRequest { query, mark_column: None, mark: &SqlValue::Null, rows_max: BATCH_EVENTS_MAX }
}

/// A value from an option.
pub(crate) fn untyped(text: &str) -> SqlValue {
    SqlValue::Untyped(text.to_owned())
}

/// The user `nobody`, for servers that refuse to run as root.
const NOBODY: u32 = 65_534;

/// A server that ends on drop, or a file.
pub(crate) struct Server {
    pub address: String,
    folder: tempfile::TempDir,
    child: Option<Child>,
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Server {
    pub fn sqlite() -> Server {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("file.db");
        rusqlite::Connection::open(&file)
            .and_then(|file| file.execute_batch("PRAGMA journal_mode = WAL"))
            .expect("made");
        Server { address: format!("sqlite:{}", file.display()), folder, child: None }
    }

    pub fn postgres() -> Server {
        let postgres = Peer::Postgres.path();
        let folder = tempfile::tempdir().expect("a folder");
        let port = reserved_port();
        let mut initdb = as_unprivileged_user(&postgres.with_file_name("initdb"), folder.path());
        initdb.args(["-A", "trust", "-U", "tocsin", "--no-sync", "-D", "data"]);
        run_to_its_end(initdb);
        let mut server = as_unprivileged_user(&postgres, folder.path());
        server.args(["-D", "data", "-k", "", "-h", "127.0.0.1", "-F", "-p"]).arg(port.to_string());
        let child = Some(start(server, port));
        Server { address: format!("postgres://tocsin@127.0.0.1:{port}/postgres"), folder, child }
    }

    pub fn mariadb() -> Server {
        let folder = tempfile::tempdir().expect("a folder");
        let port = reserved_port();
        let mut install = as_unprivileged_user(Path::new("mariadb-install-db"), folder.path());
        let data = format!("--datadir={}", folder.path().join("data").display());
        // A starting server removes the temporary tables that it finds: in a shared folder, those of other servers.
        let temporary = format!("--tmpdir={}", folder.path().display());
        install.args([
            "--no-defaults",
            &data,
            &temporary,
            "--auth-root-authentication-method=normal",
            "--skip-test-db",
        ]);
        run_to_its_end(install);
        let mut server = as_unprivileged_user(&Peer::Mariadb.path(), folder.path());
        server.args(["--no-defaults", &data, &temporary, "--socket=socket", "--bind-address=127.0.0.1"]);
        server.arg(format!("--port={port}")).arg("--innodb-flush-log-at-trx-commit=0");
        let child = Some(start(server, port));
        Server { address: format!("mysql://root@127.0.0.1:{port}/mysql"), folder, child }
    }

    /// A connection for filling the tables.
    pub async fn connect(&self) -> Box<dyn Database> {
        let context = Context {
            clock: std::sync::Arc::new(SystemClock),
            data_folder: self.folder.path().to_owned(),
            networks: Default::default(),
            programs: Default::default(),
            folders: Folders { allow: vec![self.folder.path().to_owned()] },
            files: Default::default(),
            listeners: Default::default(),
        };
        let mut database = None;
        // The server listens before it accepts logins.
        until("the server accepts a login", async || {
            database = connect(&self.address, Duration::from_secs(20), &context).await.ok();
            database.is_some()
        })
        .await;
        database.expect("it was awaited")
    }

    pub fn folder(&self) -> PathBuf {
        self.folder.path().to_owned()
    }
}

/// A program that runs in a folder which it owns, and not as root.
fn as_unprivileged_user(program: &Path, folder: &Path) -> Command {
    let mut command = Command::new(program);
    command.current_dir(folder).stdout(Stdio::null()).stderr(Stdio::null());
    if rustix::process::geteuid().is_root() {
        chown(folder, Some(NOBODY), Some(NOBODY)).expect("root may give a folder away");
        command.uid(NOBODY).gid(NOBODY);
    }
    command
}

fn run_to_its_end(mut command: Command) {
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let said = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "{command:?}: {}\n{}", output.status, String::from_utf8_lossy(&said));
}

fn start(mut command: Command, port: u16) -> Child {
    let mut child = command.spawn().expect("the server starts");
    until_listening(&format!("{command:?}"), port, || child.try_wait().expect("asked").is_some());
    child
}
