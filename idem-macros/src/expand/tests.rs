//! Snapshots of what the attribute expands to, and what the expansion may never name.

use std::collections::HashSet;

use proc_macro2::{TokenStream, TokenTree};

fn expand(arguments: &str, item: &str) -> TokenStream {
    crate::guard(arguments.parse().unwrap(), &item.parse().unwrap())
}

fn pretty(arguments: &str, item: &str) -> String {
    prettyplease::unparse(&syn::parse2(expand(arguments, item)).unwrap())
}

#[test]
fn smallest_handler() {
    insta::assert_snapshot!(pretty(
        "scope = global",
        "async fn ping(_tx: &Tx) -> String { body() }"
    ));
}

#[test]
fn everyday_handler() {
    insta::assert_snapshot!(pretty(
        r#"scope = account, ttl = "24h""#,
        "/// Creates a payment.
        pub async fn create_payment(
            account: Account,
            payment: web::Json<NewPayment>,
            tx: &Tx,
        ) -> Result<HttpResponse, PaymentError> {
            let row = tx.query_one(INSERT_PAYMENT, &[&account.id]).await?;
            Ok(HttpResponse::Created().json(Payment::from(row)))
        }",
    ));
}

#[test]
fn every_option() {
    insta::assert_snapshot!(pretty(
        r#"scope = account, ttl = "7d", key = optional, header = "X-Request-Id",
           operation = "payments.create", fingerprint = by_amount, wait = "5s", timeout = "10s",
           authorize = rules::may_pay, commit_on = [402], release_on = [404, 409],
           isolation = "repeatable read", max_body = "1MiB", max_response = "64KiB",
           crate = framework::idem"#,
        "async fn pay(account: Account, tx: &Tx) -> String { body() }",
    ));
}

#[test]
fn tuple_scope_and_key_from_a_destructured_form() {
    insta::assert_snapshot!(pretty(
        "scope = (account.tenant, (account.user, &region)), key = form.request_id, fingerprint = raw",
        "async fn pay(
            mut account: Account,
            web::Json(ref form): web::Json<NewPayment>,
            web::Path((region, ref mut rest)): web::Path<(String, String)>,
            tx: &Tx,
        ) -> impl Responder { body() }",
    ));
}

#[test]
fn transaction_between_extractors() {
    insta::assert_snapshot!(pretty(
        "scope = a",
        "async fn pay(a: A, tx: &Tx, b: B) { body() }",
    ));
}

#[test]
fn transaction_with_lifetimes_inside() {
    insta::assert_snapshot!(pretty(
        "scope = a",
        "async fn pay(a: A, tx: &mut Transaction<'_, Postgres>) -> String { body() }",
    ));
}

#[test]
fn generic_handler() {
    insta::assert_snapshot!(pretty(
        "scope = a.0 + 1",
        "pub(crate) async fn pay<E: FromRequest + 'static, const N: usize>(a: A, e: E, tx: &Tx) -> String
        where
            E: Clone,
        { body() }",
    ));
}

#[test]
fn pools_beside_the_transaction() {
    insta::assert_snapshot!(pretty(
        "scope = a",
        "async fn pay(a: A, p: web::Data<PgPool>, q: Data<deadpool_postgres::Pool>, r: web::Data<Config>, tx: &Tx) { body() }",
    ));
}

#[test]
fn handler_with_a_fault() {
    insta::assert_snapshot!(pretty(
        "scope = acount",
        "#[inline]
        pub async fn pay<E: FromRequest>(account: Account, e: E, tx: &Tx) -> String { body() }",
    ));
}

/// Generated code decides nothing: apart from the user's tokens it holds paths into the private
/// module, names of its own, and the words listed here.
#[test]
fn expansion_names_only_the_private_module() {
    const WORDS: &[&str] = &[
        "allow",
        "async",
        "await",
        "concat",
        "core",
        "file",
        "fn",
        "idem_runtime",
        "key_from_request",
        "line",
        "module_path",
        "static",
        "unused_variables",
        "_",
    ];
    let arguments = r#"scope = (account.tenant, form.amount), ttl = "7d", key = form.request_id,
        operation = "payments.create", fingerprint = raw, wait = "5s", timeout = "10s",
        authorize = may_pay, commit_on = [402], release_on = [404], isolation = "serializable",
        max_body = "1MiB", max_response = "64KiB""#;
    let item = "async fn pay(account: Account, form: Form, tx: &Tx) -> Answer {}";
    let written = words(format!("{arguments} {item}").parse().unwrap());
    let written: HashSet<&String> = written.iter().collect();

    let generated = words(expand(arguments, item));
    let mut before = ["", "", ""];
    for word in &generated {
        let known = WORDS.contains(&&**word)
            || word.starts_with("__idem_")
            || word == "__IDEM_POLICY"
            || written.contains(word)
            || (word == "__private" && before[2] == "idem_runtime")
            || before.contains(&"__private");
        assert!(known, "`{word}` after {before:?}");
        before = [before[1], before[2], word];
    }
    let ours = generated.iter().zip(generated.iter().skip(1));
    for (_, next) in ours.filter(|(word, _)| *word == "idem_runtime") {
        assert_eq!(next, "__private", "one way into the runtime");
    }
    for banned in ["match", "if", "loop", "SELECT", "INSERT", "Idempotency"] {
        assert!(
            !generated.iter().any(|word| word == banned),
            "`{banned}` was generated"
        );
    }
}

/// All identifiers, in order.
fn words(tokens: TokenStream) -> Vec<String> {
    tokens
        .into_iter()
        .flat_map(|token| match token {
            TokenTree::Ident(word) => vec![word.to_string()],
            TokenTree::Group(group) => words(group.stream()),
            TokenTree::Punct(_) | TokenTree::Literal(_) => Vec::new(),
        })
        .collect()
}
