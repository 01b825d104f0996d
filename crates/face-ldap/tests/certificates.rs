//! SASL EXTERNAL with Debian's ldap-utils: the identity is the client certificate.

mod support;

use std::{path::Path, process::Command, sync::Arc};

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, DistinguishedName, DnType, IsCa, Issuer,
    KeyIdMethod, KeyPair, KeyUsagePurpose, RevokedCertParams, SerialNumber, date_time_ymd,
};
use support::{Bench, PERSON};
use tocsin_directory::schema::Schema;
use tocsin_face_ldap::{CertificateRule, LdapOptions, authorities};
use tocsin_test_peers::{Peer, missing};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

/// A certificate authority, with a folder for its files.
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    folder: tempfile::TempDir,
}

fn named(names: &[(DnType, &str)]) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    names.iter().for_each(|(kind, value)| params.distinguished_name.push(kind.clone(), *value));
    params
}

impl Authority {
    fn new() -> Authority {
        let mut params = named(&[(DnType::CommonName, "authority")]);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().expect("a key");
        let certificate = params.self_signed(&key).expect("a certificate");
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("ca.pem"), certificate.pem()).expect("written");
        Authority { issuer: Issuer::new(params, key), folder }
    }

    /// Writes the revocation list, by serial number, valid until a year.
    fn revoke(&self, serials: &[u64], until: i32) {
        let revoked = |serial: &u64| RevokedCertParams {
            serial_number: SerialNumber::from(*serial),
            revocation_time: date_time_ymd(2024, 1, 1),
            reason_code: None,
            invalidity_date: None,
        };
        let list = CertificateRevocationListParams {
            this_update: date_time_ymd(2024, 1, 1),
            next_update: date_time_ymd(until, 1, 1),
            crl_number: SerialNumber::from(serials.len() as u64 + 1),
            issuing_distribution_point: None,
            revoked_certs: serials.iter().map(revoked).collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        self.put_lists(&list.signed_by(&self.issuer).expect("signed").pem().expect("text"));
    }

    /// Renames the file into place, so that no reader sees half of it.
    fn put_lists(&self, text: &str) {
        let new = self.folder.path().join("new.crl");
        std::fs::write(&new, text).expect("written");
        std::fs::rename(new, self.lists()).expect("renamed");
    }

    fn lists(&self) -> std::path::PathBuf {
        self.folder.path().join("lists.crl")
    }

    /// Issues a certificate; returns the path without `.crt` and `.key`.
    fn make(&self, file: &str, params: &CertificateParams) -> String {
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate");
        let path = self.folder.path().join(file);
        std::fs::write(path.with_extension("crt"), certificate.pem()).expect("written");
        std::fs::write(path.with_extension("key"), key.serialize_pem()).expect("written");
        path.to_str().expect("text").to_owned()
    }

    fn options(&self, rules: &[&str]) -> LdapOptions {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let lists = Some(self.lists()).filter(|file| file.exists());
        let clients = authorities(&self.folder.path().join("ca.pem"), lists.as_deref(), &provider).expect("a verifier");
        let key = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a certificate");
        let tls = rustls::ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_client_cert_verifier(clients)
            .with_single_cert(vec![key.cert.der().clone()], key.signing_key.serialize_der().try_into().expect("a key"))
            .expect("a configuration");
        let read = |rule: &&str| CertificateRule::read(rule, &Schema::standard()).expect("a rule");
        let certificate_rules = rules.iter().map(read).collect();
        LdapOptions { tls: Some(tls.into()), certificate_rules, ..LdapOptions::default() }
    }
}

/// Result code for a client without a certificate. OpenLDAP's clients do not even send the bind.
async fn refused(port: u16) -> u8 {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).await.expect("connected");
    let bind = b"\x30\x16\x02\x01\x01\x60\x11\x02\x01\x03\x04\x00\xa3\x0a\x04\x08EXTERNAL";
    stream.write_all(bind).await.expect("sent");
    let mut answer = [0; 10];
    stream.read_exact(&mut answer).await.expect("answered");
    answer[9]
}

/// Authorization identity that the server assigns to a client.
async fn whoami(bench: &Bench, certificate: &str, rest: &[&str], code: i32) -> String {
    let mut command = Command::new("ldapwhoami");
    command.args(["-Q", "-Y", "EXTERNAL", "-H", &format!("ldap://127.0.0.1:{}", bench.port)]).args(rest);
    command.env("LDAPTLS_REQCERT", "never");
    command.env("LDAPTLS_CERT", Path::new(certificate).with_extension("crt"));
    command.env("LDAPTLS_KEY", Path::new(certificate).with_extension("key"));
    let done = tokio::task::spawn_blocking(move || command.output().expect("ldapwhoami runs"));
    let done = done.await.expect("it runs");
    let reply = String::from_utf8_lossy(&done.stdout).into_owned();
    assert_eq!(done.status.code(), Some(code), "{reply}\n{}", String::from_utf8_lossy(&done.stderr));
    reply.trim().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_certificate_identifies_a_client() {
    if missing(&[Peer::LdapUtils]) {
        return;
    }
    let authority = Authority::new();
    let rules = ["subject", "entry cn={cn},ou=people,o=site", "search mail={email}"];
    let bench = Bench::with(&[], authority.options(&rules)).await;
    for name in ["ann", "bob", "carl"] {
        bench.add(&PERSON.replace("NAME", name)).await;
    }
    let (people, site) = ((DnType::OrganizationalUnitName, "people"), (DnType::OrganizationName, "site"));
    let ann = authority.make("ann", &named(&[site.clone(), people, (DnType::CommonName, "Ann")]));
    let bob = authority.make("bob", &named(&[(DnType::CommonName, "bob")]));
    let mut params = named(&[(DnType::CommonName, "somebody")]);
    params.subject_alt_names = vec![rcgen::SanType::Rfc822Name("carl@example.org".try_into().expect("an address"))];
    let carl = authority.make("carl", &params);
    let nobody = authority.make("nobody", &named(&[(DnType::CommonName, "nobody")]));
    let admin = authority.make("admin", &named(&[site, (DnType::CommonName, "admin")]));

    assert_eq!(whoami(&bench, &ann, &["-ZZ"], 0).await, "dn:cn=ann,ou=people,o=site");
    assert_eq!(whoami(&bench, &bob, &["-ZZ"], 0).await, "dn:cn=bob,ou=people,o=site");
    assert_eq!(whoami(&bench, &carl, &["-ZZ"], 0).await, "dn:cn=carl,ou=people,o=site");
    let itself = ["-ZZ", "-X", "dn:CN=Bob,ou=people,o=site"];
    assert_eq!(whoami(&bench, &bob, &itself, 0).await, "dn:cn=bob,ou=people,o=site");
    whoami(&bench, &bob, &["-ZZ", "-X", "dn:cn=ann,ou=people,o=site"], 49).await;
    whoami(&bench, &nobody, &["-ZZ"], 49).await;
    // The operators' name is not an entry.
    whoami(&bench, &admin, &["-ZZ"], 49).await;
    assert_eq!(refused(bench.port).await, 48);

    // An identity by certificate has the rights of its entry; only an administrator can lock it.
    let lock = |act: &str| format!("dn: cn=ann,ou=people,o=site\nchangetype: modify\n{act}: pwdAccountLockedTime\n");
    for _ in 0..6 {
        bench.run_as("ldapwhoami", "cn=ann,ou=people,o=site", "wrong", &[], "", 49).await;
    }
    whoami(&bench, &ann, &["-ZZ"], 0).await;
    bench.modify(&format!("{}pwdAccountLockedTime: 000001010000Z\n", lock("replace"))).await;
    whoami(&bench, &ann, &["-ZZ"], 49).await;
    bench.modify(&lock("delete")).await;
    whoami(&bench, &ann, &["-ZZ"], 0).await;
    let root = bench.search("", "base", &["(objectClass=*)", "supportedSASLMechanisms"]).await;
    assert!(root.contains("supportedSASLMechanisms: EXTERNAL\n"), "{root}");
    bench.stop().await;
}

/// The TLS handshake fails.
async fn is_cut_off(bench: &Bench, certificate: &str) {
    let mut command = Command::new("ldapwhoami");
    command.args(["-Q", "-Y", "EXTERNAL", "-ZZ", "-H", &format!("ldap://127.0.0.1:{}", bench.port)]);
    command.env("LDAPTLS_REQCERT", "never");
    command.env("LDAPTLS_CERT", format!("{certificate}.crt")).env("LDAPTLS_KEY", format!("{certificate}.key"));
    let done = tokio::task::spawn_blocking(move || command.output().expect("ldapwhoami runs"));
    let done = done.await.expect("it runs");
    assert!(!done.status.success() && done.stdout.is_empty(), "{done:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_revoked_certificate_is_rejected() {
    if missing(&[Peer::LdapUtils]) {
        return;
    }
    let authority = Authority::new();
    authority.revoke(&[], 2124);
    let bench = Bench::with(&[], authority.options(&["entry cn={cn},ou=people,o=site"])).await;
    let mut certificates = Vec::new();
    for (serial, name) in [(7, "ann"), (8, "bob")] {
        bench.add(&PERSON.replace("NAME", name)).await;
        let mut params = named(&[(DnType::CommonName, name)]);
        params.serial_number = Some(SerialNumber::from(serial));
        certificates.push(authority.make(name, &params));
    }
    let [ann, bob] = certificates.try_into().expect("two");
    assert_eq!(whoami(&bench, &ann, &["-ZZ"], 0).await, "dn:cn=ann,ou=people,o=site");

    // The server reloads a changed list.
    authority.revoke(&[7], 2124);
    is_cut_off(&bench, &ann).await;
    assert_eq!(whoami(&bench, &bob, &["-ZZ"], 0).await, "dn:cn=bob,ou=people,o=site");
    // An unreadable or missing list changes nothing.
    authority.put_lists("-----BEGIN X509 CRL-----\nAAAA\n-----END X509 CRL-----\n");
    is_cut_off(&bench, &ann).await;
    assert_eq!(whoami(&bench, &bob, &["-ZZ"], 0).await, "dn:cn=bob,ou=people,o=site");
    std::fs::remove_file(authority.lists()).expect("removed");
    is_cut_off(&bench, &ann).await;
    // An outdated list proves no certificate valid.
    authority.revoke(&[], 2025);
    is_cut_off(&bench, &bob).await;
    authority.revoke(&[], 2124);
    assert_eq!(whoami(&bench, &ann, &["-ZZ"], 0).await, "dn:cn=ann,ou=people,o=site");
    bench.stop().await;

    let provider = Arc::new(rustls::crypto::ring::default_provider());
    authority.put_lists("no list");
    let refused = authorities(&authority.folder.path().join("ca.pem"), Some(&authority.lists()), &provider);
    let why = refused.expect_err("there is none").to_string();
    assert!(why.contains("write lists as PEM"), "{why}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_of_other_authorities_are_rejected() {
    if missing(&[Peer::LdapUtils]) {
        return;
    }
    let (authority, stranger) = (Authority::new(), Authority::new());
    let bench = Bench::with(&[], authority.options(&["entry cn={cn},ou=people,o=site"])).await;
    bench.add(&PERSON.replace("NAME", "ann")).await;
    let ann = stranger.make("ann", &named(&[(DnType::CommonName, "ann")]));
    is_cut_off(&bench, &ann).await;
    bench.stop().await;

    let bench = Bench::start(&[]).await;
    assert_eq!(refused(bench.port).await, 7);
    bench.stop().await;
}
