//! NotifyBC interface: the real binary against the statements of NotifyBC's behaviour, each with a test of its number.

mod clients; // 10: calls of scripts and public sites
mod filters; // 7.2: filters of both sides
mod in_app; // 6.1: notifications, and their states for each user
mod inbound; // 8: mails of recipients and mail servers
mod importing; // 14: import of a dump
mod jobs; // 9: scheduled jobs and feeds
mod merging; // 7.3: tokens
mod persistence; // records over a kill, and native changes
mod s3_identity; // 3: identities and permissions
mod s4_http; // 4: conventions and queries
mod s6_records; // 6.2 - 6.5: configurations, bounces, administrators
mod safety; // 11, 12: differences to NotifyBC
mod sending; // 7.1, 7.4 - 7.6: mails, records of broadcasts, SMS
mod server; // one server for a test
mod subscriptions; // 5: the workflow
mod target; // shared servers and their callers

#[path = "../support/mod.rs"]
mod support;
