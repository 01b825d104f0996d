//! A Postfix in a temporary folder, as the mail server of recipients. It starts for root only.

use std::{
    fs,
    os::unix::fs::{PermissionsExt, chown},
    path::Path,
    process::{Command, Stdio},
};

use tocsin_test_peers::reserved_port;

/// Services that a mail server needs. The first two listen; the second refuses the recipients of the setting `refusals`.
const SERVICES: &str = "\
127.0.0.1:PORT inet n - n - - smtpd
127.0.0.1:REFUSING inet n - n - - smtpd -o smtpd_recipient_restrictions=$refusals
cleanup unix n - n - 0 cleanup
qmgr unix n - n 300 1 qmgr
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

/// The running server.
pub struct Postfix {
    folder: tempfile::TempDir,
    pub port: u16,
}

impl Postfix {
    /// Starts it. `settings`: further lines of `main.cf`, in which `REFUSING` is the port of the second server.
    pub fn start(settings: &str) -> Postfix {
        let own = fs::metadata("/proc/self").map(|own| std::os::unix::fs::MetadataExt::uid(&own));
        assert!(own.is_ok_and(|own| own == 0), "Postfix starts for root only: run this test as root");
        let folder = tempfile::tempdir().expect("a folder");
        let at = folder.path();
        let user = user_of("postfix");
        for (name, owner) in [("", 0), ("config", 0), ("queue", 0), ("data", user)] {
            let path = at.join(name);
            fs::create_dir_all(&path).expect("a folder");
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("our own folder");
            chown(&path, Some(owner), None).expect("root may");
        }
        let (port, refusing) = (reserved_port(), reserved_port().to_string());
        let settings = settings.replace("REFUSING", &refusing);
        let main = format!(
            "compatibility_level = 3.6\nqueue_directory = {0}/queue\ndata_directory = {0}/data\nmail_owner = postfix\n\
             setgid_group = postdrop\nmyhostname = mta.example\nmydestination =\ninet_interfaces = 127.0.0.1\n\
             inet_protocols = ipv4\nalias_maps =\nalias_database =\nmynetworks = 127.0.0.0/8\n\
             maillog_file_prefixes = {0}\nmaillog_file = {0}/log\nsmtpd_relay_restrictions = permit_mynetworks, reject\n\
             queue_minfree = 0\nin_flow_delay = 0\nsmtp_host_lookup = native\n{settings}",
            at.display()
        );
        fs::write(at.join("config/main.cf"), main).expect("a file");
        fs::write(
            at.join("config/master.cf"),
            SERVICES.replace("REFUSING", &refusing).replace("PORT", &port.to_string()),
        )
        .expect("a file");
        let postfix = Postfix { folder, port };
        let ran = postfix.command("start").stderr(Stdio::piped()).output().expect("postfix is installed");
        assert!(ran.status.success(), "postfix: {}\n{}", String::from_utf8_lossy(&ran.stderr), postfix.log());
        postfix
    }

    fn command(&self, command: &str) -> Command {
        let mut postfix = Command::new("/usr/sbin/postfix");
        postfix.arg("-c").arg(self.folder.path().join("config")).arg(command).stdout(Stdio::null());
        postfix
    }

    /// Its log.
    pub fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    /// The envelope senders of the mails to this recipient, in order.
    pub fn senders(&self, recipient: &str) -> Vec<String> {
        let log = self.log();
        let id_of = |line: &str| line.split("]: ").nth(1).and_then(|rest| rest.split(':').next()).map(str::to_owned);
        let to = format!(" to=<{recipient}>");
        let ids = log.lines().filter(|line| line.contains(&to)).filter_map(id_of);
        let sender = |id: String| {
            let start = format!("]: {id}: from=<");
            let rest = log.lines().find_map(|line| line.split_once(&start))?.1;
            rest.split('>').next().map(str::to_owned)
        };
        ids.filter_map(sender).collect()
    }
}

impl Drop for Postfix {
    fn drop(&mut self) {
        let _ = self.command("stop").stderr(Stdio::null()).status();
    }
}

fn user_of(name: &str) -> u32 {
    let users = fs::read_to_string(Path::new("/etc/passwd")).expect("users");
    let user = users.lines().find(|line| line.split(':').next() == Some(name)).expect("postfix has a user of its own");
    user.split(':').nth(2).and_then(|number| number.parse().ok()).expect("a number")
}
