//! JSON merge patch (RFC 7396). Crates: docs/decisions/0042.

use serde_json::{Map, Value};

/// A patch is nested more deeply than its reader allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooDeep;

/// Applies a merge patch: null removes, objects merge, everything else replaces.
///
/// # Errors
/// Objects are nested in more than `depth` others; the target may have changed in part.
pub fn merge_patch(target: &mut Value, patch: &Value, depth: usize) -> Result<(), TooDeep> {
    let Value::Object(changes) = patch else {
        target.clone_from(patch);
        return Ok(());
    };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let members = target.as_object_mut().expect("it was just made an object");
    for (name, change) in changes {
        if change.is_null() {
            members.shift_remove(name);
        } else {
            merge_patch(members.entry(name).or_insert(Value::Null), change, depth.checked_sub(1).ok_or(TooDeep)?)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_patch_merges_as_rfc_7396_says() {
        let check = |target: &str, patch: &str, expected: &str| {
            let mut target: Value = serde_json::from_str(target).expect("JSON");
            merge_patch(&mut target, &serde_json::from_str(patch).expect("JSON"), 2).expect("a patch");
            assert_eq!(target, serde_json::from_str::<Value>(expected).expect("JSON"));
        };
        // From the RFC's appendix A.
        check(r#"{"a":"b"}"#, r#"{"a":"c"}"#, r#"{"a":"c"}"#);
        check(r#"{"a":"b","b":"c"}"#, r#"{"a":null}"#, r#"{"b":"c"}"#);
        check(r#"{"a":["b"]}"#, r#"{"a":"c"}"#, r#"{"a":"c"}"#);
        check(r#"{"a":{"b":"c"}}"#, r#"{"a":{"b":"d","c":null}}"#, r#"{"a":{"b":"d"}}"#);
        check(r#"{"a":[{"b":"c"}]}"#, r#"{"a":[1]}"#, r#"{"a":[1]}"#);
        check(r#"{}"#, r#"{"a":{"bb":{"ccc":null}}}"#, r#"{"a":{"bb":{}}}"#);
    }

    #[test]
    fn depth_is_bounded() {
        let patch = serde_json::json!({"a": {"b": {"c": 1}}});
        assert_eq!(merge_patch(&mut Value::Null, &patch, 2), Err(TooDeep));
        assert_eq!(merge_patch(&mut Value::Null, &patch, 3), Ok(()));
    }
}
