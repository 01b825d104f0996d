//! One file for each command.

pub mod apply;
pub mod backup;
pub mod bench;
pub mod capacity;
pub mod check;
pub mod chronicles;
pub mod config;
pub mod demo;
pub mod destinations;
pub mod digest;
pub mod directory;
pub mod doctor;
pub mod drain;
pub mod endpoints;
pub mod exchange;
pub mod messages;
pub mod example;
pub mod export;
pub mod firings;
pub mod import;
pub mod inbox;
pub mod devices;
pub mod replica;
pub mod init;
pub mod keys;
mod lists; // what commands that work through a list have in common
pub mod mailbox;
pub mod preview;
pub mod publish;
pub mod reference;
pub mod report;
pub mod resend;
pub mod rule;
pub mod schedules;
pub mod sources;
pub mod segments;
pub mod send_test;
pub mod serve;
pub mod status;
pub mod subscribers;
pub mod suppressions;
pub mod suspended;
pub mod switch;
pub mod trace;
pub mod vapid_key;

#[cfg(test)]
mod fake_server; // answers as a test tells it
