//! Where the attribute can stand: below route attributes, in modules, in function bodies, on any visibility.

use actix_web::{App, Responder, post, route, web};
use idem_runtime::{idempotent, postgres::Tx};

/// Has a doc comment, which stays on the handler.
#[post("/payments")]
#[idempotent(scope = account)]
pub async fn below_a_route_attribute(account: web::Path<String>, _tx: &Tx) -> impl Responder {
    account.into_inner()
}

#[idempotent(scope = account)]
#[cfg(any())]
async fn compiled_out(account: Missing, _tx: &Tx) -> String {
    account.into_inner()
}

#[cfg(not(any()))]
#[idempotent(scope = account)]
#[inline]
#[cfg_attr(any(), doc = "never")]
#[rustfmt::skip]
async fn compiled_in(account: web::Path<String>, _tx: &Tx) -> String {
    account.into_inner()
}

mod payments {
    pub(crate) mod refunds {
        use actix_web::web;

        #[idempotent_by_another_name(scope = account)]
        pub(in crate::payments) async fn restricted(
            account: web::Path<String>,
            _tx: &idem_runtime::postgres::Tx,
        ) -> String {
            account.into_inner()
        }

        #[::idem_runtime::idempotent(scope = account)]
        pub(crate) async fn in_a_module(
            account: web::Path<String>,
            _tx: &::idem_runtime::postgres::Tx,
        ) -> String {
            account.into_inner()
        }

        use idem_runtime::idempotent as idempotent_by_another_name;
    }

    pub(crate) fn configure(config: &mut actix_web::web::ServiceConfig) {
        config.route(
            "/restricted",
            actix_web::web::post().to(refunds::restricted),
        );
    }
}

#[route("/both", method = "POST", method = "PUT")]
#[idempotent(scope = account)]
async fn below_several_methods(account: web::Path<String>, _tx: &Tx) -> String {
    account.into_inner()
}

macro_rules! handler {
    ($name:ident, $parameter:ident: $extractor:ty, $tx:ty, $body:block) => {
        #[idempotent(scope = $parameter)]
        async fn $name($parameter: $extractor, _tx: $tx) -> String $body
    };
}

handler!(from_a_macro, account: web::Path<String>, &Tx, { String::new() });

fn main() {
    #[idempotent(scope = account)]
    async fn in_a_function(account: web::Path<String>, _tx: &Tx) -> String {
        account.into_inner()
    }

    let _ = App::new()
        .service(below_a_route_attribute)
        .service(below_several_methods)
        .configure(payments::configure)
        .route("/module", web::post().to(payments::refunds::in_a_module))
        .route("/function", web::post().to(in_a_function))
        .route("/macro", web::post().to(from_a_macro))
        .service(web::resource("/resource").route(web::post().to(compiled_in)));
}
