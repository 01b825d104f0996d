//! Databases of Debian for tests, each in a folder of its own, and stories told to all of them.

use std::{
    net::{TcpListener, TcpStream},
    os::unix::{fs::chown, process::CommandExt},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use tocsin_delivery::SystemClock;

use super::{Ask, Database, SqlValue, connect};
use crate::source::{Context, Folders, PORTION_EVENTS_MAX};

/// A query without a mark.
pub(crate) fn ask(query: &str) -> Ask<'_> {
    Ask { query, mark_column: None, mark: &SqlValue::Null, rows_max: PORTION_EVENTS_MAX }
}

/// A value as an option gives it.
pub(crate) fn untyped(text: &str) -> SqlValue {
    SqlValue::Untyped(text.to_owned())
}

/// The user `nobody`, as whom servers run that will not be root's.
const NOBODY: u32 = 65_534;

/// A server that ends with the value, or a file.
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
        let programs = std::fs::read_dir("/usr/lib/postgresql").expect("PostgreSQL is there: `make setup` installs it");
        let programs = programs.map(|entry| entry.expect("an entry").path().join("bin")).max().expect("a version");
        let folder = tempfile::tempdir().expect("a folder");
        let port = free_port();
        let mut initdb = as_nobody(&programs.join("initdb"), folder.path());
        initdb.args(["-A", "trust", "-U", "tocsin", "--no-sync", "-D", "data"]);
        run_to_its_end(initdb);
        let mut server = as_nobody(&programs.join("postgres"), folder.path());
        server.args(["-D", "data", "-k", "", "-h", "127.0.0.1", "-F", "-p"]).arg(port.to_string());
        let child = Some(start(server, port));
        Server { address: format!("postgres://tocsin@127.0.0.1:{port}/postgres"), folder, child }
    }

    pub fn mariadb() -> Server {
        let folder = tempfile::tempdir().expect("a folder");
        let port = free_port();
        let mut install = as_nobody(Path::new("mariadb-install-db"), folder.path());
        let data = format!("--datadir={}", folder.path().join("data").display());
        // A server that starts removes the temporary tables that it finds: in a common folder, those of its neighbours.
        let temporary = format!("--tmpdir={}", folder.path().display());
        install.args([
            "--no-defaults",
            &data,
            &temporary,
            "--auth-root-authentication-method=normal",
            "--skip-test-db",
        ]);
        run_to_its_end(install);
        let mut server = as_nobody(&program("mariadbd"), folder.path());
        server.args(["--no-defaults", &data, &temporary, "--socket=socket", "--bind-address=127.0.0.1"]);
        server.arg(format!("--port={port}")).arg("--innodb-flush-log-at-trx-commit=0");
        let child = Some(start(server, port));
        Server { address: format!("mysql://root@127.0.0.1:{port}/mysql"), folder, child }
    }

    /// A connection for whoever fills the tables.
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
        let mut tries = 0;
        loop {
            match connect(&self.address, Duration::from_secs(20), &context).await {
                Ok(database) => return database,
                // It listens before it lets anybody in.
                Err(trouble) if tries > 200 => panic!("{trouble}"),
                Err(_) => tries += 1,
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    pub fn folder(&self) -> PathBuf {
        self.folder.path().to_owned()
    }
}

fn program(name: &str) -> PathBuf {
    let sbin = Path::new("/usr/sbin").join(name);
    if sbin.exists() { sbin } else { name.into() }
}

/// A program that runs in a folder which it owns, and not as root.
fn as_nobody(program: &Path, folder: &Path) -> Command {
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
    let output = command.output().unwrap_or_else(|trouble| panic!("{command:?}: {trouble}; `make setup` installs it"));
    let said = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "{command:?}: {}\n{}", output.status, String::from_utf8_lossy(&said));
}

fn start(mut command: Command, port: u16) -> Child {
    let mut child = command.spawn().expect("the server is there: `make setup` installs it");
    for _ in 0..1_200 {
        if TcpStream::connect(("127.0.0.1", port)).is_ok() {
            return child;
        }
        assert!(child.try_wait().expect("it can be asked").is_none(), "{command:?} has ended");
        std::thread::sleep(Duration::from_millis(50));
    }
    panic!("{command:?} does not listen");
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("a free port").port()
}
