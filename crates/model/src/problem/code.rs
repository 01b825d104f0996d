//! Codes of problems: the stable machine-readable kind beside the message.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

macro_rules! codes {
    ($($name:ident $word:literal [$($param:literal)*] $meaning:literal $fix:literal;)*) => {
        /// Kind of a problem. A code never changes its meaning; new ones may be added.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Code {
            $(#[doc = $meaning] $name,)*
        }

        impl Code {
            /// All codes.
            pub const ALL: &'static [Code] = &[$(Code::$name),*];

            /// The word of the code: `out_of_range`.
            pub fn word(self) -> &'static str {
                match self { $(Code::$name => $word,)* }
            }

            /// Meaning, one sentence.
            pub fn meaning(self) -> &'static str {
                match self { $(Code::$name => $meaning,)* }
            }

            /// Correction, one sentence.
            pub fn fix(self) -> &'static str {
                match self { $(Code::$name => $fix,)* }
            }

            /// Names of the parameters that can stand beside it.
            pub fn params(self) -> &'static [&'static str] {
                match self { $(Code::$name => &[$($param),*],)* }
            }
        }
    };
}

codes! {
    // Members of a document, an object or a query.
    Required "required" ["expected"]
        "A required value is missing." "Give the value.";
    UnknownMember "unknown_member" ["value" "known" "meant"]
        "A member, key, option, column or field is unknown." "Correct its name or remove it.";
    Duplicate "duplicate" ["value"]
        "A name or value that must be unique is given twice." "Keep one of the two.";
    Empty "empty" []
        "A document, list or text is empty." "Give at least one value, or leave the member out.";
    ConflictingMembers "conflicting_members" ["with"]
        "Two members exclude each other." "Remove one of them.";
    MissingCounterpart "missing_counterpart" ["with"]
        "A member needs another member that is missing." "Give both, or neither.";
    NoEffect "no_effect" ["with"]
        "A member has no effect with the other members." "Remove it.";
    NotApplicable "not_applicable" ["value"]
        "A member or value does not apply to this kind of object." "Remove it, or choose a kind to which it applies.";
    ReadOnly "read_only" []
        "A member cannot be changed." "Leave it out, or create a new object.";
    Mismatch "mismatch" ["value" "expected"]
        "Two values that must be equal or consistent differ." "Change one of them.";
    // Values.
    WrongType "wrong_type" ["expected" "value"]
        "A value has another type than expected." "Give a value of the expected type.";
    OutOfRange "out_of_range" ["value" "least" "most"]
        "A number, duration or time is outside of its range." "Give a value within `least` and `most`.";
    InThePast "in_the_past" ["value"]
        "A time that must be in the future is in the past." "Give a later time.";
    Expired "expired" []
        "A claim or token has expired." "Request a new one.";
    TooLong "too_long" ["given" "limit" "unit"]
        "A text or document is longer than its limit." "Shorten it.";
    TooMany "too_many" ["given" "limit"]
        "A list or map has more entries than its limit." "Remove entries, or divide the request.";
    TooDeep "too_deep" ["limit"]
        "A document or expression is nested too deeply." "Reduce the nesting.";
    TooComplex "too_complex" ["limit"]
        "A document or expression needs more work than allowed." "Simplify it.";
    UnknownValue "unknown_value" ["value" "known" "meant"]
        "A value is not among the allowed values." "Give one of the allowed values.";
    InvalidCharacters "invalid_characters" ["value"]
        "A text has characters that are not allowed here." "Remove these characters.";
    InvalidFormat "invalid_format" ["format" "value" "expected"]
        "A value does not have its format." "Give a value of this format.";
    ReservedName "reserved_name" ["value"]
        "A name is reserved." "Choose another name.";
    EnvironmentValue "environment_value" []
        "A value from the environment does not fit; the value is not shown." "Correct the environment variable.";
    // Texts in a language.
    InvalidSyntax "invalid_syntax" ["language"]
        "A text is not valid in its language." "Correct the text at `line` and `column`.";
    InvalidExpression "invalid_expression" ["language"]
        "An expression is well-formed, but cannot be evaluated or is without effect." "Correct the expression.";
    UnknownName "unknown_name" ["value" "known" "meant" "language"]
        "An expression or template uses an unknown variable, field or function." "Correct the name.";
    TypeMismatch "type_mismatch" ["expected" "language"]
        "An operator or function does not accept the types of its operands." "Convert the operands.";
    SchemaViolation "schema_violation" []
        "A value does not match its schema." "Correct the value, or change the schema.";
    Unsupported "unsupported" ["value" "known"]
        "A feature, version or encoding is not supported." "Use a supported one.";
    RenderFailed "render_failed" []
        "A template or stylesheet fails with its values." "Correct the template, or give the missing values.";
    // References and relations.
    UnknownReference "unknown_reference" ["kind" "value" "known" "meant"]
        "A value refers to an object that does not exist." "Create the object first, or correct the reference.";
    Cyclic "cyclic" ["value"]
        "An object refers to itself, directly or through others." "Remove one reference of the cycle.";
    ConsentRequired "consent_required" []
        "The subscription needs the consent of its owner." "Request the consent, or give its proof where the class allows it.";
    NotConfirmed "not_confirmed" []
        "The code is wrong, was used too often, or its request has expired." "Request another message.";
    Conflict "conflict" []
        "The state of an object does not allow this." "Change the state first, or repeat with the current version.";
    LimitReached "limit_reached" ["limit"]
        "A limit of the application or server is reached." "Remove objects, or raise the limit.";
    // Permissions and the environment of the server.
    NotAllowed "not_allowed" ["value"]
        "The configuration of the server does not allow this." "Ask the operator to allow it in the configuration.";
    NotPermitted "not_permitted" ["value"]
        "The caller has no permission for this value." "Use another value, or a key with this permission.";
    Insecure "insecure" []
        "A setting would reveal a secret or let a message choose its receiver." "Use the secure form.";
    WeakPassword "weak_password" []
        "A password is short, common or easy to guess." "Choose a longer one of unrelated words.";
    InvalidKey "invalid_key" []
        "A cryptographic key, certificate or secret cannot be used." "Generate a new one of the expected kind.";
    Unreadable "unreadable" []
        "A file or stream cannot be read." "Check that it exists and that the server can read it.";
    ChangedWhileRead "changed_while_read" []
        "A file changed while it was read." "Write the file elsewhere and move it when it is complete.";
    DataLost "data_lost" []
        "Data of a source no longer exists and was not read." "Raise the retention of the source.";
    DamagedData "damaged_data" []
        "Stored data cannot be read." "Report it to the operator.";
    Unavailable "unavailable" []
        "A part of the server that this needs is not available." "Try again later, or enable it in the configuration.";
    Internal "internal" []
        "The server failed." "Report it with the id of the request.";
    // Schedules.
    NeverDue "never_due" []
        "A schedule has no due time, or none in the future." "Correct its dates.";
    TooFrequent "too_frequent" []
        "Due times of a schedule are too close to each other." "Raise the interval.";
    // Warnings.
    Unused "unused" []
        "A part of a definition is not used." "Use it, or remove it.";
    Inefficient "inefficient" []
        "A rule or filter is correct, but slow with many subscriptions." "Follow the advice in `message`.";
    OutsideRetention "outside_retention" []
        "A rule reads events that are no longer kept." "Raise the retention of the event class.";
    MissingTranslation "missing_translation" []
        "A template or part is missing in a language." "Add it in this language.";
    MissingPart "missing_part" []
        "No template has a part that a channel needs." "Add the part.";
    UnsafeUrl "unsafe_url" []
        "A template writes a value as an address without the filter `url`." "Apply the filter `url`.";
    // Lists.
    MoreProblems "more_problems" ["count"]
        "The list of problems is not complete." "Correct the listed problems first.";
    Unclassified "unclassified" []
        "The code is unknown to this version of the client, or the server gave none." "Read `message`.";
}

impl Serialize for Code {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.word())
    }
}

/// A code of another version is read as [`Code::Unclassified`].
impl<'de> Deserialize<'de> for Code {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let word = String::deserialize(deserializer)?;
        Ok(Code::ALL.iter().copied().find(|code| code.word() == word).unwrap_or(Code::Unclassified))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_code_has_a_word_of_its_own() {
        let words: BTreeSet<&str> = Code::ALL.iter().map(|code| code.word()).collect();
        assert_eq!(words.len(), Code::ALL.len());
        for word in words {
            assert!(word.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_'), "{word}");
        }
    }

    #[test]
    fn a_code_of_a_newer_version_can_be_read() {
        for code in Code::ALL {
            let json = serde_json::to_string(code).expect("text");
            assert_eq!(serde_json::from_str::<Code>(&json).expect("a code"), *code);
        }
        assert_eq!(serde_json::from_str::<Code>("\"from_the_future\"").expect("a code"), Code::Unclassified);
    }
}
