//! What the expansion leaves to the compiler: the types behind expressions, borrows and generics.
#![deny(warnings)]

use actix_web::{App, Error, HttpResponse, Responder, error::ErrorForbidden, web};
use idem_runtime::{idempotent, postgres::Tx};
use sqlx::{Postgres, Transaction};

trait Rules {
    async fn may(account: &str) -> Result<(), Error>;
}

trait Owned {
    fn owner(&self) -> String;
}

struct Open;

impl Rules for Open {
    async fn may(account: &str) -> Result<(), Error> {
        if account.is_empty() {
            return Err(ErrorForbidden("nobody"));
        }
        Ok(())
    }
}

async fn may(account: &str) -> Result<(), Error> {
    Open::may(account).await
}

#[idempotent(scope = account, authorize = may)]
async fn dereferenced(account: web::Path<String>, _tx: &Tx) -> String {
    account.into_inner()
}

#[idempotent(scope = account, authorize = R::may)]
async fn of_a_type_parameter<R: Rules>(account: web::Path<String>, _tx: &Tx) -> String {
    account.into_inner()
}

#[idempotent(scope = {
    let longest = |parts: &[&str]| parts.iter().map(|part| part.len()).max().unwrap_or(1);
    longest(&account.split('/').collect::<Vec<_>>())
})]
async fn computed(account: web::Path<String>, _tx: &Tx) -> String {
    account.into_inner()
}

#[idempotent(scope = owned.owner())]
async fn behind_a_trait_object(owned: web::Data<dyn Owned>, _tx: &Tx) -> String {
    owned.owner()
}

#[idempotent(scope = account)]
async fn borrowed(
    account: web::Path<String>,
    tx: &mut Transaction<'_, Postgres>,
) -> impl Responder {
    let _ = sqlx::query("SELECT 1").execute(&mut **tx).await;
    HttpResponse::Ok().body(account.into_inner())
}

fn main() {
    let _ = App::new()
        .route("/dereferenced", web::post().to(dereferenced))
        .route("/parameter", web::post().to(of_a_type_parameter::<Open>))
        .route("/computed", web::post().to(computed))
        .route("/object", web::post().to(behind_a_trait_object))
        .route("/borrowed", web::post().to(borrowed));
}
