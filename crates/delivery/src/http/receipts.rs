//! Requests for delivery receipts: a message to a known SMS service names the receiver of its channel.

use tocsin_feedback::provider::twilio::REFERENCE_PARAMETER;
use tocsin_model::id::Name;

use super::options::{Body, HttpOptions};
use crate::{
    channel::Context,
    feedback_options::{FeedbackProvider, receiver_path},
};

/// Adds the URL of the channel's receiver to the form of a recipe, unless the form has one. Without a public URL the
/// settings of the service decide.
pub(super) fn ask_for_receipts(options: &mut HttpOptions, name: &Name, context: &Context) {
    let provider = options.feedback.as_ref().and_then(|feedback| feedback.provider);
    let (Some(provider), Some(base), Some(Body::Form(form))) = (provider, &context.public_url, &mut options.body)
    else {
        return;
    };
    let Ok(application) = context.application.parse() else { return };
    let base = base.replace('{', "{{").replace('}', "}}");
    let url = format!("{base}{}", receiver_path(&application, name));
    match provider {
        // Twilio returns no reference of the sender, so it is in the query. The signature covers it.
        FeedbackProvider::Twilio => {
            form.entry("StatusCallback".to_owned())
                .or_insert_with(|| format!("{url}?{REFERENCE_PARAMETER}={{message_id}}"));
        }
        FeedbackProvider::Vonage => {
            form.entry("callback".to_owned()).or_insert(url);
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::{feedback_options::FeedbackOptions, testing::context};

    #[test]
    fn a_message_names_the_receiver_of_its_channel() {
        let context = Context { public_url: Some("https://t.example".into()), application: "shop".into(), ..context() };
        let asked = |provider, given: &[(&str, &str)]| {
            let form: BTreeMap<_, _> =
                given.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
            let feedback = Some(FeedbackOptions { provider: Some(provider), ..FeedbackOptions::default() });
            let mut options = HttpOptions { body: Some(Body::Form(form)), feedback, ..HttpOptions::default() };
            ask_for_receipts(&mut options, &"sms".parse().expect("a name"), &context);
            let Some(Body::Form(form)) = options.body else { panic!("a form") };
            form.into_iter().map(|(name, value)| format!("{name} {value}")).collect::<Vec<_>>().join("; ")
        };
        let twilio = "StatusCallback https://t.example/v1/feedback/shop/sms?message={message_id}";
        assert_eq!(asked(FeedbackProvider::Twilio, &[]), twilio);
        assert_eq!(asked(FeedbackProvider::Twilio, &[("StatusCallback", "x")]), "StatusCallback x");
        assert_eq!(asked(FeedbackProvider::Vonage, &[]), "callback https://t.example/v1/feedback/shop/sms");
        assert_eq!(asked(FeedbackProvider::Sinch, &[]), "");
    }
}
