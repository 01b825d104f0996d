//! A Postfix as the mail server of recipients.

use tocsin_test_peers::reserved_port;

/// The running server. Beside its own port it has one that refuses the recipients of the setting `refusals`.
pub struct Postfix {
    peer: tocsin_test_peers::Postfix,
    pub port: u16,
}

impl Postfix {
    /// Starts it. `settings`: further lines of `main.cf`, in which `REFUSING` is the port of the second server.
    pub fn start(settings: &str) -> Postfix {
        let (port, refusing) = (reserved_port(), reserved_port());
        let peer = tocsin_test_peers::Postfix::prepare();
        let settings = settings.replace("REFUSING", &refusing.to_string());
        let settings = format!(
            "mynetworks = 127.0.0.0/8\nsmtpd_relay_restrictions = permit_mynetworks, reject\n\
             smtp_host_lookup = native\n{settings}"
        );
        let listeners = format!(
            "127.0.0.1:{port} inet n - n - - smtpd\n\
             127.0.0.1:{refusing} inet n - n - - smtpd -o smtpd_recipient_restrictions=$refusals\n"
        );
        peer.start(&settings, &listeners);
        Postfix { peer, port }
    }

    /// Its log.
    pub fn log(&self) -> String {
        self.peer.log()
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
