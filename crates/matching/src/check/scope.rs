//! The names that an expression can use.

use std::sync::Arc;

use tocsin_model::field::Fields;

use crate::{expression::UserFunctions, subscriber::SubscriberColumns};

/// The kind of input that expressions are evaluated on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Subject {
    /// `event`, with its fields.
    #[default]
    Event,
    /// `message`, with its properties.
    Message,
}

impl Subject {
    /// The name of its variable.
    pub fn word(self) -> &'static str {
        match self {
            Subject::Event => "event",
            Subject::Message => "message",
        }
    }
}

/// The names that an expression can use.
#[derive(Debug, Clone, Default)]
pub struct Scope {
    /// The kind of input.
    pub subject: Subject,
    /// The fields of `event`.
    pub event: Fields,
    /// The columns of `chronicle`, placed behind the fields of the event.
    pub chronicled: Fields,
    /// The fields of `sub`.
    pub subscription: Fields,
    /// The columns of `subscriber`; `None` where there is none.
    pub subscriber: Option<SubscriberColumns>,
    /// Functions of the application.
    pub functions: UserFunctions,
    /// Further names, which stand for values of any type. A name with dots hides the selection that is spelled the
    /// same.
    pub variables: Vec<Arc<str>>,
}
