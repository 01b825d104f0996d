//! Replies of a server in the session that sends a mail.

use crate::{
    addresses,
    classify::classify,
    excerpt::comparable,
    feedback::Class,
    signals::{Signals, Stage},
};

/// The command that a server refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command {
    /// `MAIL FROM`.
    Mail,
    /// `RCPT TO`.
    Recipient,
    /// `DATA`, its end or the last chunk of `BDAT`.
    Data,
}

/// The class of a negative reply, such as `550 5.1.1 no such user`, by the classification table.
pub fn class(command: Command, reply: &str) -> Class {
    let mut signals = Signals::of(comparable(&addresses::without_addresses(reply)));
    signals.stage = Some(match command {
        Command::Mail => Stage::Mail,
        Command::Recipient => Stage::Recipient,
        Command::Data => Stage::Data,
    });
    let is_transient = signals.reply.is_some_and(|reply| reply < 500);
    match classify(&signals).class {
        // Servers combine codes that contradict each other; a transient one is never hard.
        Class::Hard if is_transient => Class::Soft,
        class => class,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_refused_command_decides_what_the_words_mean() {
        use Command::{Data, Mail, Recipient};
        for (command, reply, expected) in [
            (Recipient, "550 5.1.1 <a@b.example>: User unknown", Class::Hard),
            (Recipient, "550 no such user", Class::Hard),
            (Recipient, "556 5.1.10 the domain takes no mail", Class::Hard),
            (Data, "550 5.1.1 no such user", Class::Hard),
            (Recipient, "552 5.2.2 mailbox full", Class::Soft),
            (Recipient, "450 5.1.1 later", Class::Soft),
            (Recipient, "550 5.7.1 no 5.1.1 here", Class::Blocked),
            (Recipient, "554 5.7.1 Service unavailable; client blocked using zen.example", Class::Blocked),
            (Data, "554 5.7.1 the message looks like spam", Class::Blocked),
            (Mail, "550 5.7.23 the sender is not allowed by SPF", Class::Blocked),
        ] {
            assert_eq!(class(command, reply), expected, "{command:?} {reply}");
        }
    }
}
