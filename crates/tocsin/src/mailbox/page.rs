//! Web page that lists and shows mails. Texts are escaped; HTML parts are shown in a sandboxed frame.

use std::{fmt::Write, sync::Arc};

use axum::{
    Json, Router,
    extract::{Path, State},
    http::{StatusCode, header},
    response::{Html, IntoResponse, Response},
    routing::get,
};
use serde_json::{Value, json};
use tocsin_model::{markup::escape, plural::plural};

use super::{Mail, MailboxState, ParsedMail};
use crate::terminal::thousands;

const STYLE: &str = "body{overflow-wrap:anywhere;font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:60rem;padding:0 1rem;color:#1b1f24;background:#fff}\
a{color:#0550ae;text-decoration:none}a:hover{text-decoration:underline}table{width:100%;border-collapse:collapse}\
td,th{text-align:left;padding:.3rem .6rem;border-bottom:1px solid #e3e6ea;vertical-align:top;overflow-wrap:anywhere}th{color:#59636e;font-weight:500}h1{overflow-wrap:anywhere}\
pre{white-space:pre-wrap;overflow-wrap:anywhere;background:#f6f8fa;padding:1rem;border-radius:6px}\
iframe{width:100%;height:24rem;border:1px solid #e3e6ea;border-radius:6px;background:#fff}.dim{color:#59636e}a:focus-visible{outline:3px solid}\
@media(max-width:40rem){body{margin:1rem auto;padding:0 .75rem}table.list tr:first-child{display:none}table.list td{display:block;border:0;padding:.1rem 0}table.list tr{display:block;padding:.5rem 0;border-bottom:1px solid #e3e6ea}table.headers th,table.headers td{display:block;border:0;padding:.1rem 0}table.headers th{padding-top:.5rem}}\
@media(prefers-color-scheme:dark){body{color:#e6edf3;background:#0d1117}pre{background:#161b22}a{color:#79c0ff}td,th,iframe,table.list tr{border-color:#30363d}th,.dim{color:#9198a1}}";

/// Content security policy of the page: its own style and frames only.
const PAGE_POLICY: &str =
    "default-src 'none'; style-src 'unsafe-inline'; frame-src 'self'; base-uri 'none'; form-action 'none'";

/// Content security policy of a mail's HTML: styles and inline images only.
const MAIL_POLICY: &str = "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:";

pub(super) fn router(shared: Arc<MailboxState>) -> Router {
    Router::new()
        .route("/", get(list))
        .route("/mails/{number}", get(show))
        .route("/mails/{number}/html", get(html))
        .route("/mails/{number}/raw", get(raw))
        // Browsers ask for it.
        .route("/favicon.ico", get(StatusCode::NO_CONTENT))
        .route("/api/mails", get(api_list))
        .route("/api/mails/{number}", get(api_show))
        .with_state(shared)
}

async fn list(State(shared): State<Arc<MailboxState>>) -> Response {
    let (counts, mails) = snapshot(&shared);
    let mut rows = String::new();
    for mail in &mails {
        let read = ParsedMail::read(&mail.bytes);
        let subject = read.header("subject").filter(|subject| !subject.is_empty()).unwrap_or("(no subject)");
        let _ = write!(
            rows,
            "<tr><td class=dim>{}</td><td>{}</td><td><a href=\"/mails/{}\">{}</a></td><td class=dim>{}</td></tr>",
            mail.number,
            escape(&mail.to.join(", ")),
            mail.number,
            escape(subject),
            mail.received_at
        );
    }
    if mails.is_empty() {
        rows.push_str("<tr><td colspan=4 class=dim>No mail yet.</td></tr>");
    }
    let head = format!(
        "{} {} received, the newest {} are kept",
        thousands(counts.mails),
        plural(counts.mails, "mail", "mails"),
        thousands(mails.len() as u64)
    );
    page(
        "Mailbox",
        &format!(
            "<h1>Mailbox</h1><p class=dim>{head} · <a href=\"/\">reload</a></p><table class=list><tr><th>#<th>to<th>subject<th>received</tr>{rows}</table>"
        ),
    )
}

async fn show(State(shared): State<Arc<MailboxState>>, Path(number): Path<u64>) -> Response {
    let Some(mail) = find(&shared, number) else { return not_found(number) };
    let read = ParsedMail::read(&mail.bytes);
    let subject = escape(read.header("subject").unwrap_or("(no subject)"));
    let mut body = format!(
        "<p><a href=\"/\">&larr; all mails</a></p><h1>{subject}</h1><p class=dim>from {} to {}, {}</p>",
        escape(&mail.from),
        escape(&mail.to.join(", ")),
        mail.received_at
    );
    if read.part("text/html").is_some() {
        let _ = write!(
            body,
            "<h2>HTML</h2><iframe sandbox src=\"/mails/{number}/html\" title=\"the mail's HTML part\"></iframe>"
        );
    }
    if let Some(text) = read.part("text/plain") {
        let _ = write!(body, "<h2>Text</h2><pre>{}</pre>", escape(text));
    }
    body.push_str("<h2>Headers</h2><table class=headers>");
    for (name, value) in &read.headers {
        let _ = write!(body, "<tr><th>{}</th><td>{}</td></tr>", escape(name), escape(value));
    }
    let _ = write!(body, "</table><p><a href=\"/mails/{number}/raw\">raw source</a></p>");
    page(&subject, &body)
}

async fn html(State(shared): State<Arc<MailboxState>>, Path(number): Path<u64>) -> Response {
    let Some(mail) = find(&shared, number) else { return not_found(number) };
    let read = ParsedMail::read(&mail.bytes);
    let headers = [
        (header::CONTENT_SECURITY_POLICY, MAIL_POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
    ];
    (headers, Html(read.part("text/html").unwrap_or_default().to_owned())).into_response()
}

async fn raw(State(shared): State<Arc<MailboxState>>, Path(number): Path<u64>) -> Response {
    let Some(mail) = find(&shared, number) else { return not_found(number) };
    let headers = [(header::CONTENT_TYPE, "text/plain; charset=utf-8"), (header::X_CONTENT_TYPE_OPTIONS, "nosniff")];
    (headers, mail.bytes.clone()).into_response()
}

async fn api_list(State(shared): State<Arc<MailboxState>>) -> Json<Value> {
    let (counts, mails) = snapshot(&shared);
    let items: Vec<Value> = mails.iter().map(|mail| summary(mail, &ParsedMail::read(&mail.bytes))).collect();
    Json(
        json!({"mails": counts.mails, "recipients": counts.recipients, "bytes": counts.bytes, "repeated": counts.repeated, "items": items}),
    )
}

async fn api_show(State(shared): State<Arc<MailboxState>>, Path(number): Path<u64>) -> Response {
    let Some(mail) = find(&shared, number) else {
        return (StatusCode::NOT_FOUND, Json(json!({"title": "mail not found"}))).into_response();
    };
    let read = ParsedMail::read(&mail.bytes);
    let mut shown = summary(&mail, &read);
    shown["headers"] = read.headers.iter().map(|(name, value)| json!([name, value])).collect();
    shown["text"] = Value::from(read.part("text/plain"));
    shown["html"] = Value::from(read.part("text/html"));
    Json(shown).into_response()
}

fn summary(mail: &Mail, read: &ParsedMail) -> Value {
    json!({"number": mail.number, "received_at": mail.received_at, "from": mail.from, "to": mail.to, "subject": read.header("subject"), "message_id": read.header("message-id")})
}

fn snapshot(shared: &MailboxState) -> (super::Counts, Vec<Arc<Mail>>) {
    let ring = shared.ring.lock();
    (ring.counts(), ring.newest().cloned().collect())
}

fn find(shared: &MailboxState, number: u64) -> Option<Arc<Mail>> {
    shared.ring.lock().find(number)
}

fn not_found(number: u64) -> Response {
    let body = format!(
        "<p><a href=\"/\">&larr; all mails</a></p><h1>Mail {number} not found</h1><p>Only the newest mails are kept.</p>"
    );
    (StatusCode::NOT_FOUND, page("Not found", &body)).into_response()
}

fn page(title: &str, body: &str) -> Response {
    let html = format!(
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content=\"width=device-width, initial-scale=1\"><title>{title}</title><style>{STYLE}</style><main>{body}</main></html>"
    );
    let headers = [
        (header::CONTENT_SECURITY_POLICY, PAGE_POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
    ];
    (headers, Html(html)).into_response()
}
