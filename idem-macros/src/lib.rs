//! The attribute and the derive of `idem-runtime`: entry points and their documentation.
//!
//! Use them through `idem_runtime`, which exports both.

mod derive;
mod duration;
mod errors;
mod expand;
mod model;
mod parse;

use proc_macro::TokenStream;
use proc_macro2::TokenStream as TokenStream2;
use quote::quote;

use self::errors::Errors;
use self::model::Endpoint;
use self::parse::Options;

/// Makes an actix-web handler idempotent: its effect happens once a key, every repeat gets the same
/// answer.
///
/// ```
/// use actix_web::{HttpResponse, post, web};
/// use idem_runtime::{idempotent, postgres::Tx};
/// # const INSERT_PAYMENT: &str = "INSERT INTO payments VALUES ($1, $2) RETURNING id";
/// # #[derive(Clone, idem_runtime::ScopeKey)] struct User { id: i64 }
/// # type Account = web::ReqData<User>;
/// # #[derive(serde::Deserialize)] struct NewPayment { amount: i64 }
/// # #[derive(serde::Serialize)] struct Payment { id: i64 }
/// # impl From<tokio_postgres::Row> for Payment {
/// #     fn from(row: tokio_postgres::Row) -> Self { Self { id: row.get("id") } }
/// # }
/// # type PaymentError = Box<dyn std::error::Error>;
///
/// #[post("/payments")]
/// #[idempotent(scope = account, ttl = "24h")]
/// async fn create_payment(
///     account: Account,
///     payment: web::Json<NewPayment>,
///     tx: &Tx,
/// ) -> Result<HttpResponse, PaymentError> {
///     let row = tx.query_one(INSERT_PAYMENT, &[&account.id, &payment.amount]).await?;
///     Ok(HttpResponse::Created().json(Payment::from(row)))
/// }
/// ```
///
/// The handler runs inside the transaction `tx`. An answer of 2xx or 3xx commits what it wrote,
/// together with the answer; every other answer rolls it back. A 4xx is final for its request; 408,
/// 425, 429 and 5xx free the key.
///
/// # The handler
///
/// An `async fn` of any visibility, in a module or in a function body. Its parameters are extractors,
/// taken by value, and exactly one reference: the transaction, at any position. A handler that writes
/// nothing takes `_tx: &Tx`. Patterns (`web::Json(form): web::Json<Form>`), `mut`, generics with
/// `'static` bounds and `impl Responder` work as without the attribute; `impl Trait` parameters and
/// lifetime parameters do not.
///
/// The attribute stands directly above the function. Attributes that look at the handler, such as
/// `#[post(..)]`, `#[utoipa::path(..)]` and `#[instrument]`, stand above it:
///
/// ```
/// # use actix_web::{HttpResponse, Responder, post, web};
/// # use idem_runtime::{idempotent, postgres::Tx};
/// # type Account = web::ReqData<i64>;
/// # async fn record(_: &Account, _: &Tx) -> HttpResponse { HttpResponse::Created().finish() }
/// /// Creates a payment.
/// #[utoipa::path(responses((status = 201)))]
/// #[post("/payments")]
/// #[idempotent(scope = account)]
/// async fn create_payment(account: Account, tx: &Tx) -> impl Responder {
///     record(&account, tx).await
/// }
/// ```
///
/// A parameter `web::Data<P>` where the name of `P` ends with `Pool` draws a warning: what is written
/// through it is not part of the transaction. `#[allow(deprecated)]` on the handler silences it.
///
/// # Options
///
/// ```text
/// #[idempotent( option = value, .. )]
/// ```
///
/// Each option is written at most once, in any order.
///
/// | option | value | default |
/// |---|---|---|
/// | [`scope`](#scope) | an expression, or `global` | none: it is mandatory |
/// | [`key`](#key-and-header) | `required`, `optional` or an expression | `required` |
/// | [`header`](#key-and-header) | `"Header-Name"` | `"Idempotency-Key"` |
/// | [`ttl`](#times) | a duration, at most ten years | `"24h"` |
/// | [`timeout`](#times) | a duration, at most a day | `"30s"` |
/// | [`wait`](#times) | a duration, at most five minutes | duplicates are answered 409 at once |
/// | [`operation`](#operation) | `"name"` | method and route pattern |
/// | [`fingerprint`](#fingerprint) | `raw`, or the path of a function | by meaning |
/// | [`authorize`](#authorize) | the path of a function | no check |
/// | [`commit_on`](#commit_on-and-release_on) | `[402, ..]` | 2xx and 3xx commit |
/// | [`release_on`](#commit_on-and-release_on) | `[404, ..]` | 408, 425, 429 and 5xx release |
/// | [`isolation`](#isolation) | a level, as a string | `"read committed"` |
/// | [`max_body`](#sizes), [`max_response`](#sizes) | a size | `"2MiB"`, `"1MiB"` |
/// | [`crate`](#crate) | a path | `::idem_runtime` |
///
/// ## scope
///
/// Says who owns a key: two callers who happen to choose the same key must not meet. Any expression
/// over the handler's parameters whose type implements [`ScopeKey`]:
///
/// ```
/// # use actix_web::web;
/// # use idem_runtime::{ScopeKey, idempotent, postgres::Tx};
/// # #[derive(Clone, ScopeKey)] struct User { tenant: String, id: i64 }
/// # type Account = web::ReqData<User>;
/// # #[derive(Clone)] struct Token { sub: String }
/// # impl Token { fn sub(&self) -> &str { &self.sub } }
/// # type Claims = web::ReqData<Token>;
/// #[idempotent(scope = account)]
/// # async fn by_value(account: Account, _tx: &Tx) -> String { String::new() }
/// #[idempotent(scope = account.tenant)]
/// # async fn by_field(account: Account, _tx: &Tx) -> String { String::new() }
/// #[idempotent(scope = claims.sub())]
/// # async fn by_method(claims: Claims, _tx: &Tx) -> String { String::new() }
/// #[idempotent(scope = (tenant, account.id))]
/// # async fn by_pair(tenant: web::Path<String>, account: Account, _tx: &Tx) -> String { String::new() }
/// ```
///
/// It is evaluated after extraction and before the transaction exists, by reference; nothing moves. An
/// expression that mentions no parameter is refused, because all callers would share it. `scope =
/// global` says that this is meant. The word wins over a parameter of the same name, as do `required`,
/// `optional` and `raw`.
///
/// ## key and header
///
/// `required`: a request without the header is answered 400. `optional`: such a request runs in a
/// transaction, but is not recorded. An expression takes the key from the request, where an API
/// carries it there; its type implements [`KeySource`]:
///
/// ```
/// # use actix_web::web;
/// # use idem_runtime::{idempotent, postgres::Tx};
/// # type Account = web::ReqData<i64>;
/// # #[derive(serde::Deserialize)] struct Form { idempotency_key: String }
/// #[idempotent(scope = account, header = "X-Request-Id")]
/// # async fn own_header(account: Account, _tx: &Tx) -> String { String::new() }
/// #[idempotent(scope = account, key = optional)]
/// # async fn maybe_a_key(account: Account, _tx: &Tx) -> String { String::new() }
/// #[idempotent(scope = account, key = form.idempotency_key)]
/// # async fn in_form(account: Account, form: web::Form<Form>, _tx: &Tx) -> String { String::new() }
/// ```
///
/// ## Times
///
/// A duration is a whole number above zero and one unit: `ms`, `s`, `m`, `h`, `d` or `w`.
///
/// - `ttl`: how long a key remembers. It must be longer than `timeout`.
/// - `timeout`: the deadline of one run of the handler; past it, everything is rolled back and the answer
///   is 503. Where others come first, a request's handler runs up to three times.
/// - `wait`: how long a duplicate waits for the one that runs, before it is answered 409.
///
/// ## operation
///
/// The name of what the handler does, 1 to 200 visible ASCII characters. Keys belong to an operation.
/// Without a name that is the method and the route pattern, so that a renamed route would forget its
/// keys; `operation = "payments.create"` survives. (A repeat under another *concrete* path is still
/// another request, and refused with 422.) Handlers on one route that only a guard tells apart, a host or
/// a version header for example, need names of their own, or they would answer for each other. So do
/// handlers that share a name but not the kind of their `fingerprint`.
///
/// ## fingerprint
///
/// How a repeat is told from another request under the same key, which is refused with 422. By
/// default bodies are compared by meaning: JSON without regard to member order and white space,
/// multipart without regard to the boundary. `raw` compares bytes. The path of a function compares
/// what that function returns for a [`FingerprintInput`], and nothing else. After a deploy that chooses
/// another of these three, an effect from before is replayed to whatever comes under its key, until it
/// expires, since nothing can tell any more whether it is the same request; refusals from before are
/// forgotten. One that changes the function itself has repeats of older effects refused with 422.
///
/// A function:
///
/// ```
/// # use actix_web::{HttpResponse, web};
/// # use idem_runtime::{FingerprintInput, idempotent, postgres::Tx};
/// # type Account = web::ReqData<i64>;
/// # #[derive(serde::Deserialize)] struct NewPayment { amount: i64 }
/// # async fn book(_: &i64, _: &NewPayment, _: &Tx) -> HttpResponse { HttpResponse::Created().finish() }
/// #[idempotent(scope = account, fingerprint = by_amount)]
/// async fn pay(account: Account, form: web::Json<NewPayment>, tx: &Tx) -> HttpResponse {
///     book(&account, &form, tx).await
/// }
///
/// fn by_amount(request: &FingerprintInput<'_>) -> Vec<u8> {
///     match serde_json::from_slice::<NewPayment>(request.body) {
///         Ok(payment) => payment.amount.to_be_bytes().to_vec(),
///         Err(_) => request.body.to_vec(),
///     }
/// }
/// # assert_eq!(by_amount(&FingerprintInput::new("POST", "/", b"{\"amount\": 7}")), 7_i64.to_be_bytes());
/// ```
///
/// ## authorize
///
/// The path of an async function that gets a reference to every extractor, in order, and returns
/// `Result<(), E>` with `E: Into<actix_web::Error>`. It runs before a replay as well, so that nobody
/// gets an answer back after losing the right to it:
///
/// ```
/// # use actix_web::{HttpResponse, error::ErrorForbidden, web};
/// # use idem_runtime::{ScopeKey, idempotent, postgres::Tx};
/// # #[derive(Clone, ScopeKey)] struct User { id: i64, #[scope(skip)] limit: i64 }
/// # type Account = web::ReqData<User>;
/// # #[derive(serde::Deserialize)] struct Form { amount: i64 }
/// # async fn book(_: &Account, _: &Form, _: &Tx) -> HttpResponse { HttpResponse::Created().finish() }
/// #[idempotent(scope = account, authorize = may_pay)]
/// async fn pay(account: Account, form: web::Json<Form>, tx: &Tx) -> HttpResponse {
///     book(&account, &form, tx).await
/// }
///
/// async fn may_pay(account: &Account, form: &web::Json<Form>) -> actix_web::Result<()> {
///     if form.amount > account.limit {
///         return Err(ErrorForbidden("more than this account may pay"));
///     }
///     Ok(())
/// }
/// ```
///
/// ## `commit_on` and `release_on`
///
/// Lists of refusals, statuses from 400 to 499, to treat in another way. `commit_on = [402]` keeps the
/// writes of a deliberate refusal, such as a declined attempt that is to be remembered. `release_on =
/// [404]` frees the key. 408, 425 and 429 always free it.
///
/// ## isolation
///
/// The level of the handler's transaction: `"read committed"`, `"repeatable read"` or
/// `"serializable"`.
///
/// ## Sizes
///
/// A size is a whole number above zero and one unit, `B`, `KiB` or `MiB`; at most `256MiB`.
///
/// - `max_body`: the largest request body; a larger one is answered 413.
/// - `max_response`: the largest answer that can be stored; past it, everything is rolled back and the
///   answer is 500.
///
/// ## crate
///
/// The path to `idem_runtime`, for crates that export it under another name:
/// `crate = my_framework::idem`.
///
/// # Errors
///
/// Everything that is wrong with the attribute and the function is reported at once, in source order,
/// each fault at its own place.
///
/// [`FingerprintInput`]: ../idem_runtime/struct.FingerprintInput.html
/// [`KeySource`]: ../idem_runtime/trait.KeySource.html
/// [`ScopeKey`]: ../idem_runtime/trait.ScopeKey.html
#[proc_macro_attribute]
pub fn idempotent(arguments: TokenStream, item: TokenStream) -> TokenStream {
    guard(arguments.into(), &item.into()).into()
}

/// Implements [`ScopeKey`] for a type that says who owns a key.
///
/// A struct is written as its fields, an enum as its variant's name and fields. Every field's type, and
/// every type parameter, implements `ScopeKey`.
///
/// ```
/// use idem_runtime::ScopeKey;
/// # #[derive(ScopeKey)] struct Tenant(String);
/// # struct Session;
///
/// #[derive(ScopeKey)]
/// struct Account {
///     tenant: Tenant,
///     user: i64,
///     #[scope(skip)]
///     session: Session,
/// }
///
/// #[derive(ScopeKey)]
/// enum Caller {
///     User(i64),
///     Service { name: String },
/// }
/// ```
///
/// `#[scope(skip)]` leaves a field out: two values that differ only there are the same owner.
/// `#[scope(crate = path)]` on the type names `idem_runtime` where it is exported under another name.
/// Types with one value only are refused, because every caller would share it; so are unions.
///
/// [`ScopeKey`]: ../idem_runtime/trait.ScopeKey.html
#[proc_macro_derive(ScopeKey, attributes(scope))]
pub fn derive_scope_key(item: TokenStream) -> TokenStream {
    let input = syn::parse_macro_input!(item as syn::DeriveInput);
    derive::scope_key(&input).into()
}

/// Replaces the handler. With faults, they are reported and something that compiles takes its place.
fn guard(arguments: TokenStream2, item: &TokenStream2) -> TokenStream2 {
    let mut errors = Errors::default();
    let options = Options::parse(arguments, &mut errors);
    let handler = errors.check(parse::handler(item));
    let endpoint = Endpoint::check(&options, handler.as_ref(), &mut errors);
    let expansion = endpoint.as_ref().map(expand::expand);
    let Err(errors) = errors.finish() else {
        return expansion.unwrap_or_default();
    };
    match handler {
        Some(handler) if handler.signature.receiver().is_none() => {
            let stand_in = expand::stand_in(handler, &model::krate(&options));
            quote!(#errors #stand_in)
        }
        // A method, or no function at all: there is no shape to keep.
        _ => quote!(#errors #item),
    }
}
