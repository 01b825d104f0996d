//! Notification classes: fields, delivery policy and digest.

use std::collections::BTreeMap;

use crate::{
    application::NotificationClass,
    definition::{
        build::{
            builder::Builder,
            nodes::{boolean, did_you_mean, duration, integer, name, text},
        },
        document::{Kind, Node, join},
        shape::shown,
    },
    delivery_policy::{DIGEST_ITEMS, DeliveryPolicy, Digest, DigestWindow, Fallback, Priority},
    field::Fields,
    id::Name,
    problem::{Code, Problem},
};

impl<'a> Builder<'a> {
    pub(super) fn notification(&mut self, node: &Node, path: &str) -> NotificationClass {
        let fields = self.fields(node, path);
        NotificationClass {
            delivery_policy: self.delivery_policy(node, path, &fields),
            fields,
            description: text(node, "description"),
            batch_size: integer(node, "batch_size").unwrap_or(BATCH_SIZE),
            expires_after: duration(node, "expires_after"),
            computed: self.computed(node, path),
            retention: duration(node, "retention"),
            content: node
                .get("content")
                .map(|content| self.content(content, &join(path, "content")))
                .unwrap_or_default(),
        }
    }

    pub(super) fn delivery_policy(&mut self, node: &Node, path: &str, fields: &Fields) -> DeliveryPolicy {
        let critical = boolean(node, "critical").unwrap_or(false);
        let send_hours = self.parsed(node, "send_hours", path, "give them as `09:00-18:00` or `09:00-18:00 mo-fr`");
        if critical && let Some(hours) = node.get("send_hours") {
            let problem =
                hours.problem(Code::NotApplicable, &join(path, "send_hours"), "cannot be given for a critical class");
            self.problems.push(problem.hint("critical notifications are sent at any hour; leave one of the two out"));
        }
        let digest = node.get("digest").map(|digest| self.digest(digest, &join(path, "digest"), fields));
        let multicast = node.get("multicast").map(|node| integer(node, "recipient_limit").unwrap_or(RECIPIENT_LIMIT));
        if let (Some(_), Some(multicast)) = (&digest, node.get("multicast")) {
            let problem = multicast.problem(
                Code::ConflictingMembers,
                &join(path, "multicast"),
                "cannot be given together with `digest`",
            );
            let hint = "a digest is for one subscriber, a multicast for many; leave one of the two out";
            self.problems.push(problem.hint(hint));
        }
        let priority = node.get("priority").and_then(Node::text);
        let priority = Priority::ALL.into_iter().find(|known| Some(known.word()) == priority).unwrap_or_default();
        let fallback = self.fallback(node, &join(path, "fallback"));
        DeliveryPolicy { priority, critical, send_hours, digest, multicast, fallback }
    }

    pub(super) fn fallback(&mut self, node: &Node, path: &str) -> Vec<Fallback> {
        let Some(Kind::List(items)) = node.get("fallback").map(|list| &list.kind) else { return Vec::new() };
        let channels: Vec<&str> =
            self.root.get("channels").map_or(&[][..], Node::entries).iter().map(|entry| entry.key.as_str()).collect();
        let mut chain: Vec<Fallback> = Vec::new();
        for (at, item) in items.iter().enumerate() {
            let Some(channel) = name(item, "channel") else { continue };
            let at = format!("{path}[{at}].channel");
            if !channels.contains(&channel.as_str()) {
                let problem = item
                    .problem(
                        Code::UnknownReference,
                        &at,
                        format!("names the channel `{channel}`, which does not exist"),
                    )
                    .param("kind", "channel")
                    .param("value", channel.as_str());
                self.problems.push(problem.hint(did_you_mean(channel.as_str(), &channels, "channels")));
            } else if chain.iter().any(|step| step.channel == channel) {
                let problem = item
                    .problem(Code::Duplicate, &at, format!("names the channel `{channel}` twice"))
                    .param("value", channel.as_str());
                self.problems.push(problem.hint("each is tried once; leave one of the two out"));
            } else {
                chain.push(Fallback { channel, after: duration(item, "after") });
            }
        }
        chain
    }

    pub(super) fn digest(&mut self, node: &Node, path: &str, fields: &Fields) -> Digest {
        let hint = "give `batch`, a time from 1s to 31d such as `10m`, `hourly` or `daily 08:00`";
        let window = self.parsed(node, "window", path, hint).unwrap_or(DigestWindow::Batch);
        if fields.position("digest").is_some() {
            let problem =
                node.problem(Code::ConflictingMembers, path, "cannot be given where a field is called `digest`");
            self.problems.push(problem.hint("templates read the digest by this name; call the field otherwise"));
        }
        let mut by: Vec<Name> = Vec::new();
        let given = node.get("by").map_or(&[][..], |list| if let Kind::List(items) = &list.kind { items } else { &[] });
        for (at, item) in given.iter().enumerate() {
            let Some(field) = item.text().and_then(|text| text.parse::<Name>().ok()) else { continue };
            if fields.position(field.as_str()).is_none() {
                let known: Vec<&str> = fields.iter().map(|field| field.name.as_str()).collect();
                let path = format!("{path}.by[{at}]");
                let problem = item
                    .problem(Code::UnknownReference, &path, format!("`{field}` is not a field of the class"))
                    .param("kind", "field")
                    .param("value", field.to_string());
                self.problems.push(problem.hint(did_you_mean(field.as_str(), &known, "fields")));
            } else if !by.contains(&field) {
                by.push(field);
            }
        }
        Digest { by, window, items_max: integer(node, "items_max").unwrap_or(DIGEST_ITEMS) }
    }

    /// The computed fields of a notification class.
    pub(super) fn computed(&mut self, class: &Node, path: &str) -> BTreeMap<Name, String> {
        let entries = class.get("computed").map_or(&[][..], Node::entries);
        for entry in entries.iter().filter(|entry| class.get("fields").is_some_and(|f| f.get(&entry.key).is_some())) {
            let path = join(&join(path, "computed"), &shown(&entry.key));
            let problem = Problem::new(Code::Duplicate, path, "is also one of the `fields`").hint("keep one of them");
            self.problems.push(problem.position(entry.line, entry.column));
        }
        entries.iter().filter_map(|entry| Some((entry.key.parse().ok()?, entry.value.text()?.to_owned()))).collect()
    }
}

pub(super) const BATCH_SIZE: u32 = 2_500;
pub(super) const RECIPIENT_LIMIT: u32 = 50;
