//! Classification of the signals about one recipient by the [table](crate::rules).

use crate::{
    feedback::{Action, Class},
    rules::{RULES, Rule, Verdict},
    signals::Signals,
};

/// No row matches.
pub(crate) const UNKNOWN: Verdict = Verdict { class: Class::Unknown, rule: "none", is_general: true };

/// The class of the first row that matches.
pub(crate) fn classify(signals: &Signals) -> Verdict {
    let found = RULES.iter().find(|rule| rule.matches(signals));
    found.map_or(UNKNOWN, Rule::verdict)
}

/// The same with the action of a delivery status notification: a delayed mail is not hard yet.
pub(crate) fn classify_with(action: Option<Action>, signals: &Signals) -> Verdict {
    let verdict = classify(signals);
    match action {
        Some(Action::Delivered | Action::Relayed | Action::Expanded) => {
            Verdict { class: Class::Delivered, rule: "action.success", is_general: false }
        }
        Some(Action::Delayed) if matches!(verdict.class, Class::Hard | Class::Unknown) => {
            Verdict { class: Class::Soft, rule: "action.delayed", is_general: verdict.is_general }
        }
        Some(Action::Failed) if verdict.class == Class::Unknown => {
            Verdict { class: Class::Soft, rule: "action.failed", is_general: true }
        }
        _ => verdict,
    }
}
