//! Platform with an LDAP directory, for third-party clients.

use std::{
    fs,
    io::Write,
    path::Path,
    process::{Command, Stdio},
};

use tocsin_test_peers::reserved_port;

use super::Platform;

/// Directory on two ports: StartTLS on the first, implicit TLS on the second.
pub struct Directory {
    pub platform: Platform,
    pub suffix: &'static str,
    pub port: u16,
    pub port_tls: u16,
    /// Folder of data, configuration and certificate; also for files of a test.
    pub folder: tempfile::TempDir,
}

impl Directory {
    /// Starts the directory. `more`: lines of the section `[ldap]` of its configuration.
    pub async fn start(suffix: &'static str, more: &str) -> Directory {
        let folder = tempfile::tempdir().expect("a folder");
        let names = ["localhost", "127.0.0.1", "directory.example.org"].map(str::to_owned);
        let made = rcgen::generate_simple_self_signed(names).expect("a certificate");
        let (port, port_tls, at) = (reserved_port(), reserved_port(), folder.path().display());
        let write = |name: &str, text: String| fs::write(folder.path().join(name), text).expect("written");
        write("certificate.pem", made.cert.pem());
        write("key.pem", made.signing_key.serialize_pem());
        write(
            "tocsin.toml",
            format!(
                "[ldap]\nsuffix = \"{suffix}\"\nlisten = \"127.0.0.1:{port}\"\nlisten_tls = \"127.0.0.1:{port_tls}\"\n\
                 tls_certificate = \"{at}/certificate.pem\"\ntls_key = \"{at}/key.pem\"\n{more}"
            ),
        );
        let platform = Platform::start_in(folder.path(), &[]).await;
        Directory { platform, suffix, port, port_tls, folder }
    }

    /// Bind DN of operators; the password is the key of the platform.
    pub fn operator(&self) -> String {
        format!("cn=admin,{}", self.suffix)
    }

    /// Applies LDIF entries and changes as the operator.
    pub fn change(&self, ldif: &str) {
        let url = format!("ldap://127.0.0.1:{}", self.port);
        let mut ldapmodify = Command::new("ldapmodify");
        ldapmodify.args(["-a", "-x", "-H", &url, "-D", &self.operator(), "-w", &self.platform.key()]);
        output_of(ldapmodify.env("LDAPNOINIT", "1"), ldif);
    }
}

/// Runs a program that must succeed; returns its output.
pub fn output_of(command: &mut Command, input: &str) -> String {
    let shown = format!("{command:?}");
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{shown}: {error}"));
    child.stdin.take().expect("piped").write_all(input.as_bytes()).expect("it reads");
    let done = child.wait_with_output().expect("it ends");
    let (said, error) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    assert!(done.status.success(), "{shown}: {}\n{said}\n{error}", done.status);
    said.into_owned()
}

/// Copies the files of a folder.
pub fn copy_folder(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("a folder");
    for file in fs::read_dir(from).unwrap_or_else(|error| panic!("{}: {error}", from.display())) {
        let file = file.expect("a file");
        let at = to.join(file.file_name());
        match file.file_type().expect("a kind").is_dir() {
            true => copy_folder(&file.path(), &at),
            false => drop(fs::copy(file.path(), at).expect("copied")),
        }
    }
}
