use rumqttc::v5::{
    ConnectionError,
    mqttbytes::v5::{ConnectReturnCode, PubAckReason, PubCompReason, PubRecReason},
};
use tocsin_model::receipt::{Disposition, Reason, ReasonKind};

/// Disposition of a PUBACK.
pub(super) fn acknowledged(reason: PubAckReason) -> Disposition {
    let later = |text: &str| Disposition::Deferred { reason: Reason::new(ReasonKind::Answer, text), retry_after: None };
    let never = |kind, text: &str| Disposition::Refused { reason: Reason::new(kind, text) };
    match reason {
        PubAckReason::Success => Disposition::Delivered { reply: "accepted by the broker".into() },
        PubAckReason::NoMatchingSubscribers => {
            Disposition::Delivered { reply: "accepted by the broker; the topic has no subscribers at present".into() }
        }
        PubAckReason::NotAuthorized => never(ReasonKind::Answer, "0x87: we may not write to this topic"),
        PubAckReason::TopicNameInvalid => never(ReasonKind::Address, "0x90: the broker takes no such topic"),
        PubAckReason::PayloadFormatInvalid => never(ReasonKind::Format, "0x99: the broker takes no such content"),
        PubAckReason::QuotaExceeded => later("0x97: a quota of the broker is used up"),
        PubAckReason::PacketIdentifierInUse => later("0x91: the broker takes its number for another message's"),
        PubAckReason::ImplementationSpecificError => later("0x83: the broker does not take it"),
        PubAckReason::UnspecifiedError => later("0x80: the broker does not take it"),
    }
}

/// Disposition of a PUBREC (QoS 2): final if it refuses, else the PUBCOMP decides.
pub(super) fn received(reason: PubRecReason) -> Option<Disposition> {
    Some(acknowledged(match reason {
        PubRecReason::Success | PubRecReason::NoMatchingSubscribers => return None,
        PubRecReason::NotAuthorized => PubAckReason::NotAuthorized,
        PubRecReason::TopicNameInvalid => PubAckReason::TopicNameInvalid,
        PubRecReason::PayloadFormatInvalid => PubAckReason::PayloadFormatInvalid,
        PubRecReason::QuotaExceeded => PubAckReason::QuotaExceeded,
        PubRecReason::PacketIdentifierInUse => PubAckReason::PacketIdentifierInUse,
        PubRecReason::ImplementationSpecificError => PubAckReason::ImplementationSpecificError,
        PubRecReason::UnspecifiedError => PubAckReason::UnspecifiedError,
    }))
}

/// Disposition of a PUBCOMP (QoS 2).
pub(super) fn completed(reason: PubCompReason) -> Disposition {
    match reason {
        PubCompReason::Success => acknowledged(PubAckReason::Success),
        PubCompReason::PacketIdentifierNotFound => acknowledged(PubAckReason::UnspecifiedError),
    }
}

/// Reason of a failed or lost connection.
pub(super) fn broken(error: &ConnectionError) -> Reason {
    let kind = match error {
        ConnectionError::Timeout(_) => ReasonKind::Timeout,
        ConnectionError::Tls(_) => ReasonKind::Tls,
        ConnectionError::ConnectionRefused(
            ConnectReturnCode::BadUserNamePassword
            | ConnectReturnCode::NotAuthorized
            | ConnectReturnCode::BadAuthenticationMethod
            | ConnectReturnCode::Banned,
        ) => ReasonKind::Authentication,
        ConnectionError::ConnectionRefused(_) => ReasonKind::Answer,
        _ => ReasonKind::Connection,
    };
    Reason::new(kind, format!("no connection to the broker: {error}"))
}
