//! OpenLDAP server, for comparison with this one.

use std::process::{Child, Command, Stdio};

use tocsin_test_peers::{Peer, reserved_port, until_listening};

/// slapd in a folder of its own; killed on drop.
pub struct Slapd {
    pub port: u16,
    process: Child,
    _folder: tempfile::TempDir,
}

impl Drop for Slapd {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Slapd {
    /// Starts slapd. `more`: additional configuration lines.
    pub fn start(more: &str) -> Slapd {
        let folder = tempfile::tempdir().expect("a folder");
        let at = folder.path().display();
        let text = format!(
            "include /etc/ldap/schema/core.schema\ninclude /etc/ldap/schema/cosine.schema\n\
             include /etc/ldap/schema/inetorgperson.schema\nmodulepath /usr/lib/ldap\nmoduleload back_mdb\n\
             pidfile {at}/pid\nloglevel none\nsizelimit unlimited\ndatabase mdb\nsuffix \"o=site\"\n\
             rootdn \"cn=admin,o=site\"\nrootpw key\ndirectory {at}\nmaxsize 67108864\ndbnosync\n\
             index objectClass,cn eq\n{more}"
        );
        let file = folder.path().join("slapd.conf");
        std::fs::write(&file, text).expect("written");
        let port = reserved_port();
        let mut process = Command::new(Peer::Slapd.path())
            .arg("-f")
            .arg(&file)
            .args(["-h", &format!("ldap://127.0.0.1:{port}"), "-d", "0"])
            .stderr(Stdio::null())
            .spawn()
            .expect("slapd starts");
        until_listening("slapd", port, || process.try_wait().expect("asked").is_some());
        Slapd { port, process, _folder: folder }
    }
}
