//! Scripts of messages between A and B, and their transcripts.
//!
//! ```text
//! receive orders {"type": "order", "order": 7}       (a one-way message; messages are numbered from 1)
//! receive orders key=k {"type": "order", "order": 7} (with an idempotency key)
//! request questions {"type": "order", "order": 7}    (a request, whose caller waits for the reply)
//! ask questions {"type": "order", "order": 7}        (a request, whose caller does not wait)
//! poll 2                                             (the caller of message 2 asks for its reply)
//! reply results {"order": 7}                         (a later reply of B, through a receive port)
//! route to_b message.type == 'order'                 (the predicate of a route changes)
//! define OLD => NEW                                  (the definition changes: each OLD becomes NEW)
//! b answers 503 503                                  (to its next requests; after them B works again)
//! b waits | b continues                              (B answers nothing for a while)
//! hold b | activate b | off b                        (the state of a send port)
//! resume | resume 2 | end | end 2                    (an operator acts on suspended or open messages)
//! crash                                              (the process dies and starts again)
//! restart                                            (it stops in order and starts again)
//! ```
//!
//! A line ends when everything that can move has moved. Then the transcript gets what A and B received, with the id of
//! the delivery, and the states of messages that changed, both sorted.

use std::collections::BTreeMap;

use expect_test::Expect;

use super::*;

pub(super) struct Scenario {
    pub bed: Bed,
    text: String,
    /// The messages in the order of the script.
    numbered: Vec<MessageId>,
    /// Number of requests of A and B that are in the transcript.
    shown: [usize; 2],
    states: BTreeMap<MessageId, String>,
    /// Processes that died, with their folders.
    dead: Vec<(Arc<Exchanges>, tempfile::TempDir)>,
    /// Requests of dead processes that B holds.
    orphaned: usize,
    transcript: Vec<String>,
    /// Number of requests of A and B until a crash, and when the next process started.
    pub until_crash: Arc<Mutex<[usize; 2]>>,
    pub since_crash: [usize; 2],
}

/// Runs a script on the definition of these tests, with further options of the send port `b`.
pub(super) async fn check(more_of_b: &str, script: &str, expected: Expect) {
    let mut scenario = Scenario::new(more_of_b).await;
    scenario.run(script).await;
    expected.assert_eq(&scenario.transcript.join("\n"));
}

/// The same with later replies: B accepts messages, and replies through `results`.
pub(super) async fn check_later(script: &str, expected: Expect) {
    let mut scenario = Scenario::later().await;
    scenario.run(script).await;
    expected.assert_eq(&scenario.transcript.join("\n"));
}

impl Scenario {
    pub async fn new(more_of_b: &str) -> Scenario {
        Scenario::with(|a, b| definition(a, b, more_of_b)).await
    }

    pub async fn later() -> Scenario {
        Scenario::with(|a, b| reply_correlation::later(a, b, "1h")).await
    }

    async fn with(text: impl Fn(&FarSide, &FarSide) -> String) -> Scenario {
        let folder = tempfile::tempdir().expect("a folder");
        let (a, b) = (FarSide::start().await, FarSide::start().await);
        // One partition, so that ids are in the order of receipt.
        let exchanges = open_with(folder.path(), Arc::default(), 1).await;
        let text = text(&a, &b);
        let bed = Bed { exchanges, a, b, folder };
        bed.define(&text).await;
        Scenario {
            bed,
            text,
            numbered: Vec::new(),
            shown: [0; 2],
            states: BTreeMap::new(),
            dead: Vec::new(),
            orphaned: 0,
            transcript: Vec::new(),
            until_crash: Arc::default(),
            since_crash: [0; 2],
        }
    }

    pub async fn run(&mut self, script: &str) {
        for line in script.lines().map(str::trim).filter(|line| !line.is_empty()) {
            self.act(line).await;
            self.settle().await;
            self.show().await;
        }
    }

    fn note(&mut self, line: String) {
        self.transcript.push(line);
    }

    async fn act(&mut self, line: &str) {
        let (verb, rest) = line.split_once(' ').unwrap_or((line, ""));
        match (verb, rest) {
            ("receive" | "reply" | "request", _) => self.receive(rest, None).await,
            ("ask", _) => self.receive(rest, Some(Duration::ZERO)).await,
            ("poll", number) => {
                let id = self.id(number);
                let status =
                    self.bed.exchanges.intake.reply_to(id, wait_timeout()).await.expect("read").expect("there");
                self.note(format!("{number} {}", shown_status(&status)));
            }
            ("route", _) => {
                let (route, when) = rest.split_once(' ').expect("a route and its predicate");
                let (start, end) = (format!("  {route}: {{ when: \""), "\", to:");
                let (before, after) = self.text.split_once(&start).expect("the route is defined");
                let (_, after) = after.split_once(end).expect("a predicate");
                self.text = format!("{before}{start}{when}{end}{after}");
                self.bed.define(&self.text).await;
            }
            ("define", _) => {
                let (old, new) = rest.split_once(" => ").expect("old and new");
                assert!(self.text.contains(old), "`{old}` is not in the definition");
                self.text = self.text.replace(old, new);
                self.bed.define(&self.text).await;
            }
            ("b", "waits") => drop(self.bed.b.waits.send_replace(true)),
            ("b", "continues") => {
                self.bed.b.waits.send_replace(false);
                self.orphaned = 0;
            }
            ("b", answers) => {
                let statuses = answers.strip_prefix("answers ").expect("statuses").split(' ');
                self.bed.b.failures.lock().extend(statuses.map(|status| status.parse::<u16>().expect("a status")));
            }
            ("hold", port) => self.set(port, Some(PortState::Hold)).await,
            ("off", port) => self.set(port, Some(PortState::Off)).await,
            ("activate", port) => self.set(port, None).await,
            ("resume", number) => {
                let filter = self.filter(number, MessageStatus::Suspended);
                let acted = self.bed.exchanges.operations.resume(filter, "op").await.expect("resumed");
                self.note(format!("{} resumed", acted.messages));
            }
            ("end", number) => {
                let filter = self.filter(number, MessageStatus::Open);
                let acted = self.bed.exchanges.operations.end(filter, "op").await.expect("ended");
                self.note(format!("{} ended", acted.messages));
            }
            ("crash", "") => {
                let folder = tempfile::tempdir().expect("a folder");
                self.bed.copy_spool(folder.path());
                self.start_from(folder).await;
            }
            ("restart", "") => {
                let _elsewhere = close(&mut self.bed.exchanges).await;
                self.bed.exchanges = open_with(self.bed.folder.path(), Arc::default(), 1).await;
            }
            _ => panic!("`{line}` is no line of a script"),
        }
    }

    /// The process dies, and another starts with this folder.
    pub async fn start_from(&mut self, folder: tempfile::TempDir) {
        // B still holds requests of the process that dies, and answers them to nobody. They are counted before the next
        // process adds its own.
        self.orphaned = self.bed.b.held.load(Ordering::SeqCst);
        let before = std::mem::replace(&mut self.bed.folder, folder);
        let next = open_with(self.bed.folder.path(), Arc::default(), 1).await;
        let died = std::mem::replace(&mut self.bed.exchanges, next);
        died.core.stopping.cancel();
        self.dead.push((died, before));
    }

    async fn receive(&mut self, rest: &str, wait: Option<Duration>) {
        let (port, rest) = rest.split_once(' ').expect("a port and a body");
        let (key, body) = match rest.strip_prefix("key=").map(|rest| rest.split_once(' ').expect("a key and a body")) {
            Some((key, body)) => (Some(key), body),
            None => (None, rest),
        };
        let received = match self.bed.post_waiting(port, body, key, wait).await {
            Ok(received) => received,
            Err(error) => return self.note(format!("refused: {error}")),
        };
        let known = self.numbered.iter().position(|id| *id == received.id);
        let number = known.unwrap_or_else(|| {
            self.numbered.push(received.id);
            self.numbered.len() - 1
        });
        let again = if received.duplicate { " again" } else { "" };
        self.note(format!("{}{again} {}", number + 1, shown_status(&received.reply_status)));
    }

    fn id(&self, number: &str) -> MessageId {
        self.numbered[number.parse::<usize>().expect("a number") - 1]
    }

    fn filter(&self, number: &str, standing: MessageStatus) -> MessageFilter {
        let id = (!number.is_empty()).then(|| self.id(number));
        MessageFilter { id, standing: Some(standing), ..MessageFilter::default() }
    }

    async fn set(&self, port: &str, state: Option<PortState>) {
        self.bed.exchanges.operations.set_port(&name("orders"), &name(port), state).await.expect("set");
    }

    /// Waits until nothing is to be sent but to held ports and to a receiver that waits.
    pub async fn settle(&self) {
        let settling = async {
            loop {
                let now = self.bed.exchanges.core.now();
                let waiting = self.bed.exchanges.operations.waiting_messages(now).await.expect("counted");
                let waits = *self.bed.b.waits.borrow();
                let held = if waits { self.bed.b.held.load(Ordering::SeqCst) - self.orphaned } else { 0 };
                if waiting.due + waiting.later == held as u64 {
                    return;
                }
                tokio::task::yield_now().await;
            }
        };
        let settled = tokio::time::timeout(wait_timeout(), settling).await;
        settled.unwrap_or_else(|_| panic!("nothing moves after:\n{}", self.transcript.join("\n")));
    }

    /// All messages, oldest first.
    pub async fn messages(&self) -> Vec<StoredMessage> {
        let all = self.bed.exchanges.operations.messages(MessageFilter::default(), None, 1_000).await;
        let mut all = all.expect("read");
        all.reverse();
        all
    }

    /// Adds what happened to the transcript.
    async fn show(&mut self) {
        let messages = self.messages().await;
        let labels: BTreeMap<MessageId, String> =
            messages.iter().map(|message| (message.id, self.label(message))).collect();
        for (at, side) in ["a", "b"].into_iter().enumerate() {
            let requests = if side == "a" { self.bed.a.all() } else { self.bed.b.all() };
            let lines = requests[self.shown[at]..].iter().map(|request| {
                let delivery = &request.headers["webhook-id"];
                let (id, leg) = delivery.split_at(delivery[2..].find('-').expect("a leg") + 2);
                let label = id.parse().ok().and_then(|id| labels.get(&id).cloned()).unwrap_or_default();
                let path = if request.path == "/b" { String::new() } else { format!(" at {}", request.path) };
                format!("{side} <- {label}{leg}{path}: {}", request.body)
            });
            self.transcript.extend(sorted(lines));
            self.shown[at] = requests.len();
        }
        let mut changed = Vec::new();
        for message in messages {
            let state = state_of(&message);
            if self.states.insert(message.id, state.clone()) != Some(state.clone()) {
                changed.push(format!("{} {state}", labels[&message.id]));
            }
        }
        self.transcript.extend(sorted(changed.into_iter()));
    }

    /// The number of a message in the script, or what it is to a numbered one.
    fn label(&self, message: &StoredMessage) -> String {
        let number = |id: MessageId| match self.numbered.iter().position(|known| *known == id) {
            Some(at) => (at + 1).to_string(),
            None => "another".to_owned(),
        };
        match (message.answers, message.part_of) {
            _ if self.numbered.contains(&message.id) => number(message.id),
            (Some(request), _) => format!("reply to {}", number(request)),
            (None, Some(whole)) => format!("part of {}", number(whole)),
            (None, None) => "another".to_owned(),
        }
    }
}

/// Messages are sent concurrently: lines of one step have no order.
fn sorted(lines: impl Iterator<Item = String>) -> Vec<String> {
    let mut lines: Vec<String> = lines.collect();
    lines.sort();
    lines
}

fn shown_status(status: &ReplyStatus) -> String {
    match status {
        ReplyStatus::Stored => "stored".to_owned(),
        ReplyStatus::Replied { body, .. } => format!("replied {}", String::from_utf8_lossy(body)),
        ReplyStatus::Pending => "pending".to_owned(),
        ReplyStatus::Suspended(reason) => format!("suspended: {reason}"),
        ReplyStatus::Expired => "expired".to_owned(),
        ReplyStatus::Ended => "ended".to_owned(),
    }
}

/// The state of a message and of its open legs.
pub(super) fn state_of(message: &StoredMessage) -> String {
    if let Some(ending) = message.ending {
        return format!("is {}", ending.word());
    }
    if let Some(reason) = &message.suspended {
        return format!("is suspended: {reason}");
    }
    let open = message.legs.iter().filter_map(|leg| match leg.state {
        LegState::Waiting => Some(format!("waits for {}", leg.port)),
        LegState::Awaiting => Some(format!("awaits the reply of {}", leg.port)),
        LegState::Suspended => {
            Some(format!("is suspended at {}: {}", leg.port, leg.said.as_deref().unwrap_or_default()))
        }
        LegState::Done | LegState::Ended => None,
    });
    open.collect::<Vec<_>>().join(", ")
}
