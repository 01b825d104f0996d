//! Renders a notification, or several as a digest, into the message that its channel sends.

use std::{panic::AssertUnwindSafe, sync::Arc};

use serde_json::{Map, Value as Json, json};
use tocsin_delivery::{ConfirmLink, Facts, Message};
use tocsin_formatting::{DeviceScope, DigestItem, DigestScope, LinkScope, Scope};
use tocsin_matching::notify::NotifyFields;
use tocsin_model::{
    content::{Content, PartsUsed},
    field::Row,
    id::Name,
    receipt::{Reason, ReasonKind},
    subscriber::Device,
    time::Timestamp,
};
use tocsin_store::records::Recipient;

use crate::{
    Flow,
    load_work::Loaded,
    render_cache::{RenderCache, RenderedContent},
};

/// Content, machine-readable fields, and whether it depends on the recipient.
type Formatted = (Content, Map<String, Json>, bool);

/// A notification of a work item.
#[derive(Clone, Copy)]
pub(crate) struct Member<'l> {
    pub loaded: &'l Loaded,
    pub ordinal: u32,
}

/// Renders the message for these notifications, at least one; several make a digest. Panics are caught. Only the
/// parts in use are rendered, and shared through the render cache.
pub(crate) fn render(
    flow: &Flow,
    members: &[Member<'_>],
    recipient: &Recipient,
    to: (&Name, &Device),
    used: PartsUsed,
    cache: &mut RenderCache,
    now: Timestamp,
) -> Result<Message, Reason> {
    let Member { loaded, ordinal } = members[0];
    let head = &loaded.batch.head;
    let (_, Device { channel, .. }) = to;
    let (content, fields) = match cache.find(loaded, ordinal, channel, &recipient.profile, now) {
        Some(shared) => {
            loaded.counters.formatted.increment(1);
            shared
        }
        None => {
            let (shared, personal) = make(flow, members, recipient, to, used, now)?;
            if !personal {
                cache.insert(loaded, ordinal, channel, &recipient.profile, now, &shared);
            }
            shared
        }
    };
    Ok(Message {
        message_id: format!("{}.{}", loaded.id(ordinal), flow.installation.installation()),
        content,
        facts: Facts {
            application: head.application.clone(),
            class: head.class.clone(),
            event: Some(loaded.event_of[ordinal as usize]),
            fields,
        },
        formatted_at: now,
        priority: loaded.delivery_policy.priority,
        // A digest expires with the last of its notifications.
        expires_at: members.iter().map(|member| member.loaded.batch.head.expires_at).reduce(later).flatten(),
        place: flow.spans.place(members.iter().map(|member| member.loaded.trace(member.ordinal))),
        withdrawal: loaded.broadcast.as_ref().map(|signal| signal.withdrawal()),
    })
}

/// Formats and counts it. The flag says whether it depends on the recipient.
fn make(
    flow: &Flow,
    members: &[Member<'_>],
    recipient: &Recipient,
    to: (&Name, &Device),
    used: PartsUsed,
    now: Timestamp,
) -> Result<(RenderedContent, bool), Reason> {
    let formatted = std::panic::catch_unwind(AssertUnwindSafe(|| format(flow, members, recipient, to, used, now)));
    let formatted = formatted.unwrap_or_else(|_| {
        metrics::counter!("tocsin_format_panics_total").increment(1);
        Err(Reason::new(ReasonKind::Internal, "formatting it made the formatter panic"))
    });
    let counters = &members[0].loaded.counters;
    let counter = if formatted.is_ok() { &counters.formatted } else { &counters.format_failed };
    counter.increment(1);
    let (content, fields, personal) = formatted?;
    Ok(((Arc::new(content), Arc::new(fields.into())), personal))
}

/// The later of two expiry times; `None` means never.
fn later(one: Option<Timestamp>, other: Option<Timestamp>) -> Option<Timestamp> {
    Some(one?.max(other?))
}

/// Computes the fields of the notifications and renders their templates.
fn format(
    flow: &Flow,
    members: &[Member<'_>],
    recipient: &Recipient,
    (device_name, device): (&Name, &Device),
    used: PartsUsed,
    now: Timestamp,
) -> Result<Formatted, Reason> {
    let Member { loaded, ordinal } = members[0];
    let (compiled, head) = (&loaded.compiled, &loaded.batch.head);
    let notify = loaded.notify()?;
    let formatter =
        compiled.formatters.get(&head.class).ok_or_else(|| loaded.missing_reason("notification class", &head.class))?;
    let event = loaded.event(ordinal)?;
    // Most templates do not use the event's values, so they are read on demand.
    let class =
        compiled.application.subscriptions.get(&recipient.interest.class).filter(|_| formatter.uses_subscription());
    let class_fields = class.map(|class| class.fields.clone()).unwrap_or_default();
    let parameters = class_fields
        .row_from_stored(&recipient.interest.values)
        .map_err(|damaged| Reason::new(ReasonKind::Internal, format!("{}: {damaged}", recipient.subscription)))?;
    let digest = loaded.delivery_policy.digest.as_ref();
    let shown = digest.map_or(1, |digest| members.len().min(digest.items_max as usize));
    let rows: Vec<Row> =
        members[..shown].iter().map(|member| member.loaded.fields(member.ordinal)).collect::<Result<_, _>>()?;
    let items: Vec<DigestItem<'_>> = match digest {
        Some(_) => members.iter().zip(&rows).map(|(member, fields)| item(member, fields)).collect::<Result<_, _>>()?,
        None => Vec::new(),
    };
    let uses_links = formatter.uses_links();
    let preferences = uses_links.then(|| flow.context.preferences_link(recipient.number, now)).flatten();
    let open = recipient.interest.consent_request.filter(|_| uses_links);
    let request = open.map(|request| ConfirmLink { subscription: recipient.subscription, request });
    let confirm = request.and_then(|request| flow.context.confirm_link(request));
    let code = request.map(|request| flow.context.token_signer.consent().code(request));
    let links = LinkScope { preferences: preferences.as_deref(), confirm: confirm.as_deref(), code: code.as_deref() };
    let scope = Scope {
        id: loaded.id(ordinal),
        rule: &head.rule,
        matched_at: head.matched_at,
        accepted_at: event.accepted_at,
        now,
        fields: &rows[0],
        event: &event.scope,
        subscriber: &recipient.id,
        profile: &recipient.profile,
        subscription: (&class_fields, &parameters),
        device: DeviceScope { name: device_name.as_str(), channel: device.channel.as_str(), address: &device.address },
        digest: digest.map(|_| DigestScope { items: &items, count: members.len() }),
        links,
    };
    let locale = recipient.profile.locale.as_deref();
    let edited = loaded.edit.as_ref().and_then(|edit| edit.content.clone());
    let (content, computed, personal) = match edited {
        Some(edited) => (edited.into(), Vec::new(), true),
        None => {
            let work = || formatter.format_parts(locale, device.channel.as_str(), &scope, used);
            // Stylesheets block: they run in another process.
            let formatted = if formatter.has_stylesheets() { crate::keep_busy(work) } else { work() };
            let formatted = formatted.map_err(|error| error.reason())?;
            (formatted.content, formatted.computed, formatted.personal)
        }
    };
    let mut facts = match digest {
        Some(_) => {
            let items = rows.into_iter().map(|row| Json::Object(facts(notify, row)));
            Map::from_iter([("count".to_owned(), json!(members.len())), ("items".to_owned(), items.collect())])
        }
        None => facts(notify, rows.into_iter().next().unwrap_or_default()),
    };
    let computed = computed.into_iter().filter(|(_, value)| !value.is_null());
    facts.extend(computed.map(|(name, value)| (name.to_string(), value)));
    Ok((content, facts, personal))
}

fn item<'l>(member: &Member<'l>, fields: &'l Row) -> Result<DigestItem<'l>, Reason> {
    let (head, event) = (&member.loaded.batch.head, member.loaded.event(member.ordinal)?);
    Ok(DigestItem {
        id: member.loaded.id(member.ordinal),
        rule: &head.rule,
        matched_at: head.matched_at,
        accepted_at: event.accepted_at,
        fields,
        event: &event.scope,
    })
}

/// The fields as a JSON object, without nulls.
pub(crate) fn facts(notify: &NotifyFields, row: Row) -> Map<String, Json> {
    let named = notify.fields().iter().zip(row).filter(|(_, value)| !value.is_null());
    named.map(|(field, value)| (field.name.to_string(), value.into())).collect()
}
