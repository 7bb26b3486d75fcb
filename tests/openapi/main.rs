//! What an OpenAPI document says about guarded handlers, and that it says nothing about others.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unused_async,
    clippy::unwrap_used,
    reason = "what the tests share fails as the tests themselves do, and handlers that do nothing wait for nothing"
)]

mod handlers;

use actix_web::App;
use idem_runtime::openapi::Idempotent;
use serde_json::{Value, json};
use utoipa::{Modify, OpenApi};
use utoipa_actix_web::AppExt;

#[derive(OpenApi)]
#[openapi(
    paths(
        handlers::payments::create,
        handlers::refunds::create,
        handlers::reports::create,
        handlers::with_key_in_the_body,
        handlers::with_an_optional_key,
        handlers::of_everybody,
        handlers::with_an_id_of_its_own,
        handlers::that_is_generic,
        handlers::that_is_not_guarded,
        handlers::replace,
    ),
    modifiers(&Idempotent)
)]
struct Api;

fn document() -> Value {
    serde_json::to_value(Api::openapi()).unwrap()
}

fn operation<'a>(document: &'a Value, method: &str, path: &str) -> &'a Value {
    let operation = &document["paths"][path][method];
    assert!(operation.is_object(), "no {method} {path} in {document}");
    operation
}

#[test]
fn guarded_operation_tells_its_key_its_lifetime_and_its_answers() {
    let document = document();
    let pay = operation(&document, "post", "/payments");
    let key = &pay["parameters"][0];
    assert_eq!(key["name"], "Idempotency-Key");
    assert_eq!(
        (&key["in"], &key["required"]),
        (&json!("header"), &json!(true))
    );
    assert_eq!(key["schema"]["minLength"], 1);
    assert_eq!(
        pay["x-idempotency"],
        json!({
            "scope": "owner",
            "key": { "in": "header", "name": "Idempotency-Key", "required": true },
            "lifetime": { "duration": "PT168H", "seconds": 604_800 },
            "wait": { "duration": "PT5S", "seconds": 5 },
            "statuses": {
                "stored": ["2XX", "3XX", "402"],
                "refused": ["4XX"],
                "released": ["408", "425", "429", "5XX"],
            },
        })
    );
    for (status, kinds) in [
        (
            "400",
            &[
                "key-missing",
                "key-invalid",
                "scope-invalid",
                "body-incomplete",
            ][..],
        ),
        ("408", &["body-timeout"]),
        ("409", &["in-progress"]),
        ("413", &["body-too-large"]),
        ("415", &["encoding-unsupported"]),
        ("422", &["key-reused"]),
        ("500", &["internal"]),
        ("503", &["handler-timeout", "store-unavailable"]),
    ] {
        let content = &pay["responses"][status]["content"]["application/problem+json"];
        assert_eq!(
            content["schema"]["$ref"],
            "#/components/schemas/IdempotencyProblem"
        );
        let examples = content["examples"].as_object().unwrap();
        let mut kinds = kinds.to_vec();
        kinds.sort_unstable();
        assert_eq!(examples.keys().collect::<Vec<_>>(), kinds, "{status}");
        for (kind, example) in examples {
            let uri = format!("urn:problem-type:idempotency:{kind}");
            assert_eq!(example["value"]["type"], uri);
            assert_eq!(example["value"]["status"].to_string(), status);
        }
    }
    let retry = |status: &str| !pay["responses"][status]["headers"]["Retry-After"].is_null();
    assert_eq!(["409", "503", "422"].map(retry), [true, true, false]);
}

#[test]
fn own_answers_stay_and_carry_the_marker_of_a_repeat() {
    let document = document();
    let responses = &operation(&document, "post", "/payments")["responses"];
    let marked = |status: &str| !responses[status]["headers"]["Idempotent-Replayed"].is_null();
    assert_eq!(
        ["201", "409", "422", "503"].map(marked),
        [true, true, false, false]
    );
    assert_eq!(responses["201"]["description"], "paid");
    // What the handler answers under the same status stands beside the problem.
    assert_eq!(responses["409"]["description"], "the account is closed");
    let types = responses["409"]["content"].as_object().unwrap();
    assert_eq!(types.len(), 2, "{types:?}");
}

#[test]
fn handlers_of_one_name_are_told_apart_and_others_left_alone() {
    let document = document();
    let lifetime = |path| &operation(&document, "post", path)["x-idempotency"]["lifetime"];
    assert_eq!(lifetime("/payments")["duration"], "PT168H");
    assert_eq!(lifetime("/refunds")["duration"], "PT24H");
    for (method, path) in [
        ("post", "/reports"),
        ("post", "/unguarded"),
        ("get", "/replace"),
    ] {
        let other = operation(&document, method, path);
        let added = ["x-idempotency", "parameters"].map(|member| !other[member].is_null());
        assert_eq!(added, [false, false], "{path}");
        assert_eq!(other["responses"].as_object().unwrap().len(), 1, "{path}");
    }
}

#[test]
fn what_differs_between_attributes_differs_in_the_document() {
    let document = document();
    let with = |path: &str| &document["paths"][path]["post"];

    let body = with("/body");
    assert_eq!(body["parameters"], Value::Null);
    assert_eq!(
        body["x-idempotency"]["key"],
        json!({ "in": "request", "required": true })
    );
    let problems = |path: &str, status: &str| {
        let content = &with(path)["responses"][status]["content"]["application/problem+json"];
        let examples = content["examples"].as_object().unwrap();
        examples.keys().map(String::clone).collect::<Vec<_>>()
    };
    assert!(problems("/body", "400").contains(&"key-missing".to_owned()));

    let optional = with("/optional");
    assert_eq!(optional["parameters"][0]["name"], "X-Request-Id");
    assert_eq!(optional["parameters"][0]["required"], false);
    assert!(!problems("/optional", "400").contains(&"key-missing".to_owned()));
    assert_eq!(
        problems("/optional", "500"),
        ["internal", "outcome-unknown"]
    );

    assert_eq!(with("/everybody")["x-idempotency"]["scope"], "global");
    assert!(!problems("/everybody", "400").contains(&"scope-invalid".to_owned()));

    let named = with("/named");
    assert_eq!(named["operationId"], "orders.place");
    assert_eq!(named["x-idempotency"]["operation"], "orders.place");
    assert_eq!(
        with("/generic")["x-idempotency"]["lifetime"]["duration"],
        "PT1H"
    );
}

#[test]
fn document_of_utoipa_actix_web_says_the_same() {
    let app = App::new().into_utoipa_app();
    let scope = utoipa_actix_web::scope("/v1").service(handlers::with_an_optional_key);
    let app = app.service(scope).service(handlers::that_is_not_guarded);
    let (_, mut document) = app.split_for_parts();
    Idempotent.modify(&mut document);
    let document = serde_json::to_value(document).unwrap();
    let optional = operation(&document, "post", "/v1/optional");
    assert_eq!(optional["x-idempotency"]["key"]["name"], "X-Request-Id");
    assert_eq!(
        operation(&document, "post", "/unguarded")["x-idempotency"],
        Value::Null
    );
}

#[test]
fn handler_in_a_function_s_body_is_known() {
    use actix_web::{HttpResponse, post};
    use idem_runtime::{idempotent, postgres::Tx};

    #[utoipa::path(responses((status = 200, description = "done")))]
    #[post("/inside")]
    #[idempotent(scope = global, ttl = "90s")]
    #[allow(
        clippy::unused_async,
        reason = "a handler is asynchronous, whatever it does"
    )]
    async fn inside(_tx: &Tx) -> HttpResponse {
        HttpResponse::Ok().finish()
    }

    #[derive(OpenApi)]
    #[openapi(paths(inside), modifiers(&Idempotent))]
    struct Inside;

    let document = serde_json::to_value(Inside::openapi()).unwrap();
    let documented = operation(&document, "post", "/inside");
    assert_eq!(
        documented["x-idempotency"]["lifetime"]["duration"],
        "PT1M30S"
    );
}
