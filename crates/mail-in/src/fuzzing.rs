//! A session without a socket, for fuzz targets.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::{Arc, Mutex},
};

use async_trait::async_trait;

use crate::{Access, Envelope, ErrorReply, Handler, ServerLimits, serve::ServerSettings, session};

/// Accepts recipients that contain `x`, and records mails.
#[derive(Default)]
struct Recorder(Mutex<Vec<(Envelope, Vec<u8>)>>);

#[async_trait]
impl Handler for Recorder {
    fn check_recipient(&self, recipient: &str) -> Result<(), ErrorReply> {
        match recipient.contains('x') {
            true => Ok(()),
            false => Err(ErrorReply::new(550, "5.1.1", "no such mailbox")),
        }
    }

    async fn accept(&self, envelope: Envelope, mail: Vec<u8>) -> Result<(), ErrorReply> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push((envelope, mail));
        Ok(())
    }
}

/// Runs a session with these pieces of client bytes. Returns the replies and the accepted mails: sender, recipients,
/// content.
pub async fn run_session(pieces: &[&[u8]]) -> (Vec<u8>, Vec<(String, Vec<String>, Vec<u8>)>) {
    let recorder = Arc::new(Recorder::default());
    let limits = ServerLimits { mail_bytes_max: 4_096, recipients_max: 3, ..ServerLimits::default() };
    let setting =
        ServerSettings { host: "mx.test".to_owned(), access: Access::default(), limits, handler: recorder.clone() };
    let replies = session::replies_to(&setting, SocketAddr::from((Ipv4Addr::LOCALHOST, 25)), pieces).await;
    let mails = std::mem::take(&mut *recorder.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner));
    let mails = mails.into_iter().map(|(envelope, mail)| (envelope.from, envelope.to, mail)).collect();
    (replies, mails)
}
