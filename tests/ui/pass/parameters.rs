//! What the parameters can look like: patterns, order, generics, and any number of extractors.
#![deny(warnings)]

use std::marker::PhantomData;

use actix_web::{App, FromRequest, HttpRequest, HttpResponse, Responder, web};
use idem_runtime::{idempotent, postgres::Tx};
use serde::Deserialize;

#[derive(Deserialize)]
struct NewPayment {
    request_id: String,
    amount: u64,
    #[serde(skip)]
    nothing: PhantomData<()>,
}

#[idempotent(scope = global)]
async fn no_extractors(_tx: &Tx) -> impl Responder {
    HttpResponse::NoContent()
}

#[idempotent(scope = account)]
async fn transaction_first(tx: &Tx, account: web::Path<String>) -> String {
    format!("{account}{}", same(tx).is_some())
}

#[idempotent(scope = account)]
async fn transaction_in_the_middle(
    account: web::Path<String>,
    tx: &Tx,
    body: web::Bytes,
    _: HttpRequest,
) -> String {
    format!("{account}{}{}", body.len(), same(tx).is_some())
}

#[idempotent(scope = (account, amount), key = request_id)]
async fn destructured(
    account: web::Path<String>,
    web::Json(NewPayment {
        request_id,
        mut amount,
        nothing: _,
    }): web::Json<NewPayment>,
    _tx: &Tx,
) -> String {
    amount += 1;
    format!("{account}{request_id}{amount}")
}

#[idempotent(scope = account, key = form.request_id)]
async fn mutable(
    mut account: web::Path<String>,
    web::Form(ref form): web::Form<NewPayment>,
    _tx: &Tx,
) -> String {
    account.push_str(&form.request_id);
    account.into_inner()
}

#[idempotent(scope = account)]
async fn generic<E, const LIMIT: usize>(account: web::Path<String>, extra: E, _tx: &Tx) -> String
where
    E: FromRequest + 'static,
    Vec<E>: Sized,
{
    let extra = vec![extra];
    format!("{account}{}", extra.len() + LIMIT)
}

#[idempotent(scope = account)]
async fn sixteen(
    account: web::Path<String>,
    _: web::Bytes,
    _: web::Bytes,
    _: web::Bytes,
    _: web::Bytes,
    _: web::Bytes,
    _: web::Bytes,
    _: web::Bytes,
    _: web::Bytes,
    _: web::Bytes,
    _: web::Bytes,
    _: web::Bytes,
    _: web::Bytes,
    _: web::Bytes,
    _: web::Bytes,
    (_, _): (web::Bytes, web::Bytes),
    _tx: &Tx,
) -> String {
    account.into_inner()
}

fn same(tx: &Tx) -> Option<&Tx> {
    Some(tx)
}

fn main() {
    let _ = App::new()
        .route("/none", web::post().to(no_extractors))
        .route("/first", web::post().to(transaction_first))
        .route("/middle", web::post().to(transaction_in_the_middle))
        .route("/destructured", web::post().to(destructured))
        .route("/mutable", web::post().to(mutable))
        .route("/generic", web::post().to(generic::<web::Bytes, 3>))
        .route("/sixteen", web::post().to(sixteen));
}
