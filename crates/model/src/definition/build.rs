//! Builds the application from checked nodes. Nodes of the wrong shape were reported already and are skipped. This
//! stage reports what needs the whole definition: missing names and types that do not agree.

mod nodes; // values of nodes
mod builder; // sections of named parts, fields
mod templates; // templates by channel and locale
mod notifications; // notification classes
mod endpoints; // sources, channels and functions
mod rules; // rules and their schedules
mod lifecycle; // event classes bound to the life of subscriptions, delays of rules
mod chronicles; // chronicles of event classes
mod collections; // collections
mod consent; // double opt-in of subscription classes
mod pages; // hosted pages: branding, and the titles of classes
mod raises; // events raised by row changes
mod broadcasts; // names that broadcasts reserve

use std::collections::BTreeMap;

use crate::{
    application::{
        Application, EventClass, Limits, Ordered, Retention, SubscriptionClass, TemplateEngine, TemplateText,
    },
    definition::{
        build::{
            builder::Builder,
            nodes::{presence, throttle},
        },
        document::{Kind, Node, join},
    },
    filter::Dialect,
    problem::Problem,
};

pub(super) use nodes::{boolean, did_you_mean, duration, field_type, integer, name, options, retry, text};

/// Builds the application, as far as it has no problems; they are in `problems`.
pub fn application(root: &Node, problems: &mut Vec<Problem>) -> Application {
    let mut builder = Builder { root, problems };
    let mut application = Application {
        name: name(root, "application").unwrap_or_else(|| "unnamed".parse().expect("`unnamed` is a name")),
        description: text(root, "description"),
        events: builder.section("events", |_, path, node, builder| {
            let (lifecycle, fields) = builder.bound_fields(node, path);
            let chronicles = builder.chronicles(node, path, &fields);
            let ordered = node.get("ordered");
            let ordered = ordered.map(|given| Ordered { by: builder.key(given, &join(path, "ordered"), &fields) });
            let (retention, throttle) = (duration(node, "retention"), throttle(node, "throttle"));
            let description = text(node, "description");
            EventClass { fields, description, chronicles, ordered, retention, throttle, lifecycle }
        }),
        attributes: builder.named_fields(root, "attributes", "attributes"),
        subscriptions: builder.section("subscriptions", |_, path, node, builder| SubscriptionClass {
            fields: builder.fields(node, path),
            description: text(node, "description"),
            filter: dialects(node),
            schedule: presence(node, "schedule"),
            consent: builder.consent(node, path),
        }),
        notifications: builder.section("notifications", |_, path, node, builder| builder.notification(node, path)),
        partials: builder.section("partials", |_, path, node, builder| {
            let text = builder.template_text(node, path, TemplateEngine::Jinja);
            text.unwrap_or_else(|| TemplateText::from(""))
        }),
        functions: builder.section("functions", |_, path, node, builder| builder.function(node, path)),
        rules: BTreeMap::new(),
        channels: builder.section("channels", |_, path, node, builder| builder.channel(node, path)),
        sources: builder.section("sources", |_, path, node, builder| builder.source(node, path)),
        collections: builder.section("collections", |_, path, node, builder| builder.collection(node, path)),
        retention: retention(root),
        limits: limits(root),
        pages: builder.pages(root),
    };
    builder.add_due_class(&mut application);
    let rules = builder.rules(&application);
    builder.check_order(&application, &rules);
    builder.check_lifecycle(&application, &rules);
    builder.check_collections(&application.collections);
    builder.check_raises(&application);
    builder.check_endpoint_events(&application);
    builder.check_broadcast_names();
    Application { rules, ..application }
}

fn retention(root: &Node) -> Retention {
    let given = |key: &str| root.get("retention").and_then(|node| duration(node, key));
    let default = Retention::default();
    Retention {
        finished: given("finished").unwrap_or(default.finished),
        idempotency: given("idempotency").unwrap_or(default.idempotency),
    }
}

/// The distinct dialects of a class's filters.
fn dialects(class: &Node) -> Vec<Dialect> {
    let given: Vec<&Node> = match class.get("filter").map(|node| (&node.kind, node)) {
        Some((Kind::List(items), _)) => items.iter().collect(),
        Some((_, node)) => vec![node],
        None => Vec::new(),
    };
    let mut dialects: Vec<Dialect> = Vec::new();
    for dialect in given.into_iter().filter_map(|node| node.text()?.parse().ok()) {
        if !dialects.contains(&dialect) {
            dialects.push(dialect);
        }
    }
    dialects
}

fn limits(root: &Node) -> Limits {
    let node = root.get("limits");
    let default = Limits::default();
    let given = |key: &str| node.and_then(|node| integer(node, key)).map(u64::from);
    Limits {
        subscriptions: given("subscriptions").unwrap_or(default.subscriptions),
        distinct_filters: given("distinct_filters").unwrap_or(default.distinct_filters),
        unindexed_filters: given("unindexed_filters").unwrap_or(default.unindexed_filters),
        notifications_per_event: given("notifications_per_event").unwrap_or(default.notifications_per_event),
        delayed_notifications: given("delayed_notifications").unwrap_or(default.delayed_notifications),
        throttle: node.and_then(|node| throttle(node, "throttle")),
        schedule_throttle: node.and_then(|node| throttle(node, "schedule_throttle")),
        skip_older_than: node.and_then(|node| duration(node, "skip_older_than")),
        schedule_interval: node
            .and_then(|node| duration(node, "schedule_interval"))
            .unwrap_or(default.schedule_interval),
    }
}
