//! What the document says about one operation under `#[idempotent]`.

use std::{collections::BTreeMap, time::Duration};

use serde_json::{Value, json};
use utoipa::openapi::{
    Components, Content, Header, HeaderBuilder, ObjectBuilder, Ref, RefOr, Required, Response,
    Schema, SchemaFormat, Type,
    example::{Example, ExampleBuilder},
    path::{Operation, Parameter, ParameterBuilder, ParameterIn},
    schema::AnyOfBuilder,
};

use crate::{
    http::{MEDIA_TYPE, Problem, ProblemKind, REPLAYED},
    model::{Fate, KeyFrom, Policy},
};

/// The component that all problem responses refer to.
const SCHEMA: &str = "IdempotencyProblem";

/// The longest value of the header: 255 characters, each of them escaped, between quotes.
const LONGEST: usize = 2 * 255 + 2;

/// A key as a header carries it: bare, or as a quoted string.
const PATTERN: &str = r#"^(?:[!#-~]{1,255}|"(?:[!#-\[\]-~]|\\["\\]){1,255}")$"#;

/// What clients that are programs read.
const EXTENSION: &str = "x-idempotency";

/// Adds to an operation what its handler's policy says, once.
pub(super) fn operation(operation: &mut Operation, policy: &Policy, components: &mut Components) {
    let extensions = operation.extensions.get_or_insert_default();
    if extensions.contains_key(EXTENSION) {
        return;
    }
    extensions.insert(EXTENSION.to_owned(), extension(policy));
    if let Some(parameter) = header(policy) {
        let parameters = operation.parameters.get_or_insert_default();
        if !parameters.iter().any(|other| is_same(other, &parameter)) {
            parameters.push(parameter.into());
        }
    }
    let schema = components.schemas.entry(SCHEMA.to_owned());
    schema.or_insert_with(|| problem_schema().into());
    let responses = &mut operation.responses.responses;
    for (status, response) in responses.iter_mut() {
        if is_stored(policy, status)
            && let Some(response) = inlined(response, components)
        {
            let headers = &mut response.headers;
            headers
                .entry(canonical(REPLAYED.0))
                .or_insert_with(|| replayed().into());
        }
    }
    for (status, problems) in problems(policy) {
        let response = responses
            .entry(status.to_string())
            .or_insert_with(|| Response::new(titles(&problems)).into());
        if let Some(response) = inlined(response, components) {
            add_problems(response, &problems);
        }
    }
}

/// The header that carries the key, unless the key stands elsewhere in the request.
fn header(policy: &Policy) -> Option<Parameter> {
    let (name, required) = match policy.key {
        KeyFrom::Header(name) => (name, Required::True),
        KeyFrom::OptionalHeader(name) => (name, Required::False),
        KeyFrom::Request => return None,
    };
    let description = match required {
        Required::True => {
            "Names this operation, so that a repeat with the same key has no second effect: "
        }
        Required::False => {
            "Names this operation, so that a repeat with the same key has no second effect; without a key a repeat runs again: "
        }
    };
    let rule = "1 to 255 visible ASCII characters, bare or in double quotes (there `\"` and `\\` are escaped). Unique to what is to be done, and the same for all its repeats.";
    let schema = ObjectBuilder::new()
        .schema_type(Type::String)
        .pattern(Some(PATTERN))
        .min_length(Some(1))
        .max_length(Some(LONGEST));
    let parameter = ParameterBuilder::new()
        .name(name)
        .parameter_in(ParameterIn::Header)
        .required(required)
        .description(Some(format!("{description}{rule}")))
        .schema(Some(schema));
    Some(parameter.build())
}

/// Whether a document cannot have both.
fn is_same(other: &RefOr<Parameter>, parameter: &Parameter) -> bool {
    match other {
        RefOr::T(other) => {
            other.parameter_in == parameter.parameter_in
                && other.name.eq_ignore_ascii_case(&parameter.name)
        }
        RefOr::Ref(_) => false,
    }
}

/// Whether an answer with this status may be stored and given again: a status, a range such as
/// `4XX`, or `default`.
fn is_stored(policy: &Policy, status: &str) -> bool {
    let is_stored = |status| policy.fate(status) != Fate::Release;
    match (status.parse(), status.strip_suffix("XX").map(str::parse)) {
        (Ok(status), _) => is_stored(status),
        (_, Some(Ok(hundreds @ 1_u16..=5))) => {
            (0..100_u16).any(|rest| is_stored(hundreds * 100 + rest))
        }
        _ => status == "default",
    }
}

/// Puts a copy in the place of a reference, since others may refer to the same. Nothing comes of a
/// reference that leads nowhere.
fn inlined<'a>(
    response: &'a mut RefOr<Response>,
    components: &Components,
) -> Option<&'a mut Response> {
    if let RefOr::Ref(reference) = response {
        let name = reference
            .ref_location
            .strip_prefix("#/components/responses/")?;
        *response = components.responses.get(name)?.clone();
    }
    match response {
        RefOr::T(response) => Some(response),
        RefOr::Ref(_) => None,
    }
}

/// The problems that this endpoint can answer with, by status.
fn problems(policy: &Policy) -> BTreeMap<u16, Vec<Problem>> {
    let mut all: BTreeMap<u16, Vec<Problem>> = BTreeMap::new();
    for kind in ProblemKind::ALL
        .iter()
        .copied()
        .filter(|kind| occurs(*kind, policy))
    {
        let problem = match (kind, policy.key) {
            (ProblemKind::KeyMissing, KeyFrom::Header(name)) => Problem::key_missing_in(name),
            _ => Problem::new(kind),
        };
        let status = problem.status().as_u16();
        all.entry(status).or_default().push(problem);
    }
    all
}

fn occurs(kind: ProblemKind, policy: &Policy) -> bool {
    let is_optional = matches!(policy.key, KeyFrom::OptionalHeader(_));
    match kind {
        ProblemKind::KeyMissing => !is_optional,
        ProblemKind::OutcomeUnknown => is_optional,
        ProblemKind::ScopeInvalid => !policy.global,
        // They answer who asks for a key's status.
        ProblemKind::KeyUnknown | ProblemKind::QueryInvalid => false,
        _ => true,
    }
}

fn titles(problems: &[Problem]) -> String {
    let titles: Vec<&str> = problems.iter().map(Problem::title).collect();
    titles.join(", or: ")
}

/// Adds problem documents to what a response may be.
fn add_problems(response: &mut Response, problems: &[Problem]) {
    let content = response.content.entry(MEDIA_TYPE.to_owned());
    let content = content.or_insert_with(|| Content::default().into());
    // Who refers to a media type elsewhere says it there.
    if let RefOr::T(content) = content {
        content.schema = Some(match content.schema.take() {
            Some(other) if other != schema() => either(other),
            _ => schema(),
        });
        if content.example.is_none() {
            let examples = problems.iter().map(|problem| {
                let name = problem.kind().name().to_owned();
                (name, RefOr::T(example(problem)))
            });
            for (name, example) in examples {
                content.examples.entry(name).or_insert(example);
            }
        }
    }
    if problems
        .iter()
        .any(|problem| problem.retry_after().is_some())
    {
        let headers = &mut response.headers;
        headers
            .entry("Retry-After".to_owned())
            .or_insert_with(|| retry_after().into());
    }
}

fn schema() -> RefOr<Schema> {
    Ref::from_schema_name(SCHEMA).into()
}

/// What another schema describes, or a problem document.
fn either(other: RefOr<Schema>) -> RefOr<Schema> {
    AnyOfBuilder::new().item(other).item(schema()).into()
}

fn problem_schema() -> ObjectBuilder {
    let types = ProblemKind::ALL.iter().map(|kind| kind.type_uri());
    let text = |description| {
        let text = ObjectBuilder::new().schema_type(Type::String);
        text.description(Some(description))
    };
    let name = text("Names the kind of problem, and stays the same over releases.")
        .format(Some(SchemaFormat::Custom("uri".to_owned())))
        .enum_values(Some(types));
    let status = ObjectBuilder::new()
        .schema_type(Type::Integer)
        .description(Some("The HTTP status."))
        .minimum(Some(400))
        .maximum(Some(599));
    ObjectBuilder::new()
        .schema_type(Type::Object)
        .description(Some(
            "A problem document (RFC 9457) about the idempotency of a request.",
        ))
        .property("type", name)
        .property("title", text("The kind of problem in a few words."))
        .property("status", status)
        .property("detail", text("What happened, and what the client can do."))
        .required("type")
        .required("title")
        .required("status")
        .required("detail")
}

fn example(problem: &Problem) -> Example {
    let document = serde_json::to_value(problem.document()).unwrap_or_default();
    let example = ExampleBuilder::new().summary(problem.title());
    example.value(Some(document)).build()
}

fn replayed() -> Header {
    let schema = ObjectBuilder::new()
        .schema_type(Type::String)
        .enum_values(Some([REPLAYED.1]));
    HeaderBuilder::new()
        .schema(Some(schema))
        .description(Some(
            "Marks the stored answer of an earlier request. Absent from the first one.",
        ))
        .build()
}

fn retry_after() -> Header {
    let schema = ObjectBuilder::new().schema_type(Type::Integer);
    HeaderBuilder::new()
        .schema(Some(schema))
        .description(Some("After how many seconds a repeat makes sense."))
        .build()
}

/// A header's name as people write it.
fn canonical(name: &str) -> String {
    let part = |part: &str| {
        let (first, rest) = part.split_at_checked(1).unwrap_or((part, ""));
        first.to_ascii_uppercase() + rest
    };
    name.split('-').map(part).collect::<Vec<_>>().join("-")
}

/// The policy for clients that are programs: `x-idempotency`.
fn extension(policy: &Policy) -> Value {
    let key = match policy.key {
        KeyFrom::Header(name) => json!({ "in": "header", "name": name, "required": true }),
        KeyFrom::OptionalHeader(name) => json!({ "in": "header", "name": name, "required": false }),
        KeyFrom::Request => json!({ "in": "request", "required": true }),
    };
    let mut extension = json!({
        "scope": if policy.global { "global" } else { "owner" },
        "key": key,
        "lifetime": duration(policy.ttl),
        "wait": duration(policy.wait),
        "statuses": statuses(policy),
    });
    if let (Some(members), Some(name)) = (extension.as_object_mut(), policy.operation) {
        members.insert("operation".to_owned(), name.into());
    }
    extension
}

/// What becomes of which status; one that is named goes before its range.
fn statuses(policy: &Policy) -> Value {
    let (mut stored, mut refused, mut released) = (Vec::new(), Vec::new(), Vec::new());
    for hundreds in 2..=5_u16 {
        let ranges = hundreds * 100..hundreds * 100 + 100;
        // What most statuses of a range become; the attribute names only some.
        let usual = Policy::new("", "").fate(hundreds * 100 + 99);
        let others = ranges.filter(|status| policy.fate(*status) != usual);
        let others = others.map(|status| (status.to_string(), policy.fate(status)));
        for (status, fate) in others.chain([(format!("{hundreds}XX"), usual)]) {
            match fate {
                Fate::Commit => stored.push(status),
                Fate::Refuse => refused.push(status),
                Fate::Release => released.push(status),
            }
        }
    }
    json!({ "stored": stored, "refused": refused, "released": released })
}

/// A length of time as ISO 8601 writes it, and in seconds.
fn duration(of: Duration) -> Value {
    let (hours, minutes, seconds) = (
        of.as_secs() / 3600,
        of.as_secs() / 60 % 60,
        of.as_secs() % 60,
    );
    let (exact, seconds) = match of.subsec_millis() {
        0 => (json!(of.as_secs()), seconds.to_string()),
        millis => {
            let seconds = format!("{seconds}.{millis:03}");
            (
                json!(of.as_secs_f64()),
                seconds.trim_end_matches('0').to_owned(),
            )
        }
    };
    let parts = [
        (hours.to_string(), "H"),
        (minutes.to_string(), "M"),
        (seconds, "S"),
    ];
    let parts = parts.iter().filter(|(number, _)| number != "0");
    let text = parts
        .flat_map(|(number, unit)| [number, *unit])
        .collect::<String>();
    let text = if text.is_empty() { "0S" } else { &text };
    json!({ "duration": format!("PT{text}"), "seconds": exact })
}

#[cfg(test)]
mod tests {
    use utoipa::openapi::{ContentBuilder, ResponseBuilder};

    use super::*;

    #[test]
    fn a_duration_is_written_as_iso_8601_writes_it() {
        for (millis, text, seconds) in [
            (86_400_000, "PT24H", json!(86400)),
            (5_400_000, "PT1H30M", json!(5400)),
            (65_000, "PT1M5S", json!(65)),
            (1_500, "PT1.5S", json!(1.5)),
            (60_250, "PT1M0.25S", json!(60.25)),
            (0, "PT0S", json!(0)),
        ] {
            let duration = duration(Duration::from_millis(millis));
            assert_eq!(duration, json!({ "duration": text, "seconds": seconds }));
        }
    }

    #[test]
    fn the_attribute_s_own_statuses_stand_beside_the_ranges() {
        let usual = statuses(&Policy::new("h", "f"));
        assert_eq!(
            usual,
            json!({
                "stored": ["2XX", "3XX"],
                "refused": ["4XX"],
                "released": ["408", "425", "429", "5XX"],
            })
        );
        let policy = Policy::new("h", "f")
            .commit_on(&[402, 408])
            .release_on(&[404]);
        assert_eq!(
            statuses(&policy),
            json!({
                "stored": ["2XX", "3XX", "402", "408"],
                "refused": ["4XX"],
                "released": ["404", "425", "429", "5XX"],
            })
        );
    }

    #[test]
    fn the_component_is_the_published_schema() {
        let published = include_str!("../../../docs/problem.schema.json");
        let published: Value = serde_json::from_str(published).unwrap();
        let component = serde_json::to_value(problem_schema().build()).unwrap();
        assert_eq!(component["properties"], published["properties"]);
        assert_eq!(component["required"], published["required"]);
    }

    #[test]
    fn the_pattern_takes_what_the_runtime_takes_as_a_key() {
        use crate::model::Key;

        let pattern = proptest::string::string_regex(PATTERN.trim_matches(['^', '$'])).unwrap();
        let mut runner = proptest::test_runner::TestRunner::default();
        let taken = runner.run(&pattern, |value| {
            proptest::prop_assert!(Key::from_header(value.as_bytes()).is_ok(), "{}", value);
            Ok(())
        });
        taken.unwrap();
        let longest = format!("\"{}\"", "\\\\".repeat(255));
        assert_eq!(longest.len(), LONGEST);
        assert!(Key::from_header(longest.as_bytes()).is_ok());
        // Samples seldom come near the limit.
        assert_eq!(PATTERN.matches("{1,255}").count(), 2);
        assert!(Key::new(&"k".repeat(256)).is_err());
    }

    fn described(responses: &[(&str, RefOr<Response>)], components: Components) -> Value {
        static POLICY: Policy = Policy::new("h", "f").release_on(&[404]);
        let (mut documented, mut components) = (Operation::new(), components);
        for (status, response) in responses {
            let responses = &mut documented.responses.responses;
            responses.insert((*status).to_owned(), response.clone());
        }
        operation(&mut documented, &POLICY, &mut components);
        let once = serde_json::to_value(&documented).unwrap();
        operation(&mut documented, &POLICY, &mut components);
        assert_eq!(
            serde_json::to_value(&documented).unwrap(),
            once,
            "said twice"
        );
        once
    }

    #[test]
    fn only_answers_that_are_stored_can_be_marked_as_repeats() {
        let all = [
            "200", "303", "402", "404", "425", "500", "2XX", "4XX", "5XX", "default",
        ];
        let own = all.map(|status| (status, Response::new("own").into()));
        let operation = described(&own, Components::new());
        let marked: Vec<&str> = all
            .into_iter()
            .filter(|status| {
                !operation["responses"][*status]["headers"]["Idempotent-Replayed"].is_null()
            })
            .collect();
        assert_eq!(marked, ["200", "303", "402", "2XX", "4XX", "default"]);
        assert!(
            operation["responses"]["422"]["headers"].is_null(),
            "{operation}"
        );
    }

    #[test]
    fn what_an_operation_says_itself_stays() {
        let text = ObjectBuilder::new().schema_type(Type::String).build();
        let content = |example| {
            let content = ContentBuilder::new().schema(Some(text.clone()));
            content.example(example).build()
        };
        let shared = ResponseBuilder::new()
            .description("shared")
            .content("application/json", content(None))
            .build();
        let mut components = Components::new();
        components
            .responses
            .insert("Busy".to_owned(), shared.into());
        let own = ResponseBuilder::new()
            .description("own")
            .content(MEDIA_TYPE, content(Some("mine".into())));
        let operation = described(
            &[
                ("409", Ref::from_response_name("Busy").into()),
                ("422", own.build().into()),
                ("413", Ref::new("elsewhere.json").into()),
            ],
            components,
        );
        let responses = &operation["responses"];
        assert_eq!(responses["409"]["description"], "shared");
        assert_eq!(
            responses["409"]["content"]["application/json"]["schema"]["type"],
            "string"
        );
        assert!(responses["409"]["content"][MEDIA_TYPE]["examples"]["in-progress"].is_object());
        let both = &responses["422"]["content"][MEDIA_TYPE];
        assert_eq!(both["schema"]["anyOf"][0]["type"], "string");
        assert_eq!(
            both["schema"]["anyOf"][1]["$ref"],
            "#/components/schemas/IdempotencyProblem"
        );
        assert_eq!(
            (&both["example"], &both["examples"]),
            (&json!("mine"), &Value::Null)
        );
        assert_eq!(responses["413"], json!({ "$ref": "elsewhere.json" }));
    }
}
