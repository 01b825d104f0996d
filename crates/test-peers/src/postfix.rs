//! A Postfix in a temporary folder. It starts for root only, as its processes run as a user of their own.

use std::{
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt, chown},
    path::Path,
    process::{Command, Stdio},
};

/// Services that a mail server needs, except those that listen.
const SERVICES: &str = "\
cleanup unix n - n - 0 cleanup
qmgr unix n - n 300 1 qmgr
tlsmgr unix - - n 1000? 1 tlsmgr
rewrite unix - - n - - trivial-rewrite
bounce unix - - n - 0 bounce
defer unix - - n - 0 bounce
trace unix - - n - 0 bounce
verify unix - - n - 1 verify
flush unix n - n 1000? 0 flush
proxymap unix - - n - - proxymap
smtp unix - - n - - smtp
showq unix n - n - - showq
error unix - - n - - error
retry unix - - n - - error
discard unix - - n - - discard
anvil unix - - n - 1 anvil
scache unix - - n - 1 scache
postlog unix-dgram n - n - 1 postlogd
";

/// A Postfix, which stops when it is dropped.
pub struct Postfix {
    folder: tempfile::TempDir,
}

impl Postfix {
    /// Makes its folders. Files that its settings name can then be written into [`folder`](Postfix::folder).
    ///
    /// # Panics
    /// The process does not run as root, or Postfix is not installed.
    pub fn prepare() -> Postfix {
        let own = fs::metadata("/proc/self").map(|own| own.uid());
        assert!(
            own.is_ok_and(|own| own == 0),
            "Postfix starts only for root, as its processes run as a user of their own: run this test as root"
        );
        let folder = tempfile::tempdir().expect("a folder");
        for (name, owner) in [("", 0), ("config", 0), ("queue", 0), ("data", user_of("postfix"))] {
            let path = folder.path().join(name);
            fs::create_dir_all(&path).expect("a folder");
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("our own folder");
            chown(&path, Some(owner), None).expect("root may");
        }
        Postfix { folder }
    }

    /// Starts it, and waits until it listens. `settings`: further lines of `main.cf`. `listeners`: lines of `master.cf`
    /// for the services that listen.
    ///
    /// # Panics
    /// It does not start.
    pub fn start(&self, settings: &str, listeners: &str) {
        let at = self.folder();
        let main = format!(
            "compatibility_level = 3.6\nqueue_directory = {0}/queue\ndata_directory = {0}/data\nmail_owner = postfix\n\
             setgid_group = postdrop\nmyhostname = mta.example\nmydestination =\ninet_interfaces = 127.0.0.1\n\
             inet_protocols = ipv4\nalias_maps =\nalias_database =\nmaillog_file_prefixes = {0}\nmaillog_file = {0}/log\n\
             queue_minfree = 0\nin_flow_delay = 0\n{settings}",
            at.display()
        );
        fs::write(at.join("config/main.cf"), main).expect("a file");
        fs::write(at.join("config/master.cf"), format!("{listeners}{SERVICES}")).expect("a file");
        let ran = self.command("postfix").arg("start").stdout(Stdio::null()).stderr(Stdio::piped()).output();
        let ran = ran.expect("postfix is installed");
        assert!(ran.status.success(), "postfix start: {}\n{}", String::from_utf8_lossy(&ran.stderr), self.log());
    }

    /// One of its programs, such as `postqueue`, with its configuration.
    pub fn command(&self, program: &str) -> Command {
        let mut command = Command::new(Path::new("/usr/sbin").join(program));
        command.arg("-c").arg(self.folder().join("config"));
        command
    }

    /// Its folder.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Its log.
    pub fn log(&self) -> String {
        fs::read_to_string(self.folder().join("log")).unwrap_or_default()
    }
}

impl Drop for Postfix {
    fn drop(&mut self) {
        let _ = self.command("postfix").arg("stop").stdout(Stdio::null()).stderr(Stdio::null()).status();
    }
}

/// The number of a user.
fn user_of(name: &str) -> u32 {
    let users = fs::read_to_string("/etc/passwd").expect("users");
    let user = users.lines().find(|line| line.split(':').next() == Some(name)).expect("postfix has a user of its own");
    user.split(':').nth(2).and_then(|number| number.parse().ok()).expect("a number")
}
