use std::{borrow::Cow, sync::Arc};

use async_trait::async_trait;
use rustls::ClientConfig;
use tocsin_connect::Clock;
use tocsin_model::{
    content::PartsUsed,
    id::Name,
    receipt::{Disposition, Reason, ReasonKind},
};

use super::{
    classify::Answers,
    client::{next_of, origin, send_classified, signal},
    connect::{Connections, Dial, Target},
    exchange::{BODY_BYTES_MAX, JUDGED_BODY_BYTES_MAX, ResponseLimits},
    options::HttpOptions,
    receipts::ask_for_receipts,
    recipes::complete,
    recipients::Sharing,
    request::{Form, Request},
    response::{Response, Verdict},
    sign::Signer,
};
use crate::{
    channel::Context,
    pending::{PendingDelivery, answer_all},
    queue::Queue,
    running::ProtocolSender,
};

/// Bytes for the result of one recipient in a response with a result for each.
const RESULT_BYTES_MAX: usize = 1024;

/// State that the sessions of a channel share.
pub(super) struct HttpSender {
    name: Name,
    options: HttpOptions,
    form: Form,
    answers: Answers,
    signer: Option<Signer>,
    connections: Connections,
    clock: Arc<dyn Clock>,
    queue: Arc<Queue>,
}

impl HttpSender {
    /// The options must be free of problems.
    pub fn new(
        name: &Name,
        options: HttpOptions,
        dial: Arc<dyn Dial>,
        trust: Arc<ClientConfig>,
        context: &Context,
        queue: Arc<Queue>,
    ) -> Self {
        let mut options = complete(&options).expect("checked options have a recipe");
        ask_for_receipts(&mut options, name, context);
        let signer =
            options.secret.as_deref().map(|secret| Signer::new(secret).expect("checked options have good secrets"));
        let form = Form::read(&options, &options.with).expect("checked options make a request");
        let answers = Answers::read(&options.answers).expect("checked options have good rules");
        let results = form.sharing.as_ref().filter(|sharing| sharing.reads_bodies()).and(options.recipients.as_ref());
        let body_bytes_max = match results {
            Some(recipients) => JUDGED_BODY_BYTES_MAX.max(recipients.most.saturating_mul(RESULT_BYTES_MAX)),
            None if answers.read_bodies() => JUDGED_BODY_BYTES_MAX,
            None => BODY_BYTES_MAX,
        };
        let connections = options
            .client
            .connections(dial, &trust, context)
            .with_limits(ResponseLimits { body_bytes_max, headers: false });
        let clock = context.clock.clone();
        HttpSender { name: name.clone(), options, form, answers, signer, connections, clock, queue }
    }

    /// Key of the destination of an address: scheme, host and port as written.
    pub fn lane_of<'a>(&self, address: &'a str) -> Cow<'a, str> {
        match self.form.destination() {
            None => origin(address),
            Some(url) => origin(url).into_owned().into(),
        }
    }

    /// Sends one request after the other, until the queue is closed.
    pub async fn run(self: Arc<Self>) {
        // Consecutive messages often have the same destination.
        let (mut latest, mut next) = (None, None);
        loop {
            let Some((mut turn, first)) =
                next_of(&self.queue, next.take(), &self.connections, self.options.client.idle_timeout.0).await
            else {
                return;
            };
            let mut recipients = vec![first];
            recipients.extend(turn.take_same());
            let mut each = Vec::new();
            let verdict = self.attempt(&mut recipients, &mut latest, &mut each).await;
            next = self.queue.done(turn, signal(&verdict), &self.name).await;
            if each.is_empty() {
                answer_all(recipients, &verdict.disposition).await;
                continue;
            }
            for (pending, disposition) in recipients.into_iter().zip(each) {
                pending.answer(disposition).await;
            }
        }
    }

    /// Sends one request for the recipients of a message, at least one. `each` receives their results if the response
    /// has a result for each.
    async fn attempt(
        &self,
        recipients: &mut [PendingDelivery],
        latest: &mut Option<Target>,
        each: &mut Vec<Disposition>,
    ) -> Verdict {
        if let Some(reason) = recipients[0].too_late() {
            return Verdict::refused(reason.kind, reason.text);
        }
        let outgoing = &recipients[0].outgoing;
        let url = match self.form.url(outgoing) {
            Ok(url) => url,
            Err(text) => return Verdict::refused(ReasonKind::Address, text),
        };
        let target = match Target::parse_after(latest.as_ref(), &url) {
            Ok(target) => target,
            Err(text) => return Verdict::refused(ReasonKind::Address, text),
        };
        drop(url);
        let target = &*latest.insert(target);
        let id = match &self.form.sharing {
            Some(sharing) => Cow::from(sharing.id(&outgoing.message.message_id, recipients)),
            None => Cow::from(&outgoing.message.message_id),
        };
        if !id.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Verdict::refused(
                ReasonKind::Format,
                "the message id holds characters that no header field may hold",
            );
        }
        let body = self.form.body(recipients);
        let seconds = self.clock.now().as_millis().div_euclid(1000);
        let mut request = Request::new(&self.form.method, target, body.len());
        self.form.write_headers(outgoing, &mut request);
        request.field("webhook-id", &*id);
        request.field("webhook-timestamp", seconds.to_string());
        for (name, value) in outgoing.message.trace_headers() {
            request.field(name, value);
        }
        if let Some(signer) = &self.signer {
            request.field("webhook-signature", signer.sign(&id, seconds, &body));
        }
        let request = request.with_body(&body);
        PendingDelivery::sent_together(recipients);
        let means = |response: &Response| {
            self.answers.classify(response, self.clock.now(), self.options.client.retry_after_max.0)
        };
        let classify = |response: Response| {
            if response.cut && self.form.sharing.as_ref().is_some_and(Sharing::reads_bodies) {
                return response
                    .undecided(response.retry_delay(self.clock.now(), self.options.client.retry_after_max.0));
            }
            let own = self.form.sharing.as_ref().and_then(|sharing| sharing.split(&response, recipients.len()));
            each.extend(own.iter().flatten().map(|own| means(own).disposition));
            means(&response)
        };
        send_classified(&self.connections, target, &request, self.options.client.timeout, classify).await
    }
}

#[async_trait]
impl ProtocolSender for HttpSender {
    /// Devices name the endpoints, so there is no server to check.
    async fn probe(&self) -> Result<String, Reason> {
        let signed = if self.signer.is_some() { "signed" } else { "not signed" };
        match self.form.destination() {
            None => Ok(format!("requests are {signed}; devices name the endpoints")),
            Some(url) => Ok(format!("requests are {signed} and go to {}", origin(url))),
        }
    }

    fn down(&self) -> Option<Reason> {
        None
    }

    fn parts_used(&self) -> PartsUsed {
        self.form.parts_used()
    }
}
