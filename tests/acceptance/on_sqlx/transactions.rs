//! sqlx's transaction in a handler's hands: lent as a connection or whole, nested, left open, ended behind our back.

use actix_web::{HttpResponse, web};
use idem_runtime::idempotent;
use idem_tests::{
    kinds::Kind as _,
    service::{
        Reply,
        handlers::{Account, Failure},
        script::Script,
    },
};
use reqwest::StatusCode;
use sqlx::{Connection as _, Executor, Transaction, TransactionManager};

use super::{
    Connection, Driver, Kind, routes,
    shared::{
        Database, Service, Setup, database,
        handlers::{assert_unharmed, service_with},
    },
};

const EFFECT: &str = "INSERT INTO effects (scope, note) VALUES ('s', 'own')";

type Answer = Result<HttpResponse, Failure>;

#[idempotent(scope = account)]
async fn transaction(account: Account, tx: &mut Transaction<'_, Driver>) -> Answer {
    let _ = account;
    sqlx::query(EFFECT).execute(&mut **tx).await?;
    Ok(HttpResponse::Created().finish())
}

/// Makes two effects, of which it undoes one and forgets another.
#[idempotent(scope = account)]
async fn nested(account: Account, tx: &mut Transaction<'_, Driver>) -> Answer {
    let _ = account;
    let mut inner = tx.begin().await?;
    inner.execute(EFFECT).await?;
    inner.rollback().await?;
    let mut inner = tx.begin().await?;
    inner.execute(EFFECT).await?;
    inner.commit().await?;
    // Undone with the next statement, as sqlx does it.
    let mut inner = tx.begin().await?;
    inner.execute(EFFECT).await?;
    drop(inner);
    Ok(HttpResponse::Created().finish())
}

/// Commits what is nested, and is refused all the same.
#[idempotent(scope = account)]
async fn refused(account: Account, tx: &mut Connection) -> Answer {
    let _ = account;
    let mut inner = tx.begin().await?;
    inner.execute(EFFECT).await?;
    inner.commit().await?;
    Ok(HttpResponse::PaymentRequired().finish())
}

/// Leaves a nested transaction open for good.
#[idempotent(scope = account)]
async fn forgetting(account: Account, tx: &mut Transaction<'_, Driver>) -> Answer {
    let _ = account;
    let mut inner = tx.begin().await?;
    inner.execute(EFFECT).await?;
    std::mem::forget(inner);
    Ok(HttpResponse::Created().finish())
}

/// The same, and answers a refusal.
#[idempotent(scope = account)]
async fn forgetting_and_refused(account: Account, tx: &mut Transaction<'_, Driver>) -> Answer {
    let _ = account;
    std::mem::forget(tx.begin().await?);
    Ok(HttpResponse::PaymentRequired().finish())
}

/// Ends the transaction through sqlx, which then knows of it.
#[idempotent(scope = account)]
async fn committing(account: Account, tx: &mut Connection) -> Answer {
    let _ = account;
    tx.execute(EFFECT).await?;
    <Driver as sqlx::Database>::TransactionManager::commit(tx).await?;
    Ok(HttpResponse::Created().finish())
}

fn own_routes(app: &mut web::ServiceConfig) {
    app.route("/transaction", web::post().to(transaction))
        .route("/nested", web::post().to(nested))
        .route("/refused", web::post().to(refused))
        .route("/forgetting", web::post().to(forgetting))
        .route(
            "/forgetting-refused",
            web::post().to(forgetting_and_refused),
        )
        .route("/committing", web::post().to(committing));
    routes::configure(app);
}

async fn start() -> (Database, Service) {
    let database = database();
    let setup = Setup {
        routes: own_routes,
        ..Setup::default()
    };
    let service = service_with(&database, setup).await;
    (database, service)
}

async fn post(service: &Service, path: &str) -> Reply {
    let request = service.client.request(path).key("k");
    request.script(&Script::default()).send().await
}

#[tokio::test]
async fn transaction_of_sqlx_is_lent_whole_and_ends_with_the_answer() {
    let (database, service) = start().await;
    for path in ["/transaction", "/nested"] {
        let effects = database.effects();
        post(&service, path)
            .await
            .assert(StatusCode::CREATED, false);
        post(&service, path).await.assert(StatusCode::CREATED, true);
        assert_eq!(database.effects(), effects + 1, "{path}");
    }
    assert_eq!(database.records(), 2);
    assert_unharmed(&service, &database).await;
}

#[tokio::test]
async fn what_a_handler_commits_below_its_transaction_is_undone_with_it() {
    let (database, service) = start().await;
    for replayed in [false, true] {
        let reply = post(&service, "/refused").await;
        reply.assert(StatusCode::PAYMENT_REQUIRED, replayed);
    }
    assert_eq!((database.effects(), database.records()), (0, 1));
    assert_unharmed(&service, &database).await;
}

#[tokio::test]
async fn nested_transaction_that_is_left_open_is_no_success_and_nothing_is_kept() {
    let (database, service) = start().await;
    for _ in 0..2 {
        post(&service, "/forgetting")
            .await
            .assert_problem(500, "internal");
        assert_eq!((database.effects(), database.records()), (0, 0));
    }
    // A refusal of such a handler is not kept either: nobody knows which transaction a second claim would begin in.
    for _ in 0..2 {
        let reply = post(&service, "/forgetting-refused").await;
        reply.assert_problem(500, "internal");
        assert_eq!((database.effects(), database.records()), (0, 0));
    }
    assert_unharmed(&service, &database).await;
}

/// What it has committed by itself stays, unless that was refused; but no record claims that all was well.
#[tokio::test]
async fn commit_through_sqlx_s_own_means_is_no_success_either() {
    let (database, service) = start().await;
    let reply = post(&service, "/committing").await;
    assert_eq!((reply.status, reply.is_replay()), (500, false));
    let stays = usize::from(!Kind::REFUSES_COMMITS);
    assert_eq!((database.effects(), database.records()), (stays, 0));
    assert_unharmed(&service, &database).await;
}
