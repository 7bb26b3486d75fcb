//! Every answer of the framework's own: an RFC 9457 problem document.

use std::{borrow::Cow, fmt};

use actix_web::{HttpResponse, http::StatusCode, http::header};
use serde::Serialize;

use crate::model::InvalidKey;

macro_rules! kinds {
    ($(#[$about:meta])* pub enum $name:ident { $($(#[$meaning:meta])* $kind:ident,)+ }) => {
        $(#[$about])*
        pub enum $name {
            $($(#[$meaning])* $kind,)+
        }

        impl $name {
            /// All kinds, for a service that documents them.
            pub const ALL: &[Self] = &[$(Self::$kind),+];
        }
    };
}

kinds! {
    /// Says what kind of problem an answer of the framework reports.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    #[non_exhaustive]
    pub enum ProblemKind {
        /// The request carries no idempotency key (400).
        KeyMissing,
        /// The idempotency key is malformed, or given twice (400).
        KeyInvalid,
        /// The owner of the key, as the request names it, is empty or longer than 512 bytes (400).
        ScopeInvalid,
        /// A question for a key's status that cannot be understood (400).
        QueryInvalid,
        /// The body ended early or cannot be decoded (400).
        BodyIncomplete,
        /// Nothing is known under the key that was asked for (404).
        KeyUnknown,
        /// The body did not arrive in time (408).
        BodyTimeout,
        /// A request with this key is being processed (409).
        InProgress,
        /// The body is longer than the endpoint takes (413).
        BodyTooLarge,
        /// The body's content encoding is not supported (415).
        EncodingUnsupported,
        /// The key was used for another request (422).
        KeyReused,
        /// The handler gave no usable answer, or the service is set up wrongly (500). The log says
        /// which.
        Internal,
        /// The commit of a request without a key is in doubt (500). With a key it would be found out.
        OutcomeUnknown,
        /// The handler did not answer in time (503).
        HandlerTimeout,
        /// The store is unreachable or busy (503).
        StoreUnavailable,
    }
}

/// The media type of problem documents.
pub(crate) const MEDIA_TYPE: &str = "application/problem+json";

/// Holds one problem, as the renderer gets it.
///
/// Nothing in it comes from the request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    kind: ProblemKind,
    detail: Cow<'static, str>,
}

/// Holds a problem as it is sent.
#[derive(Serialize)]
pub(crate) struct Document<'a> {
    r#type: String,
    title: &'a str,
    status: u16,
    detail: &'a str,
}

impl ProblemKind {
    /// The status, the name at the end of the type, the title, the usual detail, and the seconds
    /// after which a repeat makes sense.
    #[expect(clippy::too_many_lines, reason = "a table: one row a kind")]
    fn row(
        self,
    ) -> (
        StatusCode,
        &'static str,
        &'static str,
        &'static str,
        Option<u32>,
    ) {
        match self {
            Self::KeyMissing => (
                StatusCode::BAD_REQUEST,
                "key-missing",
                "Idempotency key missing",
                "This operation needs an idempotency key in the request, unique to what is to be done and the same for all its repeats.",
                None,
            ),
            Self::KeyInvalid => (
                StatusCode::BAD_REQUEST,
                "key-invalid",
                "Idempotency key malformed",
                "An idempotency key is 1 to 255 visible ASCII characters, bare or in double quotes.",
                None,
            ),
            Self::ScopeInvalid => (
                StatusCode::BAD_REQUEST,
                "scope-invalid",
                "Owner of the idempotency key invalid",
                "What the request names as the owner of its idempotency key is empty or longer than 512 bytes.",
                None,
            ),
            Self::QueryInvalid => (
                StatusCode::BAD_REQUEST,
                "query-invalid",
                "Question not understood",
                "The path ends with the operation and the key, each percent-encoded, and the one parameter is `answer`, `true` or `false`.",
                None,
            ),
            Self::BodyIncomplete => (
                StatusCode::BAD_REQUEST,
                "body-incomplete",
                "Request body incomplete",
                "The request's body ended before its announced length, or cannot be decoded.",
                None,
            ),
            Self::KeyUnknown => (
                StatusCode::NOT_FOUND,
                "key-unknown",
                "Nothing known under this key",
                "No request of yours with this idempotency key runs or has left a record: none has arrived, it was undone, or its record has come to its end.",
                None,
            ),
            Self::BodyTimeout => (
                StatusCode::REQUEST_TIMEOUT,
                "body-timeout",
                "Request body too slow",
                "The request's body did not arrive in time. Nothing was executed: repeat the request with the same key.",
                None,
            ),
            Self::InProgress => (
                StatusCode::CONFLICT,
                "in-progress",
                "Request in progress",
                "A request with this idempotency key is being processed. Repeat it later, with the same key, to get its answer.",
                Some(1),
            ),
            Self::BodyTooLarge => (
                StatusCode::PAYLOAD_TOO_LARGE,
                "body-too-large",
                "Request body too large",
                "The request's body, or what it decodes to, is longer than this operation takes.",
                None,
            ),
            Self::EncodingUnsupported => (
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "encoding-unsupported",
                "Content encoding not supported",
                "The request's Content-Encoding is not supported by this operation.",
                None,
            ),
            Self::KeyReused => (
                StatusCode::UNPROCESSABLE_ENTITY,
                "key-reused",
                "Idempotency key used for another request",
                "This idempotency key belongs to another request. Nothing was executed: make a new key for a new operation.",
                None,
            ),
            Self::Internal => (
                StatusCode::INTERNAL_SERVER_ERROR,
                "internal",
                "Operation failed",
                "The operation failed inside the service. Nothing is recorded under the key: a repeat runs again.",
                None,
            ),
            Self::OutcomeUnknown => (
                StatusCode::INTERNAL_SERVER_ERROR,
                "outcome-unknown",
                "Outcome unknown",
                "The operation may or may not have taken effect. Without an idempotency key, a repeat may execute it a second time.",
                None,
            ),
            Self::HandlerTimeout => (
                StatusCode::SERVICE_UNAVAILABLE,
                "handler-timeout",
                "Operation took too long",
                "The operation took too long and was undone. A repeat with the same key is safe.",
                Some(1),
            ),
            Self::StoreUnavailable => (
                StatusCode::SERVICE_UNAVAILABLE,
                "store-unavailable",
                "Store unavailable",
                "The service's store is unreachable or busy. A repeat with the same key is safe.",
                Some(1),
            ),
        }
    }
}

impl ProblemKind {
    /// The name at the end of the type, such as `key-missing`; that of its section in the framework's
    /// `docs/problems.md`.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.row().1
    }

    /// The HTTP status of the answer.
    #[must_use]
    pub fn status(self) -> StatusCode {
        self.row().0
    }

    /// The kind in a few words.
    #[must_use]
    pub fn title(self) -> &'static str {
        self.row().2
    }

    /// The URI that names the kind in a problem document; it stays the same over releases.
    #[must_use]
    pub fn type_uri(self) -> String {
        format!("urn:problem-type:idempotency:{}", self.name())
    }
}

impl Problem {
    pub(crate) fn new(kind: ProblemKind) -> Self {
        Self {
            kind,
            detail: Cow::Borrowed(kind.row().3),
        }
    }

    pub(crate) fn key_missing_in(header: &str) -> Self {
        let detail = format!(
            "This operation needs an idempotency key in the header `{header}`, unique to what is to be done and the same for all its repeats."
        );
        Self {
            kind: ProblemKind::KeyMissing,
            detail: Cow::Owned(detail),
        }
    }

    pub(crate) fn invalid_key(reason: InvalidKey) -> Self {
        Self {
            kind: ProblemKind::KeyInvalid,
            detail: Cow::Owned(reason.to_string()),
        }
    }

    pub(crate) fn key_given_twice() -> Self {
        let detail = "The request carries more than one idempotency key.";
        Self {
            kind: ProblemKind::KeyInvalid,
            detail: Cow::Borrowed(detail),
        }
    }

    /// What kind of problem it is.
    #[must_use]
    pub fn kind(&self) -> ProblemKind {
        self.kind
    }

    /// The HTTP status of the answer.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        self.kind.status()
    }

    /// The problem's type: a URI that names the kind and stays the same over releases.
    #[must_use]
    pub fn type_uri(&self) -> String {
        self.kind.type_uri()
    }

    /// The kind in a few words.
    #[must_use]
    pub fn title(&self) -> &'static str {
        self.kind.title()
    }

    /// What happened and what the client can do, in a sentence or two.
    #[must_use]
    pub fn detail(&self) -> &str {
        &self.detail
    }

    /// The seconds after which a repeat makes sense, for the `Retry-After` header.
    #[must_use]
    pub fn retry_after(&self) -> Option<u32> {
        self.kind.row().4
    }

    /// The members of the problem document.
    pub(crate) fn document(&self) -> Document<'_> {
        Document {
            r#type: self.type_uri(),
            title: self.title(),
            status: self.status().as_u16(),
            detail: self.detail(),
        }
    }

    /// Renders the problem as `application/problem+json`.
    #[must_use]
    pub fn to_response(&self) -> HttpResponse {
        let mut response = HttpResponse::build(self.status());
        response.insert_header((header::CONTENT_TYPE, MEDIA_TYPE));
        if let Some(seconds) = self.retry_after() {
            response.insert_header((header::RETRY_AFTER, seconds.to_string()));
        }
        if matches!(
            self.kind,
            ProblemKind::BodyTimeout | ProblemKind::BodyTooLarge
        ) {
            // The rest of the body is not read.
            response.force_close();
        }
        response.body(serde_json::to_vec(&self.document()).unwrap_or_default())
    }
}

/// A problem with the usual detail, for the tests of a renderer.
impl From<ProblemKind> for Problem {
    fn from(kind: ProblemKind) -> Self {
        Self::new(kind)
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.title(), self.detail)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_its_section_in_the_documentation_and_its_place_in_the_schema() {
        let sections = include_str!("../../../docs/problems.md").lines();
        let mut sections: Vec<&str> = sections
            .filter_map(|line| line.strip_prefix("## "))
            .collect();
        let schema = include_str!("../../../docs/problem.schema.json");
        let schema: serde_json::Value = serde_json::from_str(schema).unwrap();
        let types = schema["properties"]["type"]["enum"].as_array().unwrap();
        let mut types: Vec<&str> = types.iter().map(|name| name.as_str().unwrap()).collect();
        let mut names: Vec<&str> = ProblemKind::ALL.iter().map(|kind| kind.name()).collect();
        let mut uris: Vec<String> = ProblemKind::ALL
            .iter()
            .map(|kind| kind.type_uri())
            .collect();
        for list in [&mut sections, &mut types, &mut names] {
            list.sort_unstable();
        }
        uris.sort_unstable();
        assert_eq!(sections, names);
        assert_eq!(types, uris);
    }

    #[test]
    fn every_document_is_what_the_schema_says() {
        let schema = include_str!("../../../docs/problem.schema.json");
        let schema: serde_json::Value = serde_json::from_str(schema).unwrap();
        let required = schema["required"].as_array().unwrap();
        for kind in ProblemKind::ALL.iter().copied() {
            let document = serde_json::to_value(Problem::new(kind).document()).unwrap();
            let members = document.as_object().unwrap();
            assert_eq!(members.len(), required.len(), "{kind:?}");
            for member in required {
                let member = member.as_str().unwrap();
                let is_integer = schema["properties"][member]["type"] == "integer";
                assert_eq!(document[member].is_u64(), is_integer, "{kind:?} {member}");
                assert_eq!(
                    document[member].is_string(),
                    !is_integer,
                    "{kind:?} {member}"
                );
            }
        }
    }

    #[test]
    fn only_answers_that_are_worth_a_repeat_carry_retry_after() {
        for (kind, retry) in [
            (ProblemKind::InProgress, true),
            (ProblemKind::StoreUnavailable, true),
            (ProblemKind::HandlerTimeout, true),
            (ProblemKind::KeyReused, false),
            (ProblemKind::KeyMissing, false),
        ] {
            let response = Problem::new(kind).to_response();
            assert_eq!(
                response.headers().contains_key(header::RETRY_AFTER),
                retry,
                "{kind:?}"
            );
            assert_eq!(
                response.headers().get(header::CONTENT_TYPE).unwrap(),
                "application/problem+json"
            );
        }
    }
}
