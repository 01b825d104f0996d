//! Claims of an ID token: the identity of the user, and its roles.

use std::collections::BTreeMap;

use serde_json::Value;

/// Identity of a user, by the ID token of the provider.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// Subject, which never changes (`sub`).
    pub subject: String,
    /// Login name (`preferred_username`).
    pub name: Option<String>,
    /// Name for display (`name`).
    pub display_name: Option<String>,
    /// Mail address (`email`).
    pub email: Option<String>,
    /// Roles that the values of the role claim map to.
    pub roles: Vec<String>,
}

impl Identity {
    /// Reads the claims; `None`: there is no subject.
    pub(crate) fn of(claims: &Value, roles_claim: &str, roles: &BTreeMap<String, String>) -> Option<Identity> {
        let text = |name: &str| claims.get(name).and_then(Value::as_str).filter(|text| !text.is_empty());
        let subject = text("sub")?.to_owned();
        let mut mapped: Vec<String> =
            values(claims, roles_claim).into_iter().filter_map(|value| roles.get(value)).cloned().collect();
        mapped.sort();
        mapped.dedup();
        Some(Identity {
            subject,
            name: text("preferred_username").map(str::to_owned),
            display_name: text("name").map(str::to_owned),
            email: text("email").map(str::to_owned),
            roles: mapped,
        })
    }
}

/// The texts of a claim: one, or a list. A name with dots is also a path, such as `realm_access.roles`.
fn values<'c>(claims: &'c Value, name: &str) -> Vec<&'c str> {
    let nested = || name.split('.').try_fold(claims, |value, part| value.get(part));
    match claims.get(name).or_else(nested) {
        Some(Value::String(text)) => vec![text],
        Some(Value::Array(list)) => list.iter().filter_map(Value::as_str).collect(),
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn roles_are_those_that_the_values_of_the_claim_map_to() {
        let roles: BTreeMap<String, String> =
            [("ops", "operator"), ("staff", "reader"), ("boss", "admin"), ("duty", "operator")]
                .map(|(value, role)| (value.to_owned(), role.to_owned()))
                .into();
        for (claims, claim, expected) in [
            (json!({"sub": "1", "groups": ["staff", "ops", "duty", "x"]}), "groups", vec!["operator", "reader"]),
            (json!({"sub": "1", "groups": "boss"}), "groups", vec!["admin"]),
            (json!({"sub": "1", "realm_access": {"roles": ["ops"]}}), "realm_access.roles", vec!["operator"]),
            (json!({"sub": "1", "a.b": ["ops"], "a": {"b": ["boss"]}}), "a.b", vec!["operator"]),
            (json!({"sub": "1", "groups": {"ops": true}}), "groups", vec![]),
            (json!({"sub": "1"}), "groups", vec![]),
        ] {
            let identity = Identity::of(&claims, claim, &roles).expect("a subject");
            assert_eq!(identity.roles, expected, "{claims}");
        }
        assert_eq!(Identity::of(&json!({"sub": ""}), "groups", &roles), None);
    }
}
