//! A Postfix in a temporary folder, with TLS and passwords, which keeps accepted mails in its queue.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::Write,
    os::unix::fs::{PermissionsExt, chown},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use rcgen::{CertificateParams, KeyPair};
use serde_json::json;
use tocsin_test_peers::{Peer, missing, reserved_port};

use super::deliver_all;
use crate::{
    channel::OpenChannel,
    testing::{channel, context, multicast, outgoing},
};

const PASSWORD: &str = "correct horse";

/// Postfix services that a mail server needs; only the first two listen.
const SERVICES: &str = "\
127.0.0.1:PLAIN inet n - n - - smtpd
127.0.0.1:WRAPPED inet n - n - - smtpd -o smtpd_tls_wrappermode=yes
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
anvil unix - - n - 1 anvil
postlog unix-dgram n - n - 1 postlogd
";

struct Postfix {
    folder: tempfile::TempDir,
    plain: u16,
    wrapped: u16,
}

impl Postfix {
    /// Starts it and waits until it listens.
    fn start() -> Postfix {
        let own = fs::metadata("/proc/self").map(|own| std::os::unix::fs::MetadataExt::uid(&own));
        assert!(
            own.is_ok_and(|own| own == 0),
            "Postfix starts only for root, as its processes run as a user of their own: run this test as root"
        );
        let folder = tempfile::tempdir().expect("a folder");
        let at = folder.path();
        let user = user_of("postfix");
        for (name, owner) in [("", 0), ("config", 0), ("queue", 0), ("config/sasl", 0), ("data", user)] {
            let path = at.join(name);
            fs::create_dir_all(&path).expect("a folder");
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("our own folder");
            chown(&path, Some(owner), None).expect("root may");
        }
        let (plain, wrapped) = (reserved_port(), reserved_port());
        let main = format!(
            "compatibility_level = 3.6\nqueue_directory = {0}/queue\ndata_directory = {0}/data\nmail_owner = postfix\n\
             setgid_group = postdrop\nmyhostname = mta.example\nmydestination =\ninet_interfaces = 127.0.0.1\n\
             inet_protocols = ipv4\nalias_maps =\nalias_database =\nmynetworks =\nmaillog_file_prefixes = {0}\nmaillog_file = {0}/log\n\
             smtpd_relay_restrictions = permit_sasl_authenticated, reject\n\
             smtpd_recipient_restrictions = check_recipient_access inline:{{ {{refused@b.example = REJECT nobody there}} \
             {{busy@b.example = DEFER not now}} }}\nsmtpd_recipient_limit = 30\nsmtpd_sasl_auth_enable = yes\n\
             smtpd_sasl_path = smtpd\nsmtpd_sasl_local_domain = mta.example\ncyrus_sasl_config_path = {0}/config/sasl\n\
             smtpd_tls_cert_file = {0}/certificate.pem\nsmtpd_tls_key_file = {0}/key.pem\nsmtpd_tls_security_level = may\n\
             smtpd_tls_auth_only = yes\nsmtputf8_enable = yes\ndefer_transports = smtp\nqueue_minfree = 0\n\
             in_flow_delay = 0\n",
            at.display()
        );
        fs::write(at.join("config/main.cf"), main).expect("a file");
        let services = SERVICES.replace("PLAIN", &plain.to_string()).replace("WRAPPED", &wrapped.to_string());
        fs::write(at.join("config/master.cf"), services).expect("a file");
        let key = KeyPair::generate().expect("a key");
        let parameters = CertificateParams::new(["127.0.0.1".to_owned()]).expect("a host");
        let certificate = parameters.self_signed(&key).expect("a certificate");
        fs::write(at.join("certificate.pem"), certificate.pem()).expect("a file");
        fs::write(at.join("key.pem"), key.serialize_pem()).expect("a file");
        set_password(at);
        let postfix = Postfix { folder, plain, wrapped };
        postfix.run("start");
        postfix
    }

    fn run(&self, command: &str) {
        let ran = Command::new("/usr/sbin/postfix")
            .arg("-c")
            .arg(self.folder.path().join("config"))
            .arg(command)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .output()
            .expect("postfix is installed");
        assert!(ran.status.success(), "postfix {command}: {}\n{}", String::from_utf8_lossy(&ran.stderr), self.log());
    }

    fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    /// The number of queued mails of each recipient.
    fn queued(&self) -> BTreeMap<String, usize> {
        let listed = Command::new("/usr/sbin/postqueue")
            .arg("-c")
            .arg(self.folder.path().join("config"))
            .arg("-j")
            .output()
            .expect("postqueue is installed");
        // A mail that moves between queues during the listing appears in both.
        let mut queued: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for line in String::from_utf8_lossy(&listed.stdout).lines() {
            let mail: serde_json::Value = serde_json::from_str(line).expect("JSON");
            for recipient in mail["recipients"].as_array().expect("recipients") {
                let address = recipient["address"].as_str().expect("an address");
                let id = mail["queue_id"].as_str().expect("an id");
                queued.entry(address.to_owned()).or_default().insert(id.to_owned());
            }
        }
        queued.into_iter().map(|(address, mails)| (address, mails.len())).collect()
    }

    /// Opens a channel to it.
    fn open(&self, port: u16, more: serde_json::Value) -> Box<dyn OpenChannel> {
        let mut options = json!({
            "host": "127.0.0.1", "port": port, "tls": "required", "from": "bells@near.example",
            "ca_file": self.folder.path().join("certificate.pem"),
            "username": "tocsin@mta.example", "password": PASSWORD,
        });
        options.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        let name = "mail".parse().expect("a name");
        crate::open(&name, &channel("smtp", options, 4), &context()).unwrap_or_else(|problems| panic!("{problems:?}"))
    }
}

impl Drop for Postfix {
    fn drop(&mut self) {
        let config: PathBuf = self.folder.path().join("config");
        let _ = Command::new("/usr/sbin/postfix").arg("-c").arg(config).arg("stop").stderr(Stdio::null()).status();
    }
}

fn user_of(name: &str) -> u32 {
    let users = fs::read_to_string("/etc/passwd").expect("users");
    let user = users.lines().find(|line| line.split(':').next() == Some(name)).expect("postfix has a user of its own");
    user.split(':').nth(2).and_then(|number| number.parse().ok()).expect("a number")
}

/// Creates the one user who may send. Debian's Postfix looks for SASL options below its own configuration.
fn set_password(at: &Path) {
    let users = at.join("config/sasl/users");
    let options = format!(
        "pwcheck_method: auxprop\nauxprop_plugin: sasldb\nsasldb_path: {}\nmech_list: PLAIN LOGIN SCRAM-SHA-256\n",
        users.display()
    );
    fs::write(at.join("config/sasl/smtpd.conf"), options).expect("a file");
    let mut program = Command::new("/usr/sbin/saslpasswd2")
        .args(["-p", "-c", "-u", "mta.example", "-f"])
        .arg(&users)
        .arg("tocsin")
        .stdin(Stdio::piped())
        .spawn()
        .expect("saslpasswd2 is installed: it comes with the package sasl2-bin");
    program.stdin.take().expect("a pipe").write_all(PASSWORD.as_bytes()).expect("it is read");
    assert!(program.wait().is_ok_and(|status| status.success()), "saslpasswd2");
    fs::set_permissions(&users, fs::Permissions::from_mode(0o644)).expect("our own file");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_postfix_keeps_every_recipient_once() {
    if missing(&[Peer::Postfix, Peer::Root]) {
        return;
    }
    let postfix = Postfix::start();
    let open = postfix.open(postfix.plain, json!({}));
    let described = open.probe().await.unwrap_or_else(|reason| panic!("{}\n{}", reason.text, postfix.log()));
    assert!(
        described.contains("mta.example ESMTP Postfix") && described.contains("(encrypted, pipelining)"),
        "{described}"
    );
    let shown =
        deliver_all(&*open, (0..1000).map(|number| outgoing(number, &format!("one-{number}@b.example"))).collect())
            .await;
    assert!(shown.iter().all(|shown| shown.starts_with("delivered 250 2.0.0 Ok: queued as ")), "{shown:?}");
    open.close().await;
    assert!(postfix.log().contains("sasl_method=SCRAM-SHA-256, sasl_username=tocsin@mta.example"));

    // Implicit TLS, one mail for many recipients, of whom it accepts 30 at a time; two are refused.
    let open = postfix.open(postfix.wrapped, json!({ "tls": "implicit", "recipients_max": 50 }));
    let addresses: Vec<String> = (0..200)
        .map(|number| match number {
            7 => "refused@b.example".to_owned(),
            77 => "busy@b.example".to_owned(),
            _ => format!("many-{number}@b.example"),
        })
        .collect();
    let shown = deliver_all(&*open, multicast(&addresses.iter().map(String::as_str).collect::<Vec<_>>())).await;
    for (number, shown) in shown.iter().enumerate() {
        let expected = match number {
            7 => "refused Answer 554 5.7.1 <refused@b.example>: Recipient address rejected: nobody there",
            77 => "deferred Answer 450 4.7.1 <busy@b.example>: Recipient address rejected: not now",
            _ => "delivered 250 2.0.0 Ok: queued as ",
        };
        assert!(shown.starts_with(expected), "{number}: {shown}");
    }
    let wide = deliver_all(&*open, vec![outgoing(0, "jürgen@exämple.org")]).await;
    assert!(wide[0].starts_with("delivered 250 "), "{wide:?}");
    open.close().await;

    let queued = postfix.queued();
    let missing: Vec<u32> =
        (0..1000).filter(|number| queued.get(&format!("one-{number}@b.example")) != Some(&1)).collect();
    assert_eq!(missing, Vec::<u32>::new(), "not exactly once in the queue");
    for (number, address) in addresses.iter().enumerate() {
        let expected = if matches!(number, 7 | 77) { None } else { Some(&1) };
        assert_eq!(queued.get(address), expected, "{address}");
    }
    assert_eq!(queued.values().sum::<usize>(), 1000 + 198 + 1);

    let open = postfix.open(postfix.plain, json!({ "password": "wrong", "patience": "1s" }));
    let shown = deliver_all(&*open, vec![outgoing(0, "a@b.example")]).await;
    assert!(shown[0].starts_with("deferred Authentication our credentials are not accepted: 535 5.7.8 "), "{shown:?}");
}
