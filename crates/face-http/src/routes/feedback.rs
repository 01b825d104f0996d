use std::sync::Arc;

use axum::{
    extract::{Request, State},
    http::StatusCode,
    response::Response,
};
use serde::Deserialize;
use tocsin_model::{
    feedback::Class,
    id::NotificationBatchId,
    problem::{Code, Problem},
    suppression::Target,
};
use tocsin_service::{Scope, ServiceError, page};
use tocsin_store::records::FeedbackFilter;
use utoipa::IntoParams;
use utoipa_axum::{router::OpenApiRouter, routes};

use crate::{
    app::App,
    problems::Failure,
    request::{Authorized, Parameters, parts, take_body},
    responses::{Failures, json},
    wire::{
        List,
        feedback::{FeedbackBody, FeedbackMailResults, FeedbackResultBody},
    },
};

pub(crate) fn routes() -> OpenApiRouter<Arc<App>> {
    OpenApiRouter::new().routes(routes!(list)).routes(routes!(mail))
}

/// Maximum size of a mail. The first MiB is examined.
const MAIL_BYTES_MAX: usize = 10 << 20;
/// Media type of a mail.
const MAIL: &str = "message/rfc822";

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct ListParameters {
    /// Maximum number of results, 1 to 1,000; default 100.
    #[serde(default)]
    limit: Option<usize>,
    /// Cursor from the previous page.
    #[serde(default)]
    after: Option<String>,
    /// Filter by class: `challenge`, `blocked`, `soft`, `hard`, `unsubscribe` or `complaint`.
    #[serde(default)]
    class: Option<String>,
    /// Filter by target: `address/<protocol>/<address>` or `device/<subscriber>/<device>`.
    #[serde(default)]
    target: Option<String>,
    /// Filter by notification batch.
    #[serde(default)]
    #[param(value_type = Option<String>)]
    batch: Option<NotificationBatchId>,
}

/// Lists bounces, complaints and other reports about sent messages, newest first. Automatic replies are only counted.
#[utoipa::path(get, path = "/v1/feedback", tag = "feedback", params(ListParameters), responses((status = 200, body = List<FeedbackBody>), Failures))]
async fn list(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Parameters(asked): Parameters<ListParameters>,
) -> Result<Response, Failure> {
    let limit = page::limit(asked.limit)?;
    let class = asked.class.as_deref().map(class_of).transpose()?;
    let target = asked.target.as_deref().map(target_of).transpose()?;
    let filter = FeedbackFilter { target, class, batch: asked.batch };
    let found = app.service.feedback_log(&caller, &filter, asked.after.as_deref(), limit).await?;
    Ok(json(StatusCode::OK, &List::from(found.map(FeedbackBody::from))))
}

fn class_of(word: &str) -> Result<Class, ServiceError> {
    word.parse().map_err(|()| {
        let problem = Problem::new(Code::UnknownValue, "class", format!("`{word}` is not a class of feedback"));
        let words = Class::ALL.map(Class::word).join(", ");
        ServiceError::from(problem.param("value", word.to_owned()).hint(format!("classes are {words}")))
    })
}

/// The target of a text, in the form in which it is stored.
fn target_of(text: &str) -> Result<Target, ServiceError> {
    let target: Target = text.parse()?;
    Ok(match &target {
        Target::Address { protocol, address } => Target::address(protocol, address),
        Target::Channel { application, channel, address } => Target::channel(application, channel, address),
        Target::Device { .. } => target,
    })
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
struct MailParameters {
    /// The recipient of the mail, from its envelope: a return address of this server. Absent: the mail is a complaint
    /// from the feedback loop of a provider, and the reported mail names the return address.
    #[serde(default)]
    recipient: Option<String>,
}

/// Takes a mail that arrived at a return address: a bounce, a complaint, an unsubscription or a reply. For mail servers
/// that pass mail to a program. A repeated mail changes nothing. The body is the mail, at most 10 MiB.
#[utoipa::path(post, path = "/v1/feedback-mails", tag = "feedback", params(MailParameters), request_body(content = String, description = "The mail (RFC 5322)", content_type = "message/rfc822"), responses((status = 200, body = FeedbackMailResults), Failures))]
async fn mail(
    State(app): State<Arc<App>>,
    Authorized(caller): Authorized,
    Parameters(MailParameters { recipient }): Parameters<MailParameters>,
    request: Request,
) -> Result<Response, Failure> {
    caller.needs(Scope::BouncesWrite)?;
    let (headers, body) = parts(request);
    let media_type = crate::request::media_type(&headers);
    if media_type != MAIL {
        return Err(Failure::unsupported(&media_type, &[MAIL]));
    }
    if let Some(Err(error)) = recipient.as_deref().map(|recipient| app.service.verify_return_address(recipient)) {
        let problem = Problem::new(Code::InvalidFormat, "recipient", error.to_string());
        return Err(ServiceError::from(problem.param("format", "return_address")).into());
    }
    let body = take_body(&app, &headers, body, MAIL_BYTES_MAX).await?;
    let mail = body.bytes.to_vec();
    let results = match recipient {
        Some(recipient) => app.service.take_feedback_mail(&[recipient], mail).await?,
        None => app.service.take_complaint_mail(mail).await?,
    };
    let items = results.into_iter().map(FeedbackResultBody::from).collect();
    Ok(json(StatusCode::OK, &FeedbackMailResults { items }))
}
