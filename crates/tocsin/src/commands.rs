//! Implementation of the commands, one file each.

pub mod applications;
pub mod apply;
pub mod attention;
pub mod audit;
pub mod backup;
#[cfg(feature = "bench")]
pub mod bench;
pub mod broadcast;
pub mod capacity;
pub mod check;
pub mod chronicles;
pub mod config;
pub mod consent;
pub mod delayed;
pub mod demo;
pub mod destinations;
pub mod directory;
pub mod doctor;
pub mod drain;
pub mod endpoints;
pub mod exchange;
pub mod messages;
pub mod notifications;
pub mod notifybc;
pub mod events;
pub mod example;
pub mod export;
pub mod firings;
pub mod help;
pub mod import;
pub mod inbox;
pub mod replica;
pub mod init;
pub mod keys;
pub mod users;
pub mod console;
mod event_stream; // client of server-sent events
mod lists; // tables, filters and arguments shared by commands that list
pub mod mailbox;
pub mod preview;
pub mod publish;
pub mod reference;
pub mod report;
pub mod resend;
pub mod rule;
pub mod schedules;
pub mod series;
pub mod sources;
pub mod search;
pub mod segments;
pub mod send;
pub mod send_test;
pub mod serve;
pub mod status;
pub mod subscribers;
pub mod subscriptions;
pub mod feedback;
pub mod suppressions;
pub mod unsubscribe;
pub mod sync;
pub mod suspended;
pub mod switch;
pub mod trace;
pub mod explain;
pub mod vapid_key;

#[cfg(test)]
mod fake_server; // a server with scripted responses
