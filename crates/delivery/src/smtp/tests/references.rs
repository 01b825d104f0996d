//! References to mails that a provider returns with its events.

use serde_json::json;
use tocsin_feedback::return_address::{DeviceTag, Origin, Purpose, Reference, Target};
use tocsin_model::id::SubscriberNumber;

use super::{OK, deliver_all, scripted_server::accept_all, start};
use crate::testing::{context, message, multicast, outgoing};

#[tokio::test(start_paused = true)]
async fn a_mail_carries_a_signed_reference_in_the_field_of_its_provider() {
    let key = concat!(
        "MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAE83T4O/n84iotIvIW4mdBgQ/7dAfSmpqI",
        "M8kF9mN1flpVKS3GRqe62gw+2fNNRaINXvVpiglSI8eNEc6wEA3F+g==",
    );
    let topic = "arn:aws:sns:eu-central-1:123456789012:feedback";
    for (provider, before, after) in [
        ("ses", "X-SES-MESSAGE-TAGS: tocsin=", ""),
        ("sendgrid", "X-SMTPAPI: {\"unique_args\": {\"tocsin\": \"", "\"}}"),
        ("mailgun", "X-Mailgun-Variables: {\"tocsin\": \"", "\"}"),
        ("postmark", "X-PM-Metadata-tocsin: ", ""),
        ("brevo", "X-Mailin-custom: ", ""),
    ] {
        let feedback = match provider {
            "ses" => json!({ "provider": provider, "topic": topic }),
            _ => json!({ "provider": provider, "key": key }),
        };
        let (open, server) = start(accept_all, json!({ "feedback": feedback }), None);
        let mut mail = outgoing(0, "a@b.example");
        mail.subscriber = Some(SubscriberNumber(3));
        let (id, now) = (mail.id, message(0).formatted_at);
        assert_eq!(deliver_all(&*open, vec![mail]).await, [OK]);
        assert_eq!(deliver_all(&*open, multicast(&["a@b.example", "c@d.example"])).await, [OK; 2]);
        let seen = server.seen.lock();
        let origins: Vec<Origin> = seen
            .contents
            .iter()
            .map(|content| {
                let unfolded = content.replace("\r\n ", " ").replace("\r\n\t", " ");
                let line =
                    unfolded.lines().find_map(|line| line.strip_prefix(before)).unwrap_or_else(|| panic!("{content}"));
                let reference = line.strip_suffix(after).unwrap_or_else(|| panic!("{line}"));
                assert!(reference.len() <= 64, "Postmark accepts 80 characters: {reference}");
                *context().token_signer.verify_reference(reference, now).expect("signed").origin()
            })
            .collect();
        let target = Target::Device(SubscriberNumber(3), DeviceTag::of("a@b.example"));
        let purpose = Purpose::Bounce;
        let one = Origin { purpose, reference: Reference::Notification(id), target };
        let many = Origin { purpose, reference: Reference::Multicast(id.batch), target: Target::Reported };
        assert_eq!(origins, [one, many], "{provider}");
    }
    let (open, server) = start(accept_all, json!({}), None);
    assert_eq!(deliver_all(&*open, vec![outgoing(0, "a@b.example")]).await, [OK]);
    assert!(!server.seen.lock().contents[0].contains("tocsin"), "without a provider there is no reference");
}
