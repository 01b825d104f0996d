use async_nats::{
    ConnectErrorKind,
    jetstream::{context::PublishErrorKind, publish::PublishAck},
};
use tocsin_model::receipt::{Disposition, Reason, ReasonKind};

/// Disposition of a publish, from its acknowledgement or failure.
pub(super) fn publish(result: Result<&PublishAck, (PublishErrorKind, String)>) -> Disposition {
    let (kind, text) = match result {
        Ok(ack) => {
            let known = if ack.duplicate { ", which had it already" } else { "" };
            return Disposition::Delivered {
                reply: format!("stream {}, sequence {}{known}", ack.stream, ack.sequence),
            };
        }
        Err(error) => error,
    };
    match kind {
        PublishErrorKind::StreamNotFound => {
            later(ReasonKind::Answer, "no stream listens to this subject; add it to the subjects of one")
        }
        PublishErrorKind::TimedOut => later(ReasonKind::Timeout, "no acknowledgement of the stream in time"),
        PublishErrorKind::BrokenPipe => {
            later(ReasonKind::Connection, "the connection broke before the acknowledgement")
        }
        PublishErrorKind::MaxPayloadExceeded => Disposition::Refused { reason: Reason::new(ReasonKind::Answer, text) },
        _ => later(ReasonKind::Answer, &text),
    }
}

/// Reason of a failed connection.
pub(super) fn connect(kind: &ConnectErrorKind, text: String) -> Reason {
    let kind = match kind {
        ConnectErrorKind::Authentication | ConnectErrorKind::AuthorizationViolation => ReasonKind::Authentication,
        ConnectErrorKind::TimedOut => ReasonKind::Timeout,
        ConnectErrorKind::Tls => ReasonKind::Tls,
        _ => ReasonKind::Connection,
    };
    Reason::new(kind, text)
}

fn later(kind: ReasonKind, text: &str) -> Disposition {
    Disposition::Deferred { reason: Reason::new(kind, text), retry_after: None }
}
