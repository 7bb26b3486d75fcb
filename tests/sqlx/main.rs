//! The two backends on sqlx, over real databases: what is their own, beside the promise that all backends share.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "what the tests share fails as the tests themselves do"
)]

mod postgres;
mod sqlite;

use actix_web::{
    Error, HttpResponse,
    body::MessageBody,
    dev::{Service, ServiceResponse},
    http::StatusCode,
    test::{self, TestRequest},
};
use serde::{Deserialize, Serialize};

/// Says what a handler does.
#[derive(Clone, Debug, Deserialize, Serialize)]
struct Script {
    /// Statements, one after the other; what fails is passed over.
    sql: Vec<String>,
    /// How long it sleeps after them.
    #[serde(default)]
    sleep: u64,
    status: u16,
}

impl Script {
    fn new<const N: usize>(status: u16, sql: [&str; N]) -> Self {
        Self {
            sql: sql.map(str::to_owned).to_vec(),
            sleep: 0,
            status,
        }
    }

    /// Makes an effect and answers.
    fn effect(status: u16) -> Self {
        Self::new(status, ["INSERT INTO effects VALUES ('one')"])
    }

    /// Sleeps, and gives the answer; it never is the same.
    async fn answer(&self) -> HttpResponse {
        tokio::time::sleep(std::time::Duration::from_millis(self.sleep)).await;
        static RUNS: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
        let run = RUNS.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        HttpResponse::build(StatusCode::from_u16(self.status).unwrap()).body(run.to_string())
    }
}

/// What a request was answered.
#[derive(Debug, PartialEq, Eq)]
struct Reply {
    status: u16,
    body: String,
    replayed: bool,
    retry_after: bool,
}

async fn post<B: MessageBody>(
    app: &impl Service<actix_http::Request, Response = ServiceResponse<B>, Error = Error>,
    path: &str,
    key: &str,
    script: &Script,
) -> Reply {
    let request = TestRequest::post()
        .uri(path)
        .insert_header(("idempotency-key", key))
        .set_json(script);
    let response = test::call_service(app, request.to_request()).await;
    let header = |name: &str| response.headers().contains_key(name);
    Reply {
        status: response.status().as_u16(),
        replayed: header("idempotent-replayed"),
        retry_after: header("retry-after"),
        body: String::from_utf8(test::read_body(response).await.to_vec()).unwrap(),
    }
}

/// A handler for each way in which a transaction is lent, and the routes to them.
macro_rules! handlers {
    ($database:ty, $connection:ty) => {
        use actix_web::{HttpResponse, web};
        use idem_runtime::idempotent;
        use sqlx::{Acquire, Executor, Transaction};

        use super::{Script, post};

        #[idempotent(scope = global, operation = "connection", timeout = "1s")]
        async fn connection(script: web::Json<Script>, tx: &mut $connection) -> HttpResponse {
            for sql in &script.sql {
                let _ = tx.execute(&**sql).await;
            }
            script.answer().await
        }

        #[idempotent(scope = global, operation = "transaction", timeout = "1s")]
        async fn transaction(
            tx: &mut Transaction<'_, $database>,
            script: web::Json<Script>,
        ) -> HttpResponse {
            for sql in &script.sql {
                let _ = tx.execute(&**sql).await;
            }
            script.answer().await
        }

        /// Makes an effect that it undoes again, by what sqlx calls a nested transaction.
        #[idempotent(scope = global, operation = "nested", timeout = "1s")]
        async fn nested(
            script: web::Json<Script>,
            tx: &mut Transaction<'_, $database>,
        ) -> HttpResponse {
            let mut inner = tx.begin().await.unwrap();
            inner
                .execute("INSERT INTO effects VALUES ('undone')")
                .await
                .unwrap();
            inner.rollback().await.unwrap();
            let mut inner = tx.begin().await.unwrap();
            for sql in &script.sql {
                inner.execute(&**sql).await.unwrap();
            }
            inner.commit().await.unwrap();
            script.answer().await
        }

        /// Leaves a nested transaction open for good.
        #[idempotent(scope = global, operation = "leaking", timeout = "1s")]
        async fn leaking(
            script: web::Json<Script>,
            tx: &mut Transaction<'_, $database>,
        ) -> HttpResponse {
            let mut inner = tx.begin().await.unwrap();
            for sql in &script.sql {
                inner.execute(&**sql).await.unwrap();
            }
            std::mem::forget(inner);
            script.answer().await
        }

        /// Commits through sqlx, behind the runtime's back.
        #[idempotent(scope = global, operation = "committing", timeout = "1s")]
        async fn committing(script: web::Json<Script>, tx: &mut $connection) -> HttpResponse {
            use sqlx::TransactionManager;

            type Manager = <$database as sqlx::Database>::TransactionManager;
            Manager::commit(tx).await.unwrap();
            for sql in &script.sql {
                let _ = tx.execute(&**sql).await;
            }
            script.answer().await
        }

        #[idempotent(scope = global, key = optional, timeout = "1s")]
        async fn unkeyed(script: web::Json<Script>, tx: &mut $connection) -> HttpResponse {
            for sql in &script.sql {
                let _ = tx.execute(&**sql).await;
            }
            script.answer().await
        }

        fn routes(config: &mut web::ServiceConfig) {
            config
                .route("/connection", web::post().to(connection))
                .route("/transaction", web::post().to(transaction))
                .route("/nested", web::post().to(nested))
                .route("/leaking", web::post().to(leaking))
                .route("/committing", web::post().to(committing))
                .route("/unkeyed", web::post().to(unkeyed));
        }
    };
}
use handlers;
