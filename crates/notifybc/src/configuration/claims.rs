//! Conditions over the claims of a token. They replace the JavaScript functions of a NotifyBC configuration.

use serde_json::Value;

/// A condition over one claim.
#[derive(Debug, Clone, PartialEq)]
pub struct ClaimCondition {
    /// The path of the claim.
    pub claim: Vec<String>,
    /// The operator.
    pub operator: ClaimOperator,
    /// The operand.
    pub value: Value,
}

/// The operator of a condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClaimOperator {
    /// The claim is a list with the value, or a text with it as one of its words.
    Contains,
    /// The claim equals the value.
    Equals,
    /// The claim is present and not `null`.
    Exists,
}

/// Whether one of the conditions holds.
pub fn any_holds(conditions: &[ClaimCondition], claims: &Value) -> bool {
    conditions.iter().any(|condition| condition.holds(claims))
}

impl ClaimCondition {
    /// A list that contains a text.
    pub fn contains(claim: &str, value: &str) -> ClaimCondition {
        ClaimCondition { claim: path(claim), operator: ClaimOperator::Contains, value: Value::from(value) }
    }

    /// A claim with this value.
    pub fn equals(claim: &str, value: Value) -> ClaimCondition {
        ClaimCondition { claim: path(claim), operator: ClaimOperator::Equals, value }
    }

    /// One condition, or a list of alternatives.
    pub(super) fn parse_list(value: &Value) -> Option<Vec<ClaimCondition>> {
        match value {
            Value::Array(items) => items.iter().map(ClaimCondition::parse).collect(),
            item => Some(vec![ClaimCondition::parse(item)?]),
        }
    }

    fn parse(value: &Value) -> Option<ClaimCondition> {
        let claim = match value.get("claim")? {
            Value::String(text) => path(text),
            // A list of names, for names with a point.
            Value::Array(names) => names.iter().map(|name| name.as_str().map(str::to_owned)).collect::<Option<_>>()?,
            _ => return None,
        };
        let operand = value.get("value");
        let operator = match value.get("operator").map(Value::as_str) {
            None => ClaimOperator::Equals,
            Some(Some("contains" | "includes")) => ClaimOperator::Contains,
            Some(Some("equals" | "eq" | "==" | "is")) => ClaimOperator::Equals,
            Some(Some("exists")) => ClaimOperator::Exists,
            Some(_) => return None,
        };
        if operand.is_none() && operator != ClaimOperator::Exists {
            return None;
        }
        Some(ClaimCondition { claim, operator, value: operand.cloned().unwrap_or(Value::Bool(true)) })
    }

    /// Whether the condition holds for the claims of a token.
    pub fn holds(&self, claims: &Value) -> bool {
        let found = self.claim.iter().try_fold(claims, |value, name| value.get(name));
        let Some(found) = found.filter(|found| !found.is_null()) else {
            return self.operator == ClaimOperator::Exists && self.value == Value::Bool(false);
        };
        match self.operator {
            ClaimOperator::Exists => self.value != Value::Bool(false),
            ClaimOperator::Equals => *found == self.value,
            ClaimOperator::Contains => match found {
                Value::Array(items) => items.contains(&self.value),
                Value::String(text) => {
                    self.value.as_str().is_some_and(|word| text.split_whitespace().any(|w| w == word))
                }
                _ => false,
            },
        }
    }
}

fn path(text: &str) -> Vec<String> {
    text.split('.').map(str::to_owned).collect()
}
