//! A Postfix in a temporary folder, with TLS and passwords, which keeps accepted mails in its queue.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::Write,
    os::unix::fs::PermissionsExt,
    path::Path,
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

struct Postfix {
    peer: tocsin_test_peers::Postfix,
    plain: u16,
    wrapped: u16,
}

impl Postfix {
    /// Starts it and waits until it listens.
    fn start() -> Postfix {
        let (plain, wrapped) = (reserved_port(), reserved_port());
        let peer = tocsin_test_peers::Postfix::prepare();
        let at = peer.folder();
        let key = KeyPair::generate().expect("a key");
        let parameters = CertificateParams::new(["127.0.0.1".to_owned()]).expect("a host");
        let certificate = parameters.self_signed(&key).expect("a certificate");
        fs::write(at.join("certificate.pem"), certificate.pem()).expect("a file");
        fs::write(at.join("key.pem"), key.serialize_pem()).expect("a file");
        set_password(at);
        let settings = format!(
            "mynetworks =\nsmtpd_relay_restrictions = permit_sasl_authenticated, reject\n\
             smtpd_recipient_restrictions = check_recipient_access inline:{{ {{refused@b.example = REJECT nobody there}} \
             {{busy@b.example = DEFER not now}} }}\nsmtpd_recipient_limit = 30\nsmtpd_sasl_auth_enable = yes\n\
             smtpd_sasl_path = smtpd\nsmtpd_sasl_local_domain = mta.example\ncyrus_sasl_config_path = {0}/config/sasl\n\
             smtpd_tls_cert_file = {0}/certificate.pem\nsmtpd_tls_key_file = {0}/key.pem\nsmtpd_tls_security_level = may\n\
             smtpd_tls_auth_only = yes\nsmtputf8_enable = yes\ndefer_transports = smtp\n",
            at.display()
        );
        let listeners = format!(
            "127.0.0.1:{plain} inet n - n - - smtpd\n\
             127.0.0.1:{wrapped} inet n - n - - smtpd -o smtpd_tls_wrappermode=yes\n"
        );
        peer.start(&settings, &listeners);
        Postfix { peer, plain, wrapped }
    }

    /// The number of queued mails of each recipient.
    fn queued(&self) -> BTreeMap<String, usize> {
        let listed = self.peer.command("postqueue").arg("-j").output().expect("postqueue is installed");
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
            "ca_file": self.peer.folder().join("certificate.pem"),
            "username": "tocsin@mta.example", "password": PASSWORD,
        });
        options.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        let name = "mail".parse().expect("a name");
        crate::open(&name, &channel("smtp", options, 4), &context()).unwrap_or_else(|problems| panic!("{problems:?}"))
    }
}

/// Creates the one user who may send. Debian's Postfix looks for SASL options below its own configuration.
fn set_password(at: &Path) {
    fs::create_dir(at.join("config/sasl")).expect("a folder");
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
    let described = open.probe().await.unwrap_or_else(|reason| panic!("{}\n{}", reason.text, postfix.peer.log()));
    assert!(
        described.contains("mta.example ESMTP Postfix") && described.contains("(encrypted, pipelining)"),
        "{described}"
    );
    let shown =
        deliver_all(&*open, (0..1000).map(|number| outgoing(number, &format!("one-{number}@b.example"))).collect())
            .await;
    assert!(shown.iter().all(|shown| shown.starts_with("delivered 250 2.0.0 Ok: queued as ")), "{shown:?}");
    open.close().await;
    assert!(postfix.peer.log().contains("sasl_method=SCRAM-SHA-256, sasl_username=tocsin@mta.example"));

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
