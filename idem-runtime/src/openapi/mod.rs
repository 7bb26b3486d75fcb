//! Adds to an OpenAPI document what `#[idempotent]` says about its operations.

mod describe;
mod matching;

use utoipa::{
    Modify,
    openapi::{OpenApi, Paths, path::Operation},
};

use self::matching::{Documented, Match};
use crate::model::Policy;

/// Adds to a document what clients have to know of each operation under `#[idempotent]`: the key's
/// header, the framework's own answers, the marker of a repeat, and `x-idempotency`, which says who
/// owns the key, how long it lives and what becomes of which status.
///
/// ```
/// use actix_web::{HttpResponse, post, web};
/// use idem_runtime::{idempotent, openapi::Idempotent, postgres::Tx};
/// use utoipa::OpenApi;
///
/// #[utoipa::path(responses((status = 201, description = "The order is placed.")))]
/// #[post("/orders")]
/// #[idempotent(scope = account, ttl = "24h")]
/// async fn place_order(account: web::ReqData<String>, _tx: &Tx) -> HttpResponse {
///     HttpResponse::Created().body(account.into_inner())
/// }
///
/// #[derive(OpenApi)]
/// #[openapi(paths(place_order), modifiers(&Idempotent))]
/// struct Api;
///
/// let document = serde_json::to_value(Api::openapi()).unwrap();
/// let operation = &document["paths"]["/orders"]["post"];
/// assert_eq!(operation["parameters"][0]["name"], "Idempotency-Key");
/// assert_eq!(operation["x-idempotency"]["lifetime"]["seconds"], 86400);
/// assert!(operation["responses"]["422"].is_object());
/// ```
///
/// With utoipa-actix-web, call `modify` on the document that `split_for_parts` returns.
///
/// # Which operation is which handler
///
/// utoipa's operation id is the name of the handler's function, and every guarded handler is known
/// by its name and module. Where a name is not enough (another handler has it too), the operation's
/// tag decides, if it is the handler's module, as utoipa's own tags are. An id of your own
/// (`operation_id = "payments.create"`) is found where the attribute has the same one:
/// `operation = "payments.create"`. That one decides alone, so it is also the way out where the log
/// says that an operation could not be told. (Do not *change* `operation` for it in a service that
/// runs: the records that are there would not be found any more.)
///
/// Nothing is said about an operation that is not certain, nor about one without the attribute.
///
/// # What a document already says
///
/// stays. A status that an operation documents itself gets the problem document as one more content
/// type, or as one more possible schema. A header parameter of the same name is left as it is. A
/// service with a renderer of its own (`Builder::render`) registers its document's schema as the
/// component `IdempotencyProblem`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Idempotent;

/// Makes a policy known to this process; written by generated code.
#[derive(Debug)]
pub struct Registered(pub &'static Policy);

inventory::collect!(Registered);

impl Modify for Idempotent {
    fn modify(&self, openapi: &mut OpenApi) {
        let policies = inventory::iter::<Registered>();
        let policies: Vec<&'static Policy> = policies.map(|registered| registered.0).collect();
        let components = openapi.components.get_or_insert_default();
        let mut operations = operations(&mut openapi.paths);
        let documented: Vec<Documented> = operations
            .iter()
            .map(|(path, operation)| Documented::new(path, operation))
            .collect();
        let matches = matching::all(&documented, &policies);
        for ((path, operation), found) in operations.iter_mut().zip(matches) {
            match found {
                Match::Handler(policy) => describe::operation(operation, policy, components),
                Match::None => {}
                Match::Uncertain(handlers) => tracing::warn!(
                    path,
                    operation = operation.operation_id,
                    handlers,
                    "the OpenAPI document does not say whether this operation is idempotent, since \
                     a guarded handler of its name may be another one: give both one name, \
                     `operation_id = \"..\"` in `#[utoipa::path]` and `operation = \"..\"` in \
                     `#[idempotent]`"
                ),
            }
        }
    }
}

/// The operations that may change something, each with its path. The attribute has no place on
/// others: the runtime refuses to run them.
fn operations(paths: &mut Paths) -> Vec<(&str, &mut Operation)> {
    let mut all = Vec::new();
    for (path, item) in &mut paths.paths {
        let others = item.additional_operations.values_mut();
        let operations = [
            &mut item.post,
            &mut item.put,
            &mut item.patch,
            &mut item.delete,
        ];
        let operations = operations.into_iter().flatten().chain(others);
        all.extend(operations.map(|operation| (path.as_str(), operation)));
    }
    all
}
