use std::{borrow::Cow, sync::Arc, time::Duration};

use async_trait::async_trait;
use rustls::ClientConfig;
use tocsin_model::{
    content::PartsUsed,
    id::Name,
    receipt::{Disposition, Reason, ReasonKind},
};
use tokio::time::timeout;

use super::{
    classify::{Answers, Load, Response, Verdict},
    connect::{Connections, Dial, NoResponse, Target},
    options::HttpOptions,
    request::{Form, Request},
    sign::Signer,
};
use crate::{
    channel::{Clock, Context},
    flow::lanes::Signal,
    options::Wait,
    pending::{Pending, answer_all},
    queue::{Queue, Turn},
    running::FarSide,
};

/// What the sessions of a channel share.
pub(super) struct Courier {
    name: Name,
    options: HttpOptions,
    form: Form,
    answers: Answers,
    signer: Option<Signer>,
    connections: Connections,
    clock: Arc<dyn Clock>,
    queue: Arc<Queue>,
}

impl Courier {
    /// The options must be free of problems.
    pub fn new(
        name: &Name,
        options: HttpOptions,
        dial: Arc<dyn Dial>,
        trust: Arc<ClientConfig>,
        context: &Context,
        queue: Arc<Queue>,
    ) -> Self {
        let options = options.complete().expect("checked options have a recipe");
        let signer =
            options.secret.as_deref().map(|secret| Signer::new(secret).expect("checked options have good secrets"));
        let form = Form::read(&options, &options.with).expect("checked options make a request");
        let answers = Answers::read(&options.answers).expect("checked options have good rules");
        let networks = context.networks.with(&options.allow_networks, &options.allow_hosts);
        let connections = Connections::new(dial, (*trust).clone(), networks, options.idle_timeout.0);
        let clock = context.clock.clone();
        Courier { name: name.clone(), options, form, answers, signer, connections, clock, queue }
    }

    /// The destination of an address: scheme, host and port as written.
    pub fn lane_of<'a>(&self, address: &'a str) -> Cow<'a, str> {
        match self.form.destination() {
            None => origin(address),
            Some(url) => origin(url).into_owned().into(),
        }
    }

    /// One request after the other, until the queue is closed.
    pub async fn run(self: Arc<Self>) {
        // Messages to one destination often follow each other.
        let (mut latest, mut next) = (None, None);
        loop {
            let Some((mut turn, first)) =
                next_of(&self.queue, next.take(), &self.connections, self.options.idle_timeout.0).await
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

    /// Makes one request for recipients of the same message, of whom there is one at least. If its response tells them
    /// apart, `each` is what became of each of them.
    async fn attempt(
        &self,
        recipients: &mut [Pending],
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
        Pending::sent_together(recipients);
        let means =
            |response: &Response| self.answers.classify(response, self.clock.now(), self.options.retry_after_max.0);
        let classify = |response: Response| {
            let own = self.form.sharing.as_ref().and_then(|sharing| sharing.split(&response, recipients.len()));
            each.extend(own.iter().flatten().map(|own| means(own).disposition));
            means(&response)
        };
        ask(&self.connections, target, &request, self.options.timeout, classify).await
    }
}

/// What a session does next: what it was given, or what it waits for. Connections that nobody wanted for `idle` are
/// closed meanwhile. Nothing when the queue is closed.
pub(crate) async fn next_of(
    queue: &Arc<Queue>,
    given: Option<(Turn, Pending)>,
    connections: &Connections,
    idle: Duration,
) -> Option<(Turn, Pending)> {
    if given.is_some() {
        return given;
    }
    loop {
        match timeout(idle, queue.take()).await {
            Ok(taken) => return taken,
            Err(_) => connections.sweep(),
        }
    }
}

/// Sends a request, and says what its response means, or that there is none.
pub(crate) async fn ask(
    connections: &Connections,
    target: &Target,
    request: &[u8],
    patience: Wait,
    classify: impl FnOnce(Response) -> Verdict,
) -> Verdict {
    match timeout(patience.0, connections.exchange(target, request)).await {
        Ok(Ok(response)) => classify(response),
        Ok(Err(NoResponse::Trouble(reason))) => Verdict::deferred(reason),
        Ok(Err(NoResponse::Closed(reason))) => Verdict::refused(reason.kind, reason.text),
        Err(_) => {
            let text = format!("no complete response within {patience}");
            Verdict::deferred(Reason::new(ReasonKind::Timeout, text))
        }
    }
}

/// Scheme, host and port of a URL as written. All after the host may be missing.
pub(crate) fn origin(url: &str) -> Cow<'_, str> {
    let start = url.find("//").map_or(0, |at| at + 2);
    let (mut end, mut at) = (url.len(), None);
    for (place, byte) in url.bytes().enumerate().skip(start) {
        match byte {
            b'/' | b'?' | b'#' | b'\\' => {
                end = place;
                break;
            }
            b'@' => at = Some(place),
            _ => {}
        }
    }
    match at {
        // It will be refused; nobody needs to see the password in a list.
        Some(at) => format!("{}{}", &url[..start], &url[at + 1..end]).into(),
        None => url[..end].into(),
    }
}

/// What a verdict says about its destination.
pub(crate) fn signal(verdict: &Verdict) -> Signal {
    match &verdict.disposition {
        Disposition::Deferred { retry_after, .. } if verdict.load == Load::Less => Signal::Slower(*retry_after),
        Disposition::Delivered { .. } => Signal::Fine,
        Disposition::Refused { reason } => match reason.kind {
            ReasonKind::Answer | ReasonKind::Gone => Signal::Fine,
            _ => Signal::Unasked,
        },
        Disposition::Deferred { reason, .. } => match reason.kind {
            ReasonKind::Answer if verdict.load == Load::Over => Signal::Overloaded(reason.text.clone()),
            ReasonKind::Answer | ReasonKind::Authentication => Signal::Failed(reason.text.clone()),
            _ => Signal::Silent(reason.text.clone()),
        },
    }
}

#[async_trait]
impl FarSide for Courier {
    /// Far sides are the devices' own, so there is none to reach.
    async fn probe(&self) -> Result<String, Reason> {
        let signed = if self.signer.is_some() { "signed" } else { "not signed" };
        match self.form.destination() {
            None => Ok(format!("requests are {signed}; their far sides are named by the devices")),
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
